"""Kernel functions on vectors: formulas in NumPy float64, derivatives, pytree, algebra, errors."""

import copy
import dataclasses
import itertools
import pickle
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels
from kerv_jax.kernels import Hyperparameter, hyperparameter, static
from kerv_jax.kernels.base import require_kernel
from kerv_jax.kernels.definitions import DEFINITIONS

LENGTH = 7  # of a patch


# Kernels of a user's own, of every sort the documentation offers.


class Softened(kernels.InnerProductKernel):
  """Hyperparameters with and without a default, and a static field."""

  rate: Hyperparameter = hyperparameter(constraint="positive")
  shift: Hyperparameter = hyperparameter(default=0.0)
  order: int = static(default=2)

  def profile(self, statistic):
    return jnp.log1p(jnp.exp(self.rate * statistic + self.shift)) ** self.order


class Chebyshev(kernels.Kernel):
  """Not a function of patch statistics."""

  weight: Hyperparameter = hyperparameter(default=1.0, constraint="non-negative")

  def __call__(self, x, w):
    return self.weight * jnp.max(jnp.abs(x - w), axis=-1)


class ShiftedGaussian(kernels.Gaussian):
  """A subclass of a built-in kernel that adds a hyperparameter."""

  height: Hyperparameter = hyperparameter(default=0.5)

  def profile(self, statistic):
    return super().profile(statistic) + self.height


class Ratio(kernels.Kernel):
  """Two statistics."""

  @property
  def statistics(self):
    return (kernels.INNER_PRODUCT, kernels.SQUARED_DISTANCE)

  def from_statistics(self, statistics):
    return statistics[kernels.INNER_PRODUCT] / (1 + statistics[kernels.SQUARED_DISTANCE])


def hadamard_max(x, w):
  return jnp.max(x * w, axis=-1)


# The definitions, in NumPy.


def dot(x, w):
  return np.sum(x * w, axis=-1)


def squared(x, w):
  return np.sum((x - w) ** 2, axis=-1)


def absolute(x, w):
  return np.sum(np.abs(x - w), axis=-1)


def power(base, degree):
  value = np.ones_like(base)
  for _ in range(degree):
    value = value * base
  return value


def cosine(x, w):
  return dot(x, w) / np.sqrt(dot(x, x) * dot(w, w))


@dataclasses.dataclass(frozen=True)
class Case:
  """A kernel as a function of its hyperparameters, the same in NumPy, and their ranges."""

  make: Callable[..., kernels.Kernel]
  formula: Callable[..., Any]
  ranges: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
  names: tuple[str, ...] | None = None  # of the leaves, where not the arguments' own
  smooth: bool = True

  @property
  def leaf_names(self):
    return tuple(self.ranges) if self.names is None else self.names

  def draw(self, rng, shape=()):
    return {name: rng.uniform(low, high, shape) for name, (low, high) in self.ranges.items()}


