"""How a run can end: in order, or because its numbers are no longer finite."""

from typing import Any, Literal, NamedTuple

from experiments.configs.config import ModelConfig
from experiments.engine.step import TrainState
from experiments.failures import EXIT_DIVERGED, Failure

Status = Literal["finished", "paused", "stopped"]


class Outcome(NamedTuple):
  """How a run ended.

  Attributes:
    status: "finished"; "paused", after the epochs of `--run.stop-after`; or "stopped", by a signal.
    step: number of steps taken.
    rows: the rows of metrics.jsonl.
    state: the state at the end.
  """

  status: Status
  step: int
  rows: list[dict[str, Any]]
  state: TrainState


class Diverged(Failure, ArithmeticError):
  """A loss or parameter is no longer finite; the last checkpoint is from before."""

  exit_code = EXIT_DIVERGED


def diverged(
  model: ModelConfig,
  what: str,
  *,
  step: int,
  learning_rate: float,
  newest: int | None,
  set_aside: bool,
) -> Diverged:
  """Returns the error that says what happened, what is left and what helps.

  Args:
    model: the network.
    what: the thing that is not finite.
    step: the step that went wrong.
    learning_rate: the learning rate of that step.
    newest: the step of the newest checkpoint; None if there is none.
    set_aside: whether the checkpoint of the step itself was set aside.
  """
  helps = ["a lower `--optim.learning-rate`", "a warm-up by `--optim.warmup-epochs`"]
  if model.kernel != "none":
    helps += ["fewer kervolutions (`--model.layers first`)"]
  if model.kernel == "polynomial":
    helps += ["a smaller `--model.balance` or `--model.degree`"]
  helps += ["`--optim.clip-norm 1`"]
  kept = "no checkpoint" if newest is None else f"the checkpoint of step {newest}"
  aside = "; that of this step, whose loss it is, was set aside" if set_aside else ""
  go_on = "Starting" if newest is None else "Going on from the checkpoint"
  return Diverged(
    f"diverged at step {step}, learning rate {learning_rate:g}: {what}; kept: {kept}{aside}. What "
    f"helps: {'; '.join(helps)}. {go_on} with them needs `--run.accept-changes`"
  )
