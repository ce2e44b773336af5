"""The rows of a page by study, arm and seed."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.ablation.plan import attack, followers, searches, trainings, tuned_rate
from experiments.ablation.protocol import RATE, Attack, Filters, Spec, Training, identity
from experiments.ablation.rows import Row
from experiments.ablation.study import STUDIES

FEWEST = 3
"""Seeds without which there is no verdict."""


class Evidence:
  """What the rows say.

  Args:
    rows: by identity.
  """

  def __init__(self, rows: Mapping[str, Row]):
    self.rows = rows
    found = {row["spec"]["seed"] for row in rows.values() if not row["spec"].get("search")}
    self.seeds = sorted(found | set(range(FEWEST)))

  def rate(self, study: str, arm: str) -> float | None:
    """The learning rate of an arm in a study; None if it is still to be chosen.

    Args:
      study: its name.
      arm: name of the network.
    """
    return tuned_rate(arm, self.rows) if STUDIES[study].tuned else RATE

  def diverges(self, arm: str) -> bool:
    """Whether no learning rate can be chosen for an arm, since all searches diverged.

    Args:
      arm: name of the network.
    """
    found = [self.rows.get(identity(run)) for run in searches(arm, self.rows)]
    return all(row is not None and row["accuracy"] is None for row in found)

  def runs(self, study: str, arm: str) -> dict[int, Row]:
    """Rows of an arm in a study, by seed.

    Args:
      study: its name.
      arm: name of the network.
    """
    rate = self.rate(study, arm)
    return {} if rate is None else self._trained(arm, rate)

  def at_paper_rate(self, arm: str) -> dict[int, Row]:
    """Rows of an arm at the paper's learning rate, by seed.

    Args:
      arm: name of the network.
    """
    return self._trained(arm, RATE)

  def pace(self, arm: str) -> float | None:
    """Seconds that a step of an arm takes, in the run that shared the machine least.

    Of runs on the commonest device alone; runs that were made together have no pace of their own.

    Args:
      arm: name of the network.

    Returns:
      It; None if there is no such run.
    """
    devices = collections.Counter(row["environment"]["device"] for row in self.rows.values())
    device = max(devices, key=lambda name: devices[name])
    paces = [
      row["seconds"] / row["curve"]["steps"][-1]
      for row in self.rows.values()
      if row["kind"] == "training"
      and row["spec"]["arm"] == arm
      and row["environment"]["device"] == device
      and "together" not in row["environment"]
      and row["curve"]["steps"][-1]
    ]
    return min(paces, default=None)

  def attacks(self, arm: str) -> dict[int, Row]:
    """Rows of the attacks on an arm, by seed.

    Args:
      arm: name of the network.
    """
    named = {seed: identity(attack(arm, seed)) for seed in self.seeds}
    return {seed: self.rows[name] for seed, name in named.items() if name in self.rows}

  def filters(self, arm: str) -> dict[int, Row]:
    """Rows of the first layer's filters, by seed.

    Args:
      arm: name of the network.
    """
    named = {seed: identity(Filters(arm, seed)) for seed in self.seeds}
    return {seed: self.rows[name] for seed, name in named.items() if name in self.rows}

  def searched(self, arm: str) -> dict[float, Row]:
    """Rows that a learning rate is chosen by, by that rate.

    Args:
      arm: name of the network.
    """
    runs = searches(arm, self.rows)
    return {run.rate: self.rows[identity(run)] for run in runs if identity(run) in self.rows}

  def wanted_seeds(self, study: str) -> list[int]:
    """The fewest, and others of which there is a row that belongs to no other study.

    Args:
      study: its name.
    """
    others = {
      identity(spec)
      for other in STUDIES
      if other != study
      for spec in self._wanted(other, self.seeds)
    }
    found = {
      spec.seed
      for spec in self._wanted(study, self.seeds)
      if identity(spec) in self.rows.keys() - others
    }
    return sorted(found | set(range(FEWEST)))

  def missing(self, study: str) -> list[Spec]:
    """Runs of a study that have no row; of those whose rate is to be chosen, the searches.

    Args:
      study: its name.
    """
    wanted = self._wanted(study, self.wanted_seeds(study))
    return [spec for spec in wanted if identity(spec) not in self.rows]

  def _trained(self, arm: str, rate: float) -> dict[int, Row]:
    named = {seed: identity(Training(arm, seed, rate)) for seed in self.seeds}
    return {seed: self.rows[name] for seed, name in named.items() if name in self.rows}

  def _wanted(self, study: str, seeds: Sequence[int]) -> list[Spec]:
    arms = STUDIES[study].arms
    wanted: list[Spec] = []
    if STUDIES[study].tuned:
      for arm in arms:
        wanted += searches(arm, self.rows)
        rate = tuned_rate(arm, self.rows)
        wanted += [Training(arm, seed, rate) for seed in seeds if rate is not None]
    else:
      wanted += trainings(study, arms, seeds)
    return [*wanted, *followers(study, arms, seeds, self.rows)]


def by_arm(specs: Iterable[Spec]) -> dict[str, list[str]]:
  """Runs in words, by arm.

  Args:
    specs: of the runs.
  """
  words: dict[str, list[str]] = {}
  for spec in specs:
    text = f"seed {spec.seed}"
    if isinstance(spec, Attack | Filters):
      text = f"{type(spec).__name__.lower()} of {text}"
    elif spec.search:
      text = f"search at {spec.rate:g}"
    words.setdefault(spec.arm, []).append(text)
  return words


def column(runs: Mapping[int, Row], name: str, seeds: Sequence[int] | None = None) -> list[Any]:
  """A value of each run, in the order of the seeds.

  Args:
    runs: by seed.
    name: of the value.
    seeds: to take; None is all.
  """
  return [runs[seed][name] for seed in (sorted(runs) if seeds is None else seeds)]
