"""Models to kervolve, and the same written with the layer itself."""

import functools
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from kerv_jax import kernels
from kerv_jax.nn import KervConv
from tests.trees import normal, numpy_init

KEY = jax.random.key(0)
GAUSSIAN = kernels.Gaussian(0.1)
POLYNOMIAL = kernels.Polynomial(2, balance=0.5)
Conv = functools.partial(nn.Conv, kernel_init=numpy_init)
Kerv = functools.partial(KervConv, kernel_init=numpy_init)
X = normal(2, 6, 5, 3)


def random_variables(model, *args, seed=1, **kwargs):
  """Random variables of a model; positive, as some are variances."""
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(lambda: model.init(KEY, *args, **kwargs))
  return jax.tree.map(lambda s: jnp.asarray(rng.uniform(0.05, 0.5, s.shape), s.dtype), shapes)


@functools.partial(jax.jit, static_argnums=0)
def apply(model, variables, *args):
  return model.apply(variables, *args)


def program(net, *args):
  """The program of a model and its gradient; equal ones compute the same bits."""

  def loss(variables, *args):
    return jnp.sum(jnp.sin(net.apply(variables, *args)))

  return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(jax.value_and_grad(loss))(*args)))


def paths(variables):
  return {"/".join(key): leaf.shape for key, leaf in flatten_dict(variables["params"]).items()}


# A model written twice: with convolutions to kervolve, and with the layer itself as the answer.


class Block(nn.Module):
  make: Any = Conv
  made_b: Any = Conv

  def setup(self):
    self.a = self.make(3, (3, 3))
    self.b = self.made_b(3, (1, 1), use_bias=False)

  def __call__(self, x):
    return nn.relu(self.b(nn.relu(self.a(x))) + x)


class Net(nn.Module):
  """Compact, with blocks in setup style, a strided stem, a transposed and a dense layer."""

  stem: Any = Conv
  a: Any = Conv
  b: Any = Conv

  @nn.compact
  def __call__(self, x):
    x = self.stem(3, (3, 3), strides=2, padding="CIRCULAR", name="stem")(x)
    for i in range(2):
      x = Block(self.a, self.b, name=f"blocks_{i}")(x)
    x = nn.ConvTranspose(2, (2, 2), kernel_init=numpy_init, name="up")(x)
    x = nn.ConvLocal(2, (2, 2), kernel_init=numpy_init, name="local")(x)
    return nn.Dense(2, kernel_init=numpy_init, name="head")(x.mean((1, 2)))


@functools.cache
def net_variables():
  return random_variables(Net(), X)


class Plain(nn.Module):
  make: Any = Conv

  @nn.compact
  def __call__(self, x):
    return self.make(3, (3, 3), name="a")(x)
