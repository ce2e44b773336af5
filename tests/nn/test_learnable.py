"""Hyperparameters that learn: parameters, bounds, initial values."""

import functools
import pickle

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization
from flax.traverse_util import flatten_dict
from numpy.testing import assert_allclose

from kerv_jax import kernels
from kerv_jax.nn import hyperparameters
from tests.nn.layers import (
  KEY,
  LEARNABLE,
  UNBOUNDED,
  Chebyshev,
  Exponential,
  Kerv,
  LinearConv,
  apply,
  init,
  perturbed,
  shapes,
)
from tests.trees import normal, same

every_learnable = pytest.mark.parametrize("name", LEARNABLE)


@functools.partial(jax.jit, static_argnums=0)
def sgd_step(layer, params, x, target, rate):
  """The output, the gradient of a quadratic loss and what one step makes of the parameters."""

  def loss(params):
    out = layer.apply({"params": params}, x)
    return jnp.mean((out - target) ** 2), out

  optimizer = optax.sgd(rate)
  gradient, out = jax.grad(loss, has_aux=True)(params)
  updates, _ = optimizer.update(gradient, optimizer.init(params), params)
  return out, gradient, optax.apply_updates(params, updates)


@functools.partial(jax.jit, static_argnums=0)
def fixed_step(layer, kernel_fn, params, x, target):
  """The output of a layer that learns nothing, and the gradient with respect to its kernel."""
  weights = {name: params[name] for name in ("kernel", "bias")}

  def loss(kernel_fn):
    fixed = layer.clone(kernel_fn=kernel_fn, learnable=False, per_feature=False)
    out = fixed.apply({"params": weights}, x)
    return jnp.mean((out - target) ** 2), out

  gradient, out = jax.grad(loss, has_aux=True)(kernel_fn)
  return out, gradient


@pytest.mark.parametrize(
  ("name", "per_feature"),
  [*((name, False) for name in LEARNABLE), ("Sigmoid", True), ("Sum", True)],
)
def test_learnable_hyperparameters_are_parameters(name, per_feature):
  kernel_fn, values = LEARNABLE[name]
  layer = Kerv(
    3, (2, 2), padding="VALID", kernel_fn=kernel_fn, learnable=True, per_feature=per_feature
  )
  x, target = normal(2, 4, 4, 2), normal(2, 3, 3, 3, seed=3)
  shape = (3,) if per_feature else ()
  params = init(layer, x)["params"]
  assert shapes(params) == {
    "kernel": (2, 2, 2, 3),
    "bias": (3,),
    **dict.fromkeys(values, shape),
  }
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
  assert layer.learnable_names == tuple(values)
  read = hyperparameters(layer, {"params": params}, x)
  assert read.keys() == values.keys()
  for key, value in values.items():
    assert read[key].shape == shape
    assert_allclose(read[key], np.full(shape, value), rtol=1e-6, atol=0)

  # Step 0 is the layer that does not learn; each hyperparameter has a gradient, the kernel's
  # own, times the slope of softplus where the value must be positive.
  out, gradient, after = sgd_step(layer, params, x, target, 0.05)
  initial = jax.tree.map(lambda leaf: jnp.full(shape, leaf), kernel_fn)
  expected, by_kernel = fixed_step(layer, initial, params, x, target)
  assert_allclose(out, expected, rtol=2e-5, atol=1e-6)
  for key in values:
    slope = 1.0 if key in UNBOUNDED else jax.nn.sigmoid(params[key])
    assert np.all(np.abs(gradient[key]) > 1e-6)
    assert_allclose(gradient[key], by_kernel.hyperparameters()[key] * slope, rtol=1e-3, atol=1e-6)

  # One step changes it, against the gradient, and the value read back is what the layer then uses.
  read = hyperparameters(layer, {"params": after}, x)
  for key, value in values.items():
    assert np.all(after[key] != params[key])
    assert np.all(np.abs(read[key] - value) > 1e-7)
    assert np.all(np.sign(read[key] - value) == -np.sign(gradient[key]))
  out, _, _ = sgd_step(layer, after, x, target, 0.05)
  learned = kernel_fn.with_hyperparameters(read)
  expected, _ = fixed_step(layer, learned, after, x, target)
  assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "value", [1.0, 2.0, 0.5, 3.0, 0.1, 0.05, 1e-3, 1e-6, 2e-9, 0.6931472, 20.0, 100.0, 1e6]
)
@pytest.mark.parametrize("per_feature", [False, True])
def test_step_0_has_the_value_asked_for(value, per_feature):
  x = normal(1, 3, 3, 1)
  for kernel_fn in (kernels.Polynomial(1, value), Exponential(value, -value), Chebyshev(value)):
    layer = Kerv(2, (2, 2), kernel_fn=kernel_fn, learnable=True, per_feature=per_feature)
    read = hyperparameters(layer, layer.init(KEY, x), x)
    assert read.keys() == kernel_fn.hyperparameters().keys()
    for name, asked in kernel_fn.hyperparameters().items():
      assert_allclose(read[name], np.full((2,) * per_feature, asked), rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [1.0, 2.0, 0.5, 0.25, 3.0])