CASES = {
  "Linear": Case(kernels.Linear, dot),
  **{
    f"Polynomial{degree}": Case(
      lambda balance, degree=degree: kernels.Polynomial(degree, balance),
      lambda x, w, balance, degree=degree: power(dot(x, w) + balance, degree),
      {"balance": (0.2, 1.5)},
    )
    for degree in (1, 2, 3, 4, 7)
  },
  "Sigmoid": Case(
    kernels.Sigmoid,
    lambda x, w, scale, offset: np.tanh(scale * dot(x, w) + offset),
    {"scale": (-0.9, -0.2), "offset": (-0.5, 0.5)},
  ),
  "Gaussian": Case(
    kernels.Gaussian, lambda x, w, gamma: np.exp(-gamma * squared(x, w)), {"gamma": (0.05, 0.3)}
  ),
  "L1": Case(kernels.L1, absolute, smooth=False),
  "L2": Case(kernels.L2, lambda x, w: np.sqrt(squared(x, w))),
  "L2squared": Case(lambda: kernels.L2(squared=True), squared),
  "Laplacian": Case(
    kernels.Laplacian,
    lambda x, w, gamma: np.exp(-gamma * absolute(x, w)),
    {"gamma": (0.05, 0.3)},
    smooth=False,
  ),
  "Cauchy": Case(
    kernels.Cauchy,
    lambda x, w, sigma: 1 / (1 + squared(x, w) / sigma**2),
    {"sigma": (0.5, 4.0)},
  ),
  "RationalQuadratic": Case(
    kernels.RationalQuadratic,
    lambda x, w, alpha, length: (1 + squared(x, w) / (2 * alpha * length**2)) ** -alpha,
    {"alpha": (0.3, 3.0), "length": (0.5, 4.0)},
  ),
  "Cosine": Case(kernels.Cosine, cosine),
  "Sum": Case(
    lambda gamma, offset: kernels.Gaussian(gamma) + kernels.Sigmoid(0.3, offset) + kernels.Linear(),
    lambda x, w, gamma, offset: (
      np.exp(-gamma * squared(x, w)) + np.tanh(0.3 * dot(x, w) + offset) + dot(x, w)
    ),
    {"gamma": (0.05, 0.3), "offset": (-0.5, 0.5)},
    names=("terms.0.gamma", "terms.1.scale", "terms.1.offset"),
  ),
  "Difference": Case(
    lambda sigma: kernels.Cauchy(sigma) - kernels.Linear(),
    lambda x, w, sigma: 1 / (1 + squared(x, w) / sigma**2) - dot(x, w),
    {"sigma": (0.5, 4.0)},
    names=("terms.0.sigma",),
  ),
  "Product": Case(
    lambda gamma, balance: kernels.Gaussian(gamma) * kernels.Polynomial(2, balance),
    lambda x, w, gamma, balance: np.exp(-gamma * squared(x, w)) * power(dot(x, w) + balance, 2),
    {"gamma": (0.05, 0.3), "balance": (0.2, 1.5)},
    names=("terms.0.gamma", "terms.1.balance"),
  ),
  "Negative": Case(
    lambda gamma: -kernels.Gaussian(gamma),
    lambda x, w, gamma: -np.exp(-gamma * squared(x, w)),
    {"gamma": (0.05, 0.3)},
    names=("kernel.gamma",),
  ),
  "Scaled": Case(
    lambda scale, gamma: scale * kernels.Gaussian(gamma),
    lambda x, w, scale, gamma: scale * np.exp(-gamma * squared(x, w)),
    {"scale": (-3.0, -0.5), "gamma": (0.05, 0.3)},
    names=("scale", "kernel.gamma"),
  ),
  "Nested": Case(
    lambda scale, gamma: scale * (-(kernels.L1() * (kernels.Cosine() + kernels.Gaussian(gamma)))),
    lambda x, w, scale, gamma: (
      -scale * absolute(x, w) * (cosine(x, w) + np.exp(-gamma * squared(x, w)))
    ),
    {"scale": (0.5, 2.0), "gamma": (0.05, 0.3)},
    names=("scale", "kernel.kernel.terms.1.terms.1.gamma"),
    smooth=False,
  ),
  "Custom": Case(
    lambda: kernels.Custom(hadamard_max), lambda x, w: np.max(x * w, axis=-1), smooth=False
  ),
  "CustomSum": Case(
    lambda gamma: kernels.Gaussian(gamma) - 2.0 * kernels.Custom(hadamard_max),
    lambda x, w, gamma: np.exp(-gamma * squared(x, w)) - 2 * np.max(x * w, axis=-1),
    {"gamma": (0.05, 0.3)},
    names=("terms.0.gamma", "terms.1.kernel.scale"),
    smooth=False,
  ),
  "Softened": Case(
    lambda rate, shift: Softened(rate, shift, order=3),
    lambda x, w, rate, shift: power(np.log1p(np.exp(rate * dot(x, w) + shift)), 3),
    {"rate": (0.2, 0.8), "shift": (-0.5, 0.5)},
  ),
  "Chebyshev": Case(
    Chebyshev,
    lambda x, w, weight: weight * np.max(np.abs(x - w), axis=-1),
    {"weight": (0.5, 2.0)},
    smooth=False,
  ),
  "ShiftedGaussian": Case(
    ShiftedGaussian,
    lambda x, w, gamma, height: np.exp(-gamma * squared(x, w)) + height,
    {"gamma": (0.05, 0.3), "height": (-1.0, 1.0)},
  ),
  "Ratio": Case(Ratio, lambda x, w: dot(x, w) / (1 + squared(x, w))),
}
OWN_DTYPE = ("Chebyshev", "Custom", "CustomSum")  # a function of one's own sees what it is given

every_case = pytest.mark.parametrize("name", CASES)


def vectors(seed, x_shape=(LENGTH,), w_shape=(LENGTH,), scale=0.7):
  rng = np.random.default_rng(seed)
  return scale * rng.normal(size=x_shape) + 0.1, scale * rng.normal(size=w_shape) - 0.2


def as_float32(tree):
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


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


@every_case
def test_strict_promotion(name):
  """No hyperparameter or statistic relies on a promotion that JAX can be told to refuse."""
  case = CASES[name]
  x, w = as_float32(vectors(33, (2, LENGTH), (2, LENGTH)))
  kernel = case.make(**case.draw(np.random.default_rng(17), (2,)))
  expected = kernel(x, w)
  with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
    assert_array_equal(as_float32(kernel)(x, w), expected)
    case.make(**case.draw(np.random.default_rng(17)))(x, w)
    if name not in OWN_DTYPE:
      as_float32(kernel)(jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.bfloat16))


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


