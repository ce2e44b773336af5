"""Kernels that reduce a pointwise function of the elements of patch and filter: one's own.

Their statistic is computed without patches, whatever the function: see :class:`AdditiveKernel`.
"""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from kerv_jax.kernels.base import Kernel
from kerv_jax.kernels.definitions import absolute_difference
from kerv_jax.kernels.fields import Hyperparameter, hyperparameter

REDUCTIONS = ("sum", "max", "min", "logsumexp")


class AdditiveKernel(Kernel):
  """Base class of the kernels ``profile(reduce_i term(x_i, w_i))``; define ``term``.

  The literature calls kernels of the form ``sum_i k(x_i, w_i)`` additive.  A subclass defines
  ``term(x, w)``, a pointwise function of the elements of patch and filter, and may define
  ``profile(statistic)``, pointwise too, and ``reduction``:

  * ``"sum"``, the default;
  * ``"max"`` or ``"min"``; the derivative goes to the pair that attains the extreme value, to the
    first one in the order (window position, channel) where several do;
  * ``"logsumexp"``, ``T log sum_i exp(term / T)``, a smooth maximum; such a class has a
    hyperparameter ``temperature``, T, positive and 1 by default, unless it defines one itself.

  Time is that of a few operations on every pair, memory that of the output, with derivatives of
  any mode and order, also with respect to the hyperparameters that ``term`` uses.  They are JAX's
  derivatives of ``term``, at kinks and ties too; a term may carry a ``jax.custom_jvp`` of its own.
  ``term`` sees arrays that broadcast together, hyperparameters among them, and must not mix their
  elements.  A padded tap contributes ``term(0, w)``; for a padding with minus infinity pad the
  input with it and use the padding "VALID".

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax.kernels import AdditiveKernel, Hyperparameter, hyperparameter
    >>> class LogCosh(AdditiveKernel):
    ...   scale: Hyperparameter = hyperparameter(default=1.0, constraint="positive")
    ...
    ...   def term(self, x, w):
    ...     return jnp.log(jnp.cosh(self.scale * (x - w)))
    >>> print(f"{LogCosh(scale=2.0)(jnp.array([1.0, 2.0]), jnp.array([0.5, 2.0])):.4f}")
    0.4338
  """

  reduction: ClassVar[Literal["sum", "max", "min", "logsumexp"]] = "sum"

  def __init_subclass__(cls, **kwargs: Any) -> None:
    if cls.reduction not in REDUCTIONS:
      raise ValueError(
        f"`reduction` of {cls.__name__} must be one of {REDUCTIONS}, got {cls.reduction!r}"
      )
    if cls.reduction == "logsumexp" and not hasattr(cls, "temperature"):
      cls.__annotations__ = {**inspect.get_annotations(cls), "temperature": Hyperparameter}
      cls.temperature = hyperparameter(default=1.0, constraint="positive")
    super().__init_subclass__(**kwargs)

  def term(self, x: Array, w: Array) -> Array:
    """The pointwise function.

    Args:
      x: elements of patches, any shape.
      w: elements of filters, of a shape that broadcasts with that of ``x``, as those of the
        hyperparameters do.

    Returns:
      The values, in the broadcast shape.

    Raises:
      TypeError: if the class does not define it.
    """
    raise TypeError(f"{type(self).__name__} must define `term`")

  def profile(self, statistic: Array) -> Array:
    """The kernel as a function of the reduced terms, pointwise; these themselves by default.

    Args:
      statistic: any shape that broadcasts with the hyperparameters.

    Returns:
      The kernel's values, in the broadcast shape.
    """
    return statistic

  @property
  def statistics(self) -> tuple[Any, ...]:
    """Its one statistic, the reduced terms."""
    return (PairStatistic(self),)

  def from_statistics(self, statistics: Mapping[Any, Array]) -> Array:
    """The profile of its statistic."""
    return self.profile(statistics[PairStatistic(self)])


