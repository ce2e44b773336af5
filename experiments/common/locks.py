"""One process at a time in a folder."""

import contextlib
import fcntl
import os
from pathlib import Path


class LockedError(OSError):
  """Another process has locked the folder."""


class FolderLock:
  """A lock on a folder, which ends with the process that holds it, however that ends.

  What is locked is the folder itself: there is no file in it that could be deleted, or be a link
  to somewhere else. Where the file system locks files only, as NFS does, the file `name` stands
  for the folder.

  Args:
    folder: The folder, which must exist.
    name: Name of the file that says who holds the lock, see `tell`.
    wait: Whether to wait for a process that holds the lock.

  Raises:
    LockedError: If another process holds the lock.
    OSError: If the folder cannot be locked.
  """

  def __init__(self, folder: Path, name: str = "lock", *, wait: bool = False):
    self._file = folder / name
    self._descriptors: list[int] = []
    operation = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    try:
      try:
        fcntl.flock(self._open(folder, os.O_RDONLY | os.O_DIRECTORY), operation)
      except BlockingIOError:
        raise
      except OSError:
        fcntl.flock(self._open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW), operation)
    except BlockingIOError as error:
      self.close()
      raise LockedError(self._holder()) from error
    except OSError:
      self.close()
      raise

  def tell(self, holder: str) -> None:
    """Writes who holds the lock, for the errors of others; a full disk does no harm.

    Args:
      holder: This process, in words.
    """
    with contextlib.suppress(OSError):
      flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
      os.write(self._open(self._file, flags), holder.encode())

  def close(self) -> None:
    """Lets another process have the folder."""
    while self._descriptors:
      os.close(self._descriptors.pop())

  def _open(self, path: Path, flags: int) -> int:
    self._descriptors.append(os.open(path, flags | os.O_CLOEXEC, 0o666))
    return self._descriptors[-1]

  def _holder(self) -> str:
    try:
      with open(os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        return stream.read(200).decode(errors="replace").strip() or "unknown"
    except OSError:
      return "unknown"
