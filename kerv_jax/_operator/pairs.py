r"""Reductions over all pairs of an element of a patch and of a filter, with their derivatives.

.. math:: \mathrm{out}_{n, p, o} = \operatorname{reduce}_i t(x_{n, p, i}, w_{o, i})

A distance that has no identity to make it a convolution is summed as it is defined, in memory of
the size of the output, first derivatives of any mode included; those of higher order are right, but
take more.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from kerv_jax._operator import depthwise, fused, loops
from kerv_jax._operator.layout import Geometry
from kerv_jax._operator.reductions import SUM, WHERE, Operands, Reduction, Term
from kerv_jax.kernels.reductions import where_kept

Pairwise = Callable[..., Array]
"""A pointwise function ``t(x, w, *params, *outs)``, hashable."""


def reduce_pairs(
  term: Pairwise,
  reduction: Reduction,
  lhs: Array,
  rhs: Array,
  geo: Geometry,
  params: tuple[Array, ...] = (),
  outs: tuple[Array, ...] = (),
) -> Array:
  """Reduces a pointwise function over the window and the channels.

  Args:
    term: the function of an element of the patch, one of the filter and the parameters.
    reduction: how its values are brought together.
    lhs: input (batch, *spatial, groups * channels), already padded.
    rhs: filters (*window, channels, groups * features), of the same dtype.
    geo: their sizes.
    params: parameters of the function, of shape () or (groups * features,).
    outs: further arguments of the function, shape (batch, *out_spatial, groups * features), with
      respect to which it is not derived; not for extreme values.

  Returns:
    Shape (batch, *out_spatial, groups * features).
  """
  if 0 in geo.window or geo.channels == 0 or 0 in geo.out_shape:
    return jnp.full(geo.out_shape, reduction.start, lhs.dtype)
  lhs, rhs, params, outs = _varying_alike((lhs, rhs, params, lax.stop_gradient(outs)))
  return _reduced(term, reduction, geo, lhs, rhs, params, outs)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _reduced(
  term: Pairwise,
  reduction: Reduction,
  geo: Geometry,
  lhs: Array,
  rhs: Array,
  params: tuple[Array, ...],
  outs: tuple[Array, ...],
) -> Array:
  return _differentiable(term, reduction, geo, lhs, rhs, params, outs)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _differentiable(
  term: Pairwise,
  reduction: Reduction,
  geo: Geometry,
  lhs: Array,
  rhs: Array,
  params: tuple[Array, ...],
  outs: tuple[Array, ...],
) -> Array:
  return _total(_Value(term), Operands((lhs,), (rhs,), params, outs), reduction, geo)


@functools.partial(_differentiable.defjvp, symbolic_zeros=True)
def _differentiable_jvp(
  term: Pairwise, reduction: Reduction, geo: Geometry, primals: Any, tangents: Any
) -> tuple[Array, Array]:
  if reduction in WHERE:
    (out, _), (change, _) = _extreme_jvp(term, reduction, geo, primals[:3], tangents[:3])
    return out, change
  out = _differentiable(term, reduction, geo, *primals)
  lhs, rhs, params, outs = primals
  operands = Operands((lhs,), (rhs,), tuple(params), tuple(outs))
  return out, _change(_Value(term), geo, operands, tangents, out)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _extreme(
  term: Pairwise,
  reduction: Reduction,
  geo: Geometry,
  lhs: Array,
  rhs: Array,
  params: tuple[Array, ...],
) -> tuple[Array, Array]:
  """The extreme value, and the number of the first pair that attains it."""
  return _total(
    _Numbered(term), Operands((lhs,), (rhs, _order(rhs)), params), WHERE[reduction], geo
  )


@functools.partial(_extreme.defjvp, symbolic_zeros=True)
def _extreme_jvp(
  term: Pairwise, reduction: Reduction, geo: Geometry, primals: Any, tangents: Any
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
  lhs, rhs, params = primals
  out, attaining = _extreme(term, reduction, geo, *primals)
  operands = Operands((lhs,), (rhs, _order(rhs)), tuple(params), (attaining,))
  change = _change(_Attained(term), geo, operands, tangents, out) * loops.ones_after(attaining)
  return (out, attaining), (change, jnp.zeros_like(attaining))


def _order(rhs: Array) -> Array:
  """The number of each pair, in the order (window position, channel), for all filters."""
  shape = (*rhs.shape[:-1], 1)
  return jnp.arange(math.prod(shape), dtype=rhs.dtype).reshape(shape)


def _change(term: Term, geo: Geometry, operands: Operands, tangents: Any, out: Array) -> Array:
  """The change of a sum of a term, where some of its operands change."""
  changes = [tangents[0], tangents[1], *tangents[2]]
  changed = tuple(not isinstance(change, SymbolicZero) for change in changes)
  if not any(changed):
    return jnp.zeros_like(out)
  present = [change for change, there in zip(changes, changed, strict=True) if there]
  return _linear(term, geo, changed, operands, present)


def _linear(
  term: Term, geo: Geometry, changed: tuple[bool, ...], operands: Operands, changes: list[Array]
) -> Array:
  """The derivative of the sum of a term, applied to changes of its operands.

  ``lax.custom_linear_solve`` is JAX's one public linear operation with a given transpose that also
  batches and has forward mode.  What it inverts is ``(d, y) -> (d, y - L d)`` where L is the
  derivative: so the solution of ``(d, 0)`` is ``(d, L d)``, and for a derivative of higher order
  JAX derives ``matvec``, which is L by the loops that JAX can derive.
  """
  tangent = _Tangent(term, changed, len(operands.rhs))

  def beside(changes: list[Array]) -> Operands:
    given = iter(changes)
    lhs, rhs, *params = (next(given) if there else None for there in changed)
    return Operands(
      operands.lhs if lhs is None else (*operands.lhs, lhs),
      operands.rhs if rhs is None else (*operands.rhs, rhs),
      (*operands.params, *(change for change in params if change is not None)),
      operands.outs,
    )

  def matvec(pair: Any) -> Any:
    changes, out = pair
    # A change of the operands must reach all that is solved for, if by nothing.
    unit = 1 + _nothing(jax.tree.leaves(operands))
    # Not to be kept for a transpose: JAX would keep an array of all pairs, used or not.
    derived = jax.checkpoint(lambda operands: loops.total(tangent, operands, SUM, geo))
    moved = out - derived(beside(changes))
    return [unit * change for change in changes], unit * moved

  def solve(_: Any, pair: Any) -> Any:
    changes, out = pair
    return changes, out + _total(tangent, beside(changes), SUM, geo)

  def transpose_solve(_: Any, pair: Any) -> Any:
    changes, out = pair
    lhs, rhs, params = _cotangents(term, operands, out, geo)
    found = [d for d, there in zip((lhs, rhs, *params), changed, strict=True) if there]
    return [a + d for a, d in zip(changes, found, strict=True)], out

  out = jnp.zeros(geo.out_shape, operands.lhs[0].dtype) + _nothing(changes)
  kept, solution = lax.custom_linear_solve(matvec, (changes, out), solve, transpose_solve)
  return solution + _nothing(kept)


def _nothing(values: list[Array]) -> Array:
  """A zero that is linear in every value: sums of none of their elements.

  All that is solved for has to be linear in the changes, also what is 0, and all of the solution
  has to be used.
  """
  parts = [jnp.sum(lax.slice_in_dim(jnp.atleast_1d(value), 0, 0, axis=-1)) for value in values]
  return functools.reduce(jnp.add, parts)


@functools.partial(jax.jit, static_argnums=(0, 2, 3), inline=True)
def _total(term: Term, operands: Operands, reduction: Reduction, geo: Geometry) -> Any:
  """The reduction in the form that suits the platform."""
  cpu, default = (
    functools.partial(form.total, term, reduction=reduction, geo=geo) for form in (loops, fused)
  )
  if not geo.unrolled:
    return cpu(operands)
  return lax.platform_dependent(operands, cpu=cpu, default=default)


@functools.partial(jax.jit, static_argnums=(0, 3), inline=True)
def _cotangents(
  term: Term, operands: Operands, cotangent: Array, geo: Geometry
) -> tuple[Array, Array, tuple[Array, ...]]:
  """The cotangents of the sum's operands in the form that suits the platform."""
  # An extreme value's, which compares numbers of pairs, is faster in loops.
  form = depthwise if depthwise.serves(geo) and not isinstance(term, _Attained) else loops
  cpu, default = (functools.partial(each.cotangents, term, geo=geo) for each in (form, fused))
  if not geo.unrolled:
    return cpu(operands, cotangent)
  return lax.platform_dependent(operands, cotangent, cpu=cpu, default=default)


