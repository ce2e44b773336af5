"""After a save that fails, a process ends within seconds, by whatever the disk lacks."""

import re
import subprocess
import time

import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from tests import runs


@pytest.fixture
def disk(tmp_path, request):
  """A small disk in memory."""
  place = tmp_path / "disk"
  place.mkdir()
  mount = ["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(place)]
  if subprocess.run(mount, capture_output=True, check=False).returncode:
    pytest.skip("mounting a small disk needs more rights")
  yield place
  subprocess.run(["umount", "-l", str(place)], check=True)


SIZES = ["size=10m,nr_inodes=60", "size=10m,nr_inodes=25", "size=200k", "size=600k"]


@pytest.mark.slow
@pytest.mark.parametrize("disk", SIZES, indirect=True)
def test_full_disk_ends_the_process_within_seconds(disk, tmp_path):
  config = runs.config(runs.write_data(tmp_path), disk / "run", epochs=2000, save_every=1, keep=9)
  process = runs.launch(config)
  out, begin = "", None
  for line in process.stderr:
    out += line
    begin = begin or time.monotonic()
  code = process.wait(timeout=60)
  process.stdout.close()
  process.stderr.close()
  assert code == 4, out
  assert begin is not None
  assert time.monotonic() - begin < 20
  assert re.fullmatch(r"error: cannot (write|go on) .*: No space left on device.*\n", out)


@pytest.mark.slow
def test_folder_that_goes_during_a_save_ends_the_process_within_seconds(tmp_path):
  """As where the right to write is taken away, which does not bind the tests' own user."""
  config = runs.config(runs.write_data(tmp_path), tmp_path / "run", epochs=100_000, save_every=1)
  process = runs.launch(config)
  checkpoints = tmp_path / "run" / "checkpoints"
  end = time.monotonic() + 120
  # Between two saves Orbax would make the folder anew, and the run would go on.
  while not list(checkpoints.glob("*tmp*")) and process.poll() is None:
    assert time.monotonic() < end
  checkpoints.rename(tmp_path / "gone")
  begin = time.monotonic()
  code, _, errors = runs.finish(process, timeout=60)
  assert code == 4, errors
  assert time.monotonic() - begin < 20
  assert re.fullmatch("error: cannot .*\n", errors)