# Derivatives.


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
  gradients = {path.split(".")[-1]: g for path, g in dkernel.hyperparameters().items()}
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
    results = value_and_derivatives(kernel, x, w)
    for path, leaf in jax.tree_util.tree_leaves_with_path(results):
      assert np.all(np.isfinite(leaf)), (path, leaf)


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
  assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((first, second)))


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
      for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.all(np.isfinite(leaf)), (kernel, path, leaf)


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


# Pytree.


@every_case
def test_leaves_and_their_names(name):
  case = CASES[name]
  kernel = case.make(**case.draw(np.random.default_rng(9)))
  paths = [
    jax.tree_util.keystr(path, simple=True, separator=".")
    for path, _ in jax.tree_util.tree_leaves_with_path(kernel)
  ]
  assert tuple(paths) == tuple(kernel.hyperparameters()) == tuple(kernel.constraints())
  assert list(kernel.hyperparameters().values()) == jax.tree.leaves(kernel)
  if name in ("Difference", "CustomSum"):
    expected = {
      "Difference": ["terms.0.sigma"],
      "CustomSum": ["terms.0.gamma", "terms.1.kernel.scale"],
    }[name]
    assert paths == expected
  else:
    assert paths == list(case.leaf_names)


def test_paths_are_attributes():
  (path, value), *_ = jax.tree_util.tree_flatten_with_path(kernels.Polynomial(2, 0.25))[0]
  assert jax.tree_util.keystr(path) == ".balance"
  assert value == 0.25
  kernel = 3.0 * kernels.Gaussian(0.5) + kernels.Cauchy(2.0)
  leaves = jax.tree_util.tree_leaves_with_path(kernel)
  assert [(jax.tree_util.keystr(p), v) for p, v in leaves] == [
    (".terms[0].scale", 3.0),
    (".terms[0].kernel.gamma", 0.5),
    (".terms[1].sigma", 2.0),
  ]


def test_degree_is_static():
  kernel = kernels.Polynomial(4, 0.5)
  assert jax.tree.leaves(kernel) == [0.5]
  assert "degree" not in kernel.hyperparameters()
  assert jax.tree.structure(kernel) != jax.tree.structure(kernels.Polynomial(3, 0.5))
  assert jax.tree.map(lambda leaf: 2 * leaf, kernel) == kernels.Polynomial(4, 1.0)

  degrees = []

  @jax.jit
  def f(kernel, x):
    degrees.append(kernel.degree)
    return kernel(x, x)

  x = jnp.ones(2)
  assert float(f(kernel, x)) == 2.5**4
  assert float(f(kernels.Polynomial(4, 1.0), x)) == 3.0**4  # another leaf: no new trace
  assert float(f(kernels.Polynomial(3, 1.0), x)) == 3.0**3  # another degree: one
  assert degrees == [4, 3]


@every_case
def test_immutable(name):
  case = CASES[name]
  kernel = case.make(**case.draw(np.random.default_rng(10)))
  for field in dataclasses.fields(kernel):
    with pytest.raises(dataclasses.FrozenInstanceError):
      setattr(kernel, field.name, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
      delattr(kernel, field.name)
  with pytest.raises(dataclasses.FrozenInstanceError):
    kernel.something = 1.0


def test_changing_the_array_that_made_a_kernel_does_not_change_the_kernel():
  gamma = np.array([0.1, 0.2])
  kernel = kernels.Gaussian(gamma)
  twin, before = kernels.Gaussian(gamma.copy()), hash(kernel)
  gamma[0] = -5.0
  assert_array_equal(kernel.gamma, [0.1, 0.2])
  assert kernel == twin
  assert hash(kernel) == before


@every_case
def test_a_kernel_is_an_argument_of_jit_vmap_scan_and_map(name):
  case, rng = CASES[name], np.random.default_rng(11)
  x, w = as_float32(vectors(27, (4, LENGTH), (LENGTH,)))
  values = case.draw(rng)
  kernel = case.make(**values)
  stack = as_float32([case.make(**case.draw(rng)) for _ in range(3)])
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stack)
  assert type(stacked) is type(kernel)

  @jax.jit
  def transformed(kernel, stacked, x, w):
    over_patches = [
      kernel(x, w),
      jax.vmap(lambda k, patch: k(patch, w), (None, 0))(kernel, x),
      jax.lax.scan(lambda k, patch: (k, k(patch, w)), kernel, x)[1],
    ]
    if not jax.tree.leaves(stacked):
      return over_patches, []
    over_kernels = [
      jax.vmap(lambda k: k(x[0], w))(stacked),
      jax.vmap(lambda k: k(x[0], w), (jax.tree.map(lambda _: 0, stacked),))(stacked),
      jax.lax.map(lambda k: k(x[0], w), stacked),
    ]
    return over_patches, over_kernels

  over_patches, over_kernels = transformed(kernel, stacked, x, w)
  expected = case.formula(np.asarray(x, np.float64), np.asarray(w, np.float64), **values)
  for out in over_patches:
    assert_allclose(out, expected, rtol=5e-5, atol=5e-6)
  assert bool(over_kernels) == bool(case.ranges or jax.tree.leaves(kernel))
  for out in over_kernels:
    assert_allclose(out, [k(x[0], w) for k in stack], rtol=5e-5, atol=5e-6)


