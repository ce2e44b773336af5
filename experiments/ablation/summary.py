"""Means with what they are worth: few seeds, so Student's t."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Summary:
  """Of the same measurement in several runs.

  Attributes:
    number: of runs.
    mean: of them.
    sd: sample standard deviation; NaN of one run.
    low: lower end of the 95 % confidence interval of the mean; NaN of one run.
    high: its upper end.
  """

  number: int
  mean: float
  sd: float
  low: float
  high: float

  @classmethod
  def of(cls, values: Sequence[float], level: float = CONFIDENCE) -> "Summary":
    """Sums up.

    Args:
      values: one for each run, at least one.
      level: of the interval.
    """
    number, mean = len(values), float(np.mean(values))
    if number < 2:
      return cls(number, mean, math.nan, math.nan, math.nan)
    sd = float(np.std(values, ddof=1))
    half = _quantile(number, level) * sd / math.sqrt(number)
    return cls(number, mean, sd, mean - half, mean + half)

  def next_run(self) -> tuple[float, float]:
    """The interval in which one more run falls with a probability of 95 %."""
    half = _quantile(self.number) * self.sd * math.sqrt(1 + 1 / self.number)
    return self.mean - half, self.mean + half


def ratio(
  above: Sequence[float], below: Sequence[float], blur: float = 0.0, level: float = CONFIDENCE
) -> Summary:
  """Of quotients of runs that belong together: their geometric mean, and its interval.

  Args:
    above: numerators, positive, one for each seed.
    below: denominators, in the same order.
    blur: standard deviation of each logarithm that the values do not show, because they were read
      off a coarse scale.
    level: of the interval.

  Returns:
    The mean and the ends as factors; the standard deviation is that of the logarithm.
  """
  logs = Summary.of(np.log(np.asarray(above) / np.asarray(below)).tolist())
  sd = math.hypot(logs.sd, blur)
  half = _quantile(logs.number, level) * sd / math.sqrt(logs.number)
  low, mean, high = (math.exp(logs.mean + part) for part in (-half, 0.0, half))
  return Summary(logs.number, mean, sd, low, high)


def difference(
  ours: Sequence[float], theirs: Sequence[float], level: float = CONFIDENCE
) -> Summary:
  """Of differences of runs that belong together.

  Args:
    ours: one for each seed.
    theirs: what is taken off, in the same order.
    level: of the interval.
  """
  return Summary.of((np.asarray(ours) - np.asarray(theirs)).tolist(), level)


def shared_level(number: int) -> float:
  """The level of each of several intervals of which all hold with 95 % (Bonferroni).

  Args:
    number: of intervals.
  """
  return 1 - (1 - CONFIDENCE) / number


def _quantile(number: int, level: float = CONFIDENCE) -> float:
  """Of Student's distribution, for an interval of so many runs."""
  return float(stats.t.ppf((1 + level) / 2, number - 1)) if number > 1 else math.nan
