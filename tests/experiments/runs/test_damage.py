"""Every file of a run, damaged in every way: refused in a line, or without an effect."""

import collections
import dataclasses
import io
import json
import os
import shutil

import jax
import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")

from rich.console import Console

from experiments import UsageError
from experiments.failures import Failure
from experiments.runs import evaluation, run
from experiments.runs.evaluation import evaluate
from tests import runs
from tests.experiments.runs.test_checkpoints import flip, truncate


def become_folder(file):
  file.unlink()
  file.mkdir()


DAMAGES = {
  "a flipped bit": flip,
  "another flipped bit": lambda file: flip(file, 0.1),
  "cut off": truncate,
  "empty": lambda file: file.write_bytes(b""),
  "gone": os.remove,
  "noise": lambda file: file.write_bytes(np.random.default_rng(0).bytes(file.stat().st_size)),
  "a folder": become_folder,
}


@pytest.mark.slow
def test_damage_is_told_or_has_no_effect(tmp_path, monkeypatch):
  """With `-s`, prints what became of how many."""
  build, built = run.build, []
  data = runs.write_data(tmp_path)
  config = runs.config(data, tmp_path / "run", epochs=3)
  built.append(build(config, run.Layout.of(config.parallel)))
  for module in (run, evaluation):
    monkeypatch.setattr(module, "build", lambda *_: built[0])

  def train(**options):
    changed = dataclasses.replace(config, run=runs.RunConfig(out=str(tmp_path / "run"), **options))
    return run.train(changed, "the command", Console(file=io.StringIO()))

  train(stop_after=2)
  shutil.copytree(tmp_path / "run", tmp_path / "kept")
  whole = train()
  scores = {row["step"]: row["test_accuracy"] for row in whole.rows}
  counts = collections.Counter()
  files = [path for path in sorted((tmp_path / "kept").rglob("*")) if path.is_file()]
  assert len(files) > 30
  for file in files:
    for name, damage in DAMAGES.items():
      for action in ("train", "eval"):
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(tmp_path / "kept", tmp_path / "run")
        target = tmp_path / "run" / file.relative_to(tmp_path / "kept")
        if not target.stat().st_size and name not in ("gone", "a folder"):
          continue
        damage(target)
        case = f"{action} of {file.relative_to(tmp_path / 'kept')}, {name}"
        try:
          if action == "train":
            outcome = train()
            assert outcome.rows == whole.rows, case
            jax.tree.map(np.testing.assert_array_equal, outcome.state, whole.state)
          else:
            result = evaluate(tmp_path / "run")
            assert result["accuracy"] == scores[result["step"]], case
        except (UsageError, Failure, OSError):
          counts[action, "refused"] += 1
        else:
          counts[action, "as if undamaged"] += 1
  print(json.dumps({" ".join(key): number for key, number in sorted(counts.items())}))
