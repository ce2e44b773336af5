"""The gallery of kernels: each block runs, is short, and is its formula in float64."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kerv_jax import kernels, kerv_general_dilated
from tests import reference
from tests.docs.test_docs import ROOT
from tests.operator.cases import NHWC, operands

PAGE = (ROOT / "docs" / "gallery" / "neighbors.md").read_text()


# Without the last one, which draws.
BLOCKS = re.findall(r"^```{code-cell} ipython3\n(.*?)^```$", PAGE, re.M | re.S)[:-1]


@functools.cache
def names():
  """What the blocks of the page define."""
  defined = {}
  for block in BLOCKS:
    exec(compile(block, "neighbors.md", "exec"), defined)
  return defined


def norm(v):
  return np.sqrt(np.sum(v**2))


def cosine(x, w):
  return np.sum(x * w) / (norm(x) * norm(w))


def sharpened(x, w):
  c = np.sum(x * w) / ((norm(x) + 0.1) * (norm(w) + 0.1))
  return np.sign(c) * abs(c) ** 2.5


def log_distance(x, w):
  d = np.sum((x - w) ** 2)
  return np.log((d + 1) / (d + 1e-4))


def authors(x, w):
  return np.exp(-(np.sum(x**2) + np.sum(w**2)) / x.size + 2 * (np.sum(x * w) + 0.1))


# The kernel, from what the page defines, and its formula.
ENTRIES = {
  "YAT": (
    lambda d: d["Yat"](0.3, 1e-2),
    lambda x, w: (np.sum(x * w) + 0.3) ** 2 / (np.sum((x - w) ** 2) + 1e-2),
  ),
  "Sharpened cosine similarity": (lambda d: d["SharpenedCosine"](2.5, 0.1), sharpened),
  "B-cos": (
    lambda d: d["BCos"](2.5),
    lambda x, w: norm(x) * np.sign(cosine(x, w)) * abs(cosine(x, w)) ** 2.5,
  ),
  "The log distance of ProtoPNet": (lambda d: d["LogDistance"](), log_distance),
  "L-infinity-distance nets": (
    lambda d: d["Distance"](),
    lambda x, w: np.sum(np.abs(x - w) ** 8.0) ** (1 / 8),
  ),
  "L-infinity itself": (lambda d: d["chebyshev"], lambda x, w: np.max(np.abs(x - w))),
  "Histogram intersection": (
    lambda d: d["Share"](2.0),
    lambda x, w: np.sum(np.minimum(x, w)) / 2,
  ),
  "The Gaussian of the authors' code of 2018": (lambda d: d["AuthorsGaussian"](8, 0.1), authors),
}
every_entry = pytest.mark.parametrize("entry", ENTRIES)
OPTIONS = {"window_strides": (1, 2), "padding": ((1, 0), (0, 1)), "dimension_numbers": NHWC}


def kervolution(lhs, rhs, kernel):
  return kerv_general_dilated(lhs, rhs, kernel_fn=kernel, **OPTIONS)


@every_entry
def test_values_are_those_of_the_formula(entry):
  make, formula = ENTRIES[entry]
  lhs, rhs = operands((2, 4, 5, 2), (2, 2, 2, 3))
  lhs, rhs = 0.5 * lhs, 0.5 * rhs
  expected = reference.kervolution(
    lhs,
    rhs,
    lambda x, w, feature: formula(x, w),
    strides=(1, 2),
    padding=OPTIONS["padding"],
    lhs_dilation=(1, 1),
    rhs_dilation=(1, 1),
    layouts=NHWC,
  )
  found = kervolution(lhs, rhs, make(names()))
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@every_entry
def test_gradients_are_those_of_the_formula(entry):
  """Through the operator, of one patch and filter; finite differences of the NumPy formula."""
  make, formula = ENTRIES[entry]
  x, w = 0.6 * np.random.default_rng(3).standard_normal((2, 8))
  with jax.enable_x64(True):

    def value(x, w):
      lhs, rhs = x.reshape(1, 2, 2, 2), w.reshape(2, 2, 2, 1)
      options = {**OPTIONS, "padding": "VALID"}
      return kerv_general_dilated(lhs, rhs, kernel_fn=make(names()), **options)[0, 0, 0, 0]

    found = jax.grad(value, (0, 1))(jnp.asarray(x), jnp.asarray(w))
  for i in range(8):
    step = 1e-6 * np.eye(8)[i]
    by_x = (formula(x + step, w) - formula(x - step, w)) / 2e-6
    by_w = (formula(x, w + step) - formula(x, w - step)) / 2e-6
    np.testing.assert_allclose([found[0][i], found[1][i]], [by_x, by_w], rtol=1e-5, atol=1e-7)


@every_entry
def test_finite_where_patch_and_filter_are_equal_or_zero(entry):
  kernel = ENTRIES[entry][0](names())
  kernel = jax.tree.map(jnp.float32, kernel)
  lhs, rhs = operands((1, 4, 5, 2), (2, 2, 2, 3))
  rhs = rhs.at[..., 0].set(lhs[0, 1:3, 2:4])  # met at an output
  loss = lambda *args: jnp.sum(kervolution(*args))  # noqa: E731
  gradient = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
  for a, b in [(lhs, rhs), (0 * lhs, rhs), (lhs, 0 * rhs), (0 * lhs, 0 * rhs)]:
    for leaf in jax.tree.leaves(gradient(a, b, kernel)):
      assert jnp.all(jnp.isfinite(leaf))


def test_every_entry_is_short_and_tested():
  *headings, _ = re.findall(r"^## (.*)$", PAGE, re.M)
  assert headings == [entry for entry in ENTRIES if entry != "L-infinity itself"]
  assert len(BLOCKS) == 1 + len(headings)
  for block in BLOCKS:
    assert len([line for line in block.splitlines() if line.strip()]) <= 10, block


def test_product_and_distance_share_a_convolution():
  lhs, rhs = operands((2, 4, 5, 2), (2, 2, 2, 3))
  text = str(jax.make_jaxpr(kervolution)(lhs, rhs, names()["Yat"]()))
  assert text.count("conv_general_dilated[") == 1
  assert isinstance(names()["Yat"](), kernels.Kernel)
