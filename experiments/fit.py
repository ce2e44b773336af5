"""Training without a folder: along an order of examples, with the accuracy followed on the way."""

import dataclasses
from collections.abc import Callable

import numpy as np

from experiments.step import TrainState
from experiments.training import Images, Trainer


@dataclasses.dataclass
class Curve:
  """One training run, seen at every evaluation; the first is before training.

  Attributes:
    steps: steps taken before the evaluation.
    seconds: spent in these steps, without compilation and evaluation.
    accuracy: on the test set.
    diverged_at: step whose loss was NaN or infinite, where the run stopped; None if none was.
  """

  steps: list[int] = dataclasses.field(default_factory=list)
  seconds: list[float] = dataclasses.field(default_factory=list)
  accuracy: list[float] = dataclasses.field(default_factory=list)
  diverged_at: int | None = None

  def reaches(self, target: float) -> tuple[int, float] | None:
    """Steps and seconds at the first evaluation with at least this accuracy; None if none has."""
    for step, seconds, accuracy in zip(self.steps, self.seconds, self.accuracy, strict=True):
      if accuracy >= target:
        return step, seconds
    return None


def fit(
  trainer: Trainer,
  state: TrainState,
  train: Images,
  test: Images,
  order: np.ndarray,
  *,
  eval_every: int | Callable[[Curve], int],
  on_progress: Callable[[int], None] = lambda steps: None,
) -> tuple[TrainState, Curve]:
  """Trains along an order of examples and evaluates on the way.

  Args:
    trainer: of the model.
    state: where to start; it cannot be used again.
    train: the training set.
    test: the set to evaluate on.
    order: indices into the training set, (steps, batch size).
    eval_every: steps between evaluations, or how to tell those to the next from the curve so far;
      there is one more after the last step.
    on_progress: called with the number of steps just taken.

  Returns:
    The state at the end and the curve. A run whose loss is no longer finite stops there.
  """
  curve = Curve()
  seconds, taken = 0.0, 0

  def evaluate() -> None:
    score = trainer.evaluate(state, test)
    curve.steps.append(taken)
    curve.seconds.append(seconds)
    curve.accuracy.append(score.accuracy)
    if not np.isfinite(score.loss):
      curve.diverged_at = taken

  evaluate()
  while curve.diverged_at is None and taken < len(order):
    pause = eval_every(curve) if callable(eval_every) else eval_every
    chunk = order[taken : taken + pause]
    state, losses, spent = trainer.run(state, train, chunk)
    finite = np.isfinite(losses)
    if not finite.all():
      curve.diverged_at = taken + int(np.argmin(finite))
      break
    taken, seconds = taken + len(chunk), seconds + spent
    on_progress(len(chunk))
    evaluate()
  return state, curve