def test_gradient_descent_on_a_kernel_inside_scan():
  x, w = as_float32(vectors(28, (5, LENGTH), (LENGTH,)))
  start = 0.5 * kernels.Gaussian(0.3) + kernels.Sigmoid(0.2)

  def step(kernel, patch):
    value, gradient = jax.value_and_grad(lambda k: k(patch, w))(kernel)
    return jax.tree.map(lambda leaf, g: leaf - 0.1 * g, kernel, gradient), value

  end, values = jax.lax.scan(step, start, x)
  kernel, expected = start, []
  for patch in x:
    kernel, value = step(kernel, patch)
    expected.append(value)
  assert type(end) is kernels.Sum
  assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
  for leaf, other, first in zip(*map(jax.tree.leaves, (end, kernel, start)), strict=True):
    assert_allclose(leaf, other, rtol=1e-5, atol=1e-6)
    assert leaf != first


@pytest.mark.parametrize("placeholder", [None, "name", -1.0, np.nan, jnp.zeros((2, 3)), object()])
@pytest.mark.parametrize("name", ["Polynomial3", "RationalQuadratic", "Nested", "Softened"])
def test_rebuilding_does_not_validate(name, placeholder):
  case = CASES[name]
  kernel = case.make(**case.draw(np.random.default_rng(12)))
  rebuilt = jax.tree.map(lambda _: placeholder, kernel)
  assert type(rebuilt) is type(kernel)
  assert len(rebuilt.hyperparameters()) == len(kernel.hyperparameters())
  assert all(value is placeholder for value in rebuilt.hyperparameters().values())
  assert all(value is not placeholder for value in kernel.hyperparameters().values())


def test_unflatten_of_flatten_is_the_kernel():
  for case in CASES.values():
    kernel = case.make(**case.draw(np.random.default_rng(13)))
    leaves, tree = jax.tree.flatten(kernel)
    assert jax.tree.unflatten(tree, leaves) == kernel
    assert jax.tree.structure(jax.eval_shape(lambda k=kernel: k)) == tree


def test_hyperparameters_constraints_and_with_hyperparameters():
  kernel = 2.0 * kernels.Gaussian(0.5) + kernels.Polynomial(2, 0.0) * kernels.Sigmoid()
  assert kernel.hyperparameters() == {
    "terms.0.scale": 2.0,
    "terms.0.kernel.gamma": 0.5,
    "terms.1.terms.0.balance": 0.0,
    "terms.1.terms.1.scale": 1.0,
    "terms.1.terms.1.offset": 0.0,
  }
  assert kernel.constraints() == {
    "terms.0.scale": "any",
    "terms.0.kernel.gamma": "positive",
    "terms.1.terms.0.balance": "non-negative",
    "terms.1.terms.1.scale": "any",
    "terms.1.terms.1.offset": "any",
  }
  other = kernel.with_hyperparameters({"terms.0.kernel.gamma": 0.25, "terms.1.terms.1.offset": -1})
  assert other == 2.0 * kernels.Gaussian(0.25) + kernels.Polynomial(2, 0.0) * kernels.Sigmoid(
    1.0, -1.0
  )
  assert kernel.hyperparameters()["terms.0.kernel.gamma"] == 0.5
  assert kernel.with_hyperparameters({}) == kernel
  with pytest.raises(ValueError, match=r"no hyperparameter 'gamma'.*terms\.0\.kernel\.gamma"):
    kernel.with_hyperparameters({"gamma": 1.0})
  with pytest.raises(ValueError, match=r"no hyperparameter 'degree'"):
    kernels.Polynomial().with_hyperparameters({"degree": 2})
  with pytest.raises(ValueError, match=r"terms\.0\.kernel\.gamma.*positive.*-0\.5"):
    kernel.with_hyperparameters({"terms.0.kernel.gamma": -0.5})
  with pytest.raises(ValueError, match="none"):
    kernels.Linear().with_hyperparameters({"gamma": 1.0})


# Equality, copies.


@every_case
def test_equality_and_hash(name):
  case = CASES[name]
  values = case.draw(np.random.default_rng(14))
  kernel, twin = case.make(**values), case.make(**values)
  assert kernel == twin
  assert hash(kernel) == hash(twin)
  assert len({kernel, twin}) == 1
  for argument in case.ranges:
    other = case.make(**{**values, argument: values[argument] * 1.5 + 0.01})
    assert kernel != other
    assert len({kernel, twin, other}) == 2
  others = [c.make(**c.draw(np.random.default_rng(15))) for n, c in CASES.items() if n != name]
  assert kernel not in others
  assert kernel != "kernel"
  assert kernel != 1.0


