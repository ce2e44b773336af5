"""The statistic of an additive kernel: its terms, reduced without an array of all pairs."""

import dataclasses
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
from kerv_jax.kernels.additive import AdditiveKernel
from kerv_jax.kernels.definitions import absolute
from kerv_jax.kernels.reductions import (
  all_terms,
  exponential,
  finite,
  logarithm,
  norm_of,
  norm_scale,
  power,
)

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
  params, structure = tuple(params), _Kernel.of(tree, lhs.dtype)
  if kernel.reduction in _PLAIN:
    out = reduce_pairs(_Term(structure), _PLAIN[kernel.reduction], lhs, rhs, geo, params)
    return from_channels_last(out, options)
  through = _norm if kernel.reduction == "norm" else _smooth_maximum
  return from_channels_last(through(lhs, rhs, geo, params, structure), options)


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """A kernel without its hyperparameters, as what compiled programs are kept by.

  Attributes:
    tree: its structure.
    term: what its term is now, with all that it reads besides.
  """

  tree: Any
  term: Any

  @classmethod
  def of(cls, tree: Any, dtype: Any) -> "_Kernel":
    number = jax.ShapeDtypeStruct((), dtype)
    traced = jax.make_jaxpr(lambda x, w, *params: all_terms(tree.unflatten(params), x, w))
    jaxpr = traced(number, number, *[number] * tree.num_leaves)
    for const in jaxpr.consts:
      if isinstance(const, Tracer):
        raise ValueError(
          f"`term` of {tree.unflatten([1.0] * tree.num_leaves)!r} closes over a traced value of "
          f"shape {const.shape}: make it a hyperparameter of the class, which `term` reads from "
          "`self`"
        )
    return cls(tree, (str(jaxpr), *(np.asarray(const).tobytes() for const in jaxpr.consts)))

  def __call__(self, *params: Array) -> AdditiveKernel:
    return self.tree.unflatten(params)


def _smooth_maximum(
  lhs: Array, rhs: Array, geo: Geometry, params: tuple[Array, ...], structure: _Kernel
) -> Array:
  kernel: Any = structure(*params)
  fixed = lax.stop_gradient((lhs, rhs, params))
  # What is factored out has no influence on the value, so it needs no derivative.
  largest = finite(reduce_pairs(_Term(structure), MAX, *fixed[:2], geo, fixed[2]))
  total = reduce_pairs(_Exponential(structure), SUM, lhs, rhs, geo, params, (largest,))
  return largest + logarithm(total, _beside(kernel.temperature, total))


def _norm(
  lhs: Array, rhs: Array, geo: Geometry, params: tuple[Array, ...], structure: _Kernel
) -> Array:
  kernel: Any = structure(*params)
  p = kernel.p
  # An exponent that is a number, and an integer, costs a few products.
  known = isinstance(p, np.ndarray) and p.ndim == 0 and float(p).is_integer()
  fixed = lax.stop_gradient((lhs, rhs, params))
  largest = reduce_pairs(_Size(structure), MAX, *fixed[:2], geo, fixed[2])
  scale = norm_scale(largest)
  term = _Power(structure, int(p) if known else None)
  total = reduce_pairs(term, SUM, lhs, rhs, geo, params, (scale,))
  return norm_of(total, scale, _beside(p, total))


def _beside(value: Any, out: Array) -> Array:
  """A hyperparameter of shape () or (features,) beside an output in its own layout."""
  value = jnp.asarray(value)
  return value.reshape((1,) * (out.ndim - 1) + value.shape) if value.ndim else value


@dataclasses.dataclass(frozen=True)
class _Term:
  """The term of a kernel as a function of its hyperparameters too."""

  kernel: _Kernel

  def __call__(self, x: Array, w: Array, *params: Array) -> Array:
    return all_terms(self.kernel(*params), x, w)


@dataclasses.dataclass(frozen=True)
class _Exponential:
  """``exp((term - largest) / temperature)``."""

  kernel: _Kernel

  def __call__(self, x: Array, w: Array, *others: Array) -> Array:
    return exponential(self.kernel.tree, x, w, *others)


@dataclasses.dataclass(frozen=True)
class _Size:
  """The size of the term."""

  kernel: _Kernel

  def __call__(self, x: Array, w: Array, *params: Array) -> Array:
    return absolute(all_terms(self.kernel(*params), x, w))


@dataclasses.dataclass(frozen=True)
class _Power:
  """A power of the size of the term, scaled; the exponent is that of the kernel if it is None."""

  kernel: _Kernel
  exponent: int | None

  def __call__(self, x: Array, w: Array, *others: Array) -> Array:
    *params, scale = others
    kernel: Any = self.kernel(*params)
    size = absolute(all_terms(kernel, x, w)) * scale * scale
    return power(size, kernel.p) if self.exponent is None else lax.integer_pow(size, self.exponent)
