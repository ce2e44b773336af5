"""What a run measures: rows that depend on the run alone, and apart from them the clock's."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.common.files import write_atomically

METRICS, TIMING, SUMMARY = "metrics.jsonl", "timing.jsonl", "summary.json"
Row = Mapping[str, float | int | None]


class Metrics:
  """Rows of metrics.jsonl and timing.jsonl, one of each for every evaluation.

  metrics.jsonl is a function of the configuration: two runs of it on one machine have the same
  bytes, interrupted or not. What the clock says is in timing.jsonl. Every checkpoint holds the rows
  up to it, so that a run that goes on from it has each row once.

  Args:
    folder: folder of the run; None writes nothing.
    rows: rows of metrics so far.
    timing: rows of timing so far.
    tensorboard: whether to write TensorBoard's files as well.
  """

  def __init__(
    self,
    folder: Path | None,
    rows: Sequence[Row] = (),
    timing: Sequence[Row] = (),
    *,
    tensorboard: bool = False,
  ):
    self.folder = folder
    self.rows: list[dict[str, Any]] = [dict(row) for row in rows]
    self.timing: list[dict[str, Any]] = [dict(row) for row in timing]
    self._board = None
    if folder is None:
      return
    for name, content in ((METRICS, self.rows), (TIMING, self.timing)):
      write_atomically(folder / name, "".join(map(_line, content)))
    if tensorboard:
      from tensorboardX import SummaryWriter

      purge = self.last_step + 1 if self.rows else None
      self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

  @property
  def last_step(self) -> int:
    """Step of the last row; -1 if there is none."""
    return int(self.rows[-1]["step"] or 0) if self.rows else -1

  def add(self, row: Row, timing: Row) -> None:
    """Adds a row to each of the files.

    Args:
      row: row of metrics, with "step"; what is not finite becomes null.
      timing: row of timing, with "step".
    """
    row = {
      name: value if value is None or math.isfinite(value) else None for name, value in row.items()
    }
    self.rows.append(dict(row))
    self.timing.append(dict(timing))
    if self.folder is None:
      return
    for name, content in ((METRICS, row), (TIMING, timing)):
      with (self.folder / name).open("a", encoding="utf-8") as stream:
        stream.write(_line(content))
        stream.flush()
        os.fsync(stream.fileno())
    if self._board is not None:
      step = self.last_step
      for name, value in (*row.items(), *timing.items()):
        if name != "step" and value is not None:
          self._board.add_scalar(name, value, step)
      self._board.flush()

  def reaches(self, accuracy: float) -> tuple[int, float] | None:
    """Returns when a test accuracy was reached first, in steps and seconds of training.

    Args:
      accuracy: accuracy, from 0 to 1.

    Returns:
      Both, as in DAWNBench but without compilation, evaluation and saving; None if it is not
      reached.
    """
    for row, timing in zip(self.rows, self.timing, strict=True):
      if (row["test_accuracy"] or 0.0) >= accuracy:
        return int(row["step"] or 0), float(timing["train_seconds"] or 0.0)
    return None

  def summarise(self, targets: Sequence[float], best_step: int | None) -> list[str]:
    """Writes summary.json: the last figures, and the time to each accuracy.

    Args:
      targets: accuracies, from 0 to 1.
      best_step: step of the best checkpoint.

    Returns:
      A line about each accuracy, and one about the last.
    """
    times: dict[str, Any] = {}
    lines = []
    for target in targets:
      reached = self.reaches(target)
      steps, seconds = reached or (None, None)
      times[f"{target:g}"] = {"steps": steps, "train_seconds": seconds}
      when = "not reached" if reached is None else f"{reached[1]:.1f} s of training, step {steps:,}"
      lines.append(f"test accuracy {target:g}: {when}")
    summary = self.rows[-1] | {
      "train_seconds": self.timing[-1]["train_seconds"],
      "best_step": best_step,
      "time_to_accuracy": times,
    }
    if self.folder is not None:
      write_atomically(self.folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return [*lines, f"finished: test accuracy {summary['test_accuracy']:.4f}"]

  def close(self) -> None:
    """Completes TensorBoard's files."""
    if self._board is not None:
      self._board.close()


def _line(row: Mapping[str, Any]) -> str:
  return json.dumps(row, allow_nan=False) + "\n"
