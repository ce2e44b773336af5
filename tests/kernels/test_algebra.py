"""Sums, products and multiples of kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from kerv_jax import kernels
from kerv_jax.kernels.definitions import DEFINITIONS
from tests.kernels.cases import (
  LENGTH,
  A,
  B,
  C,
  Chebyshev,
  as_float32,
  hadamard_max,
  squared,
  vectors,
)


@pytest.fixture(scope="module")
def pair():
  return as_float32(vectors(30))


def test_algebra_of_kernels(pair):
  a, b, c = (float(k(*pair)) for k in (A, B, C))
  for kernel, expected in [
    (A + B, a + b),
    (A - B, a - b),
    (A * B, a * b),
    (-A, -a),
    (-(-A), a),  # noqa: B002
    (A + B + C, a + b + c),
    (A + (B + C), a + b + c),
    (A - (B - C), a - b + c),
    (A - B - C, a - b - c),
    (A * B * C, a * b * c),
    (A * (B + C), a * (b + c)),
    ((A + B) * (A + B), (a + b) ** 2),
    (-(A + B) * C, -(a + b) * c),
    (A + A, 2 * a),
    (A * A, a * a),
    (2 * A - 3 * B, 2 * a - 3 * b),
    (2 * (3 * A), 6 * a),
    (-A * 2, -2 * a),
    (A * 2 * B, 2 * a * b),
    (0.0 * A + B, b),
  ]:
    assert isinstance(kernel, kernels.Kernel)
    assert_allclose(kernel(*pair), expected, rtol=1e-5, atol=1e-6, err_msg=repr(kernel))


@pytest.mark.parametrize(
  "number",
  [
    -2,
    -2.0,
    np.float32(-2),
    np.float64(-2),
    np.int32(-2),
    np.array(-2.0),
    np.array(-2),
    jnp.float32(-2),
    jnp.array(-2),
    jnp.array(-2.0, jnp.bfloat16),
  ],
  ids=lambda n: f"{type(n).__name__}-{getattr(n, 'dtype', '')}",
)
def test_numbers_on_either_side(pair, number):
  for kernel in (number * A, A * number):
    assert type(kernel) is kernels.Scaled
    assert kernel.kernel is A
    out = kernel(*pair)
    assert out.dtype == jnp.float32
    assert_allclose(out, -2 * A(*pair), rtol=1e-6, atol=0)
  mixed = number * (A + B)
  assert_allclose(mixed(*pair), -2 * (A(*pair) + B(*pair)), rtol=1e-5, atol=1e-6)


def test_in_place_operators_make_new_kernels(pair):
  kernel = original = A
  kernel += B
  assert kernel == A + B
  kernel = A
  kernel *= 3.0
  assert kernel == 3.0 * A
  assert original is A
  assert kernels.Gaussian(0.2) == A


@pytest.mark.parametrize("module", [np, jnp])
def test_vectors_scale_one_value_per_feature(module):
  x, w = as_float32(vectors(31, (4, 1, LENGTH), (3, LENGTH)))
  scale = module.asarray([1.0, -2.0, 0.5], np.float32)
  for kernel in (scale * A, A * scale):
    assert type(kernel) is kernels.Scaled
    assert_allclose(kernel(x, w), np.asarray(scale) * np.asarray(A(x, w)), rtol=1e-5, atol=1e-6)


def test_a_traced_number_scales(pair):
  gradient = jax.jit(jax.grad(lambda s: (s * A + A * s)(*pair)))(1.5)
  assert_allclose(gradient, 2 * A(*pair), rtol=1e-5, atol=0)


def test_sums_and_products_are_flat():
  assert (A + B + C).terms == (A + (B + C)).terms == ((A + B) + C).terms == (A, B, C)
  assert ((A + B) + (C + A)).terms == (A, B, C, A)
  assert (A * B * C).terms == (A * (B * C)).terms == (A, B, C)
  assert (A + B * C).terms == (A, B * C)
  assert (A * (B + C)).terms == (A, B + C)
  assert (A + 2 * B).terms == (A, 2 * B)
  assert (A - B).terms == (A, -B)
  assert (A - B - C).terms == (A, -B, -C)
  assert (A + B - C + A).terms == (A, B, -C, A)
  assert (A - (B + C)).terms == (A, -(B + C))
  assert kernels.Sum((kernels.Sum((A, B)), C)) == A + B + C
  assert kernels.Product((A, kernels.Product((B, C)))) == A * B * C
  assert -(-A) is A  # noqa: B002
  assert A - (-B) == A + B
  assert sum([A, B, C]) == A + B + C
  with pytest.raises(TypeError, match="unsupported operand"):
    1 + A


def test_statistics_of_built_in_kernels():
  assert A.statistics == (kernels.SQUARED_DISTANCE,)
  assert B.statistics == (kernels.INNER_PRODUCT,)
  assert C.statistics == (kernels.ABSOLUTE_DISTANCE,)
  assert kernels.Custom(hadamard_max).statistics is None
  assert Chebyshev().statistics is None
  assert (A + kernels.L2()).statistics == (kernels.SQUARED_DISTANCE,)
  assert (A * B - A * C).statistics == (
    kernels.SQUARED_DISTANCE,
    kernels.INNER_PRODUCT,
    kernels.ABSOLUTE_DISTANCE,
  )
  assert set((kernels.Cosine() + B).statistics) == {
    kernels.INNER_PRODUCT,
    kernels.PATCH_SQUARED_NORM,
    kernels.FILTER_SQUARED_NORM,
  }
  assert (A + kernels.Custom(hadamard_max)).statistics is None
  assert (2.0 * -(kernels.Custom(hadamard_max) * A)).statistics is None
  for kernel in (A, B, A + B, kernels.Cosine()):
    assert set(kernel.statistics) <= set(DEFINITIONS)


def test_statistics_that_terms_share_are_computed_once(pair, monkeypatch):
  calls = []
  for name, definition in list(DEFINITIONS.items()):

    def counted(x, w, name=name, definition=definition):
      calls.append(name)
      return definition(x, w)

    monkeypatch.setitem(DEFINITIONS, name, counted)
  kernel = (
    2.0 * A + kernels.L2() * (kernels.Cauchy() - A) + B * kernels.Sigmoid() - kernels.Cosine()
  )
  kernel(*pair)
  assert sorted(calls) == sorted(
    [
      kernels.SQUARED_DISTANCE,
      kernels.INNER_PRODUCT,
      kernels.PATCH_SQUARED_NORM,
      kernels.FILTER_SQUARED_NORM,
    ]
  )


def test_composites_are_functions_of_given_statistics():
  kernel = 2.0 * kernels.Gaussian(0.5) - kernels.L2(squared=True) * kernels.Polynomial(2, 1.0)
  d, p = np.array([0.5, 2.0, 0.0]), np.array([-1.5, 0.25, 3.0])
  out = kernel.from_statistics(
    {kernels.SQUARED_DISTANCE: jnp.asarray(d), kernels.INNER_PRODUCT: jnp.asarray(p)}
  )
  assert_allclose(out, 2 * np.exp(-0.5 * d) - d * (p + 1) ** 2, rtol=1e-5, atol=1e-6)


def test_a_custom_kernel_inside_every_composite(pair):
  custom = kernels.Custom(hadamard_max)
  x, w = (np.asarray(v, np.float64) for v in pair)
  a, c = np.exp(-0.2 * squared(x, w)), np.max(x * w)
  for kernel, expected in [
    (custom + A, c + a),
    (A - custom, a - c),
    (custom * A, c * a),
    (-custom, -c),
    (2.0 * custom, 2 * c),
    (2.0 * (A + custom) * A, 2 * (a + c) * a),
  ]:
    assert_allclose(kernel(*pair), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "nonsense",
  [
    lambda: A + 1.0,
    lambda: 1.0 + A,
    lambda: A - 1.0,
    lambda: 1.0 - A,
    lambda: A + np.float32(1.0),
    lambda: np.float32(1.0) + A,
    lambda: np.ones(3) + A,
    lambda: np.ones(3) - A,
    lambda: jnp.ones(3) + A,
    lambda: jnp.float32(1.0) - A,
    lambda: A + None,
    lambda: A + "L1",
    lambda: A + kernels.Gaussian,
    lambda: kernels.Gaussian + A,
    lambda: A + jnp.sum,
    lambda: A * "2",
    lambda: "2" * A,
    lambda: A * None,
    lambda: A * kernels.Gaussian,
    lambda: kernels.Gaussian * A,
    lambda: A * True,
    lambda: A * 1j,
    lambda: 1j * A,
    lambda: A * jnp.sum,
    lambda: A @ B,
    lambda: A < B,
    lambda: abs(A),
    lambda: float(A),
    lambda: A[0],
    lambda: len(A),
    lambda: iter(A),
  ],
)
def test_nonsense_is_a_type_error(nonsense):
  with pytest.raises(TypeError):
    nonsense()
