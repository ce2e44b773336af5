"""Values of kernels: the formulas in NumPy float64, dtypes, limits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels
from tests.kernels.cases import CASES, LENGTH, as_float32, cosine, dot, every_case, squared, vectors

OWN_DTYPE = ("Chebyshev", "Custom", "CustomSum")  # a function of one's own sees what it is given


# Values.


@every_case
def test_value_is_the_formula(name):
  case, rng = CASES[name], np.random.default_rng(0)
  for seed in range(3):
    x, w = vectors(seed)
    values = case.draw(rng)
    out = case.make(**values)(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32))
    assert out.shape == ()
    assert out.dtype == jnp.float32
    assert_allclose(out, case.formula(x, w, **values), rtol=5e-5, atol=5e-6)


@every_case
def test_value_is_the_formula_in_float64(name):
  case, rng = CASES[name], np.random.default_rng(1)
  x, w = vectors(1)
  values = case.draw(rng)
  with jax.enable_x64(True):
    out = case.make(**values)(jnp.asarray(x), jnp.asarray(w))
    assert out.dtype == jnp.float64
    assert_allclose(out, case.formula(x, w, **values), rtol=1e-11, atol=1e-12)


@every_case
def test_leading_axes_broadcast_with_each_other_and_with_vectors_of_hyperparameters(name):
  case, rng = CASES[name], np.random.default_rng(2)
  features = 3
  x, w = vectors(2, (4, 1, LENGTH), (features, LENGTH))
  for shape in [(), (features,)]:
    values = case.draw(rng, shape)
    kernel = case.make(**values)
    out = kernel(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32))
    assert out.shape == (4, features)
    assert_allclose(out, case.formula(x, w, **values), rtol=5e-5, atol=5e-6)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.ranges])
def test_vector_of_hyperparameters_spreads_one_patch_and_filter(name):
  case, rng = CASES[name], np.random.default_rng(3)
  x, w = vectors(3)
  values = case.draw(rng, (5,))
  for module in (np, jnp):
    kernel = case.make(**{n: module.asarray(v) for n, v in values.items()})
    out = kernel(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32))
    assert out.shape == (5,)
    assert_allclose(out, case.formula(x, w, **values), rtol=5e-5, atol=5e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", [n for n in CASES if n not in OWN_DTYPE])
def test_16_bit_inputs_are_computed_in_float32_and_rounded_once(name, dtype):
  case, rng = CASES[name], np.random.default_rng(4)
  # So long, and so far from 0, that 16-bit sums would be lost.
  x, w = vectors(4, (3, 1, 256), (2, 256), scale=0.2)
  x, w = jnp.asarray(x + 0.1, dtype), jnp.asarray(w + 0.15, dtype)
  values = case.draw(rng)
  out = case.make(**values)(x, w)
  assert out.dtype == dtype
  exact = case.formula(np.asarray(x, np.float64), np.asarray(w, np.float64), **values)
  assert np.all(np.abs(exact) < 6e4)  # float16 holds it
  eps = float(jnp.finfo(dtype).eps)
  assert_allclose(np.asarray(out, np.float64), exact, rtol=0.51 * eps + 2e-5, atol=1e-6)


@pytest.mark.usefixtures("promotion")
def test_dtype_of_the_result_is_the_operands_promoted():
  x, w = vectors(5)
  wide, narrow = jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.bfloat16)
  for kernel in (kernels.Gaussian(0.2), kernels.Polynomial(), kernels.L1(), kernels.Cosine()):
    assert kernel(wide, narrow).dtype == jnp.float32
    assert kernel(narrow, narrow).dtype == jnp.bfloat16
    # A hyperparameter's dtype never widens the result.
    lifted = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), kernel)
    assert lifted(narrow, narrow).dtype == jnp.bfloat16


@every_case
@pytest.mark.usefixtures("promotion")
def test_integer_inputs_are_numbers(name):
  case, rng = CASES[name], np.random.default_rng(6)
  x, w = rng.integers(-2, 3, LENGTH), rng.integers(-2, 3, LENGTH)
  assert dot(x, x) * dot(w, w) > 0
  values = case.draw(rng)
  for dtype in (np.int32, np.int8):
    out = case.make(**values)(jnp.asarray(x, dtype), jnp.asarray(w, dtype))
    if name not in OWN_DTYPE:
      assert out.dtype == jnp.float32
    assert_allclose(out, case.formula(x, w, **values), rtol=5e-5, atol=5e-6)


def test_unsigned_integers_do_not_wrap_around():
  x, w = jnp.array([1, 200], jnp.uint8), jnp.array([3, 100], jnp.uint8)
  assert_allclose(kernels.L1()(x, w), 102.0, rtol=1e-6, atol=0)
  assert_allclose(kernels.L2(squared=True)(x, w), 10004.0, rtol=1e-6, atol=0)
  assert_allclose(kernels.Linear()(x, w), 20003.0, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", [n for n in CASES if n not in OWN_DTYPE])
def test_16_bit_inputs_take_float32_hyperparameters(name):
  case = CASES[name]
  kernel = as_float32(case.make(**case.draw(np.random.default_rng(17), (2,))))
  x = jax.ShapeDtypeStruct((2, LENGTH), jnp.bfloat16)
  assert jax.eval_shape(kernel, x, x).dtype == jnp.bfloat16


def test_numpy_inputs():
  x, w = vectors(7)
  out = kernels.Gaussian(0.2)(x, w)
  assert isinstance(out, jax.Array)
  assert_allclose(out, np.exp(-0.2 * squared(x, w)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "kernel", [kernels.Linear(), kernels.Gaussian(), kernels.L1(), kernels.L2(), kernels.Cosine()]
)
def test_complex_inputs_are_refused(kernel):
  real, unreal = jnp.ones(3), jnp.ones(3, jnp.complex64)
  for x, w in [(real, unreal), (unreal, real), (unreal, unreal)]:
    with pytest.raises(TypeError, match=r"`x` and `w` must be real.*complex64"):
      kernel(x, w)


@pytest.mark.parametrize(
  "kernel",
  [kernels.Linear(), kernels.Gaussian(), kernels.L1(), kernels.L2(), kernels.Cosine()],
  ids=repr,
)
@pytest.mark.parametrize("lengths", [(1, 4), (4, 1), (3, 4)])
def test_patch_and_filter_of_different_lengths_are_refused(kernel, lengths):
  """A vector of one element must not spread over the other's."""
  x, w = vectors(8, (lengths[0],), (lengths[1],))
  with pytest.raises((TypeError, ValueError)):
    kernel(jnp.asarray(x), jnp.asarray(w))


