"""The layer is trained: optimizers, a teacher's width, 16 bits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

from kerv_jax import kernels
from kerv_jax.nn import hyperparameters
from tests.nn.layers import KEY, LAYERS, Chebyshev, GaussianConv, Kerv, apply, init, perturbed
from tests.trees import normal, same

OPTIMIZERS = {
  "sgd": optax.sgd(0.05, momentum=0.9),
  "adam": optax.adam(0.02),
  "adamw": optax.adamw(0.02),
}


@pytest.mark.parametrize(
  ("name", "optimizer"),
  [
    ("polynomial", "sgd"),
    ("gaussian", "sgd"),
    ("l1", "sgd"),
    ("composite", "adam"),
    ("own", "adamw"),
  ],
)
@pytest.mark.usefixtures("promotion")
def test_optimizers_train_the_tree(name, optimizer):
  layer, optimizer = LAYERS[name], OPTIMIZERS[optimizer]
  x = normal(4, 5, 5, 2)
  params = start = init(layer, x)["params"]
  target = apply(layer, perturbed({"params": start}), x)
  state = optimizer.init(params)

  @jax.jit
  def step(params, state):
    def loss(p):
      return jnp.mean(jnp.abs(apply(layer, {"params": p}, x) - target))

    value, gradient = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradient, state, params)
    return value, optax.apply_updates(params, updates), state

  losses = []
  for _ in range(25):
    value, params, state = step(params, state)
    losses.append(float(value))
  assert losses[-1] < 0.9 * losses[0]
  chex.assert_tree_all_finite(params)
  for before, after in zip(jax.tree.leaves(start), jax.tree.leaves(params), strict=True):
    assert np.any(before != after)


@pytest.mark.usefixtures("promotion")
def test_a_kernel_that_learns_finds_the_teachers_width():
  x = normal(8, 4, 4, 2)
  teacher = GaussianConv(4, (3, 3), kernel_fn=kernels.Gaussian(0.15))
  variables = init(teacher, x)
  target = apply(teacher, variables, x)
  student = GaussianConv(4, (3, 3), kernel_fn=kernels.Gaussian(0.02))
  gamma = init(student, x)["params"]["gamma"]
  optimizer = optax.adam(0.05)
  state = optimizer.init(gamma)

  @jax.jit
  def step(gamma, state):
    def loss(gamma):
      params = {**variables["params"], "gamma": gamma}
      return jnp.mean((apply(student, {"params": params}, x) - target) ** 2)

    updates, state = optimizer.update(jax.grad(loss)(gamma), state)
    return optax.apply_updates(gamma, updates), state

  for _ in range(150):
    gamma, state = step(gamma, state)
  learned = {"params": {**variables["params"], "gamma": gamma}}
  assert_allclose(hyperparameters(student, learned, x)["gamma"], 0.15, rtol=0.02, atol=0)


@pytest.mark.parametrize(
  ("dtype", "kernel_fn"),
  [
    (jnp.bfloat16, kernels.Gaussian(0.1)),
    (jnp.float16, kernels.Gaussian(0.1)),
    (jnp.bfloat16, kernels.Polynomial(2, 0.5)),
    (jnp.float16, Chebyshev(0.5)),
  ],
)
def test_16_bit_compute_with_float32_parameters(dtype, kernel_fn):
  x = normal(2, 5, 5, 2)
  wide = Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=True, per_feature=True)
  narrow = wide.clone(dtype=dtype)
  variables = init(narrow, x)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
  same(variables, init(wide, x))
  variables = perturbed(variables)

  @functools.partial(jax.jit, static_argnums=0)
  def value_and_gradient(layer, variables):
    out, pullback = jax.vjp(lambda v: layer.apply(v, x), variables)
    return out, pullback(jnp.ones_like(out))[0]

  out, gradient = value_and_gradient(narrow, variables)
  expected, wide_gradient = value_and_gradient(wide, variables)
  assert out.dtype == dtype
  assert_allclose(np.asarray(out, np.float32), expected, rtol=0.03, atol=0.03)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(gradient))
  for key in kernel_fn.hyperparameters():
    found, exact = gradient["params"][key], wide_gradient["params"][key]
    assert np.all(np.abs(exact) > 0.1)
    assert_allclose(found, exact, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.usefixtures("promotion")
def test_16_bit_parameters(dtype):
  """The value asked for, as nearly as the dtype holds its parameter; nothing infinite."""
  x = normal(2, 5, 5, 2)
  for value in (1.0, 0.5, 2.0, 3.0, 0.05, 1e-3):
    kernel_fn = kernels.Polynomial(2, value)
    layer = Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=True, param_dtype=dtype)
    variables = layer.init(KEY, x)
    assert variables["params"]["balance"].dtype == dtype
    eps = float(jnp.finfo(dtype).eps)
    raw = abs(float(np.log(np.expm1(value))))
    found = hyperparameters(layer, variables, x)["balance"]
    assert found.dtype == jnp.float32
    assert_allclose(found, value, rtol=eps * max(1.0, raw), atol=0)
    assert np.all(np.isfinite(np.asarray(layer.apply(variables, x), np.float32)))


def test_a_value_that_the_parameters_dtype_cannot_hold_is_refused():
  """float16 ends at 65504."""
  kernel_fn = kernels.Polynomial(2, 1e6)
  with pytest.raises(ValueError, match="balance"):
    Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=True, param_dtype=jnp.float16)
