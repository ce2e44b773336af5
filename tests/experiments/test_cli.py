"""The commands train, list and eval."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from rich.console import Console

from experiments.__main__ import main
from experiments.configs.presets import PRESETS
from experiments.runs import metrics, run
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.evaluation import evaluate
from experiments.runs.progress import Monitor
from experiments.runs.signals import StopSignals
from tests import runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run whose best checkpoint is not its newest."""
  folder = tmp_path_factory.mktemp("trained")
  config = runs.config(runs.write_data(folder), folder / "run", epochs=3, keep=3)
  outcome = run.train(config, console=Console(file=io.StringIO()))
  return folder / "run", outcome


def test_preset_that_does_not_exist(capsys):
  assert main(["train", "resnet32-cifar10+-degree3-learnabel"]) == 2
  assert re.fullmatch(
    r"error: there is no preset 'resnet32-cifar10\+-degree3-learnabel'; did you mean "
    r"resnet32-cifar10\+-degree3-learnable or .*`python -m experiments list` shows all of them\n",
    capsys.readouterr().err,
  )


@pytest.mark.parametrize(
  ("option", "nearest"),
  [
    ("--optim.learning-rat", "--optim.learning-rate"),
    ("--learning-rate", "--optim.learning-rate"),
    ("--model.kernl", "--model.kernel"),
    ("--epoch", "--epochs"),
  ],
)
def test_misspelt_option_names_the_right_one(capsys, option, nearest):
  with pytest.raises(SystemExit) as exit_:
    main(["train", "lenet5-sample-cnn", option, "1"])
  assert exit_.value.code == 2
  assert nearest in capsys.readouterr().err


def test_help_shows_the_presets_values(capsys):
  with pytest.raises(SystemExit) as exit_:
    main(["train", "resnet50-imagenet-knn", "--help"])
  assert exit_.value.code == 0
  printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
  for part in (
    "table 6, ResNet-50 on ImageNet",
    "The paper leaves open",
    "Exit codes",
    "--model.balance FLOAT Of the polynomial kernel; where it is learned, its start.",
    "(default: 30.0 60.0 90.0)",
    "--run.fresh",
  ):
    assert part in printed


def test_list_shows_every_preset(capsys):
  assert main(["list"]) == 0
  printed = capsys.readouterr().out.split()
  assert set(PRESETS) <= set(printed)
  assert {"7.51", "published"} <= set(printed)
  assert main(["list", "densenet40-cifar10+-knn"]) == 0
  printed = capsys.readouterr().out
  assert "Its CNN: densenet40-cifar10+-cnn" in " ".join(printed.split())
  assert '"batch_size": 64' in printed
  assert main(["list", "densenet"]) == 2


def test_train_alone_explains_itself(capsys):
  assert main(["train"]) == 2
  assert "usage: python -m experiments train PRESET" in capsys.readouterr().out
  assert main(["train", "--help"]) == 0
  assert "lenet5-sample-cnn" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--epochs", "0"], "`--epochs` must be at least 1, got 0"),
    (["--seed", "-1"], "`--seed` must be from 0 to 4294967295, got -1"),
    (["--model.degree", "0"], "`--model.degree` must be from 1 to 1000, got 0"),
    (["--model.balance", "-1"], "`--model.balance` must be at least 0"),
    (["--model.balance", "0", "--model.learnable"], "`--model.balance` must be positive where"),
    (["--model.gamma", "0"], "`--model.gamma` must be positive"),
    (["--model.kernel", "l1", "--model.learnable"], "`--model.learnable` needs `--model.kernel`"),
    (["--model.dtype", "float64"], "`--model.dtype` float64 needs the environment .*X64=1"),
    (["--model.dtype", "bfloat16"], "`--model.dtype` must be float32 or float64 for lenet5"),
    (["--model.remat"], "`--model.remat` must be off for lenet5"),
    (["--data.batch-size", "62"], "`--data.batch-size` must be at most 61, .*got 62"),
    (["--data.train-examples", "62"], "`--data.train-examples` must be at most 61, got 62"),
    (["--data.test-examples", "0"], "`--data.test-examples` must be at least 1, got 0"),
    (["--data.pad", "-1"], "`--data.pad` must be at least 0, got -1"),
    (["--optim.learning-rate", "-1"], "`--optim.learning-rate` must be"),
    (["--eval.every", "0"], "`--eval.every` must be at least 1, got 0"),
    (["--eval.targets", "94"], "`--eval.targets` must be above 0 and at most 1"),
    (["--run.keep", "1"], "`--run.keep` must be at least 2, got 1"),
    (["--run.stop-after", "0"], "`--run.stop-after` must be at least 1, got 0"),
    (["--parallel.devices", "9"], "`--parallel.devices` must be at most 1, .*got 9"),
    (["--data.name", "/nowhere.npz"], "`--data.name` must be .*'/nowhere.npz'"),
  ],
)
def test_option_out_of_range_is_one_line_before_anything_is_done(
  trained, tmp_path, capsys, options, message
):
  name = str(trained[0].parent / "blobs.npz")
  out = tmp_path / "out"
  command = ["train", "lenet5-sample-polynomial", "--data.name", name, "--run.out", str(out)]
  assert main([*command, *options]) == 2
  printed = capsys.readouterr()
  assert re.fullmatch(f"error: {message}.*\n", printed.err)
  assert not out.exists()


