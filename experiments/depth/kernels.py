"""The kernel functions of the depth table: by default, and as deep networks take them."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn

from kerv_jax import kernels
from kerv_jax.models import deep
from kerv_jax.models.deep import filters, in_range
from kerv_jax.nn import KervConv


class Pair(NamedTuple):
  """A kernel function by default, and as `kerv_jax.models.deep` is given it."""

  default: kernels.Kernel
  deep: kernels.Kernel


def _same(kernel_fn: kernels.Kernel) -> Pair:
  return Pair(kernel_fn, kernel_fn)


_CUBIC = kernels.Polynomial(3, 3.0)

KERNELS: dict[str, Pair] = {
  "linear": _same(kernels.Linear()),
  "polynomial 2": Pair(kernels.Polynomial(2, 1.0), kernels.Polynomial(2, 2.0)),
  "polynomial 3": Pair(kernels.Polynomial(3, 1.0), _CUBIC),
  "polynomial 5": Pair(kernels.Polynomial(5, 1.0), kernels.Polynomial(5, 5.0)),
  "Gaussian": Pair(kernels.Gaussian(1.0), kernels.Gaussian(0.5)),
  "L1": _same(kernels.L1()),
  "L2": _same(kernels.L2()),
  "sigmoid": _same(kernels.Sigmoid()),
  "Laplacian": Pair(kernels.Laplacian(1.0), kernels.Laplacian(0.4)),
  "Cauchy": Pair(kernels.Cauchy(1.0), kernels.Cauchy(1.4)),
  "rational quadratic": Pair(
    kernels.RationalQuadratic(1.0, 1.0), kernels.RationalQuadratic(1.0, 1.4)
  ),
  "cosine": _same(kernels.Cosine()),
  "normalized cubic": Pair(
    kernels.Normalized(kernels.Polynomial(3, 1.0)), kernels.Normalized(_CUBIC)
  ),
  "Minkowski 3": _same(kernels.Minkowski(3.0)),
  "Huber": _same(kernels.Huber()),
  "intersection": _same(kernels.Intersection()),
  "chi squared": _same(kernels.ChiSquared()),
  "Chebyshev": _same(kernels.Chebyshev()),
  "max-plus": _same(kernels.MaxPlus()),
}
"""By name; of the deep ones, widths count by element of the patch."""

NETWORKS = ("polynomial 3", "Gaussian", "L1", "L2", "sigmoid", "cosine")
"""Those that whole networks are made of."""


def convolution(kernel: str, way: str, fan_in: int) -> Callable[..., Any]:
  """Returns what makes the layers of a network, called like `flax.linen.Conv`.

  Args:
    kernel: one of `KERNELS`; "convolution" for that.
    way: "default", as a `KervConv` is; "in range", with the filters and width of `deep` alone;
      "deep", which standardizes over features as well.
    fan_in: elements of a patch, for the width of "in range".
  """
  if kernel == "convolution":
    return nn.Conv
  pair = KERNELS[kernel]
  if way == "deep":
    return deep(pair.deep)
  if way == "default":
    return functools.partial(KervConv, kernel_fn=pair.default)
  return functools.partial(
    KervConv, kernel_fn=in_range(pair.deep, fan_in), kernel_init=filters(pair.deep)
  )
