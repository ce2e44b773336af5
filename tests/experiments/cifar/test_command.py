"""The command `cifar`, with tiny numbers: the same as on a GPU."""

import json
import os
import shlex
import subprocess
import sys

import jax
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from experiments.__main__ import main
from experiments.cifar import command as module
from experiments.common import files
from tests import runs
from tests.runs import ROOT

TINY = [
  "--epochs",
  "1",
  "--batch-size",
  "8",
  "--widths",
  "4",
  "4",
  "4",
  "--validation",
  "20",
  "--seeds",
  "2",
]
BOTH = ["--presets", "fast-cifar10-cnn", "fast-cifar10-polynomial"]


def test_runs_become_rows_once_and_come_out_again(tmp_path, capsys):
  out = tmp_path / "rows.jsonl"
  command = ["cifar", "--data", runs.write_data(tmp_path), *TINY, "--out", str(out)]
  assert main([*command, *BOTH]) == 0
  lines = out.read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  assert [(row["preset"], row["seed"]) for row in rows] == [
    (f"fast-cifar10-{ending}", seed) for seed in (0, 1) for ending in ("cnn", "polynomial")
  ]
  assert {row["steps"] for row in rows} == {5}
  printed = capsys.readouterr().out
  assert "of 2 runs on the validation set, images shifted" in printed
  assert main([*command, *BOTH]) == 0
  assert out.read_text().splitlines() == lines  # nothing is run again
  # A seed after others, which share its programs, is that seed by itself.
  out.write_text(lines[0] + "\n")
  assert main([*command, *BOTH[:2]]) == 0
  _, again = map(json.loads, out.read_text().splitlines())
  figures = [
    {name: row[name] for name in ("seed", "accuracy", "config")} for row in (again, rows[2])
  ]
  assert figures[0] == figures[1]
  # Its own command makes a row again.
  command = shlex.split(rows[2]["command"])[3:]
  assert main([*command, "--run.out", str(tmp_path / "run")]) == 0
  last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
  assert last["validation_accuracy"] == rows[2]["accuracy"]


def test_the_script_for_a_gpu_runs_on_any_device_without_tensorflow_datasets(tmp_path):
  hidden = tmp_path / "path/tensorflow_datasets"
  hidden.mkdir(parents=True)
  (hidden / "__init__.py").write_text("raise ModuleNotFoundError('tensorflow_datasets')")
  out = tmp_path / "rows.jsonl"
  script = [str(ROOT / "experiments/cifar/gpu.sh"), runs.write_data(tmp_path), str(out)]
  environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(hidden.parent)}
  if jax.default_backend() != "gpu":
    refused = subprocess.run([*script, *TINY], env=environment, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "no GPU: jax runs on" in refused.stderr
    assert not out.exists()
  made = subprocess.run(
    [*script, *TINY[:-2], "--seeds", "1"], env=environment | {"DRY_RUN": "1"}, text=True
  )
  assert made.returncode == 0
  rows = [json.loads(line) for line in out.read_text().splitlines()]
  assert [row["preset"] for row in rows] == ["fast-cifar10-cnn", "fast-cifar10-polynomial"]


def test_what_will_not_do_is_told(tmp_path, capsys, monkeypatch):
  def full(*_):
    raise OSError(28, "No space left on device")

  out = tmp_path / "rows.jsonl"
  assert main(["cifar", "--seeds", "0", "--out", str(out)]) == 2
  assert "`--seeds` must be at least 1" in capsys.readouterr().err
  assert main(["cifar", "--presets", "fast", "--out", str(out)]) == 2
  assert main(["cifar", "--epochs", "0", "--out", str(out)]) == 2
  assert "`--epochs` must be" in capsys.readouterr().err
  with monkeypatch.context() as patch:
    patch.setattr(files, "write_atomically", full)
    assert main(["cifar", "--data", runs.write_data(tmp_path), *TINY, "--out", str(out)]) == 4
    assert "No space left" in capsys.readouterr().err
  monkeypatch.setattr(module, "MemoryFeed", type("Other", (), {}))
  assert main(["cifar", "--data", runs.write_data(tmp_path), *TINY, "--out", str(out)]) == 2
  assert "`--presets` must be of images that are held in memory" in capsys.readouterr().err
  assert not out.exists()
  out.write_text("{}\n")
  assert main(["cifar", "--out", str(out)]) == 2
  assert "line 1, is no row" in capsys.readouterr().err