@pytest.mark.parametrize("module", [np, jnp])
def test_equality_and_hash_of_arrays(module):
  def make(*gamma, dtype=np.float32):
    return kernels.Gaussian(module.asarray(gamma, dtype))

  kernel, twin = make(0.1, 0.2), make(0.1, 0.2)
  assert kernel == twin
  assert (kernel == twin) is True
  assert hash(kernel) == hash(twin)
  assert kernel != make(0.2, 0.1)
  assert kernel != make(0.1, 0.2, 0.2)
  assert make(0.1) != make(0.1, 0.1)
  assert kernel != make(0.1, 0.2, dtype=np.float16)
  assert kernel + kernels.L1() == twin + kernels.L1()
  assert hash(kernel + kernels.L1()) == hash(twin + kernels.L1())
  assert len({kernel, twin, kernel + kernels.L1()}) == 2


def test_equality_of_numbers_however_written():
  for one in (1, 1.0, np.float32(1), np.float64(1), np.int64(1)):
    assert kernels.Gaussian(one) == kernels.Gaussian()
    assert hash(kernels.Gaussian(one)) == hash(kernels.Gaussian())
    assert isinstance(kernels.Gaussian(one).gamma, float)
  for degree in (3, np.int32(3), np.int64(3)):
    assert kernels.Polynomial(degree) == kernels.Polynomial()
    assert type(kernels.Polynomial(degree).degree) is int


def test_equality_of_rebuilt_kernels_is_that_of_their_leaves():
  """Abstract kernels, of shapes instead of values, must compare by what they hold."""
  first, second = (jax.eval_shape(lambda: kernels.Gaussian(jnp.ones(3))) for _ in range(2))
  assert first == second
  assert hash(first) == hash(second)
  assert first != jax.eval_shape(lambda: kernels.Gaussian(jnp.ones(4)))


def test_order_of_terms_counts():
  a, b = kernels.Gaussian(0.1), kernels.L1()
  assert a + b != b + a
  assert a + b != a * b


def test_hash_under_a_trace():
  @jax.jit
  def f(gamma):
    kernel = kernels.Gaussian(gamma)
    assert hash(kernel) == hash(kernel)
    assert kernel == kernel
    assert kernel != kernels.Gaussian(2 * gamma)
    return kernel(jnp.ones(2), jnp.zeros(2))

  assert_allclose(f(0.5), np.exp(-1.0), rtol=1e-5, atol=0)


def test_a_kernel_is_a_static_argument_of_jit():
  traces = []

  def f(kernel, x):
    traces.append(kernel)
    return kernel(x, jnp.zeros_like(x))

  jitted = jax.jit(f, static_argnums=0)
  x = jnp.ones(2)
  for _ in range(2):
    assert_allclose(jitted(kernels.Gaussian(0.5), x), np.exp(-1.0), rtol=1e-5, atol=0)
    assert_allclose(jitted(kernels.Gaussian(1.0), x), np.exp(-2.0), rtol=1e-5, atol=0)
    array = kernels.Gaussian(jnp.array([0.5, 1.0]))
    assert_allclose(jitted(array, x), np.exp([-1.0, -2.0]), rtol=1e-5, atol=0)
  assert len(traces) == 3


@every_case
@pytest.mark.parametrize(
  "duplicate", [copy.copy, copy.deepcopy, lambda kernel: pickle.loads(pickle.dumps(kernel))]
)
def test_copies_are_equal(name, duplicate):
  case = CASES[name]
  x, w = as_float32(vectors(29, (2, LENGTH), (2, LENGTH)))
  for shape in [(), (2,)]:
    kernel = case.make(**case.draw(np.random.default_rng(16), shape))
    again = duplicate(kernel)
    assert type(again) is type(kernel)
    assert again == kernel
    assert hash(again) == hash(kernel)
    assert_array_equal(again(x, w), kernel(x, w))


def test_replace_validates():
  kernel = dataclasses.replace(kernels.Polynomial(2, 0.5), degree=4)
  assert kernel == kernels.Polynomial(4, 0.5)
  assert dataclasses.replace(Softened(0.5), order=5) == Softened(0.5, 0.0, 5)
  with pytest.raises(ValueError, match="`gamma`"):
    dataclasses.replace(kernels.Gaussian(), gamma=-1.0)
  with pytest.raises(TypeError, match="`degree`"):
    dataclasses.replace(kernels.Polynomial(), degree=2.5)


