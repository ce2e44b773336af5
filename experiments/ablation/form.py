"""The form of rows: what a line of results must have, wherever it comes from, before it counts."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.ablation.arms import ARMS
from experiments.common.forms import FormError, conform


@dataclasses.dataclass(frozen=True)
class Curve:
  """Test accuracies by steps."""

  steps: list[int]
  accuracy: list[float]


@dataclasses.dataclass(frozen=True)
class TrainingResult:
  """What a row of a training run has at least."""

  accuracy: float | None
  diverged_at: int | None
  curve: Curve
  epoch_accuracy: list[float]
  steps_to_target: int | None
  epochs_to_target: float | None
  steps_per_epoch: int
  seconds: float
  learning_rate: float
  final_loss: float | None
  hyperparameters: dict[str, Any]
  weights: str
  environment: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class AttackResult:
  """What a row of attacks has at least."""

  accuracy: float
  white_box: dict[str, dict[str, float]]
  transfer: dict[str, dict[str, dict[str, float]]]
  environment: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class FiltersResult:
  """What a row of filters has at least."""

  filters: list[list[list[list[float]]]]
  environment: dict[str, Any]


RESULTS = {"training": TrainingResult, "attack": AttackResult, "filters": FiltersResult}


def check_results(row: Mapping[str, Any]) -> None:
  """Checks the results of a row; it may have more than are named here.

  Args:
    row: The row, whose "kind" and "spec" are known to be right.

  Raises:
    FormError: If a result is missing, has another type, or cannot be.
  """
  form = RESULTS[row["kind"]]
  names = {field.name for field in dataclasses.fields(form)}
  result = conform({name: value for name, value in row.items() if name in names}, form)
  spec = row["spec"]
  if type(spec["seed"]) is not int or spec["seed"] < 0:
    raise FormError(f"`spec.seed` must be a whole number from 0, got {spec['seed']!r}")
  if conform(spec.get("rate", 1.0), float, "spec.rate") <= 0:
    raise FormError(f"`spec.rate` must be positive, got {spec['rate']}")
  networks = {"spec.arm": row["spec"]["arm"]} | {
    f"spec.targets[{i}]": name for i, name in enumerate(row["spec"].get("targets", ()))
  }
  for name, network in networks.items():
    if network not in ARMS:
      raise FormError(f"`{name}` must be a network of the studies, got {network!r}")
  for name, accuracy in _accuracies(result):
    if not 0 <= accuracy <= 1:
      raise FormError(f"`{name}` must be from 0 to 1, got {accuracy}")
  if isinstance(result, TrainingResult):
    steps = result.curve.steps
    if len(steps) != len(result.curve.accuracy) or steps != sorted(set(steps)):
      raise FormError("`curve` must have an accuracy for each of ascending steps")
    if result.accuracy is None and result.diverged_at is None:
      raise FormError("`accuracy` must be a number unless the run diverged, got None")


def _accuracies(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
  """Yields the accuracies of a result, each with its name."""
  if isinstance(value, TrainingResult):
    lists = {"epoch_accuracy": value.epoch_accuracy, "curve.accuracy": value.curve.accuracy}
    for each, numbers in lists.items():
      yield from ((each, number) for number in numbers)
    if value.accuracy is not None:
      yield "accuracy", value.accuracy
  elif isinstance(value, AttackResult):
    yield "accuracy", value.accuracy
    yield from _accuracies(value.white_box, "white_box")
    yield from _accuracies(value.transfer, "transfer")
  elif isinstance(value, Mapping):
    for key, each in value.items():
      yield from _accuracies(each, f"{name}[{key}]")
  elif isinstance(value, int | float):
    yield name, value
