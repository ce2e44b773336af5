"""Which runs make a study."""

from collections.abc import Callable, Mapping, Sequence

from experiments.ablation.protocol import Attack, Filters, Spec, Training, identity
from experiments.ablation.rows import Row
from experiments.ablation.study import ATTACKED, STUDIES

GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Learning rates to choose from."""
BELOW, ABOVE = (0.0003, 0.0001), (1.0, 3.0)
"""Rates by which the grid goes on, one at a time, while the best is at its edge."""
SEARCH_SEED = 0
SURROGATE_SEEDS = 3


def searches(arm: str, rows: Mapping[str, Row]) -> list[Training]:
  """The short runs that a learning rate is chosen by, as far as they are known.

  Args:
    arm: name of the network.
    rows: that there are, by identity.

  Returns:
    The runs on the grid and, if all of them have rows, those beyond an edge that is best.
  """
  grid = list(GRID)
  below, above = list(BELOW), list(ABOVE)
  while True:
    runs = [Training(arm, SEARCH_SEED, rate, search=True) for rate in sorted(grid)]
    best = best_rate(runs, rows)
    if best == min(grid) and below:
      grid.append(below.pop(0))
    elif best == max(grid) and above:
      grid.append(above.pop(0))
    else:
      return runs


def best_rate(runs: Sequence[Training], rows: Mapping[str, Row]) -> float | None:
  """The learning rate with the highest accuracy on the held-out part; of equals, the lowest loss.

  Args:
    runs: searches of one arm.
    rows: that there are, by identity.

  Returns:
    The rate; None if a row is missing or every run diverged.
  """
  scores = {}
  for run in runs:
    row = rows.get(identity(run))
    if row is None:
      return None
    if row["accuracy"] is not None and row["final_loss"] is not None:
      scores[run.rate] = row["accuracy"], -row["final_loss"]
  return max(scores, key=lambda rate: scores[rate]) if scores else None


def tuned_rate(arm: str, rows: Mapping[str, Row]) -> float | None:
  """The learning rate that was chosen for an arm; None if searches are missing.

  Args:
    arm: name of the network.
    rows: that there are, by identity.
  """
  return best_rate(searches(arm, rows), rows)


def attack(arm: str, seed: int, examples: int | None = None) -> Attack:
  """The attacks on one network.

  The networks that the images are shown to afterwards are of another seed, also the one of the same
  arm: a transfer is from a network that the attacker trained to one that he has not seen.

  Args:
    arm: name of the network.
    seed: of its training.
    examples: of the test set; None is all.
  """
  return Attack(arm, seed, ATTACKED, (seed + 1) % SURROGATE_SEEDS, examples)


def trainings(study: str, arms: Sequence[str], seeds: Sequence[int]) -> list[Training]:
  """Runs by the paper's protocol.

  Args:
    study: its name, one of `STUDIES`.
    arms: names of those to run, of the study's.
    seeds: of the runs.

  Returns:
    The runs, seed by seed, so that what there is after a while can be compared.
  """
  if STUDIES[study].looks == "attacks":
    seeds = [*seeds, *{(seed + 1) % SURROGATE_SEEDS for seed in seeds} - set(seeds)]
  return [Training(arm, seed) for seed in seeds for arm in arms]


def todo(
  study: str, arms: Sequence[str], seeds: Sequence[int], rows: Mapping[str, Row]
) -> list[Spec]:
  """The runs of a study that can be made with the rows that there are.

  Args:
    study: its name, one of `STUDIES`.
    arms: names of those to run, of the study's.
    seeds: of the runs.
    rows: that there are, by identity.

  Returns:
    Runs whether there or not; of a study in stages, those of a later stage once the rows of the
    earlier one are there.
  """
  if STUDIES[study].tuned:
    search: list[Spec] = [run for arm in arms for run in searches(arm, rows)]
    if any(identity(run) not in rows for run in search):
      return search
    rates = {arm: tuned_rate(arm, rows) for arm in arms}
    final = [
      Training(arm, seed, rate) for seed in seeds for arm, rate in rates.items() if rate is not None
    ]
    return [*search, *final]
  runs: list[Spec] = list(trainings(study, arms, seeds))
  if all(identity(run) in rows for run in runs):
    runs += followers(study, arms, seeds, rows)
  return runs


def followers(
  study: str, arms: Sequence[str], seeds: Sequence[int], rows: Mapping[str, Row]
) -> list[Spec]:
  """What a study looks for in its trained networks; nothing in those that diverged.

  Args:
    study: its name, one of `STUDIES`.
    arms: names of the networks.
    seeds: of their training.
    rows: that there are, by identity.
  """
  specs: list[Attack | Filters] = []
  if STUDIES[study].looks == "attacks":
    specs += [attack(arm, seed) for seed in seeds for arm in arms]
  elif STUDIES[study].looks == "filters":
    specs += [Filters(arm, seed) for seed in seeds for arm in arms]
  return [
    spec
    for spec in specs
    if all(rows.get(identity(run), {}).get("diverged_at") is None for run in networks(spec))
  ]


def networks(spec: Attack | Filters) -> list[Training]:
  """The training runs whose networks a row looks at, its own first.

  Args:
    spec: of the row.
  """
  own = Training(spec.arm, spec.seed)
  if isinstance(spec, Filters):
    return [own]
  return [own, *(Training(name, spec.target_seed) for name in spec.targets)]


Plan = Callable[[Mapping[str, Row]], Sequence[Spec]]
"""From the rows that there are to the runs that are wanted."""
