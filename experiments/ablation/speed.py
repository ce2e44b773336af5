"""How fast a run gets somewhere, read off its curve where runs are evaluated equally often."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from experiments.ablation.protocol import FINE, FINE_EPOCHS, TARGET
from experiments.ablation.rows import Row


def common(row: Row) -> dict[int, float]:
  """Test accuracy by step, without the evaluations that the first epoch has beyond the others.

  A run that is looked at more often than another would reach the target sooner by chance alone, for
  accuracies go up and down.

  Args:
    row: of a training run.
  """
  per_epoch = row["steps_per_epoch"]
  marks = {per_epoch * part // FINE for part in range(FINE)}
  pairs = zip(row["curve"]["steps"], row["curve"]["accuracy"], strict=True)
  return {step: accuracy for step, accuracy in pairs if step and step % per_epoch in marks}


def every(row: Row) -> dict[int, float]:
  """Test accuracy by step, at all evaluations after the start.

  Args:
    row: of a training run.
  """
  pairs = zip(row["curve"]["steps"], row["curve"]["accuracy"], strict=True)
  return {step: accuracy for step, accuracy in pairs if step}


Reading = Callable[[Row], Mapping[int, float]]
"""`common` or `every`."""


def steps_to_target(row: Row, reading: Reading = common) -> int | None:
  """Steps after which the accuracy was the target's for the first time.

  Args:
    row: of a training run.
    reading: at which evaluations.

  Returns:
    They; None if the run diverged or did not get there.
  """
  if row["diverged_at"] is not None:
    return None
  return next((step for step, accuracy in reading(row).items() if accuracy >= TARGET), None)


def epochs_to_target(row: Row) -> float | None:
  """As `steps_to_target`, in epochs.

  Args:
    row: of a training run.
  """
  steps = steps_to_target(row)
  return None if steps is None else steps / row["steps_per_epoch"]


def early_error(row: Row) -> float | None:
  """Test error in the first epochs, in which every run is evaluated often: the geometric mean.

  Args:
    row: of a training run.

  Returns:
    A part of 1; None if the run diverged.
  """
  if row["diverged_at"] is not None:
    return None
  last = FINE_EPOCHS * row["steps_per_epoch"]
  errors = [1 - accuracy for step, accuracy in common(row).items() if step <= last]
  return math.exp(np.mean(np.log(np.maximum(errors, 1e-4)))) if errors else None
