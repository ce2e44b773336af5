"""Fields of the layer: equality, hash, copies, and how often it is traced."""

import copy
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kerv_jax import kernels
from kerv_jax.nn import KervConv
from tests.nn.layers import (
  GaussianConv,
  Kerv,
  apply,
  init,
  perturbed,
)
from tests.trees import normal, same

FIELDS = [
  {},
  {"kernel_fn": kernels.Gaussian(0.1), "learnable": True},
  {"kernel_fn": kernels.Polynomial(2, np.array([0.1, 0.2, 0.3])), "learnable": ("balance",)},
  {"kernel_fn": kernels.Cauchy(jnp.array([1.0, 2.0, 3.0])), "per_feature": True, "learnable": True},
  {"kernel_fn": 2.0 * kernels.Gaussian(0.1) + kernels.Sigmoid()},
]


@pytest.mark.parametrize("fields", FIELDS, ids=range(len(FIELDS)))
def test_equality_hash_and_copies(fields):
  x = normal(2, 5, 5, 2)
  layer, twin = Kerv(3, (3, 3), **fields), Kerv(3, (3, 3), **copy.deepcopy(fields))
  assert layer == twin
  assert hash(layer) == hash(twin)
  assert layer != layer.clone(kernel_fn=kernels.Sigmoid(), learnable=True)
  variables = perturbed(init(layer, x))
  expected = apply(layer, variables, x)
  for other in (twin, layer.clone(), layer.copy(), copy.copy(layer), copy.deepcopy(layer)):
    assert type(other) is KervConv
    assert other == layer
    assert hash(other) == hash(layer)
    assert other.kernel_fn == layer.kernel_fn
    same(apply(other, variables, x), expected)


def test_clone_with_another_kernel_checks_it():
  layer = GaussianConv(3, (3, 3))
  assert layer.clone(kernel_fn=kernels.Gaussian(2.0)).kernel_fn == kernels.Gaussian(2.0)
  with pytest.raises(TypeError, match="`kernel_fn`"):
    layer.clone(kernel_fn=kernels.Gaussian)
  with pytest.raises(ValueError, match="`learnable`"):
    layer.clone(learnable=("balance",))


def test_repr_shows_the_kernel():
  text = repr(Kerv(3, (3, 3), kernel_fn=kernels.Gaussian(0.25), learnable=True))
  assert "kernel_fn = Gaussian(gamma=0.25)" in text
  assert "learnable = True" in text


@pytest.mark.parametrize("make", [lambda v: v, lambda v: np.full(3, v), lambda v: jnp.full(3, v)])
def test_equal_layers_do_not_trace_again(make):
  @functools.partial(jax.jit, static_argnums=0)
  @chex.assert_max_traces(n=1)
  def run(layer, variables, x):
    return apply(layer, variables, x)

  def layer(balance):
    return Kerv(3, (3, 3), kernel_fn=kernels.Polynomial(2, make(balance)), learnable=True)

  x = normal(2, 5, 5, 2)
  variables = init(layer(0.1), x)
  for _ in range(3):
    run(layer(0.1), variables, x)
  with pytest.raises(AssertionError, match="traced > 1 times"):
    run(layer(0.2), variables, x)


def test_jitted_apply_does_not_trace_again():
  x = normal(2, 5, 5, 2)
  for kernel_fn in (kernels.Gaussian(0.1), kernels.Polynomial(2), kernels.L1()):
    chex.clear_trace_counter()
    layer = Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=bool(kernel_fn.hyperparameters()))
    variables = init(layer, x)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def apply(variables, x, layer=layer):
      return layer.apply(variables, x)

    for seed in range(3):
      apply(perturbed(variables, seed), x + seed)


def test_eager_calls_do_not_compile_again(caplog):
  """As nn.Conv's do not: a notebook calls layers without ``jit``."""
  x, y = normal(2, 4, 4, 2), normal(2, 4, 4, 2, seed=1)
  for kernel_fn in (kernels.Linear(), kernels.Polynomial(), kernels.Gaussian(0.1), kernels.L1()):
    layer = Kerv(3, (3, 3), kernel_fn=kernel_fn)
    variables = init(layer, x)
    layer.apply(variables, x)
    caplog.clear()
    with jax.log_compiles(True):
      layer.apply(variables, y)
    compiled = [r.getMessage() for r in caplog.records if "Finished XLA" in r.getMessage()]
    assert not compiled, kernel_fn
