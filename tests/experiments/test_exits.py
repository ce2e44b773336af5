"""What goes wrong in a command is one line and a code, and nothing is written before."""

import errno
import io
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from experiments import UsageError, cli, failures
from experiments import __main__ as command
from experiments.__main__ import main
from experiments.engine.processes import LostError
from experiments.runs.checkpoints import SaveError
from experiments.runs.ends import Diverged
from experiments.runs.record import DamagedError
from tests import runs


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp("data"))


HUGE = str(10**25)
MILESTONES = "`--optim.milestones` must be positive and ascending, got"


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--epochs", HUGE], "`--epochs` must be at most 2147483647, got 1e"),
    (["--epochs", "2000000000", "--data.batch-size", "8"],
     "`--epochs` must be at most 306783378, of 7 steps each, got 2000000000"),
    (["--epochs", "1" + "0" * 400], "`--epochs` must be at most 2147483647, got one of 401 digits"),
    (["--model.degree", "1" + "0" * 400], "`--model.degree` must be from 1 to 1000, got one of"),
    (["--eval.every", HUGE], "`--eval.every` must be at most"),
    (["--data.batch-size", HUGE], "`--data.batch-size` must be at most"),
    (["--run.save-every", HUGE], "`--run.save-every` must be at most"),
    (["--model.degree", "1000000"], "`--model.degree` must be from 1 to 1000, got 1e"),
    (["--model.balance", "1e300"], "`--model.balance` must be 0, or from 1.2e-38 to 3.4e"),
    (["--model.balance", HUGE + "0" * 400], "`--model.balance` must be at least 0 and finite"),
    (["--optim.learning-rate", "1e39"], "`--optim.learning-rate` must be 0, or from"),
    (["--optim.learning-rate", "1e-60"], "`--optim.learning-rate` must be 0, or from"),
    (["--optim.weight-decay", "1e300"], "`--optim.weight-decay` must be 0, or from"),
    (["--optim.clip-norm", "inf"], "`--optim.clip-norm` must be 0, or from"),
    (["--optim.warmup-epochs", "1e308"], "`--optim.warmup-epochs` must be"),
    (["--optim.warmup-epochs", "1e9"], "`--optim.warmup-epochs` must end before the run"),
    (["--optim.milestones", "1e308"], "`--optim.milestones` must be 0, or from"),
    (["--optim.schedule", "constant", "--optim.milestones", "nan"], MILESTONES),
    (["--optim.schedule", "cosine", "--optim.milestones", "3", "1"], MILESTONES),
    (["--optim.schedule", "constant", "--optim.milestones", "-1"], MILESTONES),
    (["--data.name", "x" * 5000], "`--data.name` must be at most 4096 characters"),
    (["--data.name", "x" * 300], "`--data.name` 'x+' cannot be read"),
    (["--run.out", "a\0b"], "`--run.out` must be at most 4096 characters .*without NUL"),
    (["--run.out", ""], "`--run.out` must be the name of a folder, got ''"),
    (["--run.out", "a[b"], r"`--run.out` must be a path without \["),
    (["--parallel.coordinator", "here", "--parallel.processes", "2", "--parallel.process", "0"],
     "`--parallel.coordinator` must be HOST:PORT, got 'here'"),
  ],
)  # fmt: skip
def test_option_out_of_range_is_one_line_and_nothing_is_written(
  data, tmp_path, monkeypatch, capsys, options, message
):
  monkeypatch.chdir(tmp_path)
  assert main(["train", "lenet5-sample-polynomial", "--data.name", data, *options]) == 2
  printed = capsys.readouterr()
  assert re.fullmatch(f"error: {message}.*\n", printed.err)
  assert list(tmp_path.iterdir()) == []


def test_milestones_after_the_end_are_never_reached(data, tmp_path):
  """They are out of int32 too."""
  options = ["--data.name", data, "--run.out", str(tmp_path / "run"), "--epochs", "1"]
  small = ["--data.batch-size", "8", "--optim.milestones", "1e30"]
  assert main(["train", "lenet5-sample-cnn", *options, *small]) == 0


