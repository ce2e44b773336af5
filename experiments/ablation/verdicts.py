"""What the rows say about a claim, by rules that are written down here."""

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence

from experiments.ablation.evidence import FEWEST
from experiments.ablation.rows import Row
from experiments.ablation.summary import CONFIDENCE, Summary, difference, ratio


class Outcome(enum.Enum):
  """What becomes of a claim."""

  HOLDS = "holds"
  PAPER_ONLY = "holds only at the paper's learning rate"
  TUNED_ONLY = "holds only at tuned learning rates"
  FAILS = "does not hold"
  OPEN = "open: runs are missing"


@dataclasses.dataclass(frozen=True)
class Finding:
  """Whether a statement is true of some runs.

  Attributes:
    true: whether it is; None if there are too few runs to tell.
    numbers: that decide it.
  """

  true: bool | None
  numbers: str


@dataclasses.dataclass(frozen=True)
class Verdict:
  """On a claim.

  Attributes:
    outcome: what becomes of it.
    numbers: that decide it.
  """

  outcome: Outcome
  numbers: str


Runs = Mapping[int, Row]
"""Rows of one arm, by seed."""


def alone(finding: Finding) -> Verdict:
  """The verdict on a claim that is about one learning rate.

  Args:
    finding: about it.
  """
  outcomes = {True: Outcome.HOLDS, False: Outcome.FAILS, None: Outcome.OPEN}
  return Verdict(outcomes[finding.true], finding.numbers)


def at_both_rates(paper: Finding, tuned: Finding) -> Verdict:
  """The verdict on a claim that is looked at twice.

  Args:
    paper: about the runs by the paper's protocol.
    tuned: about those with each network's own learning rate.
  """
  outcomes = {
    (True, True): Outcome.HOLDS,
    (True, False): Outcome.PAPER_ONLY,
    (False, True): Outcome.TUNED_ONLY,
    (False, False): Outcome.FAILS,
  }
  outcome = Outcome.OPEN
  if paper.true is not None and tuned.true is not None:
    outcome = outcomes[paper.true, tuned.true]
  return Verdict(outcome, f"paper's rate: {paper.numbers}; tuned: {tuned.numbers}")


def faster(fast: Runs, slow: Runs, factor: float, level: float = CONFIDENCE) -> Finding:
  """Whether one network reaches the target in fewer steps than another, by a factor.

  True if the 95 % interval of the quotient of steps, slow over fast, seed by seed, lies above 1 and
  includes or exceeds the factor. The interval has room for the steps between evaluations. A run
  that never reaches the target counts as one that does with its last step, and the numbers say so;
  a network with such a run is not the faster one.

  Args:
    fast: runs of the network that is said to be faster.
    slow: runs of the other one.
    factor: by which it is said to be; 1 is any.
    level: of the interval.
  """
  seeds = sorted(fast.keys() & slow.keys())
  if len(seeds) < FEWEST:
    return Finding(None, _too_few(len(seeds)))
  if not any(runs[seed]["steps_to_target"] for runs in (fast, slow) for seed in seeds):
    return Finding(False, "neither reaches 98 %")
  blur = math.hypot(*(_grain(runs, seeds) for runs in (fast, slow)))
  quotient = ratio(_steps(slow, seeds), _steps(fast, seeds), blur, level)
  text = f"{quotient.mean:.2f} times as many steps [{quotient.low:.2f}, {quotient.high:.2f}]"
  for runs, what in ((fast, "the first"), (slow, "the other")):
    never = sum(runs[seed]["steps_to_target"] is None for seed in seeds)
    text += f", {what} does not reach 98 % in {never} of {len(seeds)} runs" if never else ""
  reached = all(fast[seed]["steps_to_target"] for seed in seeds)
  return Finding(reached and quotient.low > 1 and quotient.high >= factor, text)


