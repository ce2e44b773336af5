"""Derivatives of kernels: right, and finite where they have a kink or overflow."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels
from tests.kernels.cases import CASES, LENGTH, as_float32, dot, every_case, squared, vectors


@every_case
def test_gradients_pass_check_grads(name):
  case = CASES[name]
  with jax.enable_x64(True):
    x, w = vectors(17)
    kernel = jax.tree.map(jnp.asarray, case.make(**case.draw(np.random.default_rng(5))))
    check_grads(
      lambda x, w, kernel: kernel(x, w),
      (jnp.asarray(x), jnp.asarray(w), kernel),
      order=2 if case.smooth else 1,
      rtol=1e-5,
      atol=1e-5,
    )


@every_case
def test_gradient_is_that_of_the_formula(name):
  """Finite differences of the NumPy formula, element by element: nothing of the library's."""
  case, step = CASES[name], 1e-6
  x, w = vectors(18)
  values = case.draw(np.random.default_rng(6))
  with jax.enable_x64(True):
    kernel = case.make(**values)
    dx, dw, dkernel = jax.grad(lambda x, w, k: k(x, w), (0, 1, 2))(x, w, kernel)
    assert type(dkernel) is type(kernel)
    assert jax.tree.structure(dkernel) == jax.tree.structure(kernel)

  def difference(f):
    return (f(step) - f(-step)) / (2 * step)

  for index in range(LENGTH):
    one = np.eye(LENGTH)[index]
    expected_x = difference(lambda t, one=one: case.formula(x + t * one, w, **values))
    expected_w = difference(lambda t, one=one: case.formula(x, w + t * one, **values))
    assert_allclose(dx[index], expected_x, rtol=1e-5, atol=1e-7)
    assert_allclose(dw[index], expected_w, rtol=1e-5, atol=1e-7)
  gradients = {name.split("_")[-1]: g for name, g in dkernel.hyperparameters().items()}
  for argument in case.ranges:
    expected = difference(lambda t, a=argument: case.formula(x, w, **{**values, a: values[a] + t}))
    assert abs(expected) > 1e-7  # the test says something
    found = gradients["scale" if argument == "scale" else argument]
    assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


def test_gradient_with_respect_to_vectors_of_hyperparameters():
  x, w = vectors(19, (4, 1, LENGTH), (3, LENGTH))
  gamma = np.array([0.1, 0.2, 0.4])
  gradient = jax.grad(lambda k: jnp.sum(k(x, w)))(kernels.Gaussian(gamma))
  d = squared(x, w)
  assert gradient.gamma.shape == (3,)
  assert_allclose(gradient.gamma, np.sum(-d * np.exp(-gamma * d), axis=0), rtol=1e-4, atol=1e-5)


def test_paper_equation_13():
  """The closed forms of the Gaussian's derivatives."""
  x, w = vectors(20)
  gamma = 0.3
  dx, dw, dk = jax.grad(lambda x, w, k: k(x, w), (0, 1, 2))(x, w, kernels.Gaussian(gamma))
  value = np.exp(-gamma * squared(x, w))
  assert_allclose(dw, 2 * gamma * (x - w) * value, rtol=1e-5, atol=1e-6)
  assert_allclose(dx, -2 * gamma * (x - w) * value, rtol=1e-5, atol=1e-6)
  assert_allclose(dk.gamma, -squared(x, w) * value, rtol=1e-5, atol=1e-6)


@jax.jit
def value_and_derivatives(kernel, x, w):
  def f(x, w, kernel):
    return kernel(x, w)

  first = jax.grad(f, (0, 1, 2))(x, w, kernel)
  second = jax.hessian(f, (0, 1))(x, w, kernel)
  return f(x, w, kernel), first, second


@every_case
def test_finite_where_patch_and_filter_are_equal_or_zero(name):
  case = CASES[name]
  kernel = as_float32(case.make(**case.draw(np.random.default_rng(7))))
  a, b = as_float32(vectors(21))
  zero = jnp.zeros(LENGTH)
  for x, w in [(a, a), (zero, zero), (a, zero), (zero, b), (a, -a), (a, b.at[2].set(a[2]))]:
    chex.assert_tree_all_finite(value_and_derivatives(kernel, x, w))


@pytest.mark.parametrize("kernel", [kernels.L1(), kernels.L2(), kernels.Laplacian(0.3)], ids=repr)
def test_derivative_is_zero_where_a_kink_has_patch_and_filter_equal(kernel):
  x = jnp.asarray(vectors(22)[0])
  dx, dw = jax.grad(kernel, (0, 1))(x, x)
  assert_array_equal(dx, np.zeros(LENGTH))
  assert_array_equal(dw, np.zeros(LENGTH))
  # One element equal, the others not.
  w = jnp.asarray(vectors(22)[1]).at[3].set(x[3])
  dx, dw = jax.grad(kernel, (0, 1))(x, w)
  assert dx[3] == dw[3] == 0
  assert np.all(np.asarray(dx)[np.arange(LENGTH) != 3] != 0)


