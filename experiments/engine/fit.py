"""Training without a folder: along an order of examples, with the accuracy followed on the way."""

from collections.abc import Callable

import numpy as np

from experiments.common.curve import Curve
from experiments.data import Images, each_once, picks
from experiments.engine.step import Score, TrainState
from experiments.engine.trainer import Trainer
from experiments.engine.vmapped import VmappedTrainer

Pause = int | Callable[[Curve], int]


def fit(
  trainer: Trainer,
  state: TrainState,
  train: Images,
  test: Images,
  order: np.ndarray,
  *,
  eval_every: Pause,
  on_progress: Callable[[int], None] = lambda steps: None,
) -> tuple[TrainState, Curve]:
  """Trains along an order of examples and evaluates on the way.

  Args:
    trainer: trainer of the model.
    state: state to start from; it cannot be used again.
    train: the training set.
    test: the set to evaluate on.
    order: indices into the training set, (steps, batch size).
    eval_every: steps between evaluations, or how to tell those to the next from the curve so far;
      there is one more after the last step.
    on_progress: function that is called with the number of steps just taken.

  Returns:
    The state at the end and the curve. A run whose loss is no longer finite stops there.
  """

  def advance(begin: int, end: int) -> tuple[np.ndarray, float]:
    nonlocal state
    state, losses, seconds = trainer.run(state, picks(train, order[begin:end]))
    return losses[:, None], seconds

  def score() -> list[Score]:
    return [trainer.evaluate(state, each_once(test))]

  (curve,) = _follow(1, len(order), advance, score, eval_every, on_progress)
  return state, curve


def fit_together(
  trainer: VmappedTrainer,
  states: TrainState,
  train: Images,
  test: Images,
  orders: np.ndarray,
  subsets: np.ndarray,
  *,
  eval_every: Pause,
  on_progress: Callable[[int], None] = lambda steps: None,
) -> tuple[TrainState, list[Curve]]:
  """Trains several runs of a network at once, and evaluates each when it would be by itself.

  Args:
    trainer: trainer of the network.
    states: states to start from, each leaf with an axis of runs in front; they cannot be used
      again.
    train: the training set, of which each run can have a part of its own.
    test: the set to evaluate on, likewise.
    orders: indices into the training set, (steps, runs, batch size).
    subsets: indices into the set to evaluate on, (runs, examples).
    eval_every: see `fit`.
    on_progress: function that is called with the number of steps just taken.

  Returns:
    The states at the end and each run's curve, whose seconds are those of all runs together. A run
    whose loss is no longer finite ends there, and its state goes on without a meaning; what follows
    after the last of them has ended is not computed.
  """

  def advance(begin: int, end: int) -> tuple[np.ndarray, float]:
    nonlocal states
    states, losses, seconds = trainer.run(states, picks(train, orders[begin:end]))
    return losses, seconds

  def score() -> list[Score]:
    return trainer.evaluate(states, test, subsets)

  curves = _follow(len(subsets), len(orders), advance, score, eval_every, on_progress)
  return states, curves


def _follow(
  number: int,
  steps: int,
  advance: Callable[[int, int], tuple[np.ndarray, float]],
  score: Callable[[], list[Score]],
  eval_every: Pause,
  on_progress: Callable[[int], None],
) -> list[Curve]:
  """Returns the curves of runs side by side, each evaluated at marks of its own.

  Args:
    number: number of runs.
    steps: number of steps of each run.
    advance: function that takes the steps from one number to another and returns the losses,
      (steps, runs), and the seconds they took.
    score: function that scores every run now.
    eval_every: see `fit`.
    on_progress: see `fit`.
  """
  curves = [Curve() for _ in range(number)]
  marks = [0] * number  # where each run is evaluated next
  seconds, taken = 0.0, 0
  live = list(range(number))
  while True:
    scores = score()
    for run in live:
      curve = curves[run]
      if marks[run] == taken:
        curve.steps.append(taken)
        curve.seconds.append(seconds)
        curve.accuracy.append(scores[run].accuracy)
        if not np.isfinite(scores[run].loss):
          curve.diverged_at = taken
        elif taken < steps:
          pause = eval_every(curve) if callable(eval_every) else eval_every
          marks[run] = min(taken + pause, steps)
    live = [run for run in live if curves[run].diverged_at is None]
    if taken == steps or not live:
      return curves
    end = min(marks[run] for run in live)
    losses, spent = advance(taken, end)
    for run in live:
      finite = np.isfinite(losses[:, run])
      if not finite.all():
        curves[run].diverged_at = taken + int(np.argmin(finite))
    live = [run for run in live if curves[run].diverged_at is None]
    if not live:
      return curves
    on_progress(end - taken)
    taken, seconds = end, seconds + spent
