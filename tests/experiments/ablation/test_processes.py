"""Runs in other processes: what fails, dies, or is made again."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest

from experiments import UsageError, __main__
from experiments.ablation import perform as module
from experiments.ablation import pool
from experiments.ablation.command import AblationCommand, run
from experiments.ablation.perform import Job, Outcome, perform
from experiments.ablation.pool import FailedRunsError, Pool
from experiments.ablation.protocol import (
  Filters,
  Protocol,
  Training,
)
from experiments.ablation.rows import Rows
from experiments.common import parameters, process
from tests.experiments.ablation.jobs import OPTIONS, TINY, job, perform_while_the_disk_fills
from tests.experiments.ablation.rows import training
from tests.runs import ROOT


@pytest.fixture
def scripted(monkeypatch):
  """Makes a pool that starts no processes; what they were to do, and what it says."""

  def make(rows, outcome, **options):
    jobs, said = [], []

    def alone(function, job):
      assert function is perform
      jobs.append(list(job.specs))
      return outcome(job)

    monkeypatch.setattr(pool, "alone", alone)

    def job(specs):
      return Job(tuple(specs), TINY, "data", None, "out", "weights")

    return Pool(rows, job, workers=1, say=said.append, **options), jobs, said

  return make


def good(job):
  return [Outcome(spec, {"accuracy": 0.5}, "new") for spec in job.specs]


def test_of_a_group_only_what_is_missing_is_made(tmp_path, scripted):
  rows = Rows(tmp_path, Protocol())
  runs = [Training("cnn", seed) for seed in range(5)]
  for seed in (0, 3):
    rows.add([rows.row(runs[seed], training())])
  made, jobs, said = scripted(rows, good, together=16)
  made.run(lambda rows: runs)
  assert jobs == [[runs[1], runs[2], runs[4]]]
  assert said == [
    f"[{place}/3] training: cnn, rate 0.003, seed {seed}: accuracy 0.5000"
    for place, seed in ((1, 1), (2, 2), (3, 4))
  ]


@pytest.mark.parametrize("error", [UsageError("no data"), BrokenProcessPool("it died")])
def test_a_run_that_fails_does_not_stop_the_others(tmp_path, scripted, capsys, error):
  def outcome(job):
    if job.specs[0].seed == 0:
      raise error
    return good(job)

  made, jobs, said = scripted(Rows(tmp_path, Protocol()), outcome, together=2)
  made.run(lambda rows: [Training("cnn", seed) for seed in range(4)])
  assert made.failed == [
    f"training: cnn, rate 0.003, seed 0; training: cnn, rate 0.003, seed 1: {error}"
  ]
  assert len(jobs) == 2
  assert capsys.readouterr().err == ""
  with pytest.raises(FailedRunsError, match="these runs failed: training: cnn") as told:
    made.check()
  assert told.value.exit_code == 2
  # Which of the two comes first is the machine's affair.
  assert sorted(line.split("]")[0] for line in said) == ["[1/4", "[3/4", "[4/4"]


def test_a_disk_that_fills_is_a_line(tiny, tmp_path, monkeypatch, capfd):
  monkeypatch.setattr(
    pool, "alone", lambda _, job: process.alone(perform_while_the_disk_fills, job)
  )
  where = ["--data", tiny[0], "--out", str(tmp_path / "rows"), "--weights", str(tmp_path / "w")]
  options = ["--arms", "cnn", "--seeds", "0", "1", "2", "--workers", "1", "--together", "1"]
  assert __main__.main(["ablation", "run", *options, *OPTIONS, *where]) == 4
  out, err = capfd.readouterr()
  first, second = (
    f"training: cnn, rate 0.003, seed {seed}: [Errno 28] No space left on device" for seed in (0, 1)
  )
  assert err == f"error: these runs failed: {first}; {second}\n"
  assert {f"[1/3] {first}", f"[2/3] {second}"} <= set(out.splitlines())
  (row,) = Rows(tmp_path / "rows").all().values()  # of the one after them
  assert row["spec"]["seed"] == 2
  written = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
  assert written == ["cnn-rate0.003-seed2.npz", "protocol.json", "rows.jsonl"]


def test_rows_that_are_damaged_are_met_before_a_run_is_made(tmp_path, scripted, monkeypatch, tiny):
  rows = Rows(tmp_path, Protocol(**vars(TINY) | {"data": tiny[1]}))
  rows.add([rows.row(Training("cnn", 5), training())])

  def damage(job):
    rows.folder.joinpath("rows.jsonl").write_text('{"accuracy": NaN}\n')
    return good(job)

  made, jobs, _ = scripted(rows, damage)
  with pytest.raises(UsageError, match="line 1, is no row"):
    made.run(lambda rows: [Training("cnn", seed) for seed in range(3)])
  assert len(jobs) == 1  # and not the others, which would be lost
  options = {"data": tiny[0], "out": str(tmp_path), "batch_size": 8, "epochs": 4}
  monkeypatch.setattr(pool, "alone", lambda *_: pytest.fail("a process was started"))
  with pytest.raises(UsageError, match="line 1, is no row"):
    run(AblationCommand("kernels", search_epochs=2, workers=1, together=1, **options))


def test_weights_that_cannot_be_written_cost_no_row(tiny, tmp_path, monkeypatch):
  made = job(tiny, tmp_path, Training("cnn", 0))
  results = [(training(spec=made.specs[0]), {"conv1": np.zeros(3)})]

  def refuse(*_):
    raise OSError("no room")

  with monkeypatch.context() as patch:  # which is known before
    (tmp_path / "weights").write_text("")
    patch.setattr(module, "train", lambda *_: pytest.fail("a network was trained"))
    with pytest.raises(FileExistsError):
      perform(made)
    (tmp_path / "weights").unlink()
  monkeypatch.setattr(module, "train", lambda *_: results)
  monkeypatch.setattr(parameters, "save", refuse)
  with pytest.raises(OSError, match="no room"):
    perform(made)
  assert len(Rows(tmp_path / "rows").all()) == 1


def dies():
  os.kill(os.getpid(), signal.SIGKILL)


def test_a_function_alone_has_one_thread_and_dies_alone():
  assert process.alone(os.getenv, "NPROC") == "1"
  with pytest.raises(BrokenProcessPool):
    process.alone(dies)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_command(tiny, tmp_path, how):
  long = ["--arms", "linear-cnn", "--epochs", "100000", "--batch-size", "8", "--workers", "2"]
  where = ["--data", tiny[0], "--out", str(tmp_path), "--weights", str(tmp_path), *long]
  parent = subprocess.Popen(
    [sys.executable, "-m", "experiments", "ablation", "no-relu", "--seeds", "0", "1", *where],
    cwd=ROOT,
    stderr=subprocess.PIPE,
    stdout=subprocess.DEVNULL,
    text=True,
  )
  try:
    wait_for(lambda: len(descendants(parent.pid)) >= 3)  # both, and what tracks their resources
    below = descendants(parent.pid)
    parent.send_signal(how)
    _, told = parent.communicate(timeout=240)
  finally:
    parent.kill()
    parent.communicate()
  if how is signal.SIGINT:
    assert parent.returncode == 130
    assert "interrupted; rows are kept" in told
    assert "Traceback" not in told
  wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
  assert not list(tmp_path.iterdir())


def descendants(pid):
  found = []
  for task in Path(f"/proc/{pid}/task").glob("*/children"):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # of a thread that has ended
      for child in task.read_text().split():
        found += [int(child), *descendants(int(child))]
  return found


def wait_for(condition, seconds=120):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.05)


def test_runs_made_together_are_made_again_together(tiny, tmp_path, capsys):
  file, _ = tiny
  where = ["--data", file, "--out", str(tmp_path / "rows"), "--weights", str(tmp_path / "w")]
  command = ["ablation", "run", "--arms", "linear-cnn", *OPTIONS, *where, "--together", "2"]
  assert __main__.main([*command, "--seeds", "0", "1"]) == 0
  assert "[2/2] training: linear-cnn, rate 0.003, seed 1: accuracy" in capsys.readouterr().out
  rows = Rows(tmp_path / "rows")
  first, second = rows.all().values()
  assert first["weights"] != second["weights"]
  assert first["command"] == second["command"]
  file = tmp_path / "w" / "linear-cnn-rate0.003-seed1.npz"
  assert parameters.load(file, second["weights"])["conv1"]["kernel"].shape == (5, 5, 1, 6)
  assert __main__.main([*shlex.split(first["command"])[3:], *where[2:]]) == 0
  assert capsys.readouterr().out.count("as in its row, bit for bit") == 2
  rows.add([first | {"accuracy": 0.25}])  # as if rounding had made another of it
  assert __main__.main([*command, "--seeds", "0", "--again"]) == 0
  assert f"NOT compared with its row, which {first['command']!r}" in capsys.readouterr().out
  # What is looked for in a network needs the weights of its row.
  file.unlink()
  rows.add([second | {"weights": "another"}])
  with pytest.raises(UsageError, match=r"by the row's own command, .*--seeds 0 1.*--together 2"):
    perform(job(tiny, tmp_path, Filters("linear-cnn", 1)))


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"name": "kernel"}, "the study must be of answer, all, "),
    ({"seeds": (0, 0)}, "`--seeds` must be from 0, each once"),
    ({"seeds": ()}, "`--seeds`"),
    ({"arms": ("cubic",)}, "`--arms` must be of cnn"),
    ({"arms": ("volterra",)}, "`--arms` of kernels must be of cnn"),
    ({"rate": (0.1,)}, "`--rate` is for run"),
    ({"search": True}, "`--search` is for run"),
    ({"stop_after_epochs": 3}, "`--stop-after-epochs` is for run"),
    ({"name": "run", "arms": ("cnn",), "stop_after_epochs": 20}, "must be below `--epochs`, 20"),
    ({"name": "run"}, "`--arms` must name networks"),
    ({"name": "run", "arms": ("cnn",), "rate": (0.1, -1.0)}, "`--rate` must be positive"),
    ({"name": "run", "arms": ("cnn",), "rate": (0.1, 0.1)}, "each once"),
    ({"seeds": (10**20,)}, "`--seeds` must be at most"),
    ({"name": "run", "arms": ("cnn",), "rate": (1e-60,)}, "`--rate` must be 0, or from 1.2e-38 to"),
    ({"name": "run", "arms": ("cnn",), "rate": (1e300,)}, "`--rate` must be 0, or from 1.2e-38 to"),
    ({"epochs": 10**20}, "`--epochs` must be at most"),
    ({"weights": "a\0b"}, "`--weights` must be at most 4096 characters"),
    ({"workers": 0}, "`--workers` must be at least 1"),
    ({"together": 0}, "`--together` must be at least 1"),
    ({"epochs": 0}, "`--epochs` must be at least 1"),
    ({"data": "nowhere.npz"}, "nowhere.npz"),
    ({"test_examples": 24}, "`--test-examples` must be at most 23"),
    ({"batch_size": 60}, "`--batch-size` must be at most 49"),
  ],
)
def test_bad_input_is_refused_before_anything_is_written(tiny, tmp_path, options, message):
  out = tmp_path / "rows"
  given = {"name": "kernels", "data": tiny[0], "out": str(out), "batch_size": 8} | options
  with pytest.raises(UsageError, match=message):
    run(AblationCommand(**given))
  assert not out.exists()
