"""Kervolutions that deep networks can be made of."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from kerv_jax.initializers import for_kernel
from kerv_jax.kernels import ABSOLUTE_DISTANCE, ADDER_DISTANCE, Kernel
from kerv_jax.kernels.additive import PairStatistic
from kerv_jax.kernels.base import require_kernel
from kerv_jax.kernels.definitions import DEFINITIONS, at_least_float32
from kerv_jax.kernels.ranges import split
from kerv_jax.nn import KervConv

__all__ = ["deep"]

SMOOTH, SMOOTHEST = 3.0, 10.0
"""Deviations of the filters of kernels that are rough, and of those that see one element alone."""
_CALLED_WITH = {"features", "kernel_size", "kernel_fn", "name", "parent"}
_OPTIONS = {field.name for field in dataclasses.fields(KervConv)} - _CALLED_WITH


def deep(kernel_fn: Kernel, **options: Any) -> Callable[..., Any]:
  """Returns what makes kervolutions of a kernel function that can be stacked, for ``conv=``.

  Such a layer is a ``KervConv`` that differs in three things:

  * Its filters start in the kernel's range, by :func:`kerv_jax.initializers.for_kernel`.  Those of
    kernels whose derivative jumps, such as ``L1``, and of other sums over elements, have the
    standard deviation 3, which makes them smooth over most of the patches; those of a maximum 10.
  * Widths count by element of the patch, so that one kernel serves layers of any fan-in: a
    ``gamma`` is divided by the fan-in, a ``sigma`` or ``length`` multiplied by its root.
  * Its output is standardized over the features, at every position; over those of each part, if
    the kernel is a ``Concatenate``.  What all features share, such as the norm of the patch in a
    distance, would otherwise grow until nothing else is left.

  Batch normalization must follow it, which the networks of this module have, but for ``LeNet5``:
  without that, features that are the same everywhere are what is left.  For polynomials of degree n
  a balance of n or more lets gradients grow less.

  Args:
    kernel_fn: the kernel function: one of ``Linear()``, ``Polynomial(3, 3.0)``, ``Sigmoid()``,
      ``Gaussian(0.5)``, ``L1()``, ``L2()``, ``Laplacian(0.4)``, ``Cauchy(1.4)``,
      ``RationalQuadratic(1.0, 1.4)``, ``Cosine()``, or another.
    **options: of ``KervConv``, such as ``learnable``, for every layer.

  Returns:
    A function that is called like the class ``flax.linen.Conv``, within a compact method, and
    returns a function of the layer's inputs.  It raises a ValueError for fewer than two features.

  Raises:
    TypeError: if ``kernel_fn`` is not a kernel, or an option is none of ``KervConv``.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from kerv_jax.kernels import Gaussian
    >>> from kerv_jax.models import CifarResNet, deep
    >>> model = CifarResNet(depth=8, conv=deep(Gaussian(gamma=0.5)))
    >>> variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((2, 32, 32, 3)))
    >>> variables["params"]["layer3_0"]["conv1"]["kernel"].shape
    (3, 3, 32, 64)
  """
  require_kernel("kernel_fn", kernel_fn)
  if unknown := options.keys() - _OPTIONS:
    raise TypeError(f"`options` must be of {', '.join(sorted(_OPTIONS))}, got {sorted(unknown)}")
  return functools.partial(_convolution, kernel_fn, options)


def _convolution(
  kernel_fn: Kernel, options: dict[str, Any], features: int, kernel_size: Any, **arguments: Any
) -> Callable[[jax.Array], jax.Array]:
  """Makes a layer, as the class ``flax.linen.Conv`` does."""
  sizes = [part.size for part in split(kernel_fn, features)]
  if min(sizes) < 2:
    what = "`features`" if len(sizes) == 1 else "`features` of each part of `kernel_fn`"
    raise ValueError(f"{what} must be at least 2, to be standardized, got {min(sizes)}")
  window = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
  arguments |= options
  groups = arguments.get("feature_group_count", 1)

  def layer(x: jax.Array) -> jax.Array:
    # `KervConv` refuses groups that do not divide the channels.
    fan_in = max(math.prod(window) * x.shape[-1] // max(groups, 1), 1)
    own = {"kernel_fn": in_range(kernel_fn, fan_in), "kernel_init": filters(kernel_fn)}
    y = KervConv(features, kernel_size, **(own | arguments))(x)
    wide = y.astype(at_least_float32(y.dtype))
    parts = jnp.split(wide, np.cumsum(sizes)[:-1], axis=-1)
    return jnp.concatenate([_standardized(part) for part in parts], axis=-1).astype(y.dtype)

  return layer


def _standardized(y: jax.Array) -> jax.Array:
  """Standardized over features, exactly: what is squared has been centered."""
  return jax.nn.standardize(y - jnp.mean(y, axis=-1, keepdims=True))


def in_range(kernel_fn: Kernel, fan_in: int) -> Kernel:
  """Returns a kernel function whose widths, counted by element of the patch, are for the whole.

  Args:
    kernel_fn: the kernel function; those within it have their own widths.
    fan_in: the number of elements.
  """
  factors = {"gamma": 1 / fan_in, "sigma": math.sqrt(fan_in), "length": math.sqrt(fan_in)}
  values = {
    name: value * factors[kind]
    for name, value in kernel_fn.hyperparameters().items()
    if (kind := name.rpartition("_")[2]) in factors
  }
  return kernel_fn.with_hyperparameters(values)


def filters(kernel_fn: Kernel) -> Callable[..., jax.Array]:
  """Returns the initializer of the filters of a kernel function in a deep network.

  Args:
    kernel_fn: the kernel function; each part of a ``Concatenate`` has its own filters.
  """

  def init(key: jax.Array, shape: Sequence[int], dtype: Any = None) -> jax.Array:
    parts = split(kernel_fn, shape[-1])
    keys = jax.random.split(key, len(parts))
    made = [
      _of_part(part.kernel)(key, (*shape[:-1], part.size), dtype)
      for key, part in zip(keys, parts, strict=True)
    ]
    return jnp.concatenate(made, axis=-1)

  return init


def _of_part(kernel_fn: Kernel) -> Callable[..., Any]:
  statistics = {*(kernel_fn.statistics or ())}
  if kernel_fn.statistics is None or not DEFINITIONS.keys() >= statistics:
    reductions = {s.kernel.reduction if isinstance(s, PairStatistic) else None for s in statistics}
    extreme = reductions and reductions <= {"max", "min"}
    return nn.initializers.normal(SMOOTHEST if extreme else SMOOTH)
  rough = statistics <= {ABSOLUTE_DISTANCE, ADDER_DISTANCE}
  return nn.initializers.normal(SMOOTH) if rough else for_kernel(kernel_fn)
