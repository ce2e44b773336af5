"""Equality, hashes, copies and what is printed."""

import copy
import dataclasses
import functools
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels
from tests.kernels.cases import (
  CASES,
  LENGTH,
  Softened,
  as_float32,
  every_case,
  vectors,
)


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
  @functools.partial(jax.jit, static_argnums=0)
  @chex.assert_max_traces(n=3)
  def jitted(kernel, x):
    return kernel(x, jnp.zeros_like(x))

  x = jnp.ones(2)
  for _ in range(2):
    assert_allclose(jitted(kernels.Gaussian(0.5), x), np.exp(-1.0), rtol=1e-5, atol=0)
    assert_allclose(jitted(kernels.Gaussian(1.0), x), np.exp(-2.0), rtol=1e-5, atol=0)
    array = kernels.Gaussian(jnp.array([0.5, 1.0]))
    assert_allclose(jitted(array, x), np.exp([-1.0, -2.0]), rtol=1e-5, atol=0)


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
