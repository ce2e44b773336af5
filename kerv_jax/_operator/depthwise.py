"""Cotangents of sums over pairs where every channel is a group of its own, for CPUs.

With one channel and one feature in a group there is nothing that a tap's view of the input is used
for twice, so loops over channels and features only move memory.  The input's cotangent is here one
fused loop over all taps; the filters' is, for each row of the window, a loop over the rows of the
output, vectorized over the rest.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kerv_jax._operator import fused
from kerv_jax._operator.layout import Geometry
from kerv_jax._operator.loops import to_each_pair, zero
from kerv_jax._operator.reductions import Operands, Term


def serves(geo: Geometry) -> bool:
  """Whether the sizes are such that this form is the faster one; not in one dimension."""
  known = all(isinstance(size, int) for size in geo.out_shape)
  several = len(geo.window) > 1
  return (geo.channels, geo.features) == (1, 1) and several and known and geo.unrolled


def cotangents(
  term: Term, operands: Operands, cotangent: Array, geo: Geometry
) -> tuple[Array, Array, tuple[Array, ...]]:
  """Transposes the derivative of a sum of a term, as ``loops.cotangents`` does."""
  lhs, _, _ = fused.cotangents(term, operands, cotangent, geo)
  # What one row of the output sees through one row of the window.
  row = geo._replace(spatial=(1, *geo.spatial[1:]), window=(1, *geo.window[1:]))
  pairs = (geo.batch, 1, *geo.out_spatial[1:], geo.groups, 1, 1)

  def rows(value: Array, index: Array) -> Array:
    return lax.dynamic_slice_in_dim(value, index, 1, 1, allow_negative_indices=False)

  def of_window_row(window_row: Any) -> tuple[Array, tuple[Array, ...]]:
    first, filters = window_row

    def add(parts: Any, index: Array) -> tuple[Any, None]:
      inputs = tuple(rows(x, index * geo.strides[0] + first) for x in operands.lhs)
      outs = tuple(rows(y, index) for y in operands.outs)
      each = operands._replace(lhs=inputs, rhs=tuple(w[None] for w in filters), outs=outs)
      g = rows(cotangent, index).reshape(pairs)
      found = []
      for tap in row.taps:
        (x,), w, params, y = fused.seen(each, row, tap)
        found.append(to_each_pair(term, x, w, params, y, g, pairs))
      return jax.tree.map(jnp.add, parts, found), None

    nothing = jnp.zeros(pairs, cotangent.dtype) + zero(*jax.tree.leaves((operands, cotangent)))
    start = [(nothing, (nothing,) * len(operands.params)) for _ in row.taps]
    parts, _ = lax.scan(add, start, jnp.arange(geo.out_spatial[0]))
    of_group = jax.tree.map(lambda part: part.sum(tuple(range(len(pairs) - 3))).ravel(), parts)
    weights, params = zip(*of_group, strict=True)
    return jnp.stack(weights), jax.tree.map(lambda *taps: sum(taps), *params)

  firsts = jnp.arange(geo.window[0]) * geo.dilation[0]
  rhs, found = lax.map(of_window_row, (firsts, operands.rhs))
  params = tuple(
    d.sum() if p.ndim == 0 else d.sum(0) for d, p in zip(found, operands.params, strict=True)
  )
  return lhs, rhs.reshape(operands.rhs[0].shape), params
