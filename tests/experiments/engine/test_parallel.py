"""Several devices and several processes give what one device gives."""

import dataclasses
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from rich.console import Console

from experiments import UsageError
from experiments.engine.layout import Layout
from experiments.engine.processes import ParallelConfig
from experiments.runs import run
from experiments.runs.checkpoints import Checkpoints
from tests import runs


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp("data"))


def double(data, out, model="resnet8", **changes):
  """A run in float64, in which nothing is lost but the order of additions.

  The kernel is Gaussian for LeNet-5: the compiler, at the effort of these tests, loses the place of
  the maximum in a window of a polynomial kernel's outputs.
  """
  config = runs.config(data, out, model=model, epochs=2, batch_size=16)
  kernel = "gaussian" if model == "lenet5" else "polynomial"
  options = dataclasses.replace(config.model, dtype="float64", kernel=kernel)
  return dataclasses.replace(config, model=options, **changes)


def rows(folder):
  return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def assert_close(folder, other):
  """The same metrics to 1e-12, but for what counts examples, which is the same."""
  assert len(rows(folder)) == len(rows(other))
  for row, wanted in zip(rows(folder), rows(other), strict=True):
    assert row == pytest.approx(wanted, rel=1e-12, abs=1e-12)
    assert row["test_accuracy"] == wanted["test_accuracy"]
  assert rows(folder)[0]["train_loss"] > 0.01


@pytest.fixture(scope="module")
def one_device(data, tmp_path_factory):
  """The folder of a run on one device, by the network."""
  folders = {}

  def folder(model):
    if model not in folders:
      folders[model] = tmp_path_factory.mktemp(model)
      train(double(data, folders[model], model))
    return folders[model]

  return folder


def train(config):
  buffer = io.StringIO()
  with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
    run.train(config, console=Console(file=buffer))
  return buffer.getvalue()


@pytest.mark.parametrize(
  "shard", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "sharded"]
)
def test_eight_devices_are_one(one_device, data, tmp_path, shard):
  config = double(data, tmp_path, parallel=ParallelConfig(shard_params=shard))
  process = runs.launch(config, x64=True, devices=8)
  code, printed, errors = runs.finish(process)
  assert (code, errors) == (0, ""), printed
  assert json.loads((tmp_path / "manifest.json").read_text())["launches"][0]["device_count"] == 8
  assert_close(tmp_path, one_device("resnet8"))


def free_port():
  with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    return listener.getsockname()[1]


def launch_two(config, devices=1, second=None):
  """The run in two processes on the loopback address, the second with its own configuration."""
  address = f"127.0.0.1:{free_port()}"
  return [
    runs.launch(
      dataclasses.replace(
        own,
        parallel=dataclasses.replace(
          own.parallel, coordinator=address, processes=2, process=number
        ),
      ),
      x64=True,
      devices=devices,
    )
    for number, own in enumerate((config, second or config))
  ]


@pytest.mark.parametrize("model", ["lenet5", pytest.param("resnet8", marks=pytest.mark.slow)])
def test_two_processes_are_one(one_device, data, tmp_path, model):
  """Each with two devices, and parameters that no process holds whole; goes on on one device."""
  config = double(data, tmp_path, model, parallel=ParallelConfig(shard_params=True))
  half = dataclasses.replace(config, run=dataclasses.replace(config.run, stop_after=1))
  ends = [runs.finish(process) for process in launch_two(half, devices=2)]
  assert [code for code, _, _ in ends] == [0, 0], ends
  # Gloo writes to the same stream, its lines mixed with one another.
  assert "paused after step 3" in ends[0][1]
  assert not re.search("step|epoch", ends[1][1]), ends[1][1]
  assert "goes on from step 3" in train(double(data, tmp_path, model))
  assert_close(tmp_path, one_device(model))


@pytest.mark.parametrize(
  "lost", [pytest.param(0, marks=pytest.mark.slow), 1], ids=["coordinator", "worker"]
)
def test_lost_process_ends_the_others_within_a_minute(data, tmp_path, lost):
  config = dataclasses.replace(double(data, tmp_path, model="lenet5"), epochs=100_000)
  processes = launch_two(config)
  wait_for(processes, tmp_path / "checkpoints", "[0-9]*")
  processes[lost].kill()
  begin = time.monotonic()
  code, _, errors = runs.finish(processes[1 - lost])
  assert time.monotonic() - begin < 60
  assert code == 5, errors
  assert "error: another process of this run was lost" in errors  # with JAX's own lines before it
  runs.finish(processes[lost])


@pytest.mark.parametrize("fault", ["data", "seed"])
def test_process_that_cannot_start_ends_the_others_in_order(data, tmp_path, fault):
  config = double(data, tmp_path / "run", model="lenet5")
  wrong = dataclasses.replace(config, seed=config.seed + 1)
  if fault == "data":
    wrong = dataclasses.replace(config, data=dataclasses.replace(config.data, name="no.npz"))
  ends = [runs.finish(process) for process in launch_two(config, second=wrong)]
  assert [code for code, _, _ in ends] == [2, 2], ends
  told = {
    "data": ["another process cannot start", "no.npz"],
    "seed": ["`--seed` is 3 in process 0 and 4 in process 1"] * 2,
  }
  for (_, _, errors), words in zip(ends, told[fault], strict=True):
    assert errors.startswith("error: ")
    assert words in errors
    assert errors.count("\n") == 1
  assert not (tmp_path / "run" / "config.json").exists()


def wait_for(processes, folder, pattern, seconds=180):
  end = time.monotonic() + seconds
  while not list(folder.glob(pattern)):
    assert time.monotonic() < end
    for process in processes:
      assert process.poll() is None, process.communicate()
    time.sleep(0.01)