def test_l2_squared_is_static_and_the_square():
  x, w = vectors(9)
  x, w = jnp.asarray(x), jnp.asarray(w)
  assert_allclose(kernels.L2(squared=True)(x, w), squared(x, w), rtol=1e-5, atol=0)
  assert_allclose(kernels.L2()(x, w) ** 2, kernels.L2(squared=True)(x, w), rtol=1e-5, atol=0)
  assert kernels.L2(squared=True) != kernels.L2()
  assert jax.tree.structure(kernels.L2(squared=True)) != jax.tree.structure(kernels.L2())


def test_symmetric_kernels():
  x, w = vectors(10)
  x, w = jnp.asarray(x), jnp.asarray(w)
  for case in CASES.values():
    kernel = case.make(**case.draw(np.random.default_rng(0)))
    assert_allclose(kernel(x, w), kernel(w, x), rtol=1e-5, atol=1e-6)


# Limits.


def test_rational_quadratic_tends_to_the_gaussian():
  x, w = vectors(11)
  with jax.enable_x64(True):
    gaussian = kernels.Gaussian(1 / (2 * 1.3**2))(x, w)
    errors = [
      abs(float(kernels.RationalQuadratic(alpha, 1.3)(x, w) - gaussian))
      for alpha in 10.0 ** np.arange(5)
    ]
  assert errors[0] > 1e-3
  assert all(after < before / 5 for before, after in itertools.pairwise(errors))
  # And in float32, where (1 + tiny) ** -huge would lose everything.
  x, w = jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32)
  assert_allclose(kernels.RationalQuadratic(1e6, 1.3)(x, w), gaussian, rtol=2e-5, atol=0)


def test_rational_quadratic_of_alpha_one_is_a_cauchy_kernel():
  x, w = vectors(12)
  assert_allclose(
    kernels.RationalQuadratic(1.0, 0.8)(x, w),
    kernels.Cauchy(0.8 * np.sqrt(2))(x, w),
    rtol=1e-5,
    atol=0,
  )


def test_polynomial_of_degree_one_without_balance_is_linear():
  x, w = vectors(13, (5, LENGTH), (5, LENGTH))
  x, w = jnp.asarray(x), jnp.asarray(w)
  assert_array_equal(kernels.Polynomial(1, 0.0)(x, w), kernels.Linear()(x, w))
  # The kernel's own order: a larger balance makes the polynomial's low orders weigh more.
  assert_allclose(kernels.Polynomial(2, 0.0)(x, w), dot(x, w) ** 2, rtol=1e-5, atol=1e-6)


def test_sigmoid_of_small_scale_is_linear():
  x, w = vectors(14)
  assert_allclose(kernels.Sigmoid(1e-3)(x, w), 1e-3 * dot(x, w), rtol=1e-4, atol=0)


def test_cosine_ignores_lengths_and_is_one_for_parallel_vectors():
  x, w = vectors(15)
  kernel = kernels.Cosine()
  for factor in (1e-6, 3.0, 1e6):
    assert_allclose(kernel(factor * x, w), cosine(x, w), rtol=1e-5, atol=1e-6)
    assert_allclose(kernel(x, factor * x), 1.0, rtol=1e-5, atol=0)
    assert_allclose(kernel(x, -factor * x), -1.0, rtol=1e-5, atol=0)


def test_bounded_kernels_are_one_where_patch_and_filter_are_equal():
  x, _ = vectors(16)
  for kernel in (
    kernels.Gaussian(3.0),
    kernels.Laplacian(3.0),
    kernels.Cauchy(0.3),
    kernels.RationalQuadratic(0.3, 0.2),
  ):
    assert float(kernel(x, x)) == 1.0
  for kernel in (kernels.L1(), kernels.L2(), kernels.L2(squared=True)):
    assert float(kernel(x, x)) == 0.0


def test_defaults_are_the_papers():
  assert kernels.Polynomial() == kernels.Polynomial(degree=3, balance=1.0)
  assert kernels.Gaussian() == kernels.Gaussian(gamma=1.0)
  assert kernels.Sigmoid() == kernels.Sigmoid(scale=1.0, offset=0.0)
  assert kernels.L2() == kernels.L2(squared=False)
  assert kernels.Laplacian() == kernels.Laplacian(gamma=1.0)
  assert kernels.Cauchy() == kernels.Cauchy(sigma=1.0)
  assert kernels.RationalQuadratic() == kernels.RationalQuadratic(alpha=1.0, length=1.0)
  assert kernels.Polynomial(5) == kernels.Polynomial(degree=5)
  assert kernels.Gaussian(0.1) == kernels.Gaussian(gamma=0.1)
