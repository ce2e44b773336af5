"""The statistic of an additive kernel: its terms, reduced without an array of all pairs."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer

from kerv_jax._operator.layout import Geometry, channels_last, from_channels_last
from kerv_jax._operator.options import Options
from kerv_jax._operator.pairs import reduce_pairs
from kerv_jax._operator.reductions import MAX, MIN, SUM
from kerv_jax.kernels.additive import (
  AdditiveKernel,
  all_terms,
  exponential,
  finite,
  logarithm,
  norm_of,
  norm_scale,
  power,
)
from kerv_jax.kernels.definitions import absolute

_PLAIN = {"sum": SUM, "max": MAX, "min": MIN}


def reduced_terms(lhs: Array, rhs: Array, options: Options, kernel: AdditiveKernel) -> Array:
  """Reduces the terms of an additive kernel over every patch and filter.

  Args:
    lhs: the input, in the layout of ``options``.
    rhs: the filters.
    options: the resolved options, without batch groups.
    kernel: the kernel, with hyperparameters of shape () or (features,).

  Returns:
    The output, in its layout and in ``options.compute_dtype``, in memory of its size.

  Raises:
    ValueError: if the term closes over a traced value.
  """
  lhs, rhs, geo = channels_last(lhs, rhs, options)
  params, tree = jax.tree.flatten(kernel)
  _require_closed(tree, lhs.dtype)
  params = tuple(params)
  if kernel.reduction in _PLAIN:
    out = reduce_pairs(_Term(tree), _PLAIN[kernel.reduction], lhs, rhs, geo, params)
    return from_channels_last(out, options)
  through = _norm if kernel.reduction == "norm" else _smooth_maximum
  return from_channels_last(through(lhs, rhs, geo, params, kernel), options)


@functools.lru_cache
def _require_closed(tree: Any, dtype: Any) -> None:
  """A derivative does not reach what a term closes over, and a trace that is kept must not."""
  number = jax.ShapeDtypeStruct((), dtype)
  jaxpr = jax.make_jaxpr(_Term(tree))(number, number, *[number] * tree.num_leaves)
  traced = [const for const in jaxpr.consts if isinstance(const, Tracer)]
  if traced:
    raise ValueError(
      f"`term` of {tree.unflatten([1.0] * tree.num_leaves)!r} closes over a traced value of shape "
      f"{traced[0].shape}: make it a hyperparameter of the class, which `term` reads from `self`"
    )


def _smooth_maximum(
  lhs: Array, rhs: Array, geo: Geometry, params: tuple[Array, ...], kernel: AdditiveKernel
) -> Array:
  tree = jax.tree.structure(kernel)
  fixed = lax.stop_gradient((lhs, rhs, params))
  # What is factored out has no influence on the value, so it needs no derivative.
  largest = finite(reduce_pairs(_Term(tree), MAX, *fixed[:2], geo, fixed[2]))
  total = reduce_pairs(_Exponential(tree), SUM, lhs, rhs, geo, params, (largest,))
  return largest + logarithm(total, _beside(kernel.temperature, total))  # pyright: ignore


def _norm(
  lhs: Array, rhs: Array, geo: Geometry, params: tuple[Array, ...], kernel: AdditiveKernel
) -> Array:
  tree = jax.tree.structure(kernel)
  p: Any = kernel.p  # pyright: ignore
  # An exponent that is a number, and an integer, costs a few products.
  known = isinstance(p, np.ndarray) and p.ndim == 0 and float(p).is_integer()
  fixed = lax.stop_gradient((lhs, rhs, params))
  largest = reduce_pairs(_Size(tree), MAX, *fixed[:2], geo, fixed[2])
  scale = norm_scale(largest)
  term = _Power(tree, int(p) if known else None)
  total = reduce_pairs(term, SUM, lhs, rhs, geo, params, (scale,))
  return norm_of(total, scale, _beside(p, total))


def _beside(value: Any, out: Array) -> Array:
  """A hyperparameter of shape () or (features,) beside an output in its own layout."""
  value = jnp.asarray(value)
  return value.reshape((1,) * (out.ndim - 1) + value.shape) if value.ndim else value


@dataclasses.dataclass(frozen=True)
class _Term:
  """The term of a kernel as a function of its hyperparameters too."""

  tree: Any

  def __call__(self, x: Array, w: Array, *params: Array) -> Array:
    return all_terms(self.tree.unflatten(params), x, w)


@dataclasses.dataclass(frozen=True)
class _Exponential:
  """``exp((term - largest) / temperature)``."""

  tree: Any

  def __call__(self, x: Array, w: Array, *others: Array) -> Array:
    *params, largest = others
    kernel = self.tree.unflatten(params)
    return exponential(all_terms(kernel, x, w) - largest, kernel.temperature)


@dataclasses.dataclass(frozen=True)
class _Size:
  """The size of the term."""

  tree: Any

  def __call__(self, x: Array, w: Array, *params: Array) -> Array:
    return absolute(all_terms(self.tree.unflatten(params), x, w))


@dataclasses.dataclass(frozen=True)
class _Power:
  """A power of the size of the term, scaled; the exponent is that of the kernel if it is None."""

  tree: Any
  exponent: int | None

  def __call__(self, x: Array, w: Array, *others: Array) -> Array:
    *params, scale = others
    kernel = self.tree.unflatten(params)
    size = absolute(all_terms(kernel, x, w)) * scale * scale
    return power(size, kernel.p) if self.exponent is None else lax.integer_pow(size, self.exponent)