@pytest.mark.parametrize(
  ("name", "value"),
  [("OMPI_COMM_WORLD_SIZE", ""), ("OMPI_COMM_WORLD_SIZE", "two"), ("SLURM_STEP_NUM_TASKS", "-1")],
)
def test_environment_that_makes_no_sense_is_one_line(
  data, tmp_path, monkeypatch, capsys, name, value
):
  monkeypatch.setenv(name, value)
  monkeypatch.chdir(tmp_path)
  assert main(["train", "lenet5-sample-polynomial", "--data.name", data]) == 2
  assert capsys.readouterr().err == (
    f"error: the environment variable {name} must be a number, got {value!r}\n"
  )


@pytest.mark.parametrize(
  ("name", "value", "message"),
  [
    ("JAX_PLATFORMS", "nonsense", "JAX has no devices, JAX_PLATFORMS being 'nonsense': "),
    ("JAX_PLATFORMS", "cuda", "JAX has no devices, JAX_PLATFORMS being 'cuda': "),
    ("JAX_ENABLE_X64", "maybe", "JAX cannot be imported: .*'JAX_ENABLE_X64'"),
  ],
)
def test_environment_that_jax_cannot_use_is_one_line(data, tmp_path, name, value, message):
  command = [sys.executable, "-m", "experiments", "train", "lenet5-sample-cnn", "--data.name", data]
  environment = os.environ | {"PYTHONPATH": str(runs.ROOT), name: value}
  done = subprocess.run(
    command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 2, done.stderr
  assert re.fullmatch(f"error: {message}.*\n", done.stderr)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "eval"])
def test_devices_that_there_cannot_be_are_one_line(data, tmp_path, capsys, command):
  words = {"train": ["lenet5-sample-cnn", "--data.name", data], "eval": [str(tmp_path)]}[command]
  assert main([command, *words, "--parallel.devices", "0"]) == 2
  assert capsys.readouterr().err == "error: `--parallel.devices` must be at least 1, got 0\n"


@pytest.mark.parametrize("command", ["train", "eval"])
def test_checkpoints_that_may_not_be_read_are_one_line(
  data, tmp_path, monkeypatch, capsys, command
):
  words = ["--data.name", data, "--data.batch-size", "8", "--run.out", str(tmp_path / "run")]
  train = ["train", "lenet5-sample-cnn", *words, "--run.stop-after", "1"]
  assert main(train) == 0
  capsys.readouterr()
  for name in ("listdir", "scandir"):
    monkeypatch.setattr(os, name, forbidding(getattr(os, name), tmp_path / "run" / "checkpoints"))
  assert main(train if command == "train" else ["eval", str(tmp_path / "run")]) in (2, 4)
  assert re.fullmatch("error: .*Permission denied: '.*checkpoints'.*\n", capsys.readouterr().err)


def forbidding(function, folder):
  """A function of a folder that has no right to look into this one."""

  def call(path="."):
    if os.fspath(path) == os.fspath(folder):
      raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    return function(path)

  return call


FAILED = [
  (UsageError("no"), 2, "error: no\n"),
  (DamagedError("no"), 2, "error: no checkpoint can be used; .*start again:\nno\n"),
  (Diverged("no"), 3, "error: no\n"),
  (SaveError("no"), 4, "error: no\n"),
  (LostError("no"), 5, "error: another process of this run was lost; .*no\n"),
  (OSError(errno.ENOSPC, "No space left", "f"), 4, r"error: \[Errno 28\] No space left: 'f'\n"),
  (PermissionError(errno.EACCES, "Denied", "f"), 2, r"error: \[Errno 13\] Denied: 'f'\n"),
  (MemoryError("a TiB"), 2, "error: out of memory: a TiB\n"),
  (RuntimeError("RESOURCE_EXHAUSTED: big"), 2, "error: out of memory: RESOURCE_EXHAUSTED: big\n"),
]


@pytest.mark.parametrize(("error", "code", "line"), FAILED)
def test_error_is_a_line_and_a_code(monkeypatch, capsys, error, code, line):
  def fail(_):
    raise error

  monkeypatch.setattr(cli, "list_command", fail)
  assert main(["list"]) == code
  assert re.fullmatch(line, capsys.readouterr().err)


