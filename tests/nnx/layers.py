"""NNX layers whose weights cost no compilation."""

import functools
from typing import Any

from flax import nnx

from kerv_jax import kernels
from kerv_jax import nnx as kerv_nnx
from tests.trees import normal, numpy_init

GAUSSIAN = kernels.Gaussian(0.1)
POLYNOMIAL = kernels.Polynomial(2, balance=0.5)
OPTIONS: dict[str, Any] = {"kernel_init": numpy_init, "bias_init": numpy_init}
Conv = functools.partial(nnx.Conv, **OPTIONS)
Kerv = functools.partial(kerv_nnx.KervConv, **OPTIONS)


def rngs():
  return nnx.Rngs(0)


X = normal(2, 6, 5, 3)


def shapes(module):
  return {
    "/".join(map(str, path)): leaf.shape
    for path, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param))
  }


def parameters(module):
  return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def learning(**options):
  return Kerv(3, 4, (3, 3), kernel_fn=GAUSSIAN, learnable=True, rngs=rngs(), **options)
