"""Sums over a window of a function of the difference of patch and filter.

The absolute distance has no identity that would make it a convolution; nor has the squared
distance one that keeps its accuracy where patch and filter nearly cancel.  Here they are summed as
they are defined, term by term, in memory of the size of the output.

No array of patches is ever built. The batch is laid out innermost, as
``[..., last_spatial * batch]``, and strides become phases (space to depth), so
that the view of the input that one tap sees is a contiguous slice. XLA then
fuses some terms of the sum into one vectorised loop, split over the cores.
Slices start at traced indices: XLA's CPU back end (JAX 0.10) did not vectorise
the same loops over static slices.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from kerv_jax.kernels.definitions import huber

Array = jax.Array

_UNROLL = 32  # Terms fused in one loop body: bounds the compile time.
_ROWS = 8  # The same for the kernel's cotangent, a sum over rows of positions.
_PARTIAL = 1 << 17  # Partial sums kept of that cotangent, to fit a core's cache.


class Geometry(NamedTuple):
  """Static sizes; ``channels`` and ``features`` are those of one group.

  ``spatial`` is the input's, padded; ``dilation`` is the spacing of the window's taps.
  """

  batch: int
  groups: int
  channels: int
  features: int
  spatial: tuple[int, ...]
  window: tuple[int, ...]
  strides: tuple[int, ...]
  dilation: tuple[int, ...]

  @property
  def out_spatial(self) -> tuple[int, ...]:
    dims = zip(self.spatial, self.window, self.strides, self.dilation, strict=True)
    return tuple(max(0, (n - (k - 1) * d - 1) // s + 1) for n, k, s, d in dims)

  @property
  def out_shape(self) -> tuple[int, ...]:
    return (self.batch, *self.out_spatial, self.groups * self.features)

  @property
  def empty(self) -> bool:
    """Whether there is nothing to sum."""
    return 0 in self.out_shape or 0 in self.window or self.channels == 0

  @property
  def positions(self) -> tuple[int, ...]:
    """Shape of the output's positions, in the inner layout."""
    return (*self.out_spatial[:-1], self.out_spatial[-1] * self.batch)

  @property
  def starts(self) -> np.ndarray:
    """Where in ``_split``'s result each tap's view starts: [taps, 3 + rank]."""
    taps = np.indices(self.window).reshape(len(self.window), -1).T
    starts, phases = np.divmod(taps * np.array(self.dilation), self.strides)
    starts[:, -1] *= self.batch
    phase = np.ravel_multi_index(tuple(phases.T), self.strides)
    return np.insert(starts, 0, [phase, 0 * phase, 0 * phase], 1).astype(np.int32)