@pytest.mark.parametrize(
  ("sides", "options", "message"),
  [
    ((12, 12, 1), ["--data.pad", "12"], "`--data.pad` must be below the images' sides, 12x12, got"),
    ((2, 2, 3), ["--model.name", "densenet40"], "`--model.name` densenet40 cannot be trained with"),
  ],
)
def test_images_that_do_not_suit_are_told_before_anything_is_done(
  tmp_path, capsys, sides, options, message
):
  images, labels = np.zeros((8, *sides), np.uint8), np.arange(8) % 3
  np.savez(tmp_path / "a.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
  command = ["train", "lenet5-sample-cnn", "--data.name", str(tmp_path / "a.npz"), "--run.out"]
  small = ["--data.batch-size", "4"]
  assert main([*command, str(tmp_path / "out"), *small, *options]) == 2
  assert re.match(f"error: {message}", capsys.readouterr().err)
  assert not (tmp_path / "out").exists()


def test_options_before_the_preset(capsys):
  assert main(["train", "--epochs", "3", "lenet5-sample-cnn"]) == 2
  assert "the name of a preset must come first, got '--epochs'" in capsys.readouterr().err


def test_reader_that_goes_away_is_no_error():
  command = f"{sys.executable} -m experiments train lenet5-sample-cnn --help | head -n 1"
  done = subprocess.run(
    ["bash", "-c", command], capture_output=True, text=True, cwd=runs.ROOT, check=False
  )
  assert "usage:" in done.stdout
  assert done.stderr == ""


def test_eval_tells_of_damage(trained, tmp_path, capsys):
  folder = tmp_path / "run"
  shutil.copytree(trained[0], folder)
  next((folder / "checkpoints" / "21").rglob("_CHECKPOINT_METADATA")).write_text("{")
  assert main(["eval", str(folder)]) == 0
  printed = capsys.readouterr()
  assert json.loads(printed.out)["step"] == 14
  assert re.match(r"damaged checkpoint: .*/21: 21/.*SHA-256", printed.err)
  assert (folder / "checkpoints" / "21").is_dir()


def test_eval_of_a_live_run_looks_again(trained, tmp_path, monkeypatch):
  """Its checkpoints are replaced between the list of them and the reading."""
  folder, later = tmp_path / "run", tmp_path / "later"
  for place in (folder, later):
    shutil.copytree(trained[0], place)
  for step in ("7", "14"):
    shutil.rmtree(folder / "checkpoints" / step)
  restore, calls = Checkpoints.restore, []

  def replaced(self, *arguments):
    calls.append(self.steps)
    if len(calls) == 1:
      (folder / "checkpoints" / "21").rename(tmp_path / "gone")
      (folder / "digests" / "21.sha256").unlink()
      (later / "checkpoints" / "14").rename(folder / "checkpoints" / "14")
    return restore(self, *arguments)

  monkeypatch.setattr(Checkpoints, "restore", replaced)
  result = evaluate(folder)
  assert (result["step"], result["damaged"]) == (14, [])
  assert calls == [[21], [14]]


def test_folder_that_cannot_be_written_to(trained, capsys):
  name = str(trained[0].parent / "blobs.npz")
  assert main(["train", "lenet5-sample-cnn", "--data.name", name, "--run.out", __file__]) == 2
  assert "`--run.out` must be a folder to write to" in capsys.readouterr().err


def test_failures_have_codes_of_their_own(trained, tmp_path, capsys):
  name = str(trained[0].parent / "blobs.npz")
  command = ["train", "lenet5-sample-cnn", "--data.name", name, "--run.out", str(tmp_path)]
  assert main([*command, "--optim.learning-rate", "1e35"]) == 3
  printed = capsys.readouterr().err  # the first step is the end of an epoch, and was saved
  assert re.fullmatch("error: diverged at step 1, .*: no checkpoint; .*set aside.*\n", printed)
  (tmp_path / "checkpoints" / "7").mkdir(parents=True)
  assert main([*command, "--run.accept-changes"]) == 2
  assert "no checkpoint can be used" in capsys.readouterr().err


def test_eval_gives_what_training_saw(trained, capsys):
  folder, outcome = trained
  assert main(["eval", str(folder)]) == 0
  result = json.loads(capsys.readouterr().out)
  for name in ("loss", "accuracy", "top5"):
    assert result[name] == pytest.approx(outcome.rows[-1][f"test_{name}"], rel=1e-6)
  assert (result["step"], result["crops"]) == (21, 1)
  for row in outcome.rows:
    at = evaluate(folder, checkpoint=row["step"], batch_size=23)
    assert at["accuracy"] == row["test_accuracy"]
  best = max(outcome.rows, key=lambda row: (row["test_accuracy"], row["step"]))
  assert evaluate(folder, checkpoint="best")["step"] == best["step"]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["/nowhere"], "there is no run in '/nowhere': no file '/nowhere/config.json'"),
    (["RUN", "--checkpoint", "8"], r"`checkpoint` must be newest, best or one of \[7, 14, 21\]"),
    (["RUN", "--batch-size", "0"], "`--batch-size` must be from 1 to 2147483647, got 0"),
    (["RUN", "--crops", "10"], "`--crops` must be 1 for images that are held in memory, got 10"),
  ],
)
def test_eval_of_what_is_not_there(trained, capsys, options, message):
  options = [str(trained[0]) if option == "RUN" else option for option in options]
  assert main(["eval", *options]) == 2
  assert re.fullmatch(f"error: {message}.*\n", capsys.readouterr().err)


