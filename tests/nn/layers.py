"""Layers whose weights cost no compilation, and jitted init and apply that tests share."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from numpy.testing import assert_allclose

from kerv_jax import kernels
from kerv_jax.kernels import Hyperparameter, hyperparameter
from kerv_jax.nn import KervConv
from tests.trees import numpy_init

KEY = jax.random.key(0)
LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}
Conv = functools.partial(nn.Conv, kernel_init=numpy_init)
Kerv = functools.partial(KervConv, kernel_init=numpy_init)
LinearConv = functools.partial(Kerv, kernel_fn=kernels.Linear())
GaussianConv = functools.partial(Kerv, kernel_fn=kernels.Gaussian(0.1), learnable=True)


def shapes(tree):
  return jax.tree.map(jnp.shape, tree)


def perturbed(variables, seed=1):
  """Other values of every parameter, so that no bias is 0."""
  leaves, tree = jax.tree.flatten(variables)
  rng = np.random.default_rng(seed)
  return jax.tree.unflatten(
    tree,
    [leaf + jnp.asarray(0.2 * rng.normal(size=leaf.shape) + 0.1, leaf.dtype) for leaf in leaves],
  )


@functools.partial(jax.jit, static_argnums=0)
def init(module, x):
  return module.init(KEY, x)


@functools.partial(jax.jit, static_argnums=0)
def apply(module, variables, x):
  return module.apply(variables, x)


IMAGE = (2, 7, 6, 4)


def pair(options, **more):
  options = {"features": 6, "kernel_size": (3, 3), **options, **more}
  return Conv(**options), LinearConv(**options)


class Small(nn.Module):
  """A model as Flax's examples write them: the layer is an argument."""

  conv: Any = Conv
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, train=False):
    conv = functools.partial(self.conv, dtype=self.dtype)
    x = conv(4, (3, 3), strides=(2, 2), padding=[(1, 1), (1, 1)], name="stem")(x)
    x = nn.BatchNorm(use_running_average=not train)(x)
    x = conv(4, (3, 3), use_bias=False)(nn.relu(x))
    x = conv(3, kernel_size=(1, 1))(x)
    x = nn.Dropout(0.3, deterministic=not train)(x)
    return nn.Dense(5, kernel_init=numpy_init)(jnp.mean(x, (1, 2)))


def small(**fields):
  return Small(functools.partial(Kerv, **fields))


class Named(nn.Module):
  conv: Any = Conv

  @nn.compact
  def __call__(self, x):
    x = nn.relu(self.conv(4, (3, 3), name="conv1")(x))
    x = self.conv(3, (2, 2), strides=2, padding="VALID", name="conv2")(x)
    return nn.Dense(2, kernel_init=numpy_init, name="dense")(x.reshape(len(x), -1))


class Chebyshev(kernels.Kernel):
  weight: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  def __call__(self, x, w):
    x, w = jnp.broadcast_arrays(x, w)
    weight, largest = jnp.broadcast_arrays(self.weight, jnp.max(jnp.abs(x - w), axis=-1))
    return weight * largest


class Exponential(kernels.InnerProductKernel):
  rate: Hyperparameter = hyperparameter(default=0.1, constraint="positive")
  shift: Hyperparameter = hyperparameter(default=0.0)

  def profile(self, statistic):
    return jnp.exp(self.rate * statistic + self.shift)


LEARNABLE = {
  "Polynomial": (kernels.Polynomial(2, 0.5), {"balance": 0.5}),
  "Sigmoid": (kernels.Sigmoid(0.2, -0.1), {"scale": 0.2, "offset": -0.1}),
  "Gaussian": (kernels.Gaussian(0.05), {"gamma": 0.05}),
  "Laplacian": (kernels.Laplacian(0.05), {"gamma": 0.05}),
  "Cauchy": (kernels.Cauchy(2.0), {"sigma": 2.0}),
  "RationalQuadratic": (kernels.RationalQuadratic(0.5, 3.0), {"alpha": 0.5, "length": 3.0}),
  "Sum": (
    0.5 * kernels.Sigmoid(0.3, 0.1) + kernels.Polynomial(1, 2.0),
    {
      "terms_0_scale": 0.5,
      "terms_0_inner_scale": 0.3,
      "terms_0_inner_offset": 0.1,
      "terms_1_balance": 2.0,
    },
  ),
  "Negative": (-kernels.Polynomial(2, 0.5), {"inner_balance": 0.5}),
  "Chebyshev": (Chebyshev(0.5), {"weight": 0.5}),
  "Exponential": (Exponential(0.1, -0.2), {"rate": 0.1, "shift": -0.2}),
}
UNBOUNDED = {
  "scale",
  "offset",
  "shift",
  "terms_0_scale",
  "terms_0_inner_scale",
  "terms_0_inner_offset",
}
every_way_to_learn = pytest.mark.parametrize(
  "fields",
  [{}, {"learnable": True}, {"learnable": True, "per_feature": True}],
  ids=["fixed", "learnable", "per_feature"],
)


def check_read(variables, read):
  """Every learnable Gaussian's or polynomial's value is there, and softplus of its parameter."""
  params = flatten_dict(variables["params"])
  for path, value in flatten_dict(read).items():
    assert params[path].shape == value.shape
    raw = np.asarray(params[path], np.float64)
    assert_allclose(value, np.log1p(np.exp(raw)), rtol=1e-5, atol=0)
  learnable = {path for path in params if path[-1] in ("gamma", "balance")}
  assert set(flatten_dict(read)) == learnable
  assert learnable


LAYERS = {
  "polynomial": Kerv(3, (3, 3), kernel_fn=kernels.Polynomial(2), learnable=True),
  "gaussian": GaussianConv(3, (3, 3), per_feature=True, feature_group_count=1),
  "l1": Kerv(3, (3, 3), kernel_fn=kernels.L1(), padding="CIRCULAR"),
  "composite": Kerv(3, (3, 3), kernel_fn=LEARNABLE["Sum"][0], learnable=True),
  "own": Kerv(3, (3, 3), kernel_fn=Chebyshev(0.5), learnable=True),
}
