"""Which runs make a study, as far as the rows that are there tell."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from experiments.ablation.protocol import FINE_EPOCHS, RATE, Attack, Filters, Spec, Training
from experiments.ablation.protocol import identity as id_of
from experiments.ablation.reading import early_error
from experiments.ablation.rows import Row
from experiments.ablation.study import ATTACKED, STUDIES, Rates

GRIDS: dict[Rates, tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]] = {
  "tuned": ((0.001, 0.003, 0.01, 0.03, 0.1, 0.3), (0.0003, 0.0001), (1.0, 3.0)),
  "early": ((0.003, 0.0056, 0.01, 0.018, 0.03, 0.056), (0.0018, 0.001), (0.1, 0.18, 0.3)),
}
"""Learning rates to choose from, and those by which the grid goes on, below and above, one at a
time, while the best is at its edge."""
SEARCH_SEEDS: dict[Rates, tuple[int, ...]] = {"tuned": (0,), "early": (0, 1, 2)}
SURROGATE_SEEDS = 3

Known = Mapping[str, Row]  # the rows that there are, by identity
Plan = Callable[[Known], Sequence[Spec]]  # from these to the runs that are wanted


def searches(arm: str, rows: Known, rates: Rates = "tuned") -> list[Training]:
  """Returns the runs that a learning rate is chosen by, as far as they are known.

  They are those on the grid and, if all of these have rows, those beyond an edge that is best.
  """
  grid, below, above = (list(each) for each in GRIDS[rates])
  stop = FINE_EPOCHS if rates == "early" else None
  while True:
    runs = [
      Training(arm, seed, rate, search=True, stop_after=stop)
      for rate in sorted(grid)
      for seed in SEARCH_SEEDS[rates]
    ]
    best = best_rate(runs, rows)
    if best == min(grid) and below:
      grid.append(below.pop(0))
    elif best == max(grid) and above:
      grid.append(above.pop(0))
    else:
      return runs


def best_rate(runs: Iterable[Training], rows: Known) -> float | None:
  """Returns the best rate of one network's searches; None if a row is missing or all diverged.

  Of short runs it has the highest accuracy and, of equals, the lowest loss; of stopped ones, the
  lowest error of the first epochs, as a geometric mean over seeds.
  """
  found: dict[float, list[Row]] = {}
  for run in runs:
    if id_of(run) not in rows:
      return None
    found.setdefault(run.rate, []).append(rows[id_of(run)])
  scores = {rate: score for rate, made in found.items() if (score := _score(made))}
  return max(scores, key=lambda rate: scores[rate], default=None)


def _score(made: Sequence[Row]) -> tuple[float, ...] | None:
  if any(row["accuracy"] is None or row["final_loss"] is None for row in made):
    return None
  if made[0]["spec"].get("stop_after") is None:
    return made[0]["accuracy"], -made[0]["final_loss"]
  return (-sum(math.log(early_error(row) or math.inf) for row in made),)


def rate_of(arm: str, rows: Known, rates: Rates) -> float | None:
  """The learning rate of a network; None if it is still to be chosen, or none will do."""
  return RATE if rates == "paper" else best_rate(searches(arm, rows, rates), rows)


def attack(arm: str, seed: int, examples: int | None = None) -> Attack:
  """The attacks on one network, of the first so many test images.

  The networks that the images are shown to afterwards are of another seed, also the one of the same
  arm: a transfer is from a network that the attacker trained to one that he has not seen.
  """
  return Attack(arm, seed, ATTACKED, (seed + 1) % SURROGATE_SEEDS, examples)


def todo(study: str, arms: Sequence[str], seeds: Sequence[int], rows: Known) -> list[Spec]:
  """Returns the runs of a study that can be made with the rows that there are.

  They are whether there or not, seed by seed, so that what there is after a while can be compared;
  of a study in stages, those of a later stage once the rows of the earlier one are there. A run
  that is to be stopped is not wanted where there is a whole one.
  """
  told = STUDIES[study]
  runs: list[Spec] = []
  if told.rates != "paper":
    runs += [run for arm in arms for run in searches(arm, rows, told.rates)]
    if any(id_of(run) not in rows for run in runs):
      return runs
  shown = {(seed + 1) % SURROGATE_SEEDS for seed in seeds if told.looks == "attacks"}
  for seed in (*seeds, *shown.difference(seeds)):
    for arm in arms:
      rate = rate_of(arm, rows, told.rates)
      whole = None if rate is None else Training(arm, seed, rate)
      if whole is not None and (told.stop_after is None or id_of(whole) not in rows):
        runs.append(Training(arm, seed, whole.rate, stop_after=told.stop_after))
  if told.looks and all(id_of(run) in rows for run in runs):
    make = attack if told.looks == "attacks" else Filters
    looks = [make(arm, seed) for seed in seeds for arm in arms]
    runs += [
      spec  # there is nothing to see in networks that diverged
      for spec in looks
      if all(rows.get(id_of(run), {}).get("diverged_at") is None for run in networks(spec))
    ]
  return runs


def networks(spec: Attack | Filters) -> list[Training]:
  """The training runs whose networks a row looks at, its own first."""
  own = Training(spec.arm, spec.seed)
  if isinstance(spec, Filters):
    return [own]
  return [own, *(Training(name, spec.target_seed) for name in spec.targets)]