def more_accurate(ours: Runs, theirs: Runs, level: float = CONFIDENCE) -> Finding:
  """Whether one network has a higher final accuracy than another.

  True if the 95 % interval of the difference, seed by seed, lies above 0. A run that diverged has
  an accuracy of 0.

  Args:
    ours: runs of the network that is said to be better.
    theirs: runs of the other one.
    level: of the interval.
  """
  seeds = sorted(ours.keys() & theirs.keys())
  if len(seeds) < FEWEST:
    return Finding(None, _too_few(len(seeds)))
  gap = difference(_accuracies(ours, seeds), _accuracies(theirs, seeds), level)
  return Finding(gap.low > 0, _points(gap))


def some(findings: Mapping[str, Finding]) -> Finding:
  """Whether a statement is true of one of several networks.

  Args:
    findings: by the network's name, from intervals whose level allows for their number, see
      `shared_level`.
  """
  if unknown := [name for name, finding in findings.items() if finding.true is None]:
    return Finding(None, f"without {', '.join(unknown)}")
  found = [f"{name}: {finding.numbers}" for name, finding in findings.items() if finding.true]
  return Finding(bool(found), "; ".join(found) or f"none of {', '.join(findings)}")


def shared_level(number: int) -> float:
  """The level of each of several intervals of which all hold with 95 % (Bonferroni).

  Args:
    number: of intervals.
  """
  return 1 - (1 - CONFIDENCE) / number


def same_accuracy(ours: Runs, theirs: Runs, margin: float) -> Finding:
  """Whether two networks have the same final accuracy, but for a margin.

  True if the 95 % interval of the difference, seed by seed, lies within the margin.

  Args:
    ours: runs of one network.
    theirs: runs of the other one.
    margin: in parts of 1.
  """
  seeds = sorted(ours.keys() & theirs.keys())
  if len(seeds) < FEWEST:
    return Finding(None, _too_few(len(seeds)))
  gap = difference(_accuracies(ours, seeds), _accuracies(theirs, seeds))
  return Finding(gap.low >= -margin and gap.high <= margin, _points(gap))


def reaches(runs: Runs, accuracy: float) -> Finding:
  """Whether a network has the accuracy that the paper gives for one run, or a higher one.

  True if that lies below the upper end of the interval in which one more run of ours falls with a
  probability of 95 %.

  Args:
    runs: of the network.
    accuracy: the paper's.
  """
  return _value(runs, accuracy, at_least=True)


def has(runs: Runs, accuracy: float) -> Finding:
  """Whether a network has the accuracy that the paper gives for one run.

  True if that lies in the interval in which one more run of ours falls with a probability of 95 %.

  Args:
    runs: of the network.
    accuracy: the paper's.
  """
  return _value(runs, accuracy, at_least=False)


def _value(runs: Runs, accuracy: float, *, at_least: bool) -> Finding:
  if len(runs) < FEWEST:
    return Finding(None, _too_few(len(runs)))
  summary = Summary.of(_accuracies(runs, sorted(runs)))
  low, high = summary.next_run()
  text = f"{100 * summary.mean:.2f} %, another run in [{100 * low:.2f}, {100 * min(high, 1):.2f}]"
  return Finding(accuracy <= high and (at_least or accuracy >= low), text)


def _steps(runs: Runs, seeds: Sequence[int]) -> list[float]:
  """Steps to the target, or all that there were."""
  return [runs[seed]["steps_to_target"] or runs[seed]["curve"]["steps"][-1] for seed in seeds]


def _grain(runs: Runs, seeds: Sequence[int]) -> float:
  """Standard deviation of the logarithm of steps, for they are known but for an interval."""
  variances = []
  for steps, seed in zip(_steps(runs, seeds), seeds, strict=True):
    before = max((step for step in runs[seed]["curve"]["steps"] if step < steps), default=0)
    variances.append(((steps - before) / steps) ** 2 / 12)
  return math.sqrt(sum(variances) / len(variances))


def _accuracies(runs: Runs, seeds: Sequence[int]) -> list[float]:
  return [runs[seed]["accuracy"] or 0.0 for seed in seeds]


def _too_few(number: int) -> str:
  return f"{number} of at least {FEWEST} seeds"


def _points(gap: Summary) -> str:
  """A difference in words."""
  return f"{100 * gap.mean:+.2f} points [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"
