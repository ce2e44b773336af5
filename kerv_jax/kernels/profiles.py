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
  """Base class of the functions of ``<x, w>``; define ``profile``."""

  statistic: ClassVar[str] = INNER_PRODUCT


class SquaredDistanceKernel(_ProfileKernel):
  """Base class of the functions of ``sum (x - w)**2``; define ``profile``."""

  statistic: ClassVar[str] = SQUARED_DISTANCE


class AbsoluteDistanceKernel(_ProfileKernel):
  """Base class of the functions of ``sum |x - w|``; define ``profile``."""

  statistic: ClassVar[str] = ABSOLUTE_DISTANCE
