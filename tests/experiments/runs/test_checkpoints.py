"""A checkpoint is restored as it was saved, or not at all."""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import threading
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")

from experiments import UsageError
from experiments.common import digests as module
from experiments.common.files import write_atomically
from experiments.engine.layout import Layout
from experiments.engine.step import TrainState
from experiments.runs.checkpoints import Checkpoints, SaveError
from experiments.runs.record import DamagedError
from tests.runs import ROOT


def make_state(seed, size=40):
  """A state of every kind of leaf that there is."""
  rng = np.random.default_rng(seed)
  params = {
    "conv": {"kernel": rng.normal(size=(3, 3, 2, size)), "bias": rng.normal(size=size)},
    "balance": rng.normal(size=()),
  }
  params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
  optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(lambda count: 0.1, 0.9))
  opt_state = optimizer.init(params)
  opt_state = optimizer.update(params, opt_state, params)[1]
  return TrainState(
    step=jnp.asarray(seed, jnp.int32),
    seed=jnp.asarray(2**32 - 1 - seed, jnp.uint32),
    params=params,
    batch_stats={"bn": {"mean": jnp.asarray(rng.normal(size=5), jnp.bfloat16)}},
    opt_state=opt_state,
  )


SHAPES = jax.eval_shape(lambda: make_state(0))


def store(folder, steps=(1, 2, 3), scores=None, **options):
  """A folder with checkpoints."""
  checkpoints = Checkpoints(folder, Layout(), **options)
  for step in steps:
    score = None if scores is None else scores[step]
    checkpoints.save(step, make_state(step), {"rows": [step, 0.1 + step]}, score)
  checkpoints.close()
  return checkpoints


def restore(folder, step=None, **options):
  checkpoints = Checkpoints(folder, Layout(), **options)
  try:
    return checkpoints.restore(SHAPES, step)
  finally:
    checkpoints.close()


def assert_is(restored, step):
  assert restored.step == step
  assert restored.record == {"rows": [step, 0.1 + step]}
  wanted = make_state(step)
  assert jax.tree.structure(restored.state) == jax.tree.structure(wanted)
  for got, want in zip(jax.tree.leaves(restored.state), jax.tree.leaves(wanted), strict=True):
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_newest_comes_back_as_it_was(tmp_path, asynchronous):
  store(tmp_path, asynchronous=asynchronous)
  restored = restore(tmp_path)
  assert_is(restored, 3)
  assert restored.faults == ()
  assert_is(restore(tmp_path, 2), 2)


def test_nothing_comes_of_an_empty_folder(tmp_path):
  assert restore(tmp_path / "new") is None


def test_newest_and_best_are_kept(tmp_path):
  scores = {1: 0.1, 2: 0.8, 3: 0.3, 4: 0.4, 5: None, 6: 0.2}
  checkpoints = store(tmp_path, scores, scores)
  assert checkpoints.steps == [2, 5, 6]
  again = Checkpoints(tmp_path, Layout(), keep=2)
  assert again.restore(SHAPES).step == 6
  assert again.best_step == 2
  again.save(7, make_state(7), {}, 0.8)  # as good, and newer
  again.wait()
  assert again.best_step == 7
  again.save(8, make_state(8), {}, 0.5)
  again.close()
  assert again.steps == [7, 8]
  assert sorted(path.name for path in (tmp_path / "digests").iterdir()) == [
    "7.sha256",
    "8.sha256",
  ]


def test_state_may_change_as_soon_as_save_returns(tmp_path):
  checkpoints = Checkpoints(tmp_path, Layout())
  state = jax.jit(lambda: make_state(3, size=100_000))()
  wanted = jax.tree.map(np.array, state)
  double = jax.jit(lambda tree: jax.tree.map(lambda x: x + x, tree), donate_argnums=0)
  checkpoints.save(1, state, {}, None)
  for _ in range(5):
    state = double(state)
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), wanted)
  checkpoints.close()
  again = Checkpoints(tmp_path, Layout())
  chex.assert_trees_all_equal(again.restore(shapes).state, wanted)
  again.close()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
  folder = tmp_path_factory.mktemp("stored")
  store(folder)
  return folder


