"""Kernels that reduce a pointwise function of the elements of patch and filter: one's own.

Their statistic is computed without patches, whatever the function: see :class:`AdditiveKernel`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from kerv_jax.kernels.base import Kernel
from kerv_jax.kernels.definitions import absolute
from kerv_jax.kernels.fields import Hyperparameter, hyperparameter

REDUCTIONS = ("sum", "max", "min", "logsumexp", "norm")
_FIELDS: dict[str, dict[str, Any]] = {
  "logsumexp": {"temperature": {"default": 1.0, "constraint": "positive"}},
  "norm": {"p": {"default": 3.0, "constraint": "at least 1"}},
}
"""Hyperparameters that a reduction has, unless the class defines them."""


class AdditiveKernel(Kernel):
  """Base class of the kernels ``profile(reduce_i term(x_i, w_i))``; define ``term``.

  The literature calls kernels of the form ``sum_i k(x_i, w_i)`` additive.  A subclass defines
  ``term(x, w)``, a pointwise function of the elements of patch and filter, and may define
  ``profile(statistic)``, pointwise too, and ``reduction``:

  * ``"sum"``, the default;
  * ``"max"`` or ``"min"``; the derivative goes to the pair that attains the extreme value, to the
    first one in the order (window position, channel) where several do, NaN being beyond all;
  * ``"logsumexp"``, ``T log sum_i exp(term / T)``, a smooth maximum; such a class has a
    hyperparameter ``temperature``, T, positive and 1 by default, unless it defines one itself;
  * ``"norm"``, ``(sum_i |term|**p) ** (1 / p)`` for a hyperparameter ``p``, at least 1 and 3 by
    default, likewise.  The largest term is factored out, so a ``p`` in the hundreds is as good as
    any, and an integer that is not learned costs a few products.

  Time is that of a few operations on every pair, memory that of the output, with derivatives of
  either mode, also with respect to hyperparameters that ``term`` uses; those of higher order are
  right, but may take the memory of all pairs.  They are JAX's derivatives of ``term``, at kinks and
  ties too; a term may carry a ``jax.custom_jvp`` of its own, but not a ``jax.custom_vjp`` where it
  is to be batched or derived forward.  A traced value that ``term`` uses must be a hyperparameter:
  closing over one is an error.
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

  reduction: ClassVar[Literal["sum", "max", "min", "logsumexp", "norm"]] = "sum"

  def __init_subclass__(cls, **kwargs: Any) -> None:
    if cls.reduction not in REDUCTIONS:
      raise ValueError(
        f"`reduction` of {cls.__name__} must be one of {REDUCTIONS}, got {cls.reduction!r}"
      )
    for name, options in _FIELDS.get(cls.reduction, {}).items():
      if not hasattr(cls, name):
        cls.__annotations__ = {**inspect.get_annotations(cls), name: Hyperparameter}
        setattr(cls, name, hyperparameter(**options))
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
    params, tree = jax.tree.flatten(kernel)
    term = lambda x, w, *params: all_terms(tree.unflatten(params), x, w)  # noqa: E731
    terms = term(x, w, *params)
    reduction = self.kernel.reduction
    if reduction == "sum":
      return jnp.sum(terms, axis=-1)
    if reduction == "logsumexp":
      largest = lax.stop_gradient(jnp.max(terms, axis=-1, keepdims=True, initial=-jnp.inf))
      exponentials = exponential(tree, x, w, *params, finite(largest))
      total, temperature = exponentials.sum(axis=-1, keepdims=True), kernel.temperature  # pyright: ignore
      return (finite(largest) + logarithm(total, jnp.asarray(temperature, total.dtype)))[..., 0]
    if reduction == "norm":
      size = absolute(terms)
      largest = lax.stop_gradient(jnp.max(size, axis=-1, keepdims=True, initial=0))
      scale, p = norm_scale(largest), jnp.asarray(kernel.p, size.dtype)  # pyright: ignore
      total = power(size * scale * scale, p).sum(axis=-1, keepdims=True)
      return norm_of(total, scale, p)[..., 0]
    if not terms.shape[-1]:
      return jnp.full(terms.shape[:-1], -jnp.inf if reduction == "max" else jnp.inf, terms.dtype)
    # That of jnp.max would be shared by ties.
    first = (jnp.argmax if reduction == "max" else jnp.argmin)(terms, axis=-1, keepdims=True)
    numbers = lax.broadcasted_iota(first.dtype, terms.shape, terms.ndim - 1)
    attained = where_kept(term, numbers == first, x, w, *params)
    return jnp.sum(attained, axis=-1)


