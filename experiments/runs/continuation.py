"""What a run needs to go on, beside the arrays of a checkpoint."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments import UsageError
from experiments.common.forms import LATER, FormError, conform
from experiments.configs.identity import STREAMED, deciding_scores, differences
from experiments.runs.record import DamagedError

UNSEALED = (
  "the configuration of this run is not sealed: version 0.1 saved the checkpoint, so whether "
  "config.json is what it was trained with cannot be checked"
)


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of metrics.jsonl."""

  step: int
  epoch: float
  learning_rate: float | None
  train_loss: float | None
  test_loss: float | None
  test_accuracy: float | None
  test_top5: float | None
  validation_accuracy: float | None = dataclasses.field(default=None, metadata=LATER)

  def written(self) -> dict[str, Any]:
    """Returns the row as it is written: without what only a run with held-out examples has."""
    row = dataclasses.asdict(self)
    if self.validation_accuracy is None:
      del row["validation_accuracy"]
    return row


@dataclasses.dataclass(frozen=True)
class Timing:
  """A row of timing.jsonl."""

  step: int
  train_seconds: float


@dataclasses.dataclass(frozen=True)
class Continuation:
  """What is needed to go on from a checkpoint, and to tell whether it is the one that is meant.

  Attributes:
    data: Fingerprint of the data.
    rows: Rows of the metrics so far.
    timing: Rows of the timing so far.
    train_seconds: Seconds of training steps so far.
    loss_sum: Sum of the losses since the last row.
    loss_steps: Number of these losses.
    config: What decides the result, by the names of options; None in a run of version 0.1, whose
      checkpoints do not tell.
    network: What the network is and sees, as `kerv_jax.models.Description` tells it in JSON; None
      in a run of version 0.1.
  """

  data: str
  rows: list[Row]
  timing: list[Timing]
  train_seconds: float
  loss_sum: float
  loss_steps: int
  config: dict[str, Any] | None
  network: str | None = dataclasses.field(default=None, metadata=LATER)

  @classmethod
  def read(cls, values: Any, step: int) -> "Continuation":
    """Returns what values of JSON's types say.

    Args:
      values: the values, as `dataclasses.asdict` made them.
      step: the number of steps taken before the checkpoint.

    Raises:
      DamagedError: if they do not have this form, or say what cannot be.
    """
    old = isinstance(values, dict) and "config" not in values
    try:
      read = conform(values | {"config": None} if old else values, cls, "record")
    except FormError as error:
      raise DamagedError(f"the record of step {step} cannot be: {error}") from error
    steps = [row.step for row in read.rows]
    possible = {
      "rows": steps == sorted(set(steps)) and all(0 <= each <= step for each in steps),
      "timing": steps == [row.step for row in read.timing],
      "train_seconds": read.train_seconds >= 0,
      "loss_steps": 0 <= read.loss_steps <= step,
    }
    for name, right in possible.items():
      if not right:
        raise DamagedError(f"the record of step {step} cannot be: `record.{name}`")
    return read

  def check(self, config: Mapping[str, Any], data: str, *, scoring: bool = False) -> None:
    """Checks that a configuration and data are those of the checkpoint.

    Args:
      config: what decides the result, by the names of options.
      data: fingerprint of the data.
      scoring: whether the checkpoint is to be scored only.

    Raises:
      UsageError: if the configuration differs, or the data do.
    """
    if self.config is not None:
      part = deciding_scores if scoring else dict
      changed = differences(part(self.config), part(config))
      if changed:
        raise UsageError(
          f"the checkpoint was saved with another configuration: {'; '.join(changed)}"
        )
    comparable = self.config is not None or not data.startswith(STREAMED)
    if data != self.data and comparable:
      raise UsageError(
        f"`--data.name` {config['data.name']} has other data now than when the checkpoint was saved"
      )
