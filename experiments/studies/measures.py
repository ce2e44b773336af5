"""What the rows of a study say: differences from the reference, with intervals and verdicts."""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from experiments.common.statistics import CONFIDENCE, Estimate, Layout, adjusted, mean
from experiments.studies.plan import Key, Stage, Study

Rates = Literal["reference", "own"]
"""At the reference's learning rate, or at each arm's own."""
Rows = Mapping[Key, Mapping[str, Any]]
NEGLIGIBLE = {"accuracy": 0.001, "steps": math.log(1.05)}
"""Leads that nobody would miss: 0.1 points, and 5 % of the steps."""


class Finding(NamedTuple):
  """An arm against the reference: accuracy less its own, or its steps over the arm's.

  Attributes:
    estimate: the difference, of logarithms for steps; None if it cannot be told.
    why: the reason if it cannot be told.
  """

  estimate: Estimate | None
  why: str = ""

  def p_values(self, measure: str) -> tuple[float, float]:
    """Two-sided p-values of "better" and of "not better", each to be small if it is to be said."""
    if self.estimate is None:
      return math.nan, math.nan
    better = self.estimate.above(0.0)
    not_better = self.estimate.below(NEGLIGIBLE[measure])
    return min(2 * better, 1.0), min(2 * not_better, 1.0)


def rates_of(stage: Stage) -> tuple[Rates, ...]:
  """The learning rates that the arms of a stage are compared at."""
  return ("own",) if stage.own else ("reference", "own")


def of_arm(study: Study, rows: Rows, setting: str, arm: str, rates: Rates) -> dict[int, Any]:
  """Returns the rows of an arm by seed, without those of a pilot that no stage has as well."""
  whose = study.reference if rates == "reference" else arm
  rate = study.rate(setting, whose, rows)
  seeds = {
    seed
    for stage in study.stages
    if stage.setting == setting and arm in stage.arms and not stage.pilot
    for seed in stage.seeds
  }
  return {
    key.seed: row
    for key, row in sorted(rows.items())
    if (key.setting, key.arm, key.rate) == (setting, arm, rate)
    if not key.search and key.seed in seeds
  }


def steps_to(row: Mapping[str, Any], target: float) -> float | None:
  """Returns the steps at which the test error, drawn on a logarithmic axis, passes a target.

  Args:
    row: the row.
    target: accuracy.

  Returns:
    The steps, interpolated between evaluations; None if it is not reached.
  """
  steps, accuracies = row["steps"], row["test_accuracy"]
  for place, accuracy in enumerate(accuracies):
    if accuracy < target:
      continue
    if place == 0:
      return float(steps[0])
    low, high, goal = (
      math.log(max(1 - a, 1e-6)) for a in (accuracies[place - 1], accuracy, target)
    )
    part = (low - goal) / (low - high)
    return steps[place - 1] + part * (steps[place] - steps[place - 1])
  return None


def layout(study: Study, rows: Rows, setting: str, measure: str, rates: Rates) -> Layout | None:
  """Returns the layout of all arms of a setting that have the measure in every run."""
  target = study.settings[setting].target
  cells: dict[tuple[str, int], float] = {}
  for arm in study.arms:
    found = of_arm(study, rows, setting, arm, rates)
    if any(row["accuracy"] is None for row in found.values()):
      continue
    if measure == "accuracy":
      values: dict[int, float | None] = {seed: row["accuracy"] for seed, row in found.items()}
    else:
      values = {seed: steps_to(row, target) for seed, row in found.items()}
    if None not in values.values():
      known = {seed: value for seed, value in values.items() if value is not None}
      scale = (lambda value: value) if measure == "accuracy" else (lambda value: -math.log(value))
      cells |= {(arm, seed): scale(value) for seed, value in known.items()}
  return Layout(cells) if cells else None


def find(
  study: Study, rows: Rows, setting: str, arm: str, measure: str, rates: Rates, fewest: int = 3
) -> Finding:
  """Compares an arm with the reference.

  Args:
    study: the study.
    rows: its rows.
    setting: name of the setting.
    arm: name of the arm.
    measure: "accuracy", or "steps" to the setting's target.
    rates: the learning rates.
    fewest: seeds of both, without which nothing is said.
  """
  for each in (arm, study.reference):
    found = of_arm(study, rows, setting, each, rates)
    if any(row["accuracy"] is None for row in found.values()):
      return Finding(None, f"{study.arms[each].label} diverged")
    if len(found) < fewest:
      return Finding(None, f"{len(found)} of {fewest} seeds")
  made = layout(study, rows, setting, measure, rates)
  for each in (arm, study.reference):
    if made is None or not made.of(each):
      return Finding(None, f"{study.arms[each].label} misses the target")
  assert made is not None
  return Finding(made.contrast(arm, study.reference))


def verdicts(study: Study, rows: Rows) -> dict[tuple[str, str, str, Rates], str]:
  """Returns "better", "not better" or "undecided" for each confirmatory claim with enough runs.

  Claims are by setting, arm, measure and rates; p-values are adjusted over all of them together.
  """
  found: dict[tuple[str, str, str, Rates], tuple[float, float]] = {}
  for stage in _confirming(study):
    for arm in stage.arms:
      if arm == study.reference:
        continue
      for measure in NEGLIGIBLE:
        for rates in rates_of(stage):
          finding = find(study, rows, stage.setting, arm, measure, rates)
          if finding.estimate is not None:
            found[stage.setting, arm, measure, rates] = finding.p_values(measure)
  corrected = adjusted([min(pair) for pair in found.values()])
  words = {}
  for (claim, (better, not_better)), p_value in zip(found.items(), corrected, strict=True):
    decided = "better" if better < 1 - CONFIDENCE or better < not_better else "not better"
    words[claim] = decided if p_value < 1 - CONFIDENCE else "undecided"
  return words


def _confirming(study: Study) -> list[Stage]:
  return [stage for stage in study.stages if stage.confirms]


def pilot(study: Study, rows: Rows) -> tuple[Estimate, float] | None:
  """Returns what the pilot says: mean accuracy with its error, and seconds of a run.

  Args:
    study: the study.
    rows: its rows.

  Returns:
    Both; None before there are two runs.
  """
  keys = {key for stage in study.stages if stage.pilot for key in study.wanted(stage, rows)}
  found = [rows[key] for key in sorted(keys & rows.keys()) if rows[key]["accuracy"] is not None]
  if len(found) < 2:
    return None
  seconds = min(row["train_seconds"] for row in found)
  return mean([row["accuracy"] for row in found]), seconds
