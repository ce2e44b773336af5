"""Reductions over pairs of patch and filter as fused loops, one for each tap of the window.

This is the form for accelerators: XLA fuses the broadcast of a tap's view of the input against the
filters with the reduction over it, so that no array of all pairs exists.  Batch, space and features
stay axes of their own, so shardings and symbolic sizes pass through.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kerv_jax._operator.layout import Geometry
from kerv_jax._operator.reductions import Operands, Reduction, Term


def total(term: Term, operands: Operands, reduction: Reduction, geo: Geometry) -> Any:
  """Reduces a term over all pairs of an element of a patch and of a filter.

  Args:
    term: the pointwise function.
    operands: what it is a function of.
    reduction: how its values are brought together.
    geo: the static sizes.

  Returns:
    Shape (batch, *out_spatial, features); a tuple of these for a reduction of tuples.
  """
  parts = [reduction.over(term(*values), -2) for values, _ in _taps(operands, geo)]
  result = functools.reduce(reduction.combine, parts)  # (batch, *out_spatial, groups, features)
  return jax.tree.map(lambda value: value.reshape(geo.out_shape), result)


def cotangents(
  term: Term, operands: Operands, cotangent: Array, geo: Geometry
) -> tuple[Array, Array, tuple[Array, ...]]:
  """Transposes the derivative of a sum of a term.

  Args:
    term: a pointwise function; of its operands, the first input and filters and the parameters
      are those whose cotangents are wanted.
    operands: where it is derived.
    cotangent: of the output, shape (batch, *out_spatial, features).
    geo: the static sizes.

  Returns:
    The cotangents of the input, of the filters and of each parameter.
  """
  g = _outputs(cotangent, geo)
  lhs = jnp.zeros_like(operands.lhs[0])
  rhs = []
  params = [jnp.zeros_like(value) for value in operands.params]
  for values, (first, last) in _taps(operands, geo):
    dx, dw, dp = _pulled_back(term, values, g)
    dx = dx.reshape(geo.batch, *geo.out_spatial, geo.groups * geo.channels)
    pads = [
      (a, n - b, s - 1) for a, b, n, s in zip(first, last, geo.spatial, geo.strides, strict=True)
    ]
    lhs += lax.pad(dx, jnp.zeros((), dx.dtype), [(0, 0, 0), *pads, (0, 0, 0)])
    rhs.append(jnp.moveaxis(dw.reshape(geo.groups, geo.channels, geo.features), 0, 1))
    params = [total + d.reshape(total.shape) for total, d in zip(params, dp, strict=True)]
  return lhs, jnp.stack(rhs).reshape(operands.rhs[0].shape), tuple(params)


def _pulled_back(term: Term, values: Any, g: Array) -> tuple[Array, Array, tuple[Array, ...]]:
  """The cotangents of a tap's view, of its weights and of the parameters."""
  (x, *xs), (w, *ws), params, outs = values

  def of(x: Array, w: Array, params: tuple[Array, ...]) -> Array:
    return term((x, *xs), (w, *ws), params, outs)

  out, to_input = jax.vjp(lambda x: of(x, w, params), x)
  g = jnp.broadcast_to(g, out.shape)
  # From operands that XLA takes for others: else it would keep the array of all pairs, which the
  # reductions could share, instead of computing it twice in passing.
  other, weights = lax.optimization_barrier((x, w))
  _, to_others = jax.vjp(lambda w, params: of(other, w, params), weights, params)
  return *to_input(g), *to_others(g)


def _taps(operands: Operands, geo: Geometry) -> Iterator[tuple[Any, Any]]:
  """The operands that each tap of the window sees, which broadcast, and where its view lies.

  Their axes are (batch, *out_spatial, groups, channels, features).
  """
  rank = len(geo.window)
  lead = (1,) * (rank + 1)
  filters = [
    jnp.moveaxis(w.reshape(*geo.window, geo.channels, geo.groups, geo.features), -2, -3)
    for w in operands.rhs
  ]
  params = tuple(
    p if p.ndim == 0 else p.reshape(*lead, geo.groups, 1, geo.features) for p in operands.params
  )
  outs = tuple(_outputs(y, geo) for y in operands.outs)
  for tap, first, last in geo.taps:
    views = tuple(geo.view(x, first, last)[..., None] for x in operands.lhs)
    weights = tuple(w[tap].reshape(*lead, *w.shape[-3:]) for w in filters)
    yield (views, weights, params, outs), (first, last)


def _outputs(value: Array, geo: Geometry) -> Array:
  """An array like the output, shape (batch, *out_spatial, groups, 1, features)."""
  return value.reshape(*value.shape[:-1], geo.groups, 1, geo.features)