def test_step_0_is_exact_for_common_values(value):
  x = normal(1, 3, 3, 1)
  layer = Kerv(2, (2, 2), kernel_fn=kernels.Polynomial(2, value), learnable=True)
  for variables in (layer.init(KEY, x), init(layer, x)):  # eagerly and under jit
    assert float(hyperparameters(layer, variables, x)["balance"]) == value


@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("module", [np, jnp])
def test_vectors_of_initial_values(per_feature, module):
  x = normal(1, 3, 3, 1)
  balance = np.array([0.01, 0.1, 1.0])
  kernel_fn = kernels.Polynomial(2, module.asarray(balance))
  layer = Kerv(3, (2, 2), kernel_fn=kernel_fn, learnable=True, per_feature=per_feature)
  variables = layer.init(KEY, x)
  assert variables["params"]["balance"].shape == (3,)
  read = hyperparameters(layer, variables, x)
  assert_allclose(read["balance"], balance, rtol=1e-6, atol=0)
  jitted = init(layer, x)
  assert_allclose(jitted["params"]["balance"], variables["params"]["balance"], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
  "name", ["Polynomial", "Sigmoid", "Gaussian", "RationalQuadratic", "Sum", "Chebyshev"]
)
def test_positive_and_finite_whatever_the_learning_rate(name):
  """Steps of that length, up and down, with the weights held: nothing else may blow up first."""
  kernel_fn, values = LEARNABLE[name]
  layer = Kerv(3, (2, 2), kernel_fn=kernel_fn, learnable=True, per_feature=True)
  x = normal(2, 3, 3, 2)
  start = init(layer, x)["params"]
  labels = {n: "learn" if n in values else "hold" for n in start}
  optimizer = optax.multi_transform(
    {"learn": optax.chain(optax.clip(1.0), optax.sgd(1.0)), "hold": optax.set_to_zero()}, labels
  )

  @jax.jit
  def step(params, rate):
    def loss(params):
      return jnp.mean(layer.apply({"params": params}, x))

    value, gradient = jax.value_and_grad(loss)(params)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    updates = jax.tree.map(lambda u: rate * u, updates)
    return value, gradient, optax.apply_updates(params, updates)

  for rate in (1e3, -1e3, 1e6, -1e6):
    params = start
    for _ in range(4):
      value, gradient, params = step(params, rate)
      chex.assert_tree_all_finite((value, gradient))
      for key, found in hyperparameters(layer, {"params": params}, x).items():
        assert np.all(np.isfinite(found)), (key, found)
        if key not in UNBOUNDED:
          assert np.all(found > 0), (key, found)
    assert any(np.any(np.abs(params[n] - start[n]) > abs(rate) * 1e-4) for n in values)


