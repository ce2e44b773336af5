"""A lock is on the folder, not on a file that can be a link or be deleted."""

import errno
import fcntl
import threading

import pytest

from experiments.common.files import sweep
from experiments.common.locks import FolderLock, LockedError


def test_one_at_a_time(tmp_path):
  first = FolderLock(tmp_path)
  first.tell("somebody")
  with pytest.raises(LockedError, match="somebody"):
    FolderLock(tmp_path)
  (tmp_path / "lock").unlink()
  with pytest.raises(LockedError, match="unknown"):
    FolderLock(tmp_path)
  first.close()
  FolderLock(tmp_path).close()
  assert list(tmp_path.iterdir()) == []


def test_link_in_place_of_the_lock_is_not_followed(tmp_path):
  target, folder = tmp_path / "mine.txt", tmp_path / "run"
  folder.mkdir()
  target.write_text("mine")
  (folder / "lock").symlink_to(target)
  lock = FolderLock(folder)
  lock.tell("somebody")
  with pytest.raises(LockedError, match="unknown"):
    FolderLock(folder)
  lock.close()
  assert target.read_text() == "mine"


def test_file_stands_for_a_folder_that_cannot_be_locked(tmp_path, monkeypatch):
  """As on NFS."""
  flock, tried = fcntl.flock, []

  def refuse_folders(descriptor, operation):
    tried.append(descriptor)
    if len(tried) % 2:
      raise OSError(errno.EBADF, "Bad file descriptor")
    flock(descriptor, operation)

  monkeypatch.setattr(fcntl, "flock", refuse_folders)
  first = FolderLock(tmp_path)
  first.tell("somebody")
  with pytest.raises(LockedError, match="somebody"):
    FolderLock(tmp_path)
  first.close()
  FolderLock(tmp_path).close()


def test_waits_for_the_other(tmp_path):
  first = FolderLock(tmp_path)
  done = threading.Event()

  def wait():
    FolderLock(tmp_path, wait=True).close()
    done.set()

  thread = threading.Thread(target=wait)
  thread.start()
  assert not done.wait(0.1)
  first.close()
  assert done.wait(10)
  thread.join()


def test_what_killed_writers_left_is_swept(tmp_path):
  for name in (".a.json.123", ".a.json.x", ".b.json.1", "a.json"):
    (tmp_path / name).write_text("")
  sweep(tmp_path / "a.json")
  assert sorted(path.name for path in tmp_path.iterdir()) == [".a.json.x", ".b.json.1", "a.json"]
