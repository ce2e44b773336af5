"""What runs have measured, read from their folders; a run may be live meanwhile."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from experiments import UsageError
from experiments.common.forms import FormError, conform, parse_json
from experiments.configs.identity import identifying
from experiments.runs.continuation import Row, Timing
from experiments.runs.folder import read_config
from experiments.runs.metrics import METRICS, TIMING

_Line = TypeVar("_Line", Row, Timing)


@dataclasses.dataclass(frozen=True)
class History:
  """The evaluations of a run.

  Attributes:
    folder: folder of the run.
    options: what decides its result, by the names of options.
    rows: rows of metrics.jsonl, at least one.
    seconds: seconds of training at each of them; None where the clock was not written yet.
  """

  folder: Path
  options: dict[str, Any]
  rows: list[Row]
  seconds: list[float | None]

  @classmethod
  def read(cls, folder: str | Path) -> "History":
    """Returns that of the run in a folder.

    Args:
      folder: the folder.

    Raises:
      UsageError: if there is no run, it was not evaluated yet, or a file is damaged.
    """
    folder = Path(folder)
    options = identifying(read_config(folder))
    rows = _lines(folder / METRICS, Row)
    if not rows:
      raise UsageError(f"the run in {str(folder)!r} has not been evaluated yet")
    seconds = {line.step: line.train_seconds for line in _lines(folder / TIMING, Timing)}
    return cls(folder, options, rows, [seconds.get(row.step) for row in rows])

  @property
  def best(self) -> Row:
    """The row that the best checkpoint is chosen by, the newest of equals."""

    def score(row: Row) -> float:
      held_out = row.validation_accuracy
      return (row.test_accuracy if held_out is None else held_out) or 0.0

    return max(self.rows, key=lambda row: (score(row), row.step))

  def reaches(self, accuracy: float) -> float | None:
    """Returns the seconds of training until a test accuracy; None if it is not reached.

    Args:
      accuracy: from 0 to 1.
    """
    for row, seconds in zip(self.rows, self.seconds, strict=True):
      if (row.test_accuracy or 0.0) >= accuracy:
        return seconds
    return None


def differing(runs: Sequence[History]) -> list[str]:
  """Returns the names of the options in which runs differ.

  Args:
    runs: the runs.
  """
  names = sorted(set().union(*(run.options for run in runs)))
  return [
    name
    for name in names
    if any(run.options.get(name) != runs[0].options.get(name) for run in runs)
  ]


def _lines(file: Path, form: type[_Line]) -> list[_Line]:
  """Returns the lines of a file, but for one at its end that is not whole yet."""
  if not file.is_file():
    raise UsageError(f"there is no file {str(file)!r} of a run")
  *whole, _ = file.read_bytes().split(b"\n")
  try:
    return [conform(parse_json(line), form, f"line {i}") for i, line in enumerate(whole, start=1)]
  except FormError as error:
    raise UsageError(f"{file} is damaged: {error}") from error
