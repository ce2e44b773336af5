"""Additive kernels by their definition: values, derivatives, structure and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels
from kerv_jax.kernels import AdditiveKernel, Hyperparameter, hyperparameter
from tests.kernels.additive_cases import CASES, SCALE, MaxWave, SoftWave, Wave
from tests.kernels.cases import refused, vectors

every_case = pytest.mark.parametrize("name", CASES)


def value_and_slopes(kernel, x, w):
  value, gradients = jax.value_and_grad(lambda x, w, k: k(x, w), (0, 1, 2))(x, w, kernel)
  return value, *jax.tree.leaves(gradients)


@every_case
@pytest.mark.parametrize("whole", [False, True], ids=["random", "whole"])
def test_value_and_derivatives_are_those_of_the_formula(name, whole):
  case = CASES[name]
  rng = np.random.default_rng(3)
  x, w = rng.standard_normal((2, 9))
  if whole:  # kinks, ties and pairs of zeros
    x, w = np.array([[0, 0, 1, 1, -1, 2, 2, 0, 1], [0, 1, 1, -1, 1, 0, 2, 1, -1]], float)
  values = case.draw(rng)
  with jax.enable_x64(True):
    found = value_and_slopes(case.make(**values), x, w)
  for actual, expected in zip(found, case.slopes(x, w, **values), strict=True):
    assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@every_case
def test_batches_and_one_value_per_feature(name):
  case = CASES[name]
  x, w = vectors(4, (4, 1, 5), (3, 5))
  values = case.draw(np.random.default_rng(5), (3,))
  with jax.enable_x64(True):
    found = case.make(**values)(x, w)
  assert found.shape == (4, 3)
  for i, k in np.ndindex(4, 3):
    expected = case.slopes(x[i, 0], w[k], **{n: v[k] for n, v in values.items()})[0]
    assert_allclose(found[i, k], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.smooth])
def test_second_derivatives(name):
  case = CASES[name]
  with jax.enable_x64(True):
    x, w = map(jnp.asarray, vectors(6))
    kernel = jax.tree.map(jnp.asarray, case.make(**case.draw(np.random.default_rng(7))))
    check_grads(lambda x, w, k: k(x, w), (x, w, kernel), order=2, rtol=1e-5, atol=1e-5)


@every_case
def test_derivatives_are_finite_where_patch_and_filter_are_equal_or_zero(name):
  case = CASES[name]
  kernel = jax.tree.map(jnp.float32, case.make(**case.draw(np.random.default_rng(8))))
  a, b = map(jnp.float32, vectors(9))
  zero = jnp.zeros_like(a)

  @jax.jit
  def derivatives(x, w):
    first = jax.grad(lambda x, w, k: k(x, w), (0, 1, 2))
    second = jax.jacfwd(lambda x, w: first(x, w, kernel)[:2], (0, 1))
    return first(x, w, kernel), second(x, w)

  for x, w in [(a, a), (zero, zero), (a, zero), (zero, b), (a, b.at[2].set(a[2]))]:
    for leaf in jax.tree.leaves(derivatives(x, w)):
      assert jnp.all(jnp.isfinite(leaf))


@pytest.mark.parametrize("p", [1.0, 2.0, 100.0, 700.0])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_minkowski_is_as_good_for_any_p_and_scale(p, scale):
  x, w = (np.float32(scale * v) for v in vectors(10))
  expected = CASES["Minkowski"].slopes(np.float64(x), np.float64(w), p)
  value, *found = value_and_slopes(kernels.Minkowski(p), x, w)
  assert_allclose(value, expected[0], rtol=1e-5)
  for actual, slope in zip(found[:2], expected[1:3], strict=True):
    assert_allclose(actual, slope, rtol=1e-5 * max(p, 10), atol=1e-5)


def test_minkowski_joins_the_norms():
  x, w = map(jnp.float32, vectors(11))
  assert_allclose(kernels.Minkowski(1.0)(x, w), kernels.L1()(x, w), rtol=1e-5)
  assert_allclose(kernels.Minkowski(2.0)(x, w), kernels.L2()(x, w), rtol=1e-5)
  assert_allclose(kernels.Minkowski(500.0)(x, w), kernels.Chebyshev()(x, w), rtol=1e-2)


@pytest.mark.parametrize("temperature", [1e-3, 1.0, 1e3])
def test_a_smooth_maximum_does_not_overflow(temperature):
  x, w = np.float32([200.0, 300.0]), np.float32([1.0, 1.0])

  class Sum(AdditiveKernel):
    reduction = "logsumexp"

    def term(self, x, w):
      return x + w

  found = Sum(temperature)(x, w)
  assert_allclose(found, 301 + temperature * np.log1p(np.exp(-100 / temperature)), rtol=1e-6)


def test_infinite_terms():
  inf = np.float32(np.inf)
  x, w = np.float32([1.0, np.inf]), np.float32([1.0, 2.0])
  for kernel, expected in [
    (kernels.MaxPlus(), inf),
    (kernels.Chebyshev(), inf),
    (kernels.Minkowski(), inf),
    (kernels.Huber(), inf),
    (kernels.Intersection(), 3.0),
  ]:
    assert kernel(x, w) == expected, kernel
  # Minus infinity is what a maximum never takes.
  value, dx, dw = value_and_slopes(kernels.MaxPlus(), -x, w)
  assert value == 0
  assert_array_equal([dx, dw], [[1, 0], [1, 0]])
  soft = SoftWave(1.0, temperature=0.5)
  assert jnp.isnan(soft(x, w))  # the sine of infinity


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_derivative_of_huber_at_an_infinite_difference(run):
  x, w = np.float32([np.inf, -np.inf, 1.0, 3.0, 0.0]), np.float32([0.0, 1.0, 1.5, 1.0, 1e-12])
  value = lambda kernel, x, w: kernel(x[:, None], w[:, None]).sum()  # noqa: E731
  by_kernel, dx, dw = run(jax.grad(value, (0, 1, 2)))(kernels.Huber(2.0), x, w)
  assert_allclose([dx, -dw], 2 * [[2, -2, -0.5, 2, -1e-12]], rtol=1e-6)
  assert by_kernel.delta == np.inf
  finite = run(jax.grad(value))(kernels.Huber(0.5), x[2:], w[2:])
  assert_allclose(finite.delta, 0 + 1.5 + 0, rtol=1e-6)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("scale", [1e-36, 1e-20, 1e25, 5e37])
def test_chi_squared_holds_at_any_scale(scale, run):
  x, w = np.float32([3 * scale, 0.0]), np.float32([scale, 0.0])
  kernel = kernels.ChiSquared()
  assert_allclose(run(lambda x, w: kernel(x, w))(x, w), scale, rtol=1e-6)
  found = run(jax.grad(lambda x, w: kernel(x, w), (0, 1)))(x, w)
  assert_allclose(found, [[0.75, 0], [-1.25, 0]], rtol=1e-6)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_second_derivative_of_chi_squared_holds_at_any_scale(scale, run):
  at = np.float32([3 * scale, scale])
  hessian = run(jax.hessian(lambda v: kernels.ChiSquared()(v[:1], v[1:])))(at)
  assert_allclose(np.float32(scale) * hessian, [[0.125, -0.375], [-0.375, 1.125]], rtol=1e-6)


def test_what_16_bits_hold_is_summed_in_32():
  x, w = np.full(3000, 1.5), np.full(3000, 1.0)
  narrow = kernels.Huber()(jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.bfloat16))
  assert narrow.dtype == jnp.bfloat16
  assert_allclose(float(narrow), 375.0, rtol=2**-8)


def test_a_term_may_be_of_whole_numbers_or_truths():
  class Different(AdditiveKernel):
    def term(self, x, w):
      return x != w

  x, w = np.float32([1.0, 2.0, 3.0]), np.float32([1.0, 0.0, 0.0])
  assert Different()(x, w) == 2


def test_derivatives_of_absolute_values_at_zero_are_zero():
  slope = jax.grad(lambda x, w: kernels.ChiSquared()(x, w), (0, 1))
  zero, two = jnp.zeros(1), jnp.full(1, 2.0)
  np.testing.assert_array_equal(slope(zero, zero), np.zeros((2, 1)))
  np.testing.assert_array_equal(slope(zero, two), [[-2.0], [1.0]])
  np.testing.assert_array_equal(slope(two, zero), [[1.0], [-2.0]])


# Structure


def test_hyperparameters_and_structure():
  assert kernels.Minkowski(2.0).hyperparameters() == {"p": 2.0}
  assert kernels.Minkowski(2.0).constraints() == {"p": "at least 1"}
  assert SoftWave(0.5).hyperparameters() == {"scale": 0.5, "temperature": 1.0}
  assert SoftWave.__init__.__code__.co_varnames[1:3] == ("scale", "temperature")
  assert "temperature" not in Wave(0.5).hyperparameters()
  assert repr(kernels.Huber(0.5)) == "Huber(delta=0.5)"
  assert repr(kernels.Chebyshev()) == "Chebyshev()"

  class Colder(SoftWave):
    temperature: Hyperparameter = hyperparameter(default=0.1, constraint="positive")

  assert Colder().hyperparameters() == {"scale": 1.0, "temperature": 0.1}


def test_kernels_that_are_the_same_share_their_statistic():
  huber = kernels.Huber(0.5)
  assert len((huber + huber).statistics) == 1
  assert len((huber + kernels.Huber(0.5) * kernels.MaxPlus()).statistics) == 2
  assert len((huber + kernels.Huber(0.7)).statistics) == 2
  assert len((Wave(1.0) + MaxWave(1.0)).statistics) == 2
  vector = np.array([0.5, 0.6])
  assert len((kernels.Huber(vector) + kernels.Huber(vector.copy())).statistics) == 2


def test_it_passes_through_transformations():
  x, w = map(jnp.float32, vectors(12))
  several = kernels.Huber(jnp.array([0.3, 0.6]))
  found = jax.vmap(lambda k: k(x, w))(several)
  assert_allclose(found, [kernels.Huber(0.3)(x, w), kernels.Huber(0.6)(x, w)], rtol=1e-6)
  assert_allclose(jax.jit(lambda k: k(x, w))(kernels.Huber(0.3)), found[0], rtol=1e-6)


# Errors


def test_errors_of_values():
  refused(ValueError, kernels.Minkowski, "p", 0.5)
  refused(ValueError, kernels.Huber, "delta", 0.0)
  refused(ValueError, SoftWave, "temperature", -1.0)
  refused(TypeError, kernels.Huber, "delta", "1")


def test_errors_of_classes():
  with pytest.raises(ValueError, match=r"`reduction` of Odd must be one of .*'mean'"):
    type("Odd", (AdditiveKernel,), {"reduction": "mean"})
  with pytest.raises(TypeError, match="AdditiveKernel must define `term`"):
    AdditiveKernel()(jnp.ones(2), jnp.ones(2))


@pytest.mark.parametrize(
  ("term", "shown"),
  [
    (lambda self, x, w: jnp.ones(3, x.dtype), r"shape \(3,\)"),
    (lambda self, x, w: jnp.stack([x, w]), r"shape \(2, 7\)"),
    (lambda self, x, w: lax.complex(x, w), "complex64"),
  ],
)
def test_errors_of_terms(term, shown):
  odd = type("Odd", (AdditiveKernel,), {"term": term})
  with pytest.raises(ValueError, match=rf"`term` of Odd .*{shown}"):
    odd()(*map(jnp.float32, vectors(13)))


def test_cases_have_every_kernel():
  made = {type(case.make(**case.draw(np.random.default_rng(0)))) for case in CASES.values()}
  built_in = {
    value
    for value in vars(kernels).values()
    if isinstance(value, type) and issubclass(value, AdditiveKernel)
  }
  assert built_in - {AdditiveKernel} <= made
  assert SCALE
