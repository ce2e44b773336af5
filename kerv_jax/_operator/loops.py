"""Reductions over pairs of patch and filter as loops, the form for CPUs.

No array of patches is ever built, nor one of all pairs.  Positions are laid out innermost, and
strides become phases (space to depth), so that the view of the input that one tap sees is a slice
of unit stride.  XLA then fuses some terms into one vectorized loop, split over the cores.  Slices
start at traced indices: XLA's CPU back end (JAX 0.10) did not vectorize the same loops over static
slices.  The batch stays an axis of its own, so that it may be sharded over devices.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kerv_jax._operator.arrangement import Arrangement, Rows
from kerv_jax._operator.layout import Geometry
from kerv_jax._operator.reductions import Operands, Reduction, Term

# More in a loop body compile longer; more terms also run longer, fewer features too.
_TERMS = 8
_FEATURES = 8  # of the input's cotangent


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
  layout = Arrangement(geo)
  positions = layout.positions(geo.out_spatial, geo.batch)
  count = math.prod(geo.window) * geo.channels
  starts = np.repeat(layout.starts, geo.channels, axis=0)
  starts[:, 1] = np.tile(np.arange(geo.channels), count // geo.channels)
  block = _terms_at_once(count)

  def of_group(operands: Operands) -> Any:
    weights = [w.reshape(count, -1) for w in operands.rhs]
    params = tuple(_beside(p, positions) for p in operands.params)

    def add(total: Any, each: Any) -> tuple[Any, None]:
      start, weights = each
      views = tuple(_taken(x, list(start), (1, 1, *positions))[0] for x in operands.lhs)
      filters = tuple(_beside(w, positions) for w in weights)
      return reduction.combine(total, term(views, filters, params, operands.outs)), None

    nothing = jnp.zeros((geo.features, *positions), operands.lhs[0].dtype)
    nothing += zero(*jax.tree.leaves(operands))
    start = jax.tree.map(lambda value: nothing + value, reduction.start)
    return lax.scan(add, start, (jnp.asarray(starts), weights), unroll=block)[0]

  arranged = Operands(
    tuple(map(layout.of_input, operands.lhs)),
    tuple(map(layout.of_filters, operands.rhs)),
    tuple(map(layout.of_parameter, operands.params)),
    tuple(map(layout.of_output, operands.outs)),
  )
  return jax.tree.map(layout.to_output, _each_group(of_group, geo.groups, arranged))


def cotangents(
  term: Term, operands: Operands, cotangent: Array, geo: Geometry
) -> tuple[Array, Array, tuple[Array, ...]]:
  """Transposes the derivative of a sum of a term, one tap after another.

  Args:
    term: a pointwise function; of its operands, the input, the first filters and the parameters
      are those whose cotangents are wanted.
    operands: where it is derived.
    cotangent: of the output, shape (batch, *out_spatial, features).
    geo: the static sizes.

  Returns:
    The cotangents of the input, of the filters and of each parameter.
  """
  layout, rows = Arrangement(geo), Rows.of(geo)
  positions = layout.positions(geo.out_spatial, geo.batch)
  axis = 1 if layout.batch_last else 2  # of space, where it is one axis
  lanes = layout.positions((rows.lanes,), geo.batch)
  block = _block(geo, rows)

  def one_space(value: Array) -> Array:
    """Positions in space as one axis, padded to whole rows."""
    value = value.reshape(value.shape[0], *layout.positions((rows.space,), geo.batch))
    pads = [(0, 0)] * value.ndim
    pads[axis] = (0, rows.count * rows.lanes - rows.space)
    return jnp.pad(value, pads)

  def row_of(value: Array, row: Array) -> Array:
    value = value.reshape(-1, *layout.positions((rows.count, rows.lanes), geo.batch))
    start, size = [0] * value.ndim, list(value.shape)
    start[axis], size[axis] = row, 1  # pyright: ignore
    return _taken(value, start, size).reshape(-1, *lanes)

  def of_group(operands: Operands, g: Array) -> tuple[Array, Array, tuple[Array, ...]]:
    (inputs,), weights, params, _ = operands
    outs = tuple(map(one_space, operands.outs))
    g = one_space(g)

    def add_tap(total: Array, tap: Any) -> tuple[Array, Any]:
      start, weight = tap  # each (channels, features)
      shape = (1, geo.channels, *positions)
      view = one_space(_taken(inputs, list(start), shape)[0])

      def add_feature(feature: Array, part: Array) -> Array:
        w = tuple(_taken(w, [0, feature], (geo.channels, 1)).reshape(-1, 1, 1) for w in weight)
        p = tuple(_taken(p, [feature], (1,)).reshape(1, 1, 1) for p in params)
        of_feature = lambda v: _taken(v, [feature, 0, 0], (1, *v.shape[1:]))  # noqa: E731
        y = tuple(map(of_feature, outs))
        return part + _to_input(term, view, w, p, y, of_feature(g))

      part = jnp.zeros_like(view) + zero(view, *weight, g)
      part = _loop(geo.features, _divisor(geo.features, _FEATURES), add_feature, part)
      part = lax.slice_in_dim(part, 0, rows.space, axis=axis).reshape(shape)
      part += _taken(total, list(start), shape)
      total = lax.dynamic_update_slice(total, part, list(start))

      def sum_rows(operands: Any) -> tuple[Array, tuple[Array, ...]]:
        x, w = operands
        full = (*w[0].shape, *lanes)
        w, *ws = (value.reshape(*value.shape, 1, 1) for value in w)
        p = tuple(p.reshape(1, -1, 1, 1) for p in params)

        def add_row(row: Array, parts: Any) -> Any:
          a = row_of(x, row)[:, None]
          y = tuple(row_of(y, row)[None] for y in outs)
          found = to_each_pair(term, a, (w, *ws), p, y, row_of(g, row)[None], full)
          return jax.tree.map(jnp.add, parts, found)

        zeros = jnp.zeros(full, x.dtype) + zero(x, w, g)
        parts = _loop(rows.count, rows.unroll, add_row, (zeros, (zeros,) * len(p)))
        # A product vectorizes; a sum would not.
        ones = jnp.ones(lanes, x.dtype)
        contract = ((2, 3), (0, 1)), ((), ())
        highest = lax.Precision.HIGHEST
        dw, dp = jax.tree.map(lambda part: lax.dot_general(part, ones, contract, highest), parts)
        return dw, tuple(value.sum(0) for value in dp)

      blocks = jax.tree.map(lambda v: v.reshape(-1, block, *v.shape[1:]), (view, weight))
      return total, lax.map(sum_rows, blocks)

    start = jnp.zeros_like(inputs) + zero(inputs, *weights, g)
    total, (dw, dp) = lax.scan(add_tap, start, (jnp.asarray(layout.starts), weights))
    return total, dw.reshape(weights[0].shape), tuple(value.sum((0, 1)) for value in dp)

  inputs, to_input = jax.vjp(layout.of_input, operands.lhs[0])
  weights, to_filters = jax.vjp(layout.of_filters, operands.rhs[0])
  numbers = tuple(map(layout.of_filters, operands.rhs[1:]))
  params, to_params = jax.vjp(lambda p: tuple(map(layout.of_parameter, p)), operands.params)
  g = layout.of_output(cotangent)
  outs = tuple(layout.of_output(y) * ones_after(g) for y in operands.outs)
  arranged = Operands((inputs,), (weights, *numbers), params, outs)
  found = _each_group(of_group, geo.groups, arranged, g)
  return *to_input(found[0]), *to_filters(found[1]), *to_params(found[2])


# Traced once for all steps of a loop body.
@functools.partial(jax.jit, static_argnums=0, inline=True)
def _to_input(term: Term, x: Array, w: Any, params: Any, outs: Any, g: Array) -> Array:
  """The cotangent of elements of an input."""
  _, pull = jax.vjp(lambda x: _to(x.shape, term((x,), w, params, outs)), x)
  return pull(_to(x.shape, g))[0]


@functools.partial(jax.jit, static_argnums=(0, 6), inline=True)
def to_each_pair(
  term: Term, x: Array, w: Any, params: Any, outs: Any, g: Array, pairs: tuple[Any, ...]
) -> tuple[Array, tuple[Array, ...]]:
  """The cotangents of filters and of parameters, before their sum over positions."""
  w, *ws = w
  _, pull = jax.vjp(
    lambda w, params: _to(pairs, term((x,), (w, *ws), params, outs)),
    _to(pairs, w),
    tuple(_to(pairs, value) for value in params),
  )
  return pull(_to(pairs, g))


def _block(geo: Geometry, rows: Rows) -> int:
  """How many channels have their partial sums over rows at once: those stay below the output."""
  if not isinstance(rows.space, int):
    return 1
  divisors = (n for n in range(1, geo.channels + 1) if geo.channels % n == 0)
  return max(n for n in divisors if n == 1 or n * rows.lanes <= rows.space)


def _terms_at_once(count: int) -> int:
  """How many of the terms are a loop body: about `_TERMS`, and a divisor of theirs if there is one.

  What is left over would be fused, with all that it needs, into each of what uses the result.
  """
  near = [n for n in range(-(-_TERMS // 2), 2 * _TERMS) if count % n == 0]
  return min(near, key=lambda n: (abs(n - _TERMS), n), default=_TERMS)


def _divisor(number: int, most: int) -> int:
  """The largest divisor up to a bound, but for two steps or more.

  XLA would fuse a loop of one step into what uses its result, and such a fusion runs on one core.
  """
  most = min(most, max(number // 2, 1))
  return max(n for n in range(1, most + 1) if number % n == 0)


def _loop(steps: Any, unroll: int, body: Callable[[Array, Any], Any], start: Any) -> Any:
  """``lax.fori_loop`` with so many steps in a loop body."""

  def several(i: Array, carry: Any) -> Any:
    for j in range(unroll):
      carry = body(i * unroll + j, carry)
    return carry

  return lax.fori_loop(0, steps // unroll, several, start)


def _each_group(function: Callable[..., Any], groups: int, *operands: Any) -> Any:
  """``jax.vmap`` over the groups; of one group without it, which compiles sooner."""
  if groups == 1:
    result = function(*jax.tree.map(lambda value: value[0], operands))
    return jax.tree.map(lambda value: value[None], result)
  return jax.vmap(function)(*operands)


def _taken(value: Array, start: Sequence[Any], size: Sequence[Any]) -> Array:
  return lax.dynamic_slice(value, start, size, allow_negative_indices=False)


def _to(shape: tuple[Any, ...], value: Array) -> Array:
  return jnp.broadcast_to(value, shape)


def _beside(value: Array, positions: Sequence[Any]) -> Array:
  """A vector over features with axes of size 1 for the positions."""
  return value.reshape(-1, *(1 for _ in positions))


def zero(*values: Array) -> Array:
  """A zero that varies over every axis of ``jax.shard_map`` that one of the values varies over.

  The type of a loop's carry says over which: over all that what is added to it varies over.
  """
  return sum((jnp.zeros_like(value, shape=()) for value in values), jnp.zeros((), values[0].dtype))


def ones_after(value: Array) -> Array:
  """Ones that wait for a value of their shape: XLA lays out early, and keeps, what need not wait.

  That they are ones is hidden from XLA; its barriers are gone when it orders operations.
  """
  bits = lax.bitcast_convert_type(value, f"int{8 * value.dtype.itemsize}")
  return (bits | 1 != 0).astype(value.dtype)
