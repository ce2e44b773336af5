"""Base classes of the kernel functions that are a function of one patch statistic."""

from collections.abc import Mapping
from typing import ClassVar

from jax import Array

from kerv_jax.kernels.base import Kernel
from kerv_jax.kernels.definitions import ABSOLUTE_DISTANCE, INNER_PRODUCT, SQUARED_DISTANCE


class _ProfileKernel(Kernel):
  """A scalar profile of one patch statistic."""

  statistic: ClassVar[str]

  @property
  def statistics(self) -> tuple[str, ...]:
    return (self.statistic,)

  def from_statistics(self, statistics: Mapping[str, Array]) -> Array:
    (name,) = self.statistics
    return self.profile(statistics[name])

  def profile(self, statistic: Array) -> Array:
    """The kernel as a function of its statistic, pointwise.

    Args:
      statistic: any shape that broadcasts with the hyperparameters.

    Returns:
      The kernel's values, in the broadcast shape.
    """
    raise TypeError(f"{type(self).__name__} must define `profile`")


class InnerProductKernel(_ProfileKernel):
  """Base class of functions of ``<x, w>``; a subclass defines ``profile``.

  Example:
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> class Softplus(kernels.InnerProductKernel):
    ...   def profile(self, statistic):
    ...     return jax.nn.softplus(statistic)
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{Softplus()(x, w):.4f}")
    2.5789
  """

  statistic: ClassVar[str] = INNER_PRODUCT


class SquaredDistanceKernel(_ProfileKernel):
  """Base class of functions of ``sum (x - w)**2``; a subclass defines ``profile``.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> class Multiquadric(kernels.SquaredDistanceKernel):
    ...   def profile(self, statistic):
    ...     return jnp.sqrt(1 + statistic)
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{Multiquadric()(x, w):.4f}")
    1.5000
  """

  statistic: ClassVar[str] = SQUARED_DISTANCE


class AbsoluteDistanceKernel(_ProfileKernel):
  """Base class of functions of ``sum |x - w|``; a subclass defines ``profile``.

  Example:
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> class Triangle(kernels.AbsoluteDistanceKernel):
    ...   def profile(self, statistic):
    ...     return jax.nn.relu(1 - statistic / 6)
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{Triangle()(x, w):.4f}")
    0.7500
  """

  statistic: ClassVar[str] = ABSOLUTE_DISTANCE
