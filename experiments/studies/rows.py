"""The rows of a study: a line of JSON for each run, written when the run is complete."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments import UsageError
from experiments.common.environment import environment
from experiments.common.files import write_atomically
from experiments.common.forms import FormError, conform, parse_json, read_json
from experiments.runs.ends import Diverged
from experiments.runs.folder import MANIFEST
from experiments.runs.run import train
from experiments.studies.plan import Key, Study


def load(file: Path, study: Study) -> dict[Key, dict[str, Any]]:
  """Returns the rows of a file, by what tells runs apart; none if there is no such file.

  Args:
    file: the file.
    study: the study, whose runs they must be.

  Raises:
    UsageError: if a line is no row, or one of another plan.
  """
  lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
  rows: dict[Key, dict[str, Any]] = {}
  for number, line in enumerate(lines, 1):
    where = f"{str(file)!r}, line {number}"
    try:
      row = parse_json(line)
      key = Key(**row["key"])
      accuracy = conform(row["accuracy"], float | None, "accuracy")  # pyright: ignore[reportArgumentType]
      if accuracy is not None and not 0 <= accuracy <= 1:
        raise FormError(f"accuracy must be from 0 to 1, got {accuracy}")
      if accuracy is not None:
        if conform(row["train_seconds"], float, "train_seconds") <= 0:
          raise FormError(f"train_seconds must be positive, got {row['train_seconds']}")
        steps = conform(row["steps"], tuple[int, ...], "steps")
        curve = conform(row["test_accuracy"], tuple[float, ...], "test_accuracy")
        if not steps or len(steps) != len(curve) or not all(0 <= each <= 1 for each in curve):
          raise FormError(
            f"test_accuracy must be from 0 to 1 at each of {len(steps)} steps: {curve}"
          )
      planned = study.command(key)
    except (FormError, TypeError, KeyError) as error:
      raise UsageError(f"{where}, is no row: {error!r}; take the line out") from error
    if row["command"] != planned:
      raise UsageError(f"{where}: the plan makes this run by {planned!r}, not {row['command']!r}")
    if key in rows:
      raise UsageError(f"{where}: there is a row of the same run above; take one of them out")
    rows[key] = row
  return rows


def save(file: Path, rows: Mapping[Key, Mapping[str, Any]]) -> None:
  """Writes the rows, in an order of their own.

  Args:
    file: the file; its folder is made if need be.
    rows: all rows.
  """
  file.parent.mkdir(parents=True, exist_ok=True)
  lines = [json.dumps(rows[key], allow_nan=False) + "\n" for key in sorted(rows)]
  write_atomically(file, "".join(lines))


def make(study: Study, key: Key, folder: Path, data_dir: str | None) -> dict[str, Any] | None:
  """Makes a run, or goes on with it, and returns its row.

  Args:
    study: the study.
    key: the run.
    folder: folder of the study's runs.
    data_dir: folder of prepared TensorFlow Datasets; None is theirs.

  Returns:
    The row; None if a signal stopped the run.
  """
  config = study.config(key)
  config = dataclasses.replace(config, data=dataclasses.replace(config.data, data_dir=data_dir))
  kind = "search" if key.search else "run"
  place = folder / f"{key.setting}-{key.arm}-{key.rate:g}-{key.seed}-{kind}"
  about = environment()
  if _commits(place) - {about["commit"]}:  # a row is of one commit
    shutil.rmtree(place)
  command = study.command(key)
  row: dict[str, Any] = {"key": key._asdict(), "command": command}
  try:
    outcome = train(config, command, Console(quiet=True), out=str(place))
  except Diverged as error:
    return row | {"accuracy": None, "diverged": str(error), "environment": about}
  if outcome.status != "finished":
    return None
  scored = "validation_accuracy" if key.search else "test_accuracy"
  timing = [parse_json(line) for line in (place / "timing.jsonl").read_text().splitlines()]
  return row | {
    "accuracy": outcome.rows[-1][scored],
    "steps": [each["step"] for each in outcome.rows],
    "test_accuracy": [each["test_accuracy"] for each in outcome.rows],
    "test_loss": [each["test_loss"] for each in outcome.rows],
    "train_loss": [each["train_loss"] for each in outcome.rows],
    "train_seconds": max(round(timing[-1]["train_seconds"], 3), 0.001),
    "environment": about,
  }


def _commits(place: Path) -> set[str | None]:
  """Returns the commits that a run was made at so far."""
  try:
    return {launch["commit"] for launch in read_json(place / MANIFEST)["launches"]}
  except FileNotFoundError:
    return set()
