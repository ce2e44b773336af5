"""Whether statements are true of some runs, by rules that are written down here."""

import math
from collections.abc import Mapping, Sequence

from experiments.ablation.evidence import FEWEST
from experiments.ablation.rows import Row
from experiments.ablation.summary import CONFIDENCE, Summary, difference, ratio
from experiments.ablation.verdicts import Answer, Finding

TEST_IMAGES = 10_000
NEARLY, NO_FASTER, NO_BETTER = 0.9, 1.1, 0.001
"""Parts of a claimed factor that will do, quotients of steps that are none, and differences of
accuracy that are none."""

Runs = Mapping[int, Row]
"""Rows of one arm, by seed."""


def faster(fast: Runs, slow: Runs, factor: float, level: float = CONFIDENCE) -> Finding:
  """Whether one network reaches the target in fewer steps than another, by a factor.

  Decided by the 95 % interval of the quotient of steps, slow over fast, seed by seed, which has
  room for the steps between evaluations.  Yes if it lies above 1 and its middle is the factor but
  for a tenth, or more.  No if it lies below the factor, or below 1.1 where the factor is 1; and if
  a run of the first network does not reach the target.  One of the other that does not counts as
  one that does with its last step.

  Args:
    fast: runs of the network that is said to be faster.
    slow: runs of the other one.
    factor: by which it is said to be; 1 is any.
    level: of the interval.
  """
  seeds = sorted(fast.keys() & slow.keys())
  if len(seeds) < FEWEST:
    return _too_few(len(seeds))
  never = [sum(_reached(runs[seed]) is None for seed in seeds) for runs in (fast, slow)]
  if never == [len(seeds)] * 2:
    return Finding(Answer.NO, "neither reaches 98 %")
  whole = max(runs[seed]["curve"]["steps"][-1] for runs in (fast, slow) for seed in seeds)
  above, below = ([_reached(runs[seed]) or whole for seed in seeds] for runs in (slow, fast))
  blur = math.hypot(*(_grain(runs, seeds) for runs in (fast, slow)))
  quotient = ratio(above, below, blur, level)
  text = f"{quotient.mean:.2f} times as many steps [{quotient.low:.2f}, {quotient.high:.2f}]"
  for number, what in zip(never, ("the first", "the other"), strict=True):
    text += f", {what} does not reach 98 % in {number} of {len(seeds)} runs" if number else ""
  if never[0]:
    return Finding(Answer.NO, text)
  yes = quotient.low > 1 and quotient.mean >= NEARLY * factor
  return Finding(_answer(yes, quotient.high < max(factor, NO_FASTER)), text)


def more_accurate(ours: Runs, theirs: Runs, level: float = CONFIDENCE) -> Finding:
  """Whether one network has a higher final accuracy than another.

  Yes if the 95 % interval of the difference, seed by seed, lies above 0; no if it lies below 0.1
  points, ten of the 10,000 test images, or if a run of the first network diverged.  One of the
  other that diverged has an accuracy of 0.

  Args:
    ours: runs of the network that is said to be better.
    theirs: runs of the other one.
    level: of the interval.
  """
  seeds = sorted(ours.keys() & theirs.keys())
  if len(seeds) < FEWEST:
    return _too_few(len(seeds))
  gap = difference(_accuracies(ours, seeds), _accuracies(theirs, seeds), level)
  if _any_diverged(ours, seeds):
    return Finding(Answer.NO, "a run diverged")
  return Finding(_answer(gap.low > 0, gap.high < NO_BETTER), _points(gap))


def shared_level(number: int) -> float:
  """The level of each of several intervals of which all hold with 95 % (Bonferroni).

  Args:
    number: of intervals.
  """
  return 1 - (1 - CONFIDENCE) / number


def same_accuracy(ours: Runs, theirs: Runs, margin: float) -> Finding:
  """Whether two networks have the same final accuracy, but for a margin.

  Yes if the 95 % interval of the difference, seed by seed, lies within the margin; no if it lies
  outside, or if a run diverged.

  Args:
    ours: runs of one network.
    theirs: runs of the other one.
    margin: in parts of 1.
  """
  seeds = sorted(ours.keys() & theirs.keys())
  if len(seeds) < FEWEST:
    return _too_few(len(seeds))
  gap = difference(_accuracies(ours, seeds), _accuracies(theirs, seeds))
  if _any_diverged(ours, seeds) or _any_diverged(theirs, seeds):
    return Finding(Answer.NO, "a run diverged")
  no = gap.low > margin or gap.high < -margin
  return Finding(_answer(gap.low >= -margin and gap.high <= margin, no), _points(gap))


def reaches(runs: Runs, accuracy: float) -> Finding:
  """Whether a network has the accuracy that the paper gives for one run, or a higher one.

  Yes if the mean of ours is not lower, but for one standard error of the paper's figure, which is
  a part of 10,000 test images. No if the paper's lies above the interval in which one more run of
  ours falls with a probability of 95 %, or if a run diverged.

  Args:
    runs: of the network.
    accuracy: the paper's.
  """
  return _value(runs, accuracy, at_least=True)


def has(runs: Runs, accuracy: float) -> Finding:
  """Whether a network has the accuracy that the paper gives for one run.

  As `reaches`, but neither lower nor higher.

  Args:
    runs: of the network.
    accuracy: the paper's.
  """
  return _value(runs, accuracy, at_least=False)


def _value(runs: Runs, accuracy: float, *, at_least: bool) -> Finding:
  if len(runs) < FEWEST:
    return _too_few(len(runs))
  seeds = sorted(runs)
  summary = Summary.of(_accuracies(runs, seeds))
  low, high = summary.next_run()
  text = f"{100 * summary.mean:.2f} %, another run in [{100 * low:.2f}, {100 * min(high, 1):.2f}]"
  if _any_diverged(runs, seeds):
    return Finding(Answer.NO, "a run diverged")
  error = math.sqrt(accuracy * (1 - accuracy) / TEST_IMAGES)
  gap = summary.mean - accuracy
  yes = gap >= -error and (at_least or gap <= error)
  return Finding(_answer(yes, accuracy > high or (not at_least and accuracy < low)), text)


def _answer(yes: bool, no: bool) -> Answer:
  """What is decided, if anything is."""
  if yes:
    return Answer.YES
  return Answer.NO if no else Answer.UNDECIDED


def _reached(row: Row) -> int | None:
  """Steps to the target of a run that stayed finite."""
  return row["steps_to_target"] if row["diverged_at"] is None else None


def _any_diverged(runs: Runs, seeds: Sequence[int]) -> bool:
  return any(runs[seed]["diverged_at"] is not None for seed in seeds)


def _grain(runs: Runs, seeds: Sequence[int]) -> float:
  """Standard deviation of the logarithm of steps, for they are known but for an interval."""
  variances = []
  for seed in seeds:
    steps, known = _reached(runs[seed]), runs[seed]["curve"]["steps"]
    if steps:
      before = max((step for step in known if step < steps), default=0)
      variances.append(((steps - before) / steps) ** 2 / 12)
  return math.sqrt(sum(variances) / len(seeds))


def _accuracies(runs: Runs, seeds: Sequence[int]) -> list[float]:
  return [runs[seed]["accuracy"] or 0.0 for seed in seeds]


def _too_few(number: int) -> Finding:
  return Finding(Answer.MISSING, f"{number} of at least {FEWEST} seeds")


def _points(gap: Summary) -> str:
  """A difference in words."""
  return f"{100 * gap.mean:+.2f} points [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"
