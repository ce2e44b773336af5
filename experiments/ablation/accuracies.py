"""Rules about final accuracies."""

from experiments.ablation.evidence import FEWEST
from experiments.ablation.runs import (
  Runs,
  accuracies,
  comparable,
  decided,
  diverged,
  points,
  span,
  too_few,
)
from experiments.ablation.summary import CONFIDENCE, Summary, difference
from experiments.ablation.verdicts import Answer, Finding

NO_BETTER = 0.001
"""A difference that is none."""
REACHED = 0.002
"""What a mean may be away from a figure of the paper."""


def more_accurate(ours: Runs, theirs: Runs, level: float = CONFIDENCE) -> Finding:
  """Whether one network has a higher final accuracy than another.

  Yes if the 95 % interval of the difference, seed by seed, lies above 0; no if it lies below 0.1
  points, ten of the 10,000 test images.

  Args:
    ours: runs of the network that is said to be better.
    theirs: runs of the other one.
    level: of the interval.
  """
  seeds, early = comparable(ours, theirs)
  if early:
    return early
  gap = difference(accuracies(ours, seeds), accuracies(theirs, seeds), level)
  return Finding(decided(gap.low > 0, gap.high < NO_BETTER), points(ours, gap))


def not_worse(ours: Runs, theirs: Runs) -> Finding:
  """Whether one network's final accuracy is not below another's, but for 0.1 points.

  Yes if the 95 % interval of the difference, seed by seed, lies above that; no if it lies below.

  Args:
    ours: runs of the network that is said to be as good.
    theirs: runs of the other one.
  """
  seeds, early = comparable(ours, theirs)
  if early:
    return early
  gap = difference(accuracies(ours, seeds), accuracies(theirs, seeds))
  return Finding(decided(gap.low >= -NO_BETTER, gap.high < -NO_BETTER), points(ours, gap))


def reaches(runs: Runs, accuracy: float) -> Finding:
  """Whether a network has the accuracy that the paper gives for one run, or a higher one.

  Yes if the mean of ours is with 95 % (one-sided) not lower, but for 0.2 points.  Else no if the
  paper's figure lies above the interval in which one more run of ours falls with 95 %; and if a run
  diverged.

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
    return too_few(len(runs))
  if diverged(runs):
    return Finding(Answer.NO, "a run diverged")
  values = accuracies(runs, sorted(runs))
  low, high = Summary.of(values).next_run()
  mean = Summary.of(values, level=1 - 2 * (1 - CONFIDENCE))  # each end with 95 % by itself
  yes = mean.low >= accuracy - REACHED and (at_least or mean.high <= accuracy + REACHED)
  no = accuracy > high or (not at_least and accuracy < low)
  text = f"{100 * mean.mean:.2f} %, the mean is "
  text += f"at least {100 * mean.low:.2f}" if at_least else span(mean.low, mean.high)
  return Finding(decided(yes, no), text + f", another run in {span(low, min(high, 1.0))}")