@pytest.mark.parametrize("name", ["Gaussian", "Laplacian", "Cauchy", "RationalQuadratic"])
def test_bounded_kernels_survive_a_learning_rate_for_all_parameters(name):
  kernel_fn, values = LEARNABLE[name]
  layer = Kerv(3, (2, 2), padding="VALID", kernel_fn=kernel_fn, learnable=True)
  x, target = normal(2, 4, 4, 2), normal(2, 3, 3, 3, seed=3)
  for rate in (1e3, 1e6):
    params = init(layer, x)["params"]
    for _ in range(4):
      _, _, params = sgd_step(layer, params, x, target, rate)
      read = hyperparameters(layer, {"params": params}, x)
      assert read.keys() == values.keys()
      for key, found in read.items():
        assert np.all(np.isfinite(found)), (key, found)
        assert np.all(found > 0), (key, found)


def test_save_and_restore_learned_hyperparameters():
  x = normal(2, 4, 4, 2)
  kernel_fn = 0.5 * kernels.Sigmoid() + kernels.Polynomial(2)
  layer = Kerv(3, (2, 2), kernel_fn=kernel_fn, learnable=True, per_feature=True)
  trained = perturbed(init(layer, x))
  expected = hyperparameters(layer, trained, x)
  assert len(expected) == 4
  fresh = jax.tree.map(jnp.zeros_like, trained)
  for restored in (
    serialization.from_bytes(fresh, serialization.to_bytes(trained)),
    serialization.from_state_dict(fresh, serialization.to_state_dict(trained)),
    pickle.loads(pickle.dumps(jax.tree.map(np.asarray, trained))),
  ):
    same(jax.tree.map(jnp.asarray, restored), trained)
    same(hyperparameters(layer, restored, x), expected)
    same(apply(layer, restored, x), apply(layer, trained, x))
  # The parameter's name may hold dots; paths joined by another separator come apart again.
  flat = flatten_dict(trained, sep="/")
  assert "params/terms_0_inner_offset" in flat
  same(flax.traverse_util.unflatten_dict(flat, sep="/"), trained)


def test_a_tuple_of_names_chooses():
  x = normal(1, 3, 3, 2)
  kernel_fn = kernels.Polynomial(2, 0.5) + kernels.Sigmoid(0.2)
  for names in (
    (),
    ("terms_0_balance",),
    ("terms_1_offset", "terms_1_scale"),
    ("terms_1_scale", "terms_0_balance"),
  ):
    layer = Kerv(2, (2, 2), kernel_fn=kernel_fn, learnable=names)
    variables = init(layer, x)
    assert variables["params"].keys() == {"kernel", "bias", *names}
    assert layer.learnable_names == tuple(names)
    read = hyperparameters(layer, variables, x)
    assert set(read) == set(names)
    for name in names:
      assert_allclose(read[name], kernel_fn.hyperparameters()[name], rtol=1e-6, atol=0)
    plain = Kerv(2, (2, 2), kernel_fn=kernel_fn)
    weights = {n: variables["params"][n] for n in ("kernel", "bias")}
    expected = plain.apply({"params": weights}, x)
    assert_allclose(layer.apply(variables, x), expected, rtol=1e-5, atol=1e-6)


def test_a_list_of_names_is_a_tuple():
  layer = Kerv(2, (2, 2), learnable=["balance"])
  twin = Kerv(2, (2, 2), learnable=("balance",))
  assert layer.learnable_names == ("balance",)
  assert layer == twin
  assert hash(layer) == hash(twin)


def test_not_learnable_by_default():
  x = normal(1, 3, 3, 2)
  layer = Kerv(2, (2, 2), kernel_fn=kernels.Gaussian(0.1))
  variables = init(layer, x)
  assert variables["params"].keys() == {"kernel", "bias"}
  assert hyperparameters(layer, variables, x) == {}
  nothing = init(LinearConv(2, (2, 2), learnable=True), x)
  assert nothing["params"].keys() == {"kernel", "bias"}


def test_homogeneous_polynomial_learns_nothing_but_works():
  x = normal(1, 3, 3, 2)
  layer = Kerv(2, (2, 2), kernel_fn=kernels.Polynomial(2, 0.0))
  variables = init(layer, x)
  linear = apply(LinearConv(2, (2, 2)), variables, x)  # the bias is 0
  assert_allclose(apply(layer, variables, x), linear**2, rtol=1e-5, atol=1e-6)
