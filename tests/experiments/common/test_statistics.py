"""Intervals, layouts and corrections, against explicit formulas and simulations."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.common.statistics import Estimate, Layout, adjusted, mean

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(4, 5)) + np.arange(4)[:, None] + 3 * RNG.normal(size=5)


def cells(table):
  return {(f"n{i}", j): v for (i, j), v in np.ndenumerate(table) if not math.isnan(v)}


def test_an_interval_is_students():
  values = [1.0, 2.0, 4.0]
  low, high = mean(values).interval
  expected = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
  np.testing.assert_allclose((low, high), expected)
  assert math.isnan(mean([1.0]).interval[0])


def test_p_values_are_one_sided():
  estimate = mean([1.0, 2.0, 4.0])
  for bound in (0.0, 2.0, 3.5):
    more = stats.ttest_1samp([1.0, 2.0, 4.0], bound, alternative="greater").pvalue
    np.testing.assert_allclose(estimate.above(bound), more)
    np.testing.assert_allclose(estimate.below(bound), 1 - more)
  exact = Estimate(0.5, 0.0, 3)
  assert (exact.above(0.4), exact.above(0.5), exact.below(0.6), exact.below(0.5)) == (0, 1, 0, 1)


def test_a_full_layout_is_the_analysis_of_variance():
  layout = Layout(cells(TABLE))
  residual = TABLE - TABLE.mean(0) - TABLE.mean(1, keepdims=True) + TABLE.mean()
  assert layout.df == 3 * 4
  np.testing.assert_allclose(layout.sd, math.sqrt(np.sum(residual**2) / 12))
  np.testing.assert_allclose(layout.bartlett, stats.bartlett(*residual).pvalue)
  assert layout.pooled
  gap = layout.contrast("n2", "n0")
  np.testing.assert_allclose(gap.value, (TABLE[2] - TABLE[0]).mean())
  np.testing.assert_allclose(gap.error, layout.sd * math.sqrt(2 / 5))
  level = layout.level("n1")
  np.testing.assert_allclose(level.value, TABLE[1].mean())
  np.testing.assert_allclose(level.error, math.sqrt(TABLE.var(axis=1, ddof=1).mean() / 5))


def test_a_missing_cell_is_left_out():
  table = TABLE.copy()
  table[2, 3] = math.nan
  layout = Layout(cells(table))
  assert layout.df == 11
  shared = [j for j in range(5) if j != 3]
  both = Layout({key: v for key, v in cells(table).items() if key[0] in ("n0", "n2")})
  np.testing.assert_allclose(  # of two networks, only the seeds of both tell
    both.contrast("n2", "n0").value, (table[2, shared] - table[0, shared]).mean()
  )


def test_unequal_residuals_are_not_pooled():
  table = TABLE.copy()
  table[3] += 1000 * RNG.normal(size=5)
  layout = Layout(cells(table))
  assert not layout.pooled
  gap, pairs = layout.contrast("n1", "n0"), mean((table[1] - table[0]).tolist())
  np.testing.assert_allclose((gap.value, gap.error, gap.df), (pairs.value, pairs.error, 4))
  assert layout.level("n1") == mean(table[1].tolist())


def test_intervals_cover_the_truth_as_often_as_they_say():
  hits = 0
  for _ in range(400):
    table = RNG.normal(size=(5, 3)) + np.arange(5)[:, None] + RNG.normal(size=3)
    low, high = Layout(cells(table)).contrast("n4", "n1").interval
    hits += low < 3 < high
  assert 0.92 < hits / 400 < 0.98


@pytest.mark.parametrize("p_values", [[0.01, 0.02, 0.03, 0.04, 0.05], [0.9, 0.001, 0.04], [1.0]])
def test_p_values_are_adjusted_as_by_benjamini_and_hochberg(p_values):
  np.testing.assert_allclose(adjusted(p_values), stats.false_discovery_control(p_values))
  assert adjusted([]) == []