def flip(file, part=0.5):
  content = bytearray(file.read_bytes())
  content[int(part * len(content))] ^= 0x10
  file.write_bytes(content)


def truncate(file):
  file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGE = {
  "flip": flip,
  "truncate": truncate,
  "delete": os.remove,
  "empty": lambda file: file.write_bytes(b""),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_damaged_file_is_named_and_the_one_before_is_taken(stored, tmp_path, kind):
  root = stored / "checkpoints" / "3"
  files = [path.relative_to(stored) for path in sorted(root.rglob("*")) if path.is_file()]
  assert len(files) > 10
  for number, file in enumerate(files):
    if not (stored / file).stat().st_size and kind != "delete":
      continue
    folder = tmp_path / str(number)
    shutil.copytree(stored, folder)
    DAMAGE[kind](folder / file)
    restored = restore(folder)
    assert_is(restored, 2)
    (fault,) = restored.faults
    assert str(file.relative_to("checkpoints")) in fault
    assert (folder / "damaged" / "3").is_dir()
    assert not (folder / "checkpoints" / "3").exists()


def test_flipped_byte_is_found_by_the_digest_of_the_arrays_alone(stored, tmp_path):
  """As in a checkpoint whose run was killed before the digests of its files were written."""
  root = stored / "checkpoints" / "3" / "state" / "ocdbt.process_0" / "d"
  files = sorted(root.iterdir(), key=lambda path: path.stat().st_size)
  faults = []
  for file in files:
    for part in (0.25, 0.5, 0.75):
      folder = tmp_path / file.name / str(part)
      shutil.copytree(stored, folder)
      (folder / "digests" / "3.sha256").unlink()
      flip(folder / file.relative_to(stored), part)
      restored = restore(folder)
      assert_is(restored, restored.step)  # a byte that means nothing may go unseen
      faults.append(" ".join(restored.faults))
  assert all("3/state/ does not have the SHA-256 it was saved with" in f for f in faults[-3:])


def test_checkpoint_without_digests_of_its_files_is_good(stored, tmp_path):
  shutil.copytree(stored, tmp_path / "a")
  (tmp_path / "a" / "digests" / "3.sha256").unlink()
  assert_is(restore(tmp_path / "a"), 3)


def test_steps_after_a_fallback_are_saved_again(stored, tmp_path):
  folder = tmp_path / "a"
  shutil.copytree(stored, folder)
  flip(folder / "checkpoints" / "3" / "state" / "manifest.ocdbt")
  checkpoints = Checkpoints(folder, Layout())
  assert checkpoints.restore(SHAPES).step == 2
  checkpoints.save(3, make_state(3), {"rows": [3, 3.1]}, None)
  checkpoints.close()
  assert_is(restore(folder), 3)


def test_damage_all_over_is_an_error_that_names_it(stored, tmp_path):
  folder = tmp_path / "a"
  shutil.copytree(stored, folder)
  for step in ("2", "3"):
    truncate(folder / "checkpoints" / step / "record" / "metadata")
  with pytest.raises(DamagedError, match=r"(?s)3/record/metadata.*\n.*2/record/metadata"):
    restore(folder)
  assert sorted(path.name for path in (folder / "checkpoints").glob("[0-9]*")) == ["2", "3"]


def test_reading_alone_changes_nothing(stored, tmp_path):
  folder = tmp_path / "a"
  shutil.copytree(stored, folder)
  flip(folder / "checkpoints" / "3" / "state" / "manifest.ocdbt")
  before = sorted(folder.rglob("*"))
  assert_is(restore(folder, read_only=True), 2)
  assert sorted(folder.rglob("*")) == before


def test_unfinished_save_is_swept_away(stored, tmp_path):
  folder = tmp_path / "a"
  shutil.copytree(stored, folder)
  (folder / "checkpoints" / "3").rename(folder / "checkpoints" / "4.orbax-checkpoint-tmp")
  assert_is(restore(folder), 2)
  assert not (folder / "checkpoints" / "4.orbax-checkpoint-tmp").exists()


def test_other_shapes_are_refused(stored):
  shapes = jax.eval_shape(lambda: make_state(0, size=41))
  checkpoints = Checkpoints(stored, Layout(), read_only=True)
  message = r"is of another network: .*conv/bias was float32\[40\], now float32\[41\]"
  with pytest.raises(UsageError, match=message):
    checkpoints.restore(shapes)
  checkpoints.close()


FULL = """
import resource, sys
import numpy as np
from tests.experiments.runs.test_checkpoints import (
  Checkpoints, Layout, SaveError, make_state, restore, assert_is, store
)
from pathlib import Path
folder = Path(sys.argv[1])
store(folder, (1, 2))
checkpoints = Checkpoints(folder, Layout())
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
  checkpoints.save(3, make_state(3, size=100_000), {}, None)
  checkpoints.wait()
except SaveError as error:
  print("told:", error)
try:
  checkpoints.close()
except SaveError as error:
  print("again:", error)
assert_is(restore(folder), 2)
print(sorted(path.name for path in (folder / "checkpoints").iterdir()))
"""


def test_file_that_cannot_be_written_is_told_with_its_cause(tmp_path):
  """A limit on the size of files stands for a full disk, which takes a mount to make."""
  done = subprocess.run(
    [sys.executable, "-c", FULL, str(tmp_path / "run")],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert "told: cannot write the checkpoint of step 3 to" in done.stdout
  assert "File too large; complete checkpoints, as they were: 1, 2" in done.stdout
  assert done.stdout.endswith("['1', '2']\n")
  assert done.stderr == ""


def test_what_threads_write_after_a_failed_save_is_discarded(tmp_path):
  store(tmp_path, (9, 10))
  left = tmp_path / "checkpoints" / "11.orbax-checkpoint-tmp" / "state"

  def write():
    for _ in range(10):
      with contextlib.suppress(OSError):  # it, or its parent, is being removed just now
        left.mkdir(parents=True, exist_ok=True)
      time.sleep(0.05)

  thread = threading.Thread(target=write)

  def fail():
    left.mkdir(parents=True)
    thread.start()
    raise OSError(28, "No space left on device")

  checkpoints = Checkpoints(tmp_path, Layout())
  message = "No space left on device; complete checkpoints, as they were: 9, 10$"
  with pytest.raises(SaveError, match=message):
    checkpoints._try(fail, 11)
  thread.join()
  checkpoints.close()
  assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "9"]


def test_full_disk_is_told_with_its_cause(tmp_path):
  disk = tmp_path / "disk"
  disk.mkdir()
  mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
  if subprocess.run(mount, capture_output=True, check=False).returncode:
    pytest.skip("mounting a small disk needs more rights")
  try:
    store(disk / "run", (1, 2))
    checkpoints = Checkpoints(disk / "run", Layout(), asynchronous=False)
    with pytest.raises(
      SaveError,
      match=r"checkpoint of step 3 .*No space left on device; complete checkpoints, .*: 1, 2",
    ):
      checkpoints.save(3, make_state(3, size=100_000), {}, None)
    checkpoints.close()
    assert_is(restore(disk / "run"), 2)
  finally:
    subprocess.run(["umount", str(disk)], check=True)


def test_digest_tells_names_types_shapes_values_and_text_apart():
  base = {"a": np.arange(6, dtype=np.float32), "b": np.zeros(2, np.int32)}
  others = [
    base | {"a": base["a"].reshape(2, 3)},
    base | {"a": base["a"].view(np.int32)},
    base | {"a": -base["a"]},
    {"a": base["a"], "c": base["b"]},
    {"a": base["a"]},
  ]
  digests = [module.digest(tree, "x") for tree in [base, *others]] + [module.digest(base, "y")]
  assert len(set(digests)) == len(digests)
  assert module.digest({"b": base["b"], "a": np.array(base["a"])}, "x") == digests[0]


def test_file_is_replaced_whole_or_not_at_all(tmp_path):
  file = tmp_path / "file"
  write_atomically(file, "before")
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
  try:
    with pytest.raises(OSError, match="File too large"):
      write_atomically(file, "after " * 100)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  assert file.read_text() == "before"
  assert [path.name for path in tmp_path.iterdir()] == ["file"]