def test_second_derivatives_where_patch_and_filter_are_equal():
  x = jnp.asarray(vectors(23)[0])
  identity = np.eye(LENGTH)
  for kernel, expected in [
    (kernels.L2(squared=True), 2 * identity),
    (kernels.Gaussian(0.3), -0.6 * identity),
    (kernels.Cauchy(2.0), -0.5 * identity),
    (kernels.RationalQuadratic(0.7, 2.0), -0.25 * identity),
    (kernels.L2(), 0 * identity),
  ]:
    second, mixed = jax.jacfwd(jax.grad(kernel), (0, 1))(x, x)
    assert_allclose(second, expected, rtol=1e-5, atol=1e-5)
    assert_allclose(mixed, -expected, rtol=1e-5, atol=1e-5)


def test_cosine_of_a_zero_vector_is_zero():
  x, zero = jnp.asarray(vectors(24)[0]), jnp.zeros(LENGTH)
  for args in [(x, zero), (zero, x), (zero, zero)]:
    assert kernels.Cosine()(*args) == 0


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 5, 8])
def test_polynomial_of_a_negative_base(degree):
  x, w = jnp.array([1.0, -0.5, 0.3]), jnp.array([-1.5, 0.4, -0.2])
  base = float(dot(np.asarray(x, np.float64), np.asarray(w, np.float64))) + 0.4
  assert base < -1
  kernel = kernels.Polynomial(degree, jnp.float32(0.4))
  value, (dx, dw, dk), second = value_and_derivatives(kernel, x, w)
  assert_allclose(value, base**degree, rtol=1e-5, atol=0)
  slope = degree * base ** (degree - 1)
  assert_allclose(dx, slope * w, rtol=1e-5, atol=0)
  assert_allclose(dw, slope * x, rtol=1e-5, atol=0)
  assert_allclose(dk.balance, slope, rtol=1e-5, atol=0)
  curvature = degree * (degree - 1) * base ** max(degree - 2, 0)
  assert_allclose(second[0][0], curvature * np.outer(w, w), rtol=1e-5, atol=1e-7)
  # Base exactly 0.
  value, first, second = value_and_derivatives(
    kernels.Polynomial(degree, jnp.float32(0.0)), x, jnp.zeros(3)
  )
  assert value == 0
  chex.assert_tree_all_finite((first, second))


EXTREMES = (1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6)


@pytest.mark.parametrize(
  "name",
  ["Polynomial3", "Sigmoid", "Gaussian", "Laplacian", "Cauchy", "RationalQuadratic", "Scaled"],
)
def test_extreme_hyperparameters_give_right_values_and_finite_gradients(name):
  case = CASES[name]

  @jax.jit
  def value_and_gradient(x, w, kernel):
    return jax.value_and_grad(lambda x, w, k: k(x, w), (0, 1, 2))(x, w, kernel)

  a, b = vectors(25)
  for values in itertools.product(EXTREMES, repeat=len(case.ranges)):
    named = dict(zip(case.ranges, values, strict=True))
    kernel = as_float32(case.make(**named))
    for x, w in [(a, b), (10 * a, -10 * b), (a, a), (np.zeros(LENGTH), b)]:
      value, gradient = value_and_gradient(*as_float32((x, w)), kernel)
      single = {n: np.float64(np.float32(v)) for n, v in named.items()}
      expected = case.formula(
        np.asarray(np.float32(x), np.float64),
        np.asarray(np.float32(w), np.float64),
        **single,
      )
      assert_allclose(value, expected, rtol=2e-4, atol=2e-6 * max(1, *values), err_msg=repr(kernel))
      chex.assert_tree_all_finite(gradient)


@pytest.mark.parametrize("sigma", [1e-30, 1e-20, 1e20, 1e30])
def test_cauchy_is_finite_for_any_sigma(sigma):
  """As it says; the square of such a ``sigma`` is 0 or infinite in float32."""
  x, w = as_float32(vectors(34))
  kernel = kernels.Cauchy(sigma)
  assert_allclose(kernel(x, w), 1.0 if sigma > 1 else 0.0, rtol=1e-6, atol=1e-6)
  assert_allclose(kernel(x, x), 1.0, rtol=1e-6, atol=0)


def test_gradients_of_16_bit_inputs_are_finite_and_close():
  x, w = vectors(26)
  for name in ("Gaussian", "L2", "Cosine", "Cauchy", "Polynomial3"):
    case = CASES[name]
    values = case.draw(np.random.default_rng(8))
    kernel = case.make(**values)
    rounded = jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.bfloat16)
    narrow = jax.grad(kernel)(*rounded)
    assert narrow.dtype == jnp.bfloat16
    wide = jax.grad(kernel)(*as_float32(rounded))
    assert_allclose(np.asarray(narrow, np.float32), wide, rtol=2**-7, atol=1e-6)
