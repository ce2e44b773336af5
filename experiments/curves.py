"""The commands `plot` and `compare`: what runs have measured, drawn and side by side."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from experiments import UsageError
from experiments.common.markdown import table
from experiments.runs.history import History, differing

FIGURES = ".png", ".pdf", ".svg"


@dataclasses.dataclass(frozen=True)
class PlotCommand:
  """Draw the loss and the test error of runs by epoch."""

  runs: Annotated[tuple[str, ...], tyro.conf.Positional]
  """Folders of the runs."""
  out: str | None = None
  """File for the figure (.png, .pdf or .svg); if not given, curves.png in the first folder."""


@dataclasses.dataclass(frozen=True)
class CompareCommand:
  """Tell what runs differ in and what came of it: a table in Markdown, and a figure."""

  runs: Annotated[tuple[str, ...], tyro.conf.Positional]
  """Folders of the runs."""
  out: str | None = None
  """File for a figure of their curves (.png, .pdf or .svg); if not given, there is none."""


def plot_command(command: PlotCommand) -> int:
  """Does `python -m experiments plot RUN...`.

  Args:
    command: options that were given.

  Returns:
    The exit code.

  Raises:
    UsageError: if there is no such run, or the file will not do.
  """
  runs = _read(command.runs)
  _draw(runs, str(runs[0].folder / "curves.png") if command.out is None else command.out)
  return 0


def compare_command(command: CompareCommand) -> int:
  """Does `python -m experiments compare RUN...`.

  Args:
    command: options that were given.

  Returns:
    The exit code.

  Raises:
    UsageError: if there is no such run, or the file will not do.
  """
  runs = _read(command.runs)
  print(comparison(runs))
  if command.out is not None:
    _draw(runs, command.out)
  return 0


def comparison(runs: Sequence[History]) -> str:
  """Returns a table in Markdown, a row for each run.

  Args:
    runs: the runs.
  """
  options = differing(runs)
  targets = sorted({each for run in runs for each in run.options.get("eval.targets", [])})
  head = ["run", *(f"`--{name}`" for name in options), "epoch", "test accuracy", "best", "at epoch"]
  head += ["seconds", *(f"seconds to {target:g}" for target in targets)]
  body = []
  for run in runs:
    last, best = run.rows[-1], run.best
    body.append(
      [
        str(run.folder),
        *(json.dumps(run.options.get(name)) for name in options),
        f"{last.epoch:g}",
        _number(last.test_accuracy, 4),
        _number(best.test_accuracy, 4),
        f"{best.epoch:g}",
        _number(run.seconds[-1], 1),
        *(_number(run.reaches(target), 1) for target in targets),
      ]
    )
  return table(head, body)


def _number(value: float | None, digits: int) -> str:
  return "-" if value is None else f"{value:.{digits}f}"


def _read(folders: Sequence[str]) -> list[History]:
  """Returns the histories of runs, each of which is named once."""
  if not folders or len({Path(folder).resolve() for folder in folders}) < len(folders):
    raise UsageError(f"`RUNS` must be one folder or more, each once, got {list(folders)}")
  return [History.read(folder) for folder in folders]


def _draw(runs: Sequence[History], out: str) -> None:
  """Writes the figure, and says where it is."""
  path = Path(out)
  if path.suffix not in FIGURES or not path.parent.is_dir() or path.is_dir():
    raise UsageError(
      f"`--out` must be a file {', '.join(FIGURES)} in a folder that is there, got {out!r}"
    )
  from experiments.common.figures import histories  # imports matplotlib

  histories(path, {str(run.folder): run.rows for run in runs})
  print(f"drawn: {out}")