@pytest.mark.parametrize(
  "text",
  [
    "Polynomial(degree=2, balance=0.5)",
    "Gaussian(gamma=0.25)",
    "L1()",
    "-L1(surrogate=True)",
    "L2(squared=True)",
    "Linear()",
    "Gaussian(gamma=0.5) + L1()",
    "Gaussian(gamma=0.5) - L1() + Cosine()",
    "Gaussian(gamma=0.5) - (L1() + Cosine())",
    "-L1() + Linear()",
    "-(L1() + Linear())",
    "-(L1() * Linear())",
    "-L1() * Linear()",
    "2.0 * Cauchy(sigma=3.0)",
    "-2.0 * Cauchy(sigma=3.0)",
    "-(2.0 * Cauchy(sigma=3.0))",
    "2.0 * -L1()",
    "2.0 * (3.0 * L1())",
    "2.0 * (L1() + Linear())",
    "2.0 * (L1() * Linear())",
    "(2.0 * L1()) * Linear() * (L1() + Linear())",
    "Linear() + 2.0 * L1() - 0.5 * Linear() * L1()",
    "Sum(terms=(L1(),))",
    "Product(terms=(L1(),))",
    "Concatenate([(2, Linear()), (3, 2.0 * L1())])",
    "Linear() * Concatenate([(2, Linear()), (3, Concatenate([(1, L1()), (2, L2(squared=True))]))])",
  ],
)
def test_repr_is_the_expression(text):
  kernel = eval(text, vars(kernels).copy())
  again = eval(repr(kernel), vars(kernels).copy())
  assert again == kernel
  assert type(again) is type(kernel)
  if "0.5 * Linear() * L1()" not in text:  # that has its parentheses shown
    assert repr(kernel) == text


def test_repr_of_anything_a_tree_may_hold():
  kernel = 2.0 * kernels.Gaussian(0.5) - kernels.L1() * kernels.Cauchy()
  for value in (None, "name", object()):
    assert repr(jax.tree.map(lambda leaf, value=value: value, kernel))
  jax.eval_shape(lambda k: repr(k) and k, kernel)


# Algebra.

A, B, C = kernels.Gaussian(0.2), kernels.Polynomial(2, 0.5), kernels.L1()


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
    assert_allclose(kernel(x, w), np.asarray(scale) * A(x, w), rtol=1e-5, atol=1e-6)


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


# Constructor errors.

POSITIVE = [
  (kernels.Gaussian, "gamma"),
  (kernels.Laplacian, "gamma"),
  (kernels.Cauchy, "sigma"),
  (kernels.RationalQuadratic, "alpha"),
  (kernels.RationalQuadratic, "length"),
  (Softened, "rate"),
  (ShiftedGaussian, "gamma"),
]
ANY = [
  (kernels.Sigmoid, "scale"),
  (kernels.Sigmoid, "offset"),
  (lambda **kwargs: kernels.Scaled(kernel=A, **kwargs), "scale"),
]
EVERY = [*POSITIVE, *ANY, (kernels.Polynomial, "balance"), (Chebyshev, "weight")]


def refused(error, make, name, value):
  shown = str(value.shape) if getattr(value, "ndim", 0) > 1 else repr(value)
  with pytest.raises(error, match=rf"`{name}`") as caught:
    make(**{name: value})
  assert shown in str(caught.value)


@pytest.mark.parametrize(("make", "name"), POSITIVE)
@pytest.mark.parametrize(
  "value",
  [0, 0.0, -0.0, -1, -1e-30, np.float32(-2), np.array([0.5, 0.0]), jnp.array([0.5, -0.5])],
  ids=repr,
)
def test_what_must_be_positive(make, name, value):
  refused(ValueError, make, name, value)


@pytest.mark.parametrize(("make", "name"), [(kernels.Polynomial, "balance"), (Chebyshev, "weight")])
def test_what_must_not_be_negative(make, name):
  for value in (-1, -1e-30, np.array([0.5, -0.5]), jnp.float32(-1.0)):
    refused(ValueError, make, name, value)
  for value in (0, 0.0, np.array([0.0, 1.0]), jnp.zeros(2)):
    make(**{name: value})


@pytest.mark.parametrize(("make", "name"), EVERY)
@pytest.mark.parametrize(
  "value",
  [np.nan, np.inf, -np.inf, np.array([1.0, np.nan]), jnp.array([1.0, jnp.inf])],
  ids=repr,
)
def test_what_must_be_finite(make, name, value):
  refused(ValueError, make, name, value)


@pytest.mark.parametrize(("make", "name"), EVERY)
@pytest.mark.parametrize(
  "value",
  [
    None,
    "1",
    b"1",
    True,
    np.True_,
    1j,
    np.array(1j),
    np.array([True]),
    ["a", "b"],
    [1.0, None],
    [[1.0], [1.0, 2.0]],
    {},
    object,
    kernels.L1,
    kernels.L1(),
    jnp.sum,
    10**400,
  ],
  ids=lambda value: type(value).__name__,
)
def test_what_must_be_a_number(make, name, value):
  refused(TypeError, make, name, value)


