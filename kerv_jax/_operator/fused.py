"""Reductions over pairs of patch and filter as fused loops, one for each tap of the window.

This is the form for accelerators: XLA fuses the broadcast of a tap's view of the input against the
filters with the reduction over it, so that no array of all pairs exists.  Batch, space and features
stay axes of their own, so shardings and symbolic sizes pass through.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kerv_jax._operator.layout import Geometry
from kerv_jax._operator.reductions import Operands, Reduction, Term

_STEPS = 9  # The window's taps are summed in so many steps, one after another: bounds the memory.
_FEW_CHANNELS = 8  # Of up to so many, XLA sums all taps in one loop, in no memory.


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
  result: Any = None  # (batch, *out_spatial, groups, features)
  for number, tap in enumerate(geo.taps):
    if geo.channels > _FEW_CHANNELS and number and number % _abreast(geo) == 0:
      operands, result = lax.optimization_barrier((operands, result))
    part = reduction.over(term(*seen(operands, geo, tap)), -2)
    result = part if result is None else reduction.combine(result, part)
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
  # What XLA takes for other operands: else it would keep the array of all pairs, which the
  # reductions could share, instead of computing it twice in passing.
  others = lax.optimization_barrier(operands)
  for number, tap in enumerate(geo.taps):
    if number and number % _abreast(geo) == 0:
      operands, others, g, lhs = lax.optimization_barrier((operands, others, g, lhs))
    dx, dw, dp = _pulled_back(term, seen(operands, geo, tap), seen(others, geo, tap), g)
    _, first, last = tap
    dx = dx.reshape(geo.batch, *geo.out_spatial, geo.groups * geo.channels)
    pads = [
      (a, n - b, s - 1) for a, b, n, s in zip(first, last, geo.spatial, geo.strides, strict=True)
    ]
    lhs += lax.pad(dx, jnp.zeros((), dx.dtype), [(0, 0, 0), *pads, (0, 0, 0)])
    rhs.append(jnp.moveaxis(dw.reshape(geo.groups, geo.channels, geo.features), 0, 1))
    params = [total + d.reshape(total.shape) for total, d in zip(params, dp, strict=True)]
  return lhs, jnp.stack(rhs).reshape(operands.rhs[0].shape), tuple(params)


# Traced once for all taps.
@functools.partial(jax.jit, static_argnums=0, inline=True)
def _pulled_back(term: Term, seen: Any, other: Any, g: Array) -> tuple[Any, ...]:
  """The cotangents of a tap's view; of its weights and of the parameters, from other operands."""

  def to_input() -> tuple[Array]:
    (x, *xs), *rest = seen
    out, pull = jax.vjp(lambda x: term((x, *xs), *rest), x)
    return pull(jnp.broadcast_to(g, out.shape))

  def to_others() -> tuple[Array, Any]:
    xs, (w, *ws), params, outs = other
    out, pull = jax.vjp(lambda w, params: term(xs, (w, *ws), params, outs), w, params)
    return pull(jnp.broadcast_to(g, out.shape))

  return *to_input(), *to_others()


def _abreast(geo: Geometry) -> int:
  """How many taps XLA may compute at once, each into an array of its own."""
  return -(-math.prod(geo.window) // _STEPS)


def seen(operands: Operands, geo: Geometry, tap: Any) -> Any:
  """The operands that a tap of the window sees, which broadcast.

  Their axes are (batch, *out_spatial, groups, channels, features).
  """
  index, first, last = tap
  lead = (1,) * (len(geo.window) + 1)

  def weights(rhs: Array) -> Array:
    shape = (1, 1) if rhs.shape[-1] == 1 else (geo.groups, geo.features)
    own = jnp.swapaxes(rhs[index].reshape(geo.channels, *shape), 0, 1)
    return own.reshape(*lead, shape[0], geo.channels, shape[1])

  views = tuple(geo.view(x, first, last)[..., None] for x in operands.lhs)
  params = tuple(
    p if p.ndim == 0 else p.reshape(*lead, geo.groups, 1, geo.features) for p in operands.params
  )
  outs = tuple(_outputs(y, geo) for y in operands.outs)
  return views, tuple(map(weights, operands.rhs)), params, outs


def _outputs(value: Array, geo: Geometry) -> Array:
  """An array like the output, shape (batch, *out_spatial, groups, 1, features)."""
  return value.reshape(*value.shape[:-1], geo.groups, 1, geo.features)
