"""The learning rate of AdderNets."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels
from kerv_jax.nn import KervConv
from kerv_jax.optim import scale_by_adder_rate


def kernels_only(params):
  return jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", params)


def test_rate_is_the_papers():
  rng = np.random.default_rng(0)
  gradients = {"a": rng.normal(size=(3, 2, 4)), "b": 1e-6 * rng.normal(size=7), "c": np.zeros(3)}
  gradients = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), gradients)
  optimizer = scale_by_adder_rate(0.1)
  updates, _ = jax.jit(optimizer.update)(gradients, optimizer.init(gradients))
  for name, g in gradients.items():
    if name != "c":
      g = np.asarray(g, np.float64)
      rate = 0.1 * np.sqrt(g.size) / np.sqrt(np.sum(g**2))
      assert_allclose(updates[name], rate * g, rtol=1e-5)
  assert_array_equal(updates["c"], 0)


def test_mask_and_dtype():
  gradients = {
    "adder": {"kernel": jnp.full((2, 2), 3.0, jnp.bfloat16), "bias": jnp.full(2, 3.0)},
  }
  optimizer = scale_by_adder_rate(mask=kernels_only)
  updates, _ = optimizer.update(gradients, optimizer.init(gradients))
  assert updates["adder"]["kernel"].dtype == jnp.bfloat16
  assert_allclose(np.asarray(updates["adder"]["kernel"], np.float32), 0.2, rtol=1e-2)
  assert_array_equal(updates["adder"]["bias"], 3.0)


@pytest.mark.usefixtures("promotion")
def test_an_adder_layer_learns_its_teacher():
  """From the paper's gradients and rates, filters come to those that made the outputs."""
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(16, 5, 5, 2)), jnp.float32)
  layer = KervConv(
    3, (3, 3), use_bias=False, kernel_fn=-kernels.L1(surrogate=True), padding="VALID"
  )
  teacher = {"params": {"kernel": jnp.asarray(rng.normal(size=(3, 3, 2, 3)), jnp.float32)}}
  target = jax.jit(layer.apply)(teacher, x)
  student = {"params": {"kernel": jnp.asarray(rng.normal(size=(3, 3, 2, 3)), jnp.float32)}}
  steps = 150
  schedule = optax.cosine_decay_schedule(0.3, steps)
  optimizer = optax.chain(scale_by_adder_rate(mask=kernels_only), optax.sgd(schedule, 0.9))

  def loss(variables):
    return jnp.mean((layer.apply(variables, x) - target) ** 2)

  @jax.jit
  def step(variables, state):
    value, gradient = jax.value_and_grad(loss)(variables)
    updates, state = optimizer.update(gradient, state, variables)
    return optax.apply_updates(variables, updates), state, value

  state, losses = optimizer.init(student), []
  for _ in range(steps):
    student, state, value = step(student, state)
    losses.append(float(value))
  assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize("eta", [0.0, -1.0, float("nan"), float("inf"), "0.2", None])
def test_eta_must_be_positive(eta):
  with pytest.raises(ValueError, match="`eta`"):
    scale_by_adder_rate(eta)


def test_eta_may_be_an_array_or_scheduled():
  gradient = jnp.array([3.0, -4.0])
  expected = scale_by_adder_rate(0.3).update(gradient, optax.EmptyState())[0]
  injected = optax.inject_hyperparams(scale_by_adder_rate)(eta=0.3)
  for optimizer in (scale_by_adder_rate(jnp.float32(0.3)), injected):  # pyright: ignore
    update = jax.jit(optimizer.update)
    assert_allclose(update(gradient, optimizer.init(gradient))[0], expected, rtol=1e-6, atol=0)


def test_without_optax_the_error_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "optax", None)
  with pytest.raises(ImportError, match="pip install optax"):
    scale_by_adder_rate()


@pytest.mark.parametrize("size", [1e25, 1e-30])
def test_gradients_of_any_size_come_out_with_the_rate(size):
  gradient = jnp.array([size, -size, size, size])
  optimizer = scale_by_adder_rate(0.5)
  update, _ = optimizer.update(gradient, optimizer.init(gradient))
  np.testing.assert_allclose(update, [0.5, -0.5, 0.5, 0.5], rtol=1e-5)
