"""Runs of a network, and what rules about them have in common."""

from collections.abc import Mapping, Sequence

from experiments.ablation.arms import ARMS
from experiments.ablation.evidence import FEWEST
from experiments.ablation.rows import Row
from experiments.ablation.summary import Summary
from experiments.ablation.verdicts import Answer, Finding

Runs = Mapping[int, Row]
"""Rows of one arm, by seed."""


def diverged(runs: Runs) -> int:
  """How many runs diverged.

  Args:
    runs: by seed.
  """
  return sum(row["diverged_at"] is not None for row in runs.values())


def comparable(ours: Runs, theirs: Runs) -> tuple[list[int], Finding | None]:
  """Seeds that two networks have, and what can be said at once where runs are missing or diverged.

  Args:
    ours: runs of the network of which something is said.
    theirs: runs of the other one.
  """
  seeds = sorted(ours.keys() & theirs.keys())
  if len(seeds) < FEWEST:
    return seeds, too_few(len(seeds))
  for runs, answer in ((ours, Answer.NO), (theirs, Answer.UNDECIDED)):
    if lost := diverged({seed: runs[seed] for seed in seeds}):
      text = f"{label(runs)} diverged in {lost} of {len(seeds)} runs"
      return seeds, Finding(answer, text)
  return seeds, None


def too_few(number: int) -> Finding:
  """That runs are missing.

  Args:
    number: of seeds that there are.
  """
  return Finding(Answer.MISSING, f"{number} of at least {FEWEST} seeds")


def accuracies(runs: Runs, seeds: Sequence[int]) -> list[float]:
  """Final accuracies, in the order of the seeds.

  Args:
    runs: by seed, none of which diverged.
    seeds: to take.
  """
  return [runs[seed]["accuracy"] for seed in seeds]


def decided(yes: bool, no: bool) -> Answer:
  """What is decided, if anything is.

  Args:
    yes: whether it is yes.
    no: whether it is no, if not yes.
  """
  if yes:
    return Answer.YES
  return Answer.NO if no else Answer.UNDECIDED


def label(runs: Runs) -> str:
  """What the network is called.

  Args:
    runs: by seed, at least one.
  """
  return ARMS[next(iter(runs.values()))["spec"]["arm"]].label


def bracket(quotient: Summary) -> str:
  """A quotient in words.

  Args:
    quotient: with its interval.
  """
  return f"{quotient.mean:.2f} [{quotient.low:.2f}, {quotient.high:.2f}]"


def span(low: float, high: float) -> str:
  """An interval of accuracies in percent.

  Args:
    low: its lower end.
    high: its upper end.
  """
  return f"[{100 * low:.2f}, {100 * high:.2f}]"


def points(ours: Runs, gap: Summary) -> str:
  """A difference of accuracies in words.

  Args:
    ours: runs of the network that is named.
    gap: with its interval.
  """
  low, high = (f"{100 * end:+.2f}" for end in (gap.low, gap.high))
  return f"{label(ours)} {100 * gap.mean:+.2f} points [{low}, {high}]"