@pytest.mark.parametrize(
  ("number", "code"), [(errno.ENOSPC, 4), (errno.EROFS, 4), (errno.EACCES, 2)]
)
def test_report_that_cannot_be_written_is_one_line(monkeypatch, capsys, number, code):
  from experiments.ablation import plots

  def fail(*_):
    raise OSError(number, os.strerror(number), "a.png")

  monkeypatch.setattr(plots, "draw", fail)
  assert main(["report", "--out", str(runs.ROOT / "results" / "mnist")]) == code
  assert re.fullmatch(rf"error: \[Errno {number}\] .*: 'a.png'\n", capsys.readouterr().err)


def test_error_that_nobody_has_foreseen_keeps_its_traceback(monkeypatch):
  def fail(_):
    raise RuntimeError("a mistake in the program")

  monkeypatch.setattr(cli, "list_command", fail)
  with pytest.raises(RuntimeError, match="a mistake"):
    main(["list"])


@pytest.mark.parametrize("code", [3, 4, 5])
def test_process_that_failed_waits_for_no_thread(code):
  """As Orbax's after a save that failed, for minutes."""
  wait = "threading.Thread(target=time.sleep, args=(60,)).start()"
  program = f"import threading, time; from experiments.__main__ import _leave; {wait}; "
  done = subprocess.run(
    [sys.executable, "-c", f"{program}_leave({code})"], cwd=runs.ROOT, timeout=30, check=False
  )
  assert done.returncode == code


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_nowhere(tmp_path, closed):
  """And no file takes their place, into which C would print."""
  opened = f"open({str(tmp_path / 'file')!r}, 'w').fileno()"
  code = f"import sys, experiments.__main__ as m; c = m.main(['list', 'x']); sys.exit(c + {opened})"
  done = subprocess.run(
    ["bash", "-c", f'{sys.executable} -c "$0" {closed}', code],
    cwd=runs.ROOT, capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode > 2 + 2
  assert done.stdout == ""
  assert done.stderr == ("" if "2>" in closed else done.stderr)
  assert "Traceback" not in done.stderr


class Full(io.StringIO):
  def __init__(self, number):
    super().__init__()
    self.number = number

  def flush(self):
    raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
  ("number", "code", "line"),
  [
    (errno.ENOSPC, 4, "error: cannot write to standard output: No space left on device\n"),
    (errno.EPIPE, 141, ""),
  ],
)
def test_output_that_has_nowhere_to_go_is_not_blamed_on_the_run(
  data, tmp_path, monkeypatch, capsys, number, code, line
):
  monkeypatch.setattr(sys, "stdout", Full(number))
  monkeypatch.setattr(failures, "_flush", lambda _: None)
  words = ["--data.name", data, "--data.batch-size", "8", "--run.out", str(tmp_path / "run")]
  assert main(["train", "lenet5-sample-cnn", *words]) == code
  assert capsys.readouterr().err == line
  assert main(["list"]) == code


def test_interrupt_while_it_imports_is_a_line(monkeypatch, capsys):
  def interrupted(_):
    raise KeyboardInterrupt

  monkeypatch.setattr(command, "_run", interrupted)
  assert main(["train"]) == 130
  assert capsys.readouterr().err == "interrupted; checkpoints are kept\n"


def test_imports_of_a_command_are_within_what_tells():
  """What is imported before is a moment; the rest, seconds, can be interrupted in order."""
  code = "import sys, experiments.__main__; print(*{'jax', 'tyro', 'numpy'} & sys.modules.keys())"
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=runs.ROOT, capture_output=True, text=True, check=True
  )
  assert done.stdout == "\n"


@pytest.mark.parametrize(("target", "code"), [("/dev/full", 4), ("| head -c 1", 141)])
def test_output_of_a_process_that_has_nowhere_to_go(target, code):
  pipe = f"> {target}" if target.startswith("/") else target
  line = f"{sys.executable} -m experiments list {pipe}; exit ${{PIPESTATUS[0]}}"
  done = subprocess.run(
    ["bash", "-c", line], cwd=runs.ROOT, capture_output=True, text=True, check=False
  )
  assert done.returncode in (code, 0) if code == 141 else done.returncode == code
  assert "Traceback" not in done.stderr
  assert "Exception" not in done.stderr
