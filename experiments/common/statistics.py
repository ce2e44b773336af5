"""What a few runs are worth: intervals, a layout of networks and seeds, many verdicts at once."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats
from scipy.optimize import linear_sum_assignment

CONFIDENCE = 0.95
"""Of every interval."""


@dataclasses.dataclass(frozen=True)
class Estimate:
  """Of a difference or a mean, with Student's distribution.

  Attributes:
    value: the estimate.
    error: its standard error; NaN if it cannot be known.
    df: degrees of freedom of the error.
  """

  value: float
  error: float
  df: float

  @property
  def interval(self) -> tuple[float, float]:
    """Both ends of the two-sided interval."""
    half = self.error * float(stats.t.ppf((1 + CONFIDENCE) / 2, self.df)) if self.df else math.nan
    return self.value - half, self.value + half

  def above(self, bound: float) -> float:
    """The p-value of the hypothesis that it is not above a bound."""
    if self.error == 0:
      return float(self.value <= bound)
    return float(stats.t.sf((self.value - bound) / self.error, self.df))

  def below(self, bound: float) -> float:
    """The p-value of the hypothesis that it is not below a bound."""
    return Estimate(-self.value, self.error, self.df).above(-bound)


class Layout:
  """Network plus seed plus residual, by least squares; any cell can be missing.

  Args:
    cells: a number for each network and seed.
    unequal: p-value of Bartlett's test below which the residual is not pooled.

  Attributes:
    df: degrees of freedom of the residual.
    sd: standard deviation of the residual.
    bartlett: p-value of Bartlett's test that residuals of all networks scatter equally; NaN if it
      cannot be told.
  """

  def __init__(self, cells: Mapping[tuple[str, int], float], unequal: float = 0.05):
    self.cells, self.unequal = cells, unequal
    self._arms = list(dict.fromkeys(arm for arm, _ in cells))
    seeds = sorted({seed for _, seed in cells})
    design = np.array(
      [[arm == a for a in self._arms] + [seed == s for s in seeds[1:]] for arm, seed in cells],
      float,
    )
    values = np.array(list(cells.values()))
    self._effects, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    residual = values - design @ self._effects
    self.df = len(values) - int(rank)
    self.sd = math.sqrt(residual @ residual / self.df) if self.df else math.nan
    self._covariance = np.linalg.pinv(design.T @ design)
    groups = [
      [r for (arm, _), r in zip(cells, residual, strict=True) if arm == a] for a in self._arms
    ]
    scattered = [group for group in groups if len(group) > 1 and np.ptp(group) > 1e-12]
    many = len(scattered) > 1
    self.bartlett = float(stats.bartlett(*scattered).pvalue) if many else math.nan

  def of(self, arm: str) -> dict[int, float]:
    """A network's numbers, by seed."""
    return {seed: value for (name, seed), value in self.cells.items() if name == arm}

  @property
  def pooled(self) -> bool:
    """Whether the residual may be pooled."""
    return not self.bartlett < self.unequal

  def contrast(self, more: str, less: str) -> Estimate:
    """The difference of two networks."""
    one, other = self.of(more), self.of(less)
    if not self.pooled:
      return mean([one[seed] - other[seed] for seed in one.keys() & other.keys()])
    signs = np.zeros(len(self._effects))
    signs[self._arms.index(more)] += 1
    signs[self._arms.index(less)] -= 1
    error = self.sd * math.sqrt(max(signs @ self._covariance @ signs, 0.0))
    return Estimate(float(signs @ self._effects), error, self.df)

  def level(self, arm: str) -> Estimate:
    """The mean of a network over seeds, whose scatter is pooled over networks if it may be."""
    own = mean(list(self.of(arm).values()))
    if not self.pooled:
      return own
    groups = [np.array(list(self.of(each).values())) for each in self._arms]
    df = sum(len(group) - 1 for group in groups)
    if not df:
      return own
    square = sum(float(np.sum((group - group.mean()) ** 2)) for group in groups) / df
    return Estimate(own.value, math.sqrt(square / len(self.of(arm))), df)


def mean(values: Sequence[float]) -> Estimate:
  """Of numbers of one kind, one for each seed."""
  number = len(values)
  error = float(np.std(values, ddof=1)) / math.sqrt(number) if number > 1 else math.nan
  return Estimate(float(np.mean(values)), error, number - 1)


def adjusted(p_values: Sequence[float]) -> list[float]:
  """P-values, in the same order, so that of those below 0.05 one in twenty is expected to mislead.

  References:
    Benjamini, Hochberg, "Controlling the False Discovery Rate", J. R. Statist. Soc. B 1995.
  """
  result, lowest, number = [1.0] * len(p_values), 1.0, len(p_values)
  for rank, place in reversed(list(enumerate(np.argsort(p_values, kind="stable"), 1))):
    lowest = min(lowest, p_values[place] * number / rank)
    result[place] = lowest
  return result


def match(filters: np.ndarray, others: np.ndarray) -> tuple[list[int], list[float]]:
  """Pairs filters with those of another network that they are like.

  Args:
    filters: Filters, (height, width, channels, number).
    others: Filters of the same shape.

  Returns:
    For each of the filters the index of its partner among the others, and their correlation; the
    pairing has the largest sum of correlations.
  """

  def unit(weights: np.ndarray) -> np.ndarray:
    flat = weights.reshape(-1, weights.shape[-1]).astype(np.float64)
    flat = flat - flat.mean(axis=0)
    return flat / np.maximum(np.linalg.norm(flat, axis=0), 1e-12)

  correlation = unit(filters).T @ unit(others)
  rows, columns = linear_sum_assignment(-correlation)
  return columns.tolist(), correlation[rows, columns].tolist()