# Parts


def test_metrics_are_written_once_and_never_nan(tmp_path):
  first = metrics.Metrics(tmp_path)
  first.add({"step": 1, "test_accuracy": 0.25}, {"step": 1, "train_seconds": 1.5})
  first.add({"step": 2, "test_accuracy": float("nan")}, {"step": 2, "train_seconds": 2.5})
  again = metrics.Metrics(tmp_path, first.rows[:1], first.timing[:1])
  assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "test_accuracy": 0.25}\n'
  again.add({"step": 2, "test_accuracy": 0.75}, {"step": 2, "train_seconds": 2.25})
  rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
  assert rows == ['{"step": 1, "test_accuracy": 0.25}', '{"step": 2, "test_accuracy": 0.75}']
  assert first.rows[1] == {"step": 2, "test_accuracy": None}
  assert again.last_step == 2
  assert again.reaches(0.25) == (1, 1.5)
  assert again.reaches(0.5) == (2, 2.25)
  assert again.reaches(0.8) is None


def test_tensorboard_files_on_request(trained, tmp_path, monkeypatch, capsys):
  pytest.importorskip("tensorboardX", reason="needs the extra 'tensorboard'")
  board = metrics.Metrics(tmp_path, tensorboard=True)
  board.add({"step": 1, "test_accuracy": 0.25}, {"step": 1, "train_seconds": 1.5})
  board.close()
  (file,) = (tmp_path / "tensorboard").iterdir()
  assert b"test_accuracy" in file.read_bytes()
  monkeypatch.setitem(sys.modules, "tensorboardX", None)
  name = str(trained[0].parent / "blobs.npz")
  command = ["train", "lenet5-sample-cnn", "--data.name", name, "--run.out", str(tmp_path / "b")]
  assert main([*command, "--run.tensorboard"]) == 2
  assert "pip install '.[tensorboard]'" in capsys.readouterr().err


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch):
  clock = iter(range(0, 1000, 45))
  monkeypatch.setattr("experiments.runs.progress.time.monotonic", lambda: float(next(clock)))
  texts = []
  for terminal in (True, False):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    monitor = Monitor(console, total=1000, done=100, batch_size=50)
    for _ in range(2):
      monitor.advance(45, 1.5, 0.25)
    monitor.say("a line [with] brackets")
    monitor.close()
    texts.append(console.file.getvalue())
  bar, lines = texts
  assert "\u2501" in bar
  assert "epoch 1.5, loss 0.250" in bar
  assert lines == (
    "step 190 of 1,000, epoch 1.5: loss 0.250, 50 images/s, 0:13:30 left\na line [with] brackets\n"
  )
  Monitor(None, total=1, done=0, batch_size=1).say("nothing")


def test_second_interrupt_is_immediate():
  before = signal.getsignal(signal.SIGINT)  # ignored, where the tests run in the background
  with StopSignals() as signals:
    assert not signals()
    signal.raise_signal(signal.SIGINT)
    assert signals.received == "SIGINT"
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
  assert signal.getsignal(signal.SIGINT) is before
