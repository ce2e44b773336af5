"""The benchmark beside another package's layers: what it times is the same, and errors are seen."""

import importlib.util

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks import rivals, tables, yat
from benchmarks.shapes import Shape

STRIDED = Shape("strided", 2, (9, 8), 4, 6, (3, 3), stride=2, groups=2)


def expansion(shape):
  def layer(lhs, rhs):
    convolution = lambda a, b: lax.conv_general_dilated(a, b, **shape.options())  # noqa: E731
    product = convolution(lhs, rhs)
    norms = convolution(lhs**2, jnp.ones_like(rhs)) + jnp.sum(rhs**2, (0, 1, 2)).reshape(
      1, 1, 1, -1
    )
    return product**2 / (jnp.maximum(norms - 2 * product, 0) + 1e-5)

  return layer


def test_an_error_is_that_where_a_filter_meets_its_patch():
  for mean in (0.0, 10.0):
    mine, rival = (yat.largest_errors(layer, mean) for layer in (yat.ours, expansion))
    assert mine["error"] <= yat.ERROR
    assert rival["error"] > 1e4 * mine["error"]
    # docs/accuracy.md: 5e-7 of the offset over the difference, and as much where that is small.
    assert mine["gradient_error"] <= 5e-7 * (1 + mean) / 1e-3
    assert rival["gradient_error"] > 10 * mine["gradient_error"]
  found = [{"case": "a", "error": 2e-5, "baseline_error": 1.0}, {"case": "b", "error": 1e-6}]
  (line,) = yat.failures(found, noise=1.25)
  assert line == "a: error 2.0e-05, the package's 1.0e+00"


def test_ours_is_the_formula():
  lhs, rhs, _ = STRIDED.operands()
  found = yat.ours(STRIDED)(lhs, rhs)
  expected = rivals.by_definition(yat.Yat(), STRIDED)(lhs, rhs)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)


def test_without_the_package_it_is_skipped(monkeypatch):
  monkeypatch.setattr(yat, "PACKAGE", "a_package_that_is_not_there")
  (row,) = yat.rows()
  assert row["skipped"] == "a_package_that_is_not_there is not installed"
  assert "skipped" in yat.label(row)
  assert tables.yat([row]) == ""


@pytest.mark.skipif(importlib.util.find_spec(yat.PACKAGE) is None, reason="nmn is not installed")
def test_the_package_s_layer_is_the_same_function(monkeypatch):
  lhs, rhs, _ = STRIDED.operands()
  np.testing.assert_allclose(
    yat.theirs(STRIDED)(lhs, rhs), yat.ours(STRIDED)(lhs, rhs), rtol=1e-3, atol=1e-6
  )
  monkeypatch.setitem(yat.SHAPES, "small", Shape("small", 2, (9, 8), 3, 4, (3, 3)))
  found = list(yat.rows(shapes=("small",), rounds=3, seconds=0.01))
  assert [row["case"] for row in found[:1]] == ["small"]
  assert found[0]["ratio"] > 0
  assert len(found) == 1 + len(yat.MEANS)
