"""The form of rows: what a line of results must have, wherever it comes from, before it counts."""

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.ablation.arms import ARMS
from experiments.common.forms import FormError, conform

_ENVIRONMENT: dict[str, Any] = {"environment": dict[str, Any]}
FORMS: dict[str, dict[str, Any]] = {
  "training": {
    "accuracy": float | None,
    "diverged_at": int | None,
    "curve": dict[str, list[float]],
    "epoch_accuracy": list[float],
    "steps_to_target": int | None,
    "epochs_to_target": float | None,
    "steps_per_epoch": int,
    "seconds": float,
    "learning_rate": float,
    "final_loss": float | None,
    "hyperparameters": dict[str, Any],
    "weights": str,
  },
  "attack": {
    "accuracy": float,
    "white_box": dict[str, dict[str, float]],
    "transfer": dict[str, dict[str, dict[str, float]]],
  },
  "filters": {"filters": list[list[list[list[float]]]]},
}
"""What rows have at least, by their kind."""


def check_results(row: Mapping[str, Any]) -> None:
  """Checks the results of a row whose "kind" and "spec" are known to be right.

  Raises:
    FormError: If a result is missing, has another type, or cannot be.
  """
  for name, form in (FORMS[row["kind"]] | _ENVIRONMENT).items():
    if name not in row:
      raise FormError(f"missing: `{name}`")
    conform(row[name], form, name)
  spec = row["spec"]
  if type(spec["seed"]) is not int or spec["seed"] < 0:
    raise FormError(f"`spec.seed` must be a whole number from 0, got {spec['seed']!r}")
  if conform(spec.get("rate", 1.0), float, "spec.rate") <= 0:
    raise FormError(f"`spec.rate` must be positive, got {spec['rate']}")
  for name, network in (("arm", spec["arm"]), *(("targets", t) for t in spec.get("targets", ()))):
    if network not in ARMS:
      raise FormError(f"`spec.{name}` must be a network of the studies, got {network!r}")
  steps = row.get("curve", {}).get("steps", [])
  parts = {name: row.get(name) for name in ("accuracy", "epoch_accuracy", "white_box", "transfer")}
  for name, accuracy in _numbers(parts | {"curve": row.get("curve", {}).get("accuracy", [])}):
    if not 0 <= accuracy <= 1:
      raise FormError(f"`{name}` must be from 0 to 1, got {accuracy}")
  if row["kind"] == "training":
    if len(steps) != len(row["curve"]["accuracy"]) or steps != sorted(set(steps)):
      raise FormError("`curve` must have an accuracy for each of ascending steps")
    if row["accuracy"] is None and row["diverged_at"] is None:
      raise FormError("`accuracy` must be a number unless the run diverged, got None")


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
  """Yields all numbers of a value, each with its place."""
  if isinstance(value, Mapping | list):
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, each in pairs:
      yield from _numbers(each, f"{name}[{key}]" if name else str(key))
  elif value is not None:
    yield name, value
