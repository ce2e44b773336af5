"""What is read off a run's curve, where all runs are evaluated equally often."""

import math
from typing import Any

import numpy as np

from experiments.ablation.protocol import FINE, FINE_EPOCHS

Row = dict[str, Any]
"""What came of a run: "id", "kind", "spec", "command" and results."""


def common(row: Row) -> dict[int, float]:
  """Returns test accuracy by step, without what only the first epoch is evaluated at.

  A run that is looked at more often than another would reach the target sooner by chance alone, for
  accuracies go up and down.
  """
  per_epoch = row["steps_per_epoch"]
  marks = {per_epoch * part // FINE for part in range(FINE)}
  pairs = zip(row["curve"]["steps"], row["curve"]["accuracy"], strict=True)
  return {step: accuracy for step, accuracy in pairs if step and step % per_epoch in marks}


def steps_to(row: Row, target: float) -> int | None:
  """Returns the steps to an accuracy; None if the run diverged or did not get there."""
  found = (step for step, accuracy in common(row).items() if accuracy >= target)
  return next(found, None) if row["diverged_at"] is None else None


def until(row: Row, epochs: float) -> list[float]:
  """Returns test accuracies up to an epoch; none if the run diverged."""
  last = epochs * row["steps_per_epoch"] if row["diverged_at"] is None else 0
  return [accuracy for step, accuracy in common(row).items() if step <= last]


def early_error(row: Row) -> float | None:
  """Returns the geometric mean of the test error in the first epochs; None if the run diverged."""
  errors = [max(1 - accuracy, 1e-4) for accuracy in until(row, FINE_EPOCHS)]
  return math.exp(np.mean(np.log(errors))) if errors else None