@pytest.mark.slow
def test_process_that_hangs_ends_the_others_within_a_minute(data, tmp_path):
  config = dataclasses.replace(double(data, tmp_path, model="lenet5"), epochs=100_000)
  processes = launch_two(config)
  wait_for(processes, tmp_path / "checkpoints", "[0-9]*")
  processes[1].send_signal(signal.SIGSTOP)
  begin = time.monotonic()
  code, _, errors = runs.finish(processes[0])
  assert time.monotonic() - begin < 60
  assert code == 5, errors
  assert "error: another process of this run was lost" in errors
  processes[1].kill()
  processes[1].communicate()


@pytest.mark.slow
def test_signal_to_one_process_ends_both_in_order(data, tmp_path):
  config = dataclasses.replace(double(data, tmp_path, model="lenet5"), epochs=100_000)
  processes = launch_two(config)
  wait_for(processes, tmp_path / "checkpoints", "[0-9]*")
  processes[1].send_signal(signal.SIGTERM)
  ends = [runs.finish(process) for process in processes]
  assert [code for code, _, _ in ends] == [75, 75], ends
  assert "stopped after step" in ends[0][1]


# Within this process


def test_options_go_together():
  for config, message in [
    (ParallelConfig(devices=0), "`--parallel.devices` must be at least 1, got 0"),
    (ParallelConfig(coordinator="a:1"), "must be given together"),
    (
      ParallelConfig(coordinator="a:1", processes=2, process=2),
      "`--parallel.process` must be from 0 to 1, got 2",
    ),
    (
      ParallelConfig(coordinator="a:1", processes=0, process=0),
      "`--parallel.processes` must be at least 1, got 0",
    ),
  ]:
    with pytest.raises(UsageError, match=message):
      config.check()
  ParallelConfig(coordinator="a:1", processes=2, process=1).check()


@pytest.mark.parametrize(
  ("config", "environment", "several"),
  [
    (ParallelConfig(), {}, False),
    (ParallelConfig(), {"SLURM_STEP_NUM_TASKS": "1"}, False),
    (ParallelConfig(), {"SLURM_STEP_NUM_TASKS": "2"}, True),
    (ParallelConfig(), {"OMPI_COMM_WORLD_SIZE": "4"}, True),
    (ParallelConfig(distributed="no"), {"OMPI_COMM_WORLD_SIZE": "4"}, False),
    (ParallelConfig(distributed="yes"), {}, True),
    (ParallelConfig(coordinator="a:1", processes=2, process=1), {}, True),
  ],
)
def test_several_processes_are_seen(config, environment, several):
  assert config.several(environment) == several


def test_more_devices_than_there_are_are_refused():
  with pytest.raises(UsageError, match=r"`--parallel.devices` must be at most 1, .*got 2"):
    Layout.of(ParallelConfig(devices=2))


IN_EIGHT = """
import sys
import jax, numpy as np
from experiments import UsageError
from experiments.engine.layout import Layout
from experiments.engine.processes import ParallelConfig
from experiments.runs.checkpoints import Checkpoints
from pathlib import Path
from tests.experiments.runs.test_checkpoints import SHAPES, assert_is, make_state
layout = Layout(jax.devices(), shard_params=True)
tree = {"a": np.arange(4096.0).reshape(2, 64, 32), "small": np.ones(8), "odd": np.ones((4095,))}
shardings = layout.state(tree)
specs = {name: tuple(sharding.spec) for name, sharding in shardings.items()}
assert specs == {"a": (None, "data"), "small": (), "odd": ()}
placed = layout.put_tree(tree, shardings)
assert placed["a"].addressable_shards[0].data.shape == (2, 8, 32)
jax.tree.map(np.testing.assert_array_equal, layout.get_tree(placed), tree)
# What is put may be given away: no device, and not the source, shares memory with another.
double = jax.jit(lambda t: jax.tree.map(lambda x: x + x, t), donate_argnums=0)
twice = double(layout.put_tree(tree, jax.tree.map(lambda _: layout.replicated, tree)))
for name in tree:
  for shard in twice[name].addressable_shards:
    np.testing.assert_array_equal(shard.data, 2 * tree[name])
np.testing.assert_array_equal(tree["a"].ravel(), np.arange(4096.0))
try:
  layout.check_batch(12, "--data.batch-size")
except UsageError as error:
  print(error)
folder = Path(sys.argv[1])
checkpoints = Checkpoints(folder, layout)
state = layout.put_tree(jax.tree.map(np.asarray, make_state(5)), layout.state(SHAPES))
checkpoints.save(5, state, {"rows": [5, 5.1]}, None)
checkpoints.close()
again = Checkpoints(folder, Layout(jax.devices()[:2]))
assert_is(again.restore(SHAPES), 5)
again.close()
"""


def test_arrays_on_eight_devices(tmp_path):
  flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
  done = subprocess.run(
    [sys.executable, "-W", "error", "-c", IN_EIGHT, str(tmp_path)],
    cwd=runs.ROOT,
    env=os.environ | {"XLA_FLAGS": flags},
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == (
    "`--data.batch-size` must be a multiple of the number of devices, 8, got 12; "
    "`--parallel.devices 6` would do\n"
  )
  checkpoints = Checkpoints(tmp_path, Layout(), read_only=True)
  from tests.experiments.runs.test_checkpoints import SHAPES, assert_is

  assert_is(checkpoints.restore(SHAPES), 5)
  checkpoints.close()
  assert jax.device_count() == 1
  assert np.ndim(SHAPES.step) == 0
