"""The rows of a page by network, learning rate and seed, and what is measured in them."""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.ablation import attacked
from experiments.ablation.plan import rate_of, searches, todo
from experiments.ablation.protocol import RATE, Protocol, Spec, identity
from experiments.ablation.reading import Row, early_error, steps_to, until
from experiments.ablation.rules import FEWEST, RULES
from experiments.ablation.study import MAIN, STUDIES, Rates
from experiments.common.statistics import Layout

Runs = Mapping[int, Row]
"""Rows of one network, by seed."""


@dataclasses.dataclass(frozen=True)
class Measure:
  """Something that networks are compared by."""

  read: Callable[["Evidence", Row], float | None]  # from a row; None where it has none
  quotient: bool = True  # theirs over ours, in logarithms; else ours less theirs
  early: bool = False  # whether runs that were stopped early have it too
  kind: str = "training"  # of rows


MEASURES: dict[str, Measure] = {
  "errors": Measure(lambda evidence, row: early_error(row), early=True),
  "steps": Measure(lambda evidence, row: steps_to(row, evidence.target)),
  "loss": Measure(lambda evidence, row: row["final_loss"]),
  "accuracy": Measure(lambda evidence, row: row["accuracy"], quotient=False),
  "fgsm": Measure(
    lambda evidence, row: attacked.accuracy_at(row, evidence.epsilon), False, kind="attack"
  ),
  "pgd": Measure(
    lambda evidence, row: row["white_box"]["pgd"][str(attacked.PGD_EPSILON)], False, kind="attack"
  ),
}


class Evidence:
  """What the rows say, of all seeds or some; learning rates are chosen by all rows there are."""

  def __init__(
    self,
    rows: Mapping[str, Row],
    protocol: Protocol,
    seeds: Callable[[int], bool] = lambda seed: True,
  ):
    self.rows, self.protocol = rows, protocol
    self._by: dict[Any, dict[int, Row]] = collections.defaultdict(dict)
    for row in rows.values():
      spec = row["spec"]
      if not spec.get("search") and seeds(spec["seed"]):
        key = row["kind"], spec["arm"], spec.get("rate", RATE), spec.get("stop_after")
        self._by[key][spec["seed"]] = row
    self.rate = functools.cache(self._rate)
    self.layout = functools.cache(self._layout)

  def _rate(self, arm: str, rates: Rates = "paper") -> float | None:
    return rate_of(arm, self.rows, rates)

  def runs(self, arm: str, rates: Rates = "paper", kind: str = "training") -> Runs:
    """Rows of a network, by seed."""
    rate = RATE if kind != "training" else self.rate(arm, rates)
    return dict(sorted(self._by[kind, arm, rate, None].items()))

  def measured(self, arm: str, name: str, rates: Rates = "paper") -> dict[int, float | None]:
    """A measurement of a network's runs, by seed; None where a run has none."""
    measure = MEASURES[name]
    found = self.runs(arm, rates, measure.kind)
    if measure.early:
      (stop,) = {STUDIES[name].stop_after for name in ("early", "early-tuned")}
      found = self._by["training", arm, self.rate(arm, rates), stop] | dict(found)
    return {seed: measure.read(self, row) for seed, row in sorted(found.items())}

  def _layout(self, study: str, name: str, rates: Rates = "paper") -> Layout | None:
    """The layout of networks that have a measurement in every run; the main ones share theirs."""
    arms = STUDIES[study].all_arms
    arms = MAIN if set(arms) <= set(MAIN) and MEASURES[name].kind == "training" else arms
    cells = {}
    for arm in arms:
      values = self.measured(arm, name, rates)
      if None not in values.values():
        take = math.log if MEASURES[name].quotient else float
        cells |= {(arm, seed): take(value or 1e-9) for seed, value in values.items()}
    return Layout(cells, RULES["bartlett"]) if cells else None

  def best_rates(self, name: str) -> Rates:
    """The learning rates that are best for a measurement, of those that there are runs of."""
    early = MEASURES[name].early and all(
      len(self.measured(arm, name, "early")) >= FEWEST for arm in MAIN
    )
    return "early" if early else "tuned"

  def never(self, arm: str, rates: Rates) -> bool:
    """Whether no learning rate can be chosen, since all searches diverged."""
    if rates == "paper":
      return False
    found = [self.rows.get(identity(run)) for run in searches(arm, self.rows, rates)]
    return all(row is not None and row["accuracy"] is None for row in found)

  @functools.cached_property
  def target(self) -> float:
    """The accuracy to which the time is taken."""
    if self.protocol.target is not None:
      return self.protocol.target
    found = [until(row, self.protocol.epochs / 3) for row in self.runs("cnn").values()]
    return float(np.mean([values[-1] for values in found if values] or [1.0]))

  @functools.cached_property
  def epsilon(self) -> float:
    """The epsilon at which the CNN's mean accuracy is that of table 1; NaN if it is at none."""
    return attacked.paper_epsilon(self.runs("cnn", kind="attack"))

  @functools.cached_property
  def seeds(self) -> list[int]:
    """All seeds of rows that no learning rate is chosen by."""
    return sorted({seed for found in self._by.values() for seed in found})

  def pace(self, arm: str) -> float | None:
    """Returns milliseconds a step, of the run on the commonest device that shared it least."""
    devices = collections.Counter(row["environment"]["device"] for row in self.rows.values())
    paces = [
      1000 * row["seconds"] / row["curve"]["steps"][-1]
      for row in self.rows.values()
      if row["kind"] == "training" and row["spec"]["arm"] == arm and row["curve"]["steps"][-1]
      if row["environment"]["device"] == devices.most_common(1)[0][0]
      if "together" not in row["environment"]
    ]
    return min(paces, default=None)

  def searched(self, arm: str, rates: Rates = "tuned") -> dict[float, list[Row]]:
    """Rows that a learning rate is chosen by, by that rate."""
    found: dict[float, list[Row]] = {}
    for run in searches(arm, self.rows, rates):
      if identity(run) in self.rows:
        found.setdefault(run.rate, []).append(self.rows[identity(run)])
    return found

  def missing(self, study: str) -> list[Spec]:
    """Runs of the fewest seeds that have no row and can be made now."""
    wanted = todo(study, STUDIES[study].arms, range(FEWEST), self.rows)
    return [spec for spec in wanted if identity(spec) not in self.rows]
