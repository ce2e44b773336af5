"""The statistic of an additive kernel: its terms, reduced without an array of all pairs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kerv_jax._operator.layout import channels_last, from_channels_last
from kerv_jax._operator.options import Options
from kerv_jax._operator.pairs import reduce_pairs
from kerv_jax._operator.reductions import MAX, MIN, SUM
from kerv_jax.kernels.additive import (
  AdditiveKernel,
  all_terms,
  exponential,
  finite,
  logarithm,
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
  """
  lhs, rhs, geo = channels_last(lhs, rhs, options)
  params, tree = jax.tree.flatten(kernel)
  params = tuple(params)
  if kernel.reduction in _PLAIN:
    out = reduce_pairs(_Term(tree), _PLAIN[kernel.reduction], lhs, rhs, geo, params)
    return from_channels_last(out, options)
  fixed = lax.stop_gradient((lhs, rhs, params))
  # What is factored out has no influence on the value, so it needs no derivative.
  largest = finite(reduce_pairs(_Term(tree), MAX, *fixed[:2], geo, fixed[2]))
  total = reduce_pairs(_Exponential(tree), SUM, lhs, rhs, geo, params, (largest,))
  temperature = jnp.asarray(kernel.temperature)  # pyright: ignore
  if temperature.ndim:
    temperature = temperature.reshape((1,) * (total.ndim - 1) + temperature.shape)
  return from_channels_last(largest + logarithm(total, temperature), options)


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