def all_terms(kernel: AdditiveKernel, x: Array, w: Array) -> Array:
  """The term of every pair, also where it is a function of ``x`` or of ``w`` alone.

  Args:
    kernel: the kernel, with hyperparameters that broadcast with ``x`` and ``w``.
    x: elements of patches.
    w: elements of filters, of the same dtype.

  Returns:
    The terms in the shape that all of these broadcast to, and in their dtype.

  Raises:
    ValueError: if ``term`` returns another shape, complex numbers, or none.
  """
  found = kernel.term(x, w)
  if not isinstance(found, Array | np.ndarray | np.generic | float | int):
    raise ValueError(
      f"`term` of {type(kernel).__name__} must return an array of real numbers, got {found!r}"
    )
  value = jnp.asarray(found)
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


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def where_kept(function: Callable[..., Array], keep: Array, *args: Any) -> Array:
  """A pointwise function where it is kept, else 0; so are its derivatives, were they infinite."""
  return jnp.where(keep, function(*args), 0)


@functools.partial(where_kept.defjvp, symbolic_zeros=True)
def _where_kept_jvp(function: Callable[..., Array], primals: Any, tangents: Any) -> tuple:
  keep, *args = primals
  out = where_kept(function, keep, *args)
  total = jnp.zeros_like(out)
  for i, (arg, change) in enumerate(zip(args, tangents[1:], strict=True)):
    if not isinstance(change, SymbolicZero):
      alone = lambda value, i=i: function(*args[:i], value, *args[i + 1 :])  # noqa: E731
      slope = jax.jvp(alone, (arg,), (jnp.ones_like(arg),))[1]
      total += jnp.where(keep, slope, 0) * change
  return out, total


def exponential(tree: Any, x: Array, w: Array, *others: Array) -> Array:
  """``exp((term - largest) / temperature)``; a constant 0 where the term is minus infinity.

  Args:
    tree: the structure of the kernel.
    x: elements of patches.
    w: elements of filters.
    *others: the hyperparameters of the kernel, and what is subtracted.

  Returns:
    The values, in the shape that all of these broadcast to.
  """

  def value(x: Array, w: Array, *others: Array) -> Array:
    *params, largest = others
    kernel = tree.unflatten(params)
    difference = all_terms(kernel, x, w) - largest
    return jnp.exp(difference / jnp.asarray(kernel.temperature, difference.dtype))

  kept = all_terms(tree.unflatten(others[:-1]), x, w) != -jnp.inf
  return where_kept(value, kept, x, w, *others)


@jax.custom_jvp
def logarithm(total: Array, temperature: Array) -> Array:
  """``temperature * log(total)``; a constant minus infinity at 0."""
  return temperature * jnp.log(total)


@logarithm.defjvp
def _logarithm_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
  (total, temperature), (change, of_temperature) = primals, tangents
  least = jnp.maximum(total, 0.5)  # it is 0, or at least 1
  slope = temperature / least * change + jnp.log(least) * of_temperature
  return logarithm(total, temperature), slope


def norm_scale(largest: Array) -> Array:
  """What sizes are multiplied with, twice, to be at most about 1: so that no power overflows."""
  bounds = jnp.finfo(largest.dtype)
  return lax.rsqrt(jnp.clip(largest, bounds.tiny, bounds.max))


@jax.custom_jvp
def power(size: Array, exponent: Array) -> Array:
  """``size ** exponent`` of sizes >= 0, where 0 is the least normal number."""
  return jnp.exp(exponent * _logarithm(size))


@power.defjvp
def _power_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
  (size, exponent), (change, of_exponent) = primals, tangents
  out = power(size, exponent)
  by_size = exponent * power(size, exponent - 1)
  return out, by_size * change + out * _logarithm(size) * of_exponent


def _logarithm(size: Array) -> Array:
  return jnp.log(jnp.maximum(size, jnp.finfo(size.dtype).tiny))


@jax.custom_jvp
def norm_of(total: Array, scale: Array, p: Array) -> Array:
  """The norm, from the sum of the powers of sizes that were multiplied with a scale twice."""
  root = jnp.where(_nothing(total), 0, jnp.exp(jnp.log(total) / p))
  return root / scale / scale


@norm_of.defjvp
def _norm_of_jvp(
  primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]
) -> tuple[Array, Array]:
  """That of a fixed scale."""
  (total, scale, p), (change, _, of_p) = primals, tangents
  norm, total = norm_of(total, scale, p), jnp.where(_nothing(total), 1, total)
  return norm, norm / (p * total) * change - norm * jnp.log(total) / p**2 * of_p


def _nothing(total: Array) -> Array:
  """Whether all sizes are 0: else the largest has a power of about 1."""
  return total < jnp.finfo(total.dtype).tiny ** 0.5
