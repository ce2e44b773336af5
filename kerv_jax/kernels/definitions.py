"""The patch statistics that a kernel function may be built on, by their formulas.

A kernel function asks for them by name:

>>> import jax.numpy as jnp
>>> from kerv_jax import kernels
>>> class Angle(kernels.Kernel):
...   @property
...   def statistics(self):
...     return (
...       kernels.INNER_PRODUCT, kernels.PATCH_SQUARED_NORM, kernels.FILTER_SQUARED_NORM
...     )
...
...   def from_statistics(self, statistics):
...     product = statistics[kernels.INNER_PRODUCT]
...     squares = statistics[kernels.PATCH_SQUARED_NORM] * statistics[kernels.FILTER_SQUARED_NORM]
...     return jnp.arccos(product / jnp.sqrt(squares))
>>> print(f"{Angle()(jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0])):.4f}")
1.5708
>>> kernels.L2().statistics == (kernels.SQUARED_DISTANCE,)
True
>>> kernels.L1().statistics == (kernels.ABSOLUTE_DISTANCE,)
True
>>> kernels.L1(surrogate=True).statistics == (kernels.ADDER_DISTANCE,)
True
"""

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


@jax.custom_jvp
def absolute(x: Array) -> Array:
  """``|x|`` with derivative 0 at 0, where that of ``jnp.abs`` is 1."""
  return jnp.abs(x)


@absolute.defjvp
def _absolute_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  return absolute(*primals), jnp.sign(primals[0]) * tangents[0]


@jax.custom_jvp
def quotient(x: Array, y: Array) -> Array:
  """``x / y``, whose derivatives divide by ``y`` again where JAX's divide by its square.

  That square would be 0 or infinite where ``y`` is below 1e-19 or above 1e19 in float32.
  """
  return x / y


@quotient.defjvp
def _quotient_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
  (x, y), (of_x, of_y) = primals, tangents
  out = quotient(x, y)
  return out, quotient(of_x - out * of_y, y)


def absolute_difference(x: Array, w: Array) -> Array:
  """``|x - w|``, pointwise; its derivative at ``x == w`` is 0."""
  return absolute(x - w)


def squared_difference(x: Array, w: Array) -> Array:
  """``(x - w)**2``, pointwise."""
  return jnp.square(x - w)


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


@jax.custom_jvp
def _huber(difference: Array) -> Array:
  bounded = jnp.clip(difference, -1, 1)
  return bounded * (difference - bounded / 2)


@_huber.defjvp
def _huber_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  return _huber(*primals), jnp.clip(primals[0], -1, 1) * tangents[0]


def huber_difference(x: Array, w: Array) -> Array:
  """``d**2 / 2`` of ``d = x - w``, but ``|d| - 1/2`` beyond 1; its derivative is HardTanh."""
  return _huber(x - w)


def adder_distance(x: Array, w: Array) -> Array:
  """``sum |x - w|`` with the gradients that AdderNets learn by.

  ``HardTanh(x - w)`` with respect to the patch and ``w - x`` with respect to the filter, where the
  derivatives are ``sign(x - w)`` and ``sign(w - x)``.  They are those of a Huber function and of
  half a square, so the two are the carrier of the value.
  """
  to_patch = huber_difference(x, lax.stop_gradient(w))
  to_filter = jnp.square(w - lax.stop_gradient(x)) / 2
  value = lax.stop_gradient(jnp.abs(x - w))
  return jnp.sum(with_value(to_patch + to_filter, value), axis=-1)


DEFINITIONS: dict[str, Callable[[Array, Array], Array]] = {
  INNER_PRODUCT: lambda x, w: jnp.vecdot(x, w),
  SQUARED_DISTANCE: lambda x, w: jnp.sum(squared_difference(x, w), axis=-1),
  ABSOLUTE_DISTANCE: lambda x, w: jnp.sum(absolute_difference(x, w), axis=-1),
  ADDER_DISTANCE: adder_distance,
  PATCH_SQUARED_NORM: lambda x, w: jnp.sum(jnp.square(x), axis=-1),
  FILTER_SQUARED_NORM: lambda x, w: jnp.sum(jnp.square(w), axis=-1),
}
"""Each patch statistic as its formula on patches and filters, the last axis reduced."""


def define(statistic: Any, x: Array, w: Array) -> Array:
  """A patch statistic by its definition: one of the above by name, or one that defines itself."""
  if isinstance(statistic, str):
    return DEFINITIONS[statistic](x, w)
  return statistic(x, w)


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