@pytest.mark.parametrize(("make", "name"), EVERY)
@pytest.mark.parametrize("value", [np.ones((2, 3)), np.ones((1, 1)), jnp.ones((1, 2, 2))])
def test_at_most_one_axis(make, name, value):
  refused(ValueError, make, name, value)
  refused(ValueError, make, name, jnp.asarray(value))


@pytest.mark.parametrize(("make", "name"), EVERY)
def test_any_finite_number_that_is_allowed(make, name):
  for value in (1e-30, 1, 1e30, np.float16(2), np.array([1, 2]), jnp.array([1, 2]), [0.5, 0.25]):
    kernel = make(**{name: value})
    found = kernel.hyperparameters()[name]
    assert isinstance(found, (float, np.ndarray, jax.Array))
    assert jnp.issubdtype(jnp.result_type(found), jnp.floating)
    assert_allclose(found, value, rtol=1e-6, atol=0)
  if (make, name) in ANY:
    make(**{name: -1.0})
    make(**{name: 0})


@pytest.mark.parametrize(
  ("degree", "error"),
  [
    (0, ValueError),
    (-1, ValueError),
    (np.int64(0), ValueError),
    (3.0, TypeError),
    (2.5, TypeError),
    (True, TypeError),
    (False, TypeError),
    (np.True_, TypeError),
    (np.float64(3), TypeError),
    ("3", TypeError),
    (None, TypeError),
    ([3], TypeError),
    (np.array([3, 4]), TypeError),
    (jnp.float32(3), TypeError),
    (jnp.array(True), TypeError),
    (1j, TypeError),
    (np.nan, TypeError),
  ],
  ids=repr,
)
def test_degree_must_be_an_integer_of_at_least_one(degree, error):
  refused(error, kernels.Polynomial, "degree", degree)


def test_degree_must_be_known():
  with pytest.raises(TypeError, match="`degree` must be"):
    jax.jit(lambda d: kernels.Polynomial(d)(jnp.ones(2), jnp.ones(2)))(3)


@pytest.mark.parametrize("value", ["no", None, 2, 0.5, 2.0], ids=repr)
def test_squared_must_be_a_bool(value):
  """``L2("no")`` and ``L2(0.5)``, as if it had a width, would silently be the squared norm."""
  refused(TypeError, kernels.L2, "squared", value)


def test_custom_must_be_callable():
  for value in (None, "sum", 1.0, ()):
    refused(TypeError, kernels.Custom, "fn", value)
  with pytest.raises(TypeError, match="fn"):
    kernels.Custom()


def test_composites_must_be_of_kernels():
  for value in (kernels.Gaussian, None, 1.0, "L1", hadamard_max):
    refused(TypeError, kernels.Negative, "kernel", value)
    refused(TypeError, lambda kernel: kernels.Scaled(2.0, kernel), "kernel", value)
    with pytest.raises(TypeError, match="`terms`") as caught:
      kernels.Sum((A, value))
    assert repr(value) in str(caught.value)
  for terms in ((), [A, B], A, None):
    refused(TypeError, kernels.Sum, "terms", terms)
    refused(TypeError, kernels.Product, "terms", terms)


def test_errors_say_what_to_write_instead():
  with pytest.raises(TypeError, match=r"call it: Gaussian\(\)"):
    require_kernel("kernel_fn", kernels.Gaussian)
  with pytest.raises(TypeError, match=r"kernels\.Custom\(fn\)"):
    require_kernel("kernel_fn", hadamard_max)
  require_kernel("kernel_fn", A)


@pytest.mark.parametrize(
  "make",
  [
    lambda: kernels.Gaussian(1.0, 2.0),
    lambda: kernels.Gaussian(width=1.0),
    lambda: kernels.Linear(1.0),
    lambda: Softened(),
    lambda: kernels.Scaled(),
  ],
)
def test_wrong_signatures(make):
  with pytest.raises(TypeError):
    make()


def test_tracers_are_not_validated_but_their_shape_is():
  assert_allclose(
    jax.jit(lambda g: kernels.Gaussian(g)(jnp.ones(1), jnp.zeros(1)))(0.5),
    np.exp(-0.5),
    rtol=1e-5,
    atol=0,
  )
  with pytest.raises(ValueError, match=r"`gamma`.*\(2, 2\)"):
    jax.jit(lambda g: kernels.Gaussian(g)(jnp.ones(1), jnp.zeros(1)))(jnp.ones((2, 2)))
  with pytest.raises(TypeError, match=r"`gamma`"):
    jax.jit(lambda g: kernels.Gaussian(g > 0)(jnp.ones(1), jnp.zeros(1)))(0.5)


