"""The patch statistics that a kernel function may be built on, by their formulas."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

INNER_PRODUCT = "inner_product"
"""``<x, w>``, what a convolution computes."""
SQUARED_DISTANCE = "squared_distance"
"""``sum (x - w)**2``."""
ABSOLUTE_DISTANCE = "absolute_distance"
"""``sum |x - w|``."""
ADDER_DISTANCE = "adder_distance"
"""``sum |x - w|``, differentiated as an AdderNet is: see :func:`adder_distance`."""
PATCH_SQUARED_NORM = "patch_squared_norm"
"""``<x, x>``."""
FILTER_SQUARED_NORM = "filter_squared_norm"
"""``<w, w>``."""


def _absolute(x: Array) -> Array:
  """``|x|`` with derivative 0 at 0, where that of ``jnp.abs`` is 1."""
  return x * lax.stop_gradient(jnp.sign(x))


@jax.custom_jvp
def with_value(carrier: Array, value: Array) -> Array:
  """Another value with the derivatives, of any order, of the carrier.

  Args:
    carrier: what is differentiated.
    value: what is returned, of the same shape and dtype.

  Returns:
    ``value``.
  """
  del carrier
  return value


@with_value.defjvp
def _with_value_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
  return with_value(*primals), tangents[0]


def huber(difference: Array) -> Array:
  """The function whose derivative is HardTanh: ``d**2 / 2``, but ``|d| - 1/2`` beyond 1."""
  bounded = jnp.clip(difference, -1, 1)
  return bounded * (difference - bounded / 2)


def adder_distance(x: Array, w: Array) -> Array:
  """``sum |x - w|`` with the gradients that AdderNets learn by.

  ``HardTanh(x - w)`` with respect to the patch and ``w - x`` with respect to the filter, where the
  derivatives are ``sign(x - w)`` and ``sign(w - x)``.  They are those of a Huber function and of
  half a square, so the two are the carrier of the value.
  """
  to_patch = huber(x - lax.stop_gradient(w))
  to_filter = jnp.square(w - lax.stop_gradient(x)) / 2
  value = lax.stop_gradient(jnp.abs(x - w))
  return jnp.sum(with_value(to_patch + to_filter, value), axis=-1)


DEFINITIONS: dict[str, Callable[[Array, Array], Array]] = {
  INNER_PRODUCT: lambda x, w: jnp.vecdot(x, w),
  SQUARED_DISTANCE: lambda x, w: jnp.sum(jnp.square(x - w), axis=-1),
  ABSOLUTE_DISTANCE: lambda x, w: jnp.sum(_absolute(x - w), axis=-1),
  ADDER_DISTANCE: adder_distance,
  PATCH_SQUARED_NORM: lambda x, w: jnp.sum(jnp.square(x), axis=-1),
  FILTER_SQUARED_NORM: lambda x, w: jnp.sum(jnp.square(w), axis=-1),
}
"""Each patch statistic as its formula on patches and filters, the last axis reduced."""


def safe_sqrt(x: Array) -> Array:
  """Square root whose derivatives are 0, not infinite or NaN, at 0.

  Args:
    x: non-negative values, any shape.

  Returns:
    ``sqrt(x)``, the shape and dtype of ``x``.

  Example:
    >>> import jax
    >>> print(jax.grad(safe_sqrt)(0.0), jax.grad(safe_sqrt)(4.0))
    0.0 0.25
  """
  zero = x <= 0  # and not `x > 0`, so that NaN stays NaN
  return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, x)))


def at_least_float32(dtype: Any) -> jnp.dtype:
  """The dtype itself if it has 32 bits or more, float32 for the narrower ones.

  Args:
    dtype: a floating-point dtype.

  Returns:
    The dtype to compute in.
  """
  dtype = jnp.dtype(dtype)
  return dtype if dtype.itemsize >= 4 else jnp.dtype("float32")