@dataclasses.dataclass(frozen=True)
class _Value:
  """The term itself."""

  term: Pairwise

  def __call__(self, x: Any, w: Any, params: Any, outs: Any) -> Array:
    return self.term(x[0], w[0], *params, *outs)


@dataclasses.dataclass(frozen=True)
class _Numbered:
  """The term and the number of the pair, which stands beside the filters."""

  term: Pairwise

  def __call__(self, x: Any, w: Any, params: Any, outs: Any) -> tuple[Array, Array]:
    del outs
    return self.term(x[0], w[0], *params), w[1]


@dataclasses.dataclass(frozen=True)
class _Attained:
  """The term of the pair with the number that stands among the outputs, else 0."""

  term: Pairwise

  def __call__(self, x: Any, w: Any, params: Any, outs: Any) -> Array:
    return where_kept(self.term, w[1] == outs[0], x[0], w[0], *params)


@dataclasses.dataclass(frozen=True)
class _Tangent:
  """The derivative of a term, applied to changes that stand behind what is changed.

  Attributes:
    term: the term.
    changed: whether the input, the filters and each parameter are changed.
    filters: number of arrays like filters that the term itself is a function of.
  """

  term: Term
  changed: tuple[bool, ...]
  filters: int

  def __call__(self, x: Any, w: Any, params: Any, outs: Any) -> Array:
    count = len(self.changed) - 2
    primals = [x[0], w[0], *params[:count]]
    given = iter([*x[1:], *w[self.filters :], *params[count:]])
    tangents = [
      next(given) if there else jnp.zeros_like(primal)
      for primal, there in zip(primals, self.changed, strict=True)
    ]
    of = lambda x, v, *p: self.term((x,), (v, *w[1 : self.filters]), p, outs)  # noqa: E731
    return jax.jvp(of, primals, tangents)[1]


def _varying_alike(values: Any) -> Any:
  """Inside ``jax.shard_map``, what varies over an axis makes all of it vary over that.

  So the transpose of this, a sum over devices, comes once, after the loops.
  """
  if not jax.sharding.get_abstract_mesh().manual_axes:
    return values
  zero = loops.zero(*jax.tree.leaves(values))
  return jax.tree.map(lambda value: value + zero, values)
