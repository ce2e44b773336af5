"""Layers and networks that kervolution is compared with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import UsageError
from experiments.ablation.arms import ARMS, arm, cube
from experiments.common.layers import AuthorsGaussian, PointwiseConv, VolterraConv
from kerv_jax import kernels
from kerv_jax.nn import KervConv


def normal(seed, shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
  ("channels", "window", "padding"), [(1, (5, 5), "SAME"), (2, (3, 2), "VALID")]
)
def test_volterra_is_the_papers_equation(channels, window, padding):
  x = normal(0, (2, 7, 6, channels))
  layer = VolterraConv(4, window, padding, bias_init=jax.nn.initializers.normal(1.0))
  params = layer.init(jax.random.key(0), x)["params"]
  n = window[0] * window[1] * channels
  assert params["quadratic"].shape == (n * (n + 1) // 2, 4)
  assert np.abs(params["quadratic"]).max() <= (n * (n + 1) / 2) ** -0.5
  y = np.asarray(layer.apply({"params": params}, x))

  before = [((size - 1) // 2, size // 2) if padding == "SAME" else (0, 0) for size in window]
  padded = np.pad(x, ((0, 0), *before, (0, 0))).astype(np.float64)
  kernel, bias = (np.asarray(params[name], np.float64) for name in ("kernel", "bias"))
  quadratic = np.asarray(params["quadratic"], np.float64)
  for row, column in ((0, 0), (3, 2), (y.shape[1] - 1, y.shape[2] - 1)):
    patch = padded[:, row : row + window[0], column : column + window[1]]
    patch = patch.transpose(0, 3, 1, 2).reshape(2, n)  # the order of JAX's patches
    linear = patch @ kernel.transpose(2, 0, 1, 3).reshape(n, 4)
    pairs = [patch[:, i] * patch[:, j] for i in range(n) for j in range(i, n)]
    expected = linear + np.stack(pairs, axis=1) @ quadratic + bias
    np.testing.assert_allclose(y[:, row, column], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  ("function", "kernel_fn"),
  [(cube, kernels.Polynomial(3, 1.0)), (jnp.tanh, kernels.Sigmoid())],
)
def test_a_function_after_a_convolution_is_kervolution_with_the_bias_outside(function, kernel_fn):
  x = normal(1, (2, 7, 6, 3))
  options = {"features": 4, "kernel_size": (3, 3), "padding": "VALID"}
  options |= {"bias_init": jax.nn.initializers.normal(1.0)}
  layer = PointwiseConv(**options, function=function)
  kerv = KervConv(**options, kernel_fn=kernel_fn)
  variables = layer.init(jax.random.key(0), x)
  expected = kerv.apply(variables, x)
  np.testing.assert_allclose(layer.apply(variables, x), expected, rtol=1e-4, atol=1e-5)
  inside = PointwiseConv(**options, function=function, bias_inside=True).apply(variables, x)
  without = variables["params"] | {"bias": jnp.zeros(4)}
  product = KervConv(**options, kernel_fn=kernels.Linear()).apply({"params": without}, x)
  by_hand = function(np.asarray(product) + np.asarray(variables["params"]["bias"]))
  np.testing.assert_allclose(inside, by_hand, rtol=1e-4, atol=1e-5)
  assert np.abs(np.asarray(inside) - np.asarray(expected)).max() > 0.1


def test_the_authors_gaussian_is_their_formula():
  x = normal(2, (2, 6, 5, 3))
  layer = AuthorsGaussian(4, (3, 3), "VALID", bias_init=jax.nn.initializers.normal(1.0))
  params = layer.init(jax.random.key(0), x)["params"]
  y = np.asarray(layer.apply({"params": params}, x))
  kernel, bias = (np.asarray(params[name], np.float64) for name in ("kernel", "bias"))
  for row, column in ((0, 0), (3, 2)):
    patch = x[:, row : row + 3, column : column + 3, :, None].astype(np.float64)
    squares = np.sum(patch**2, axis=(1, 2, 3)) + np.sum(kernel**2, axis=(0, 1, 2))
    product = np.sum(patch * kernel, axis=(1, 2, 3))
    expected = np.exp(-squares / 27 + 2 * (product + bias))
    np.testing.assert_allclose(y[:, row, column], expected, rtol=1e-4)


@pytest.fixture(scope="module")
def shapes():
  """Parameters' shapes of every arm."""

  def init(name):
    model = arm(name).network(10)
    return jax.eval_shape(
      functools.partial(model.init), jax.random.key(0), jnp.zeros((1, 28, 28, 1))
    )["params"]

  return {name: init(name) for name in ARMS}


def count(params):
  return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_networks_have_the_weights_they_are_said_to_have(shapes):
  others = {"learnable": 61707, "cnn-wide": 63836, "volterra": 63656}
  for name, params in shapes.items():
    assert count(params) == others.get(name, 61706), name


def test_the_balance_of_the_learnable_arm_is_learnt(shapes):
  assert shapes["learnable"]["conv1"]["balance"].shape == ()


def test_arms_share_their_initial_weights():
  def first_layer(name):
    x = jnp.zeros((1, 28, 28, 1))
    return arm(name).network(10).init(jax.random.key(3), x)["params"]["conv1"]

  cnn = first_layer("cnn")
  for name in ("polynomial", "power-outside", "tanh-inside", "volterra"):
    layer = first_layer(name)
    for part in ("kernel", "bias"):
      np.testing.assert_array_equal(layer[part], cnn[part])


def test_arms_are_named():
  assert {f"polynomial-{d}-{b}" for d, b in ((2, "0.5"), (3, "2"), (5, "1"))} <= ARMS.keys()
  assert len({each.label for each in ARMS.values()}) == len(ARMS)
  with pytest.raises(UsageError, match="got 'cubic'"):
    arm("cubic")