class PairStatistic:
  """The reduced terms of an additive kernel, as a statistic that kernels may share.

  Two are equal if their kernels have the same structure and the very same hyperparameters: equal
  numbers, or one array.

  Attributes:
    kernel: the kernel.
  """

  def __init__(self, kernel: AdditiveKernel) -> None:
    self.kernel = kernel

  def _key(self) -> Any:
    leaves, tree = jax.tree.flatten(self.kernel)
    return tree, tuple(leaf if isinstance(leaf, float) else id(leaf) for leaf in leaves)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, PairStatistic) and self._key() == other._key()

  def __hash__(self) -> int:
    return hash(self._key())

  def __repr__(self) -> str:
    return f"the reduced terms of {self.kernel!r}"

  def __call__(self, x: Array, w: Array) -> Array:
    """Its definition: on patches and filters (..., K), the last axis reduced."""
    kernel = jax.tree.map(lambda v: v if jnp.ndim(v) == 0 else v[..., None], self.kernel)
    terms = all_terms(kernel, x, w)
    reduction = self.kernel.reduction
    if reduction == "sum":
      return jnp.sum(terms, axis=-1)
    if reduction == "logsumexp":
      temperature: Any = kernel.temperature  # pyright: ignore
      largest = lax.stop_gradient(jnp.max(terms, axis=-1, keepdims=True, initial=-jnp.inf))
      total = exponential(terms - finite(largest), temperature).sum(axis=-1, keepdims=True)
      return (finite(largest) + logarithm(total, temperature))[..., 0]
    if not terms.shape[-1]:
      return jnp.full(terms.shape[:-1], -jnp.inf if reduction == "max" else jnp.inf, terms.dtype)
    # That of jnp.max would be shared by ties.
    first = (jnp.argmax if reduction == "max" else jnp.argmin)(terms, axis=-1, keepdims=True)
    return jnp.take_along_axis(terms, lax.stop_gradient(first), axis=-1)[..., 0]


def all_terms(kernel: AdditiveKernel, x: Array, w: Array) -> Array:
  """The term of every pair, also where it is a function of ``x`` or of ``w`` alone.

  Args:
    kernel: the kernel, with hyperparameters that broadcast with ``x`` and ``w``.
    x: elements of patches.
    w: elements of filters, of the same dtype.

  Returns:
    The terms in the shape that all of these broadcast to, and in their dtype.

  Raises:
    ValueError: if ``term`` returns another shape, or complex numbers.
  """
  value = jnp.asarray(kernel.term(x, w))
  shape = jnp.broadcast_shapes(x.shape, w.shape, *map(jnp.shape, jax.tree.leaves(kernel)))
  try:
    fits = jnp.broadcast_shapes(value.shape, shape) == shape
  except ValueError:
    fits = False
  if not fits or jnp.iscomplexobj(value):
    raise ValueError(
      f"`term` of {type(kernel).__name__} must be a real pointwise function: of arrays that "
      f"broadcast to {shape} it returned {value.dtype} of shape {value.shape}"
    )
  return jnp.broadcast_to(value.astype(x.dtype), shape)


def finite(largest: Array) -> Array:
  """The largest of the terms as what is factored out of their exponentials: 0 if it is infinite."""
  return jnp.where(jnp.isfinite(largest), largest, 0)


def exponential(difference: Array, temperature: Any) -> Array:
  """``exp(difference / temperature)``; a constant 0 at minus infinity."""
  nothing = difference == -jnp.inf
  scaled = jnp.where(nothing, 0, difference) / jnp.asarray(temperature, difference.dtype)
  return jnp.where(nothing, 0, jnp.exp(scaled))


def logarithm(total: Array, temperature: Any) -> Array:
  """``temperature * log(total)``; a constant minus infinity at 0."""
  nothing = total == 0
  scaled = jnp.asarray(temperature, total.dtype) * jnp.log(jnp.where(nothing, 1, total))
  return jnp.where(nothing, -jnp.inf, scaled)


class Chebyshev(AdditiveKernel):
  """``max |x - w|``, the largest difference.  Beyond the paper.

  Example:
    >>> import jax.numpy as jnp
    >>> print(Chebyshev()(jnp.array([1.0, 2.0]), jnp.array([0.5, 4.0])))
    2.0
  """

  reduction = "max"

  def term(self, x: Array, w: Array) -> Array:
    """``|x - w|``."""
    return absolute_difference(x, w)