def _split(lhs: Array, geo: Geometry) -> Array:
  """Lays an input out as [phases, channels, groups, *grid, last grid * batch]."""
  rank = len(geo.spatial)
  grid = [-(-n // s) for n, s in zip(geo.spatial, geo.strides, strict=True)]
  pads = [(0, g * s - n) for g, s, n in zip(grid, geo.strides, geo.spatial, strict=True)]
  lhs = jnp.pad(lhs, [(0, 0), *pads, (0, 0)])
  pairs = [n for pair in zip(grid, geo.strides, strict=True) for n in pair]
  lhs = lhs.reshape(geo.batch, *pairs, geo.groups, geo.channels)
  order = (*range(2, 2 * rank + 1, 2), -1, -2, *range(1, 2 * rank, 2), 0)
  lhs = lhs.transpose(*(axis % lhs.ndim for axis in order))
  shape = (geo.channels, geo.groups, *grid[:-1], grid[-1] * geo.batch)
  return lhs.reshape(-1, *shape)


def _accumulate(
  term: Callable[..., Array], operands: Sequence[tuple[Array, Array]], geo: Geometry
) -> Array:
  """Sums a term of the differences of each operand over taps and channels.

  Args:
    term: Pointwise function of as many differences as there are operands.
    operands: Pairs (lhs, rhs) of the same shapes, such as values and tangents.
    geo: Static sizes.

  Returns:
    The sums, (batch, *out_spatial, features).
  """
  terms = math.prod(geo.window) * geo.channels
  starts = np.repeat(geo.starts, geo.channels, axis=0)
  starts[:, 1] = np.tile(np.arange(geo.channels), terms // geo.channels)
  shape = (geo.groups, geo.features, *(1 for _ in geo.positions))
  inputs = [_split(lhs, geo) for lhs, _ in operands]
  kernels = [rhs.reshape(terms, *shape) for _, rhs in operands]

  def add_term(total: Array, xs: Any) -> tuple[Array, None]:
    start, weights = xs
    size = (1, 1, geo.groups, *geo.positions)
    views = [lax.dynamic_slice(x, list(start), size)[0, 0] for x in inputs]
    return total + term(*(x[:, None] - w for x, w in zip(views, weights, strict=True))), None

  total = _zeros((*shape[:2], *geo.positions), *inputs, *kernels)
  xs = (jnp.asarray(starts), kernels)
  total, _ = lax.scan(add_term, total, xs, unroll=min(_UNROLL, terms))
  total = total.reshape(-1, *geo.out_spatial, geo.batch)
  return jnp.moveaxis(total, (-1, 0), (0, -1))


def _zeros(shape: tuple[int, ...], *terms: Array) -> Array:
  """Zeros to which terms made of these arrays are added in a loop.

  Inside ``jax.shard_map`` the type of a carry says over which axes it varies: over all that what
  is added to it varies over.
  """
  return sum((jnp.zeros_like(term, shape=()) for term in terms), jnp.zeros(shape, terms[0].dtype))


class _Term(NamedTuple):
  """A pointwise function of the difference and its derivative, whose own is taken as 0."""

  value: Callable[[Array], Array]
  slope: Callable[[Array], Array]


_ABSOLUTE = _Term(jnp.abs, jnp.sign)  # 0 at a tie
_HUBER = _Term(huber, functools.partial(jnp.clip, min=-1, max=1))


def _transpose(
  lhs: Array, rhs: Array, cotangent: Array, geo: Geometry, slope: Callable[[Array], Array]
) -> tuple[Array, Array]:
  """Returns the cotangents of both inputs, one tap after another."""
  inputs, unsplit = jax.vjp(lambda x: _split(x, geo), lhs)
  weights = rhs.reshape(-1, geo.channels, geo.groups, geo.features)
  # Positions are ``rows`` of ``lanes``: sums over rows vectorise. A block of
  # channels keeps its sums [block, groups, features, lanes] below the output.
  size = math.prod(geo.positions)
  rows = -(-size * weights[0].size // (_ROWS * _PARTIAL)) * _ROWS
  rows = min(max(rows, 2 * _ROWS), -(-size // 16))
  lanes = 16 * -(-size // (16 * rows))
  divisors = (n for n in range(1, geo.channels + 1) if geo.channels % n == 0)
  block = max(n for n in divisors if n == 1 or n * lanes <= size)
  # XLA would fuse a loop of one step into the update that uses its result,
  # and such a fusion runs on one core: keep two steps or more.
  steps = range(1, min(_UNROLL, geo.features // 2) + 1)
  unroll = max((n for n in steps if geo.features % n < 2), default=1)

  def flatten(value: Array, *shape: int) -> Array:
    pad = rows * lanes - size
    return jnp.pad(value.reshape(*shape, size), [(0, 0), (0, 0), (0, pad)])

  cotangent = jnp.moveaxis(cotangent, (0, -1), (-1, 0))
  cotangent = flatten(cotangent, geo.groups, geo.features)

  def add_tap(total: Array, tap: Any) -> tuple[Array, Array]:
    start, weight = tap
    shape = (1, geo.channels, geo.groups, *geo.positions)
    view = lax.dynamic_slice(inputs, list(start), shape)
    view = flatten(view, geo.channels, geo.groups)

    def add_feature(part: Array, feature: Array) -> tuple[Array, None]:
      w = lax.dynamic_index_in_dim(weight, feature, 2)
      g = lax.dynamic_index_in_dim(cotangent, feature, 1, keepdims=False)
      return part + slope(view - w) * g[None], None

    part = _zeros(view.shape, view, weight, cotangent)
    features = jnp.arange(geo.features)
    part, _ = lax.scan(add_feature, part, features, unroll=unroll)
    part = part[..., :size].reshape(shape)
    part += lax.dynamic_slice(total, list(start), shape)
    total = lax.dynamic_update_slice(total, part, list(start))

    def sum_rows(operands: tuple[Array, Array]) -> Array:
      x, w = operands

      def add_row(part: Array, row: Array) -> tuple[Array, None]:
        a = lax.dynamic_slice_in_dim(x, row * lanes, lanes, 2)[:, :, None]
        g = lax.dynamic_slice_in_dim(cotangent, row * lanes, lanes, 2)[None]
        return part + slope(a - w[..., None]) * g, None

      part = _zeros((*w.shape, lanes), x, w, cotangent)
      part, _ = lax.scan(add_row, part, jnp.arange(rows), unroll=_ROWS)
      ones = jnp.ones(lanes, x.dtype)  # A product vectorises; a sum would not.
      return -jnp.dot(part, ones, precision=lax.Precision.HIGHEST)

    blocks = (v.reshape(-1, block, *v.shape[1:]) for v in (view, weight))
    return total, lax.map(sum_rows, tuple(blocks))

  xs = (jnp.asarray(geo.starts), weights)
  start = _zeros(inputs.shape, inputs, weights, cotangent)
  total, kernel = lax.scan(add_tap, start, xs)
  return unsplit(total)[0], kernel.reshape(rhs.shape)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _distance(lhs: Array, rhs: Array, geo: Geometry, term: _Term) -> Array:
  return _accumulate(term.value, [(lhs, rhs)], geo)


@_distance.defjvp
def _distance_jvp(geo: Geometry, term: _Term, primals: Any, tangents: Any) -> tuple[Array, Array]:
  """Applies a linear map of the tangents whose transpose is given explicitly.

  ``lax.custom_linear_solve`` is JAX's one public linear operation with a given
  transpose that also batches and has forward mode. It solves for a vector of
  the same shape, hence one vector (lhs, rhs, out) for both sides; what it
  would invert, ``matvec``, is never called.
  """
  out = _distance(*primals, geo, term)
  lhs, rhs = lax.stop_gradient(primals)  # the slope has no derivative
  vector, unravel = ravel_pytree((*tangents, jnp.zeros_like(out)))

  def solve(_: Any, vector: Array) -> Array:
    *values, _ = unravel(vector)
    tangent = lambda difference, change: term.slope(difference) * change  # noqa: E731
    result = _accumulate(tangent, [(lhs, rhs), tuple(values)], geo)
    return ravel_pytree((*map(jnp.zeros_like, values), result))[0]

  def transpose_solve(_: Any, vector: Array) -> Array:
    value = unravel(vector)[2]
    cotangents = _transpose(lhs, rhs, value, geo, term.slope)
    return ravel_pytree((*cotangents, jnp.zeros_like(value)))[0]

  solution = lax.custom_linear_solve(lambda v: v, vector, solve, transpose_solve)
  return out, unravel(solution)[2]


@functools.partial(jax.jit, static_argnames="geo", inline=True)
def absolute_distance(lhs: Array, rhs: Array, geo: Geometry) -> Array:
  """Sums |lhs - rhs| over every window, as a VALID convolution sums products.

  Memory beyond the inputs and the output is of their order, derivatives of
  any mode and order included. The derivative at a tie, lhs == rhs, is 0.

  Args:
    lhs: Input (batch, *spatial, channels), already padded.
    rhs: Kernel (*window, channels // groups, features), of the same dtype.
    geo: Their sizes.

  Returns:
    Distances (batch, *out_spatial, features).
  """
  if geo.empty:
    return jnp.zeros(geo.out_shape, lhs.dtype)
  return _distance(lhs, rhs, geo, _ABSOLUTE)


@functools.partial(jax.jit, static_argnames="geo", inline=True)
def huber_distance(lhs: Array, rhs: Array, geo: Geometry) -> Array:
  """Sums the Huber function of lhs - rhs over every window; its slope is HardTanh.

  Args:
    lhs: As in :func:`absolute_distance`, and so are the others.
    rhs: The filters.
    geo: Their sizes.

  Returns:
    Sums (batch, *out_spatial, features).
  """
  if geo.empty:
    return jnp.zeros(geo.out_shape, lhs.dtype)
  return _distance(lhs, rhs, geo, _HUBER)


@functools.partial(jax.jit, static_argnames="geo", inline=True)
def direct_squared_distance(lhs: Array, rhs: Array, geo: Geometry) -> Array:
  """Sums (lhs - rhs)**2 over every window; not to be differentiated.

  Args:
    lhs: As in :func:`absolute_distance`, and so are the others.
    rhs: The filters.
    geo: Their sizes.

  Returns:
    Distances (batch, *out_spatial, features).
  """
  if geo.empty:
    return jnp.zeros(geo.out_shape, lhs.dtype)
  return _accumulate(jnp.square, [(lhs, rhs)], geo)
