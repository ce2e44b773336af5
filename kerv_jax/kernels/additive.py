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
from kerv_jax.kernels.definitions import absolute
from kerv_jax.kernels.fields import Hyperparameter, hyperparameter
from kerv_jax.kernels.reductions import (
  all_terms,
  exponential,
  finite,
  logarithm,
  norm_of,
  norm_scale,
  power,
  where_kept,
)

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