# Subclasses.


def test_a_subclass_has_the_constructor_of_its_fields():
  kernel = Softened(0.5)
  assert (kernel.rate, kernel.shift, kernel.order) == (0.5, 0.0, 2)
  assert kernel == Softened(rate=0.5, shift=0.0, order=2)
  assert kernel.hyperparameters() == {"rate": 0.5, "shift": 0.0}
  assert kernel.constraints() == {"rate": "positive", "shift": "any"}
  assert repr(kernel) == "Softened(rate=0.5, shift=0.0, order=2)"
  assert jax.tree.leaves(kernel) == [0.5, 0.0]
  assert ShiftedGaussian(0.5, -1.0).hyperparameters() == {"gamma": 0.5, "height": -1.0}
  assert ShiftedGaussian(0.5) != kernels.Gaussian(0.5)


def test_static_fields_must_be_hashable():
  with pytest.raises(TypeError, match=r"`order` must be hashable, got \[1, 2\]"):
    Softened(0.5, order=[1, 2])


def test_a_subclass_without_a_method_says_what_is_missing():
  class Unfinished(kernels.InnerProductKernel):
    pass

  class Empty(kernels.Kernel):
    pass

  x = jnp.ones(2)
  with pytest.raises(TypeError, match="Unfinished must define `profile`"):
    Unfinished()(x, x)
  with pytest.raises(TypeError, match="Empty must define `__call__` or `statistics`"):
    Empty()(x, x)
  with pytest.raises(TypeError, match="Empty"):
    (A + Empty())(x, x)
  with pytest.raises(TypeError, match="Empty is not a function of patch statistics"):
    Empty().from_statistics({})


def test_a_subclass_may_validate_its_own_fields():
  class Odd(kernels.AbsoluteDistanceKernel):
    order: int = static(default=1)
    weight: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

    def __post_init__(self):
      super().__post_init__()
      self._require_integer("order", minimum=1)

    def profile(self, statistic):
      return self.weight * statistic**self.order

  x, w = vectors(32)
  assert_allclose(Odd(3, 0.5)(x, w), 0.5 * absolute(x, w) ** 3, rtol=1e-5, atol=0)
  refused(TypeError, Odd, "order", 1.5)
  refused(ValueError, Odd, "weight", 0.0)
  # Each class is a pytree of its own, even if two have the same name.
  assert jax.tree.map(lambda leaf: 2 * leaf, Odd(3, 0.5)) == Odd(3, 1.0)


def test_safe_sqrt():
  x = jnp.array([0.0, 1e-30, 0.25, 9.0])
  assert_allclose(kernels.safe_sqrt(x), [0, 1e-15, 0.5, 3.0], rtol=1e-5, atol=0)
  assert_allclose(
    jax.vmap(jax.grad(kernels.safe_sqrt))(x), [0, 0.5e15, 1.0, 1 / 6], rtol=1e-5, atol=0
  )
  assert jax.grad(jax.grad(kernels.safe_sqrt))(0.0) == 0
  assert kernels.safe_sqrt(jnp.zeros(2, jnp.bfloat16)).dtype == jnp.bfloat16


def test_every_public_kernel_is_documented_and_tested():
  public = {
    name
    for name, value in vars(kernels).items()
    if isinstance(value, type) and issubclass(value, kernels.Kernel) and not name.startswith("_")
  }
  abstract = {
    "Kernel",
    "InnerProductKernel",
    "SquaredDistanceKernel",
    "AbsoluteDistanceKernel",
  }
  made = {
    type(part).__name__
    for case in CASES.values()
    for part in _parts(case.make(**case.draw(np.random.default_rng(0))))
  }
  assert public - abstract - {"Concatenate"} <= made  # that is of several filters: test_concatenate
  for name in public:
    assert re.search(r"\w", getattr(kernels, name).__doc__ or ""), name


def _parts(kernel):
  yield kernel
  for field in dataclasses.fields(kernel):
    value = getattr(kernel, field.name)
    for item in value if isinstance(value, tuple) else (value,):
      if isinstance(item, kernels.Kernel):
        yield from _parts(item)


def test_custom_of_batches_is_that_of_each_vector():
  x, w = jnp.arange(12.0).reshape(2, 2, 3), jnp.arange(3.0) ** 2
  kernel = kernels.Custom(lambda x, w: jnp.max(jnp.abs(x - w)))
  wanted = np.array([[np.max(np.abs(row - w)) for row in rows] for rows in np.asarray(x)])
  np.testing.assert_array_equal(kernel(x, w), wanted)
  np.testing.assert_array_equal((kernel + kernels.L1())(x, w), wanted + kernels.L1()(x, w))
  np.testing.assert_array_equal(kernel(x[0], x[0][::-1]), [3, 3])