class MaxPlus(AdditiveKernel):
  """``max (x + w)``: dilation by the filter, of mathematical morphology.  Beyond the paper.

  Example:
    >>> import jax.numpy as jnp
    >>> print(MaxPlus()(jnp.array([1.0, 2.0]), jnp.array([0.5, -4.0])))
    1.5
  """

  reduction = "max"

  def term(self, x: Array, w: Array) -> Array:
    """``x + w``."""
    return x + w


class Huber(AdditiveKernel):
  """``sum h(x - w)``, where ``h(d)`` is ``d**2 / 2`` up to ``delta`` and linear beyond.

  Huber, "Robust Estimation of a Location Parameter", 1964.  Beyond the paper.

  Attributes:
    delta: > 0; where ``h`` becomes linear, ``delta (|d| - delta / 2)``.

  Example:
    >>> import jax.numpy as jnp
    >>> print(Huber(delta=1.0)(jnp.array([1.0, 2.0]), jnp.array([0.5, 4.0])))
    1.625
  """

  delta: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  def term(self, x: Array, w: Array) -> Array:
    """``h(x - w)``."""
    difference = x - w
    bounded = jnp.clip(difference, -self.delta, self.delta)
    return bounded * (difference - bounded / 2)


class Intersection(AdditiveKernel):
  """``sum min(x, w)``, the intersection of histograms.  Beyond the paper.

  Swain and Ballard, "Color Indexing", 1991.  Where x and w are equal they share the derivative.

  Example:
    >>> import jax.numpy as jnp
    >>> print(Intersection()(jnp.array([1.0, 2.0]), jnp.array([0.5, 4.0])))
    2.5
  """

  def term(self, x: Array, w: Array) -> Array:
    """``min(x, w)``."""
    return jnp.minimum(x, w)


class ChiSquared(AdditiveKernel):
  """``sum (x - w)**2 / (|x| + |w|)``, a distance of histograms; 0 where both are 0.

  Beyond the paper.  As in ``L1``, the derivative of ``|x|`` at 0 is taken as 0; so that of a pair
  of zeros is 0.

  Example:
    >>> import jax.numpy as jnp
    >>> print(ChiSquared()(jnp.array([1.0, 0.0]), jnp.array([3.0, 0.0])))
    1.0
  """

  def term(self, x: Array, w: Array) -> Array:
    """``(x - w)**2 / (|x| + |w|)``."""
    size = jnp.maximum(jnp.abs(x + w), jnp.abs(x - w))  # has derivative 0 where x or w is 0
    # The quotient first: a square would overflow.
    return (x - w) * ((x - w) / jnp.where(size == 0, 1, size))


class Minkowski(AdditiveKernel):
  """``(sum |x - w|**p) ** (1 / p)``, the Lp norm of the difference.  Beyond the paper.

  The largest term is factored out, so a ``p`` in the hundreds is as good as any.  The derivative at
  ``x == w`` is taken as 0.

  Attributes:
    p: >= 1; learned as ``1 + softplus(r)``.

  Example:
    >>> import jax.numpy as jnp
    >>> print(f"{Minkowski(p=2.0)(jnp.array([3.0, 4.0]), jnp.zeros(2)):.4f}")
    5.0000
  """

  reduction = "logsumexp"
  p: Hyperparameter = hyperparameter(default=3.0, constraint="at least 1")

  @property
  def temperature(self) -> Any:
    """``1 / p``: the norm's logarithm is a smooth maximum of the logarithms."""
    return 1 / jnp.asarray(self.p)

  def term(self, x: Array, w: Array) -> Array:
    """``log |x - w|``, minus infinity with derivative 0 where they are equal."""
    size = absolute_difference(x, w)
    zero = size < jnp.finfo(size.dtype).tiny
    return jnp.where(zero, -jnp.inf, jnp.log(jnp.where(zero, 1, size)))

  def profile(self, statistic: Array) -> Array:
    """``exp(statistic)``."""
    return jnp.exp(statistic)
