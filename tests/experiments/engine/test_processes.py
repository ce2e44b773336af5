"""Processes that cannot train together end in a line and a code."""

import dataclasses
import json
import shutil
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from experiments import UsageError
from experiments.engine import agreement, processes
from experiments.engine.processes import ParallelConfig, connect
from tests import runs
from tests.experiments.engine.test_parallel import double, free_port


@pytest.mark.parametrize(
  "address", ["here", "here:", ":1", "a b:1", "here:0", "here:65536", "a:1:2"]
)
def test_address_without_a_port_is_refused(address):
  config = ParallelConfig(coordinator=address, processes=2, process=1)
  with pytest.raises(UsageError, match=r"`--parallel.coordinator` must be HOST:PORT, got"):
    config.check()


def test_coordinator_for_a_process_by_itself_is_refused():
  config = ParallelConfig(distributed="no", coordinator="here:1", processes=2, process=1)
  with pytest.raises(UsageError, match=r"not be given with `--parallel.distributed no`, got 'here"):
    config.check()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "a.b-c:65535", "[::1]:80"])
def test_address_with_a_port_is_accepted(address):
  ParallelConfig(coordinator=address, processes=2, process=1).check()


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "²"])
def test_number_in_the_environment_that_is_none_is_refused(value):
  with pytest.raises(UsageError, match="the environment variable SLURM_STEP_NUM_TASKS must be a"):
    ParallelConfig().several({"SLURM_STEP_NUM_TASKS": value})


def test_host_that_does_not_exist_is_told_at_once():
  config = ParallelConfig(coordinator="no-such-host.invalid:5", processes=2, process=1)
  begin = time.monotonic()
  with pytest.raises(UsageError, match=r"`--parallel.coordinator` must name a host that there is"):
    connect(config, {})
  assert time.monotonic() - begin < 30


def test_port_that_is_taken_is_told_at_once():
  """By another program, or by another process 0."""
  with socket.socket() as listener:
    listener.bind(("", 0))
    listener.listen()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    config = ParallelConfig(coordinator=address, processes=2, process=0)
    with pytest.raises(UsageError, match=r"must have a free port, .* process 0, got .* in use"):
      connect(config, {})


def test_process_0_that_does_not_come_is_told(monkeypatch):
  monkeypatch.setattr(processes, "CONNECT_SECONDS", 0.3)
  config = ParallelConfig(coordinator=f"127.0.0.1:{free_port()}", processes=2, process=1)
  with pytest.raises(UsageError, match=r"no process 0 answers at `--parallel.coordinator`"):
    connect(config, {})


def test_facts_that_differ_are_told_with_the_process(monkeypatch):
  texts = [json.dumps(facts) for facts in ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1})]

  def gather(array):
    return np.stack([_padded(text, array) for text in texts]) if np.ndim(array) else lengths

  lengths = np.array([len(text) for text in texts])
  monkeypatch.setattr(jax, "process_count", lambda: 3)
  monkeypatch.setattr(agreement.multihost_utils, "process_allgather", gather)
  with pytest.raises(UsageError) as error:
    agreement.agree({"a": 1, "b": 2})
  assert str(error.value) == (
    "the processes of a run must have everything the same: b is 2 in process 0 and 3 in process 1; "
    "b is 2 in process 0 and null in process 2"
  )


def _padded(text, array):
  content = np.zeros(len(array), np.uint8)
  content[: len(text)] = np.frombuffer(text.encode(), np.uint8)
  return content


ABORT = """
import os, sys
from experiments.engine.aborts import end_with
end_with(2, "before")
end_with(5, "a line")
os.abort()
"""


def test_abort_is_a_line_and_a_code():
  done = subprocess.run(
    [sys.executable, "-c", ABORT], cwd=runs.ROOT, capture_output=True, text=True, check=False
  )
  assert (done.returncode, done.stderr) == (5, "error: a line\n")


# Two processes


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp("data"))


def assert_refused(ends, *words):
  """Every process ends with code 2 and a line that says what differs."""
  for code, _, errors in ends:
    assert code == 2, ends
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    for word in words:
      assert word in line


def together(configs, counts=(2, 2), **each):
  """How processes end that are to be one run; `each` has an option of `launch` for every one."""
  address = f"127.0.0.1:{free_port()}"
  started = [
    runs.launch(
      dataclasses.replace(
        config,
        parallel=ParallelConfig(coordinator=address, processes=counts[number], process=number),
      ),
      x64=True,
      **{name: values[number] for name, values in each.items()},
    )
    for number, config in enumerate(configs)
  ]
  return [runs.finish(process) for process in started]


@pytest.mark.slow
def test_processes_with_other_data_of_one_name_do_not_train(data, tmp_path):
  """As by a relative path in two working directories."""
  arrays = dict(np.load(data))
  places = [tmp_path / str(number) for number in range(2)]
  for number, place in enumerate(places):
    place.mkdir()
    np.savez(place / "a.npz", **arrays | {"x_train": arrays["x_train"] // (number + 1)})
  config = double("a.npz", tmp_path / "run", model="lenet5")
  assert_refused(together([config] * 2, cwd=places), "the digest of the data is ")
  assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_processes_with_fewer_examples_do_not_train(data, tmp_path):
  config = double(data, tmp_path / "run", model="lenet5")
  fewer = dataclasses.replace(config, data=dataclasses.replace(config.data, train_examples=48))
  ends = together([config, fewer])
  assert_refused(ends, "`--data.train-examples` is null in process 0 and 48 in process 1")
  assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_processes_of_other_code_do_not_train(data, tmp_path):
  clone = tmp_path / "clone"
  for package in ("experiments", "kerv_jax"):
    shutil.copytree(runs.ROOT / package, clone / package)
  (clone / "experiments" / "more.py").write_text("")
  config = double(data, tmp_path / "run", model="lenet5")
  roots = runs.ROOT, clone
  ends = together([config] * 2, root=roots, cwd=roots)
  assert_refused(ends, "the digest of the code is ")


@pytest.mark.slow
def test_processes_that_count_differently_do_not_train(data, tmp_path):
  config = double(data, tmp_path / "run", model="lenet5")
  ends = together([config] * 2, counts=(2, 3))
  assert_refused(ends, "`--parallel.processes` is 2 in process 0 and 3 in process 1")
