"""Kernels that a user writes."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from kerv_jax import kernels
from kerv_jax.kernels import Hyperparameter, hyperparameter, static
from tests.kernels.cases import CASES, A, ShiftedGaussian, Softened, absolute, refused, vectors


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
  additive = {  # test_additive
    name for name in public if issubclass(getattr(kernels, name), kernels.AdditiveKernel)
  }
  made = {
    type(part).__name__
    for case in CASES.values()
    for part in _parts(case.make(**case.draw(np.random.default_rng(0))))
  }
  elsewhere = {"Concatenate", "Normalized"}  # test_concatenate, test_normalized
  assert public - abstract - additive - elsewhere <= made
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
