"""How the loops of a CPU lay out what they run over."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from kerv_jax._operator.layout import Geometry

_ROWS = 8  # Rows of positions in a loop body of the filters' cotangent.
_PARTIAL = 1 << 17  # Partial sums kept of that, to fit a core's cache.
_BATCH_LAST = 8  # From this batch on it is the innermost axis, which is vectorized.


class Arrangement:
  """Where things lie: [group, channel or feature, *positions], the batch last or first of these."""

  def __init__(self, geo: Geometry) -> None:
    self.geo = geo
    self.batch_last = not isinstance(geo.batch, int) or geo.batch >= _BATCH_LAST
    self.grid = tuple(-(-n // s) for n, s in zip(geo.spatial, geo.strides, strict=True))

  def positions(self, space: Sequence[Any], batch: Any) -> tuple[Any, ...]:
    """Positions in space and batch in their order."""
    return (*space, batch) if self.batch_last else (batch, *space)

  @property
  def starts(self) -> np.ndarray:
    """Where in an input's layout each tap's view starts: (phase, channel, *positions)."""
    taps = np.indices(self.geo.window).reshape(len(self.geo.window), -1).T
    starts, phases = np.divmod(taps * np.array(self.geo.dilation), self.geo.strides)
    phase = np.ravel_multi_index(tuple(phases.T), self.geo.strides)
    starts = np.insert(starts, starts.shape[1] if self.batch_last else 0, 0, 1)
    return np.insert(starts, 0, [phase, 0 * phase], 1).astype(np.int32)

  def of_input(self, lhs: Array) -> Array:
    """An input as [groups, phases, channels, *grid]."""
    geo, rank = self.geo, len(self.geo.spatial)
    pads = [(0, g * s - n) for g, s, n in zip(self.grid, geo.strides, geo.spatial, strict=True)]
    lhs = jnp.pad(lhs, [(0, 0), *pads, (0, 0)])
    pairs = [n for pair in zip(self.grid, geo.strides, strict=True) for n in pair]
    lhs = lhs.reshape(geo.batch, *pairs, geo.groups, geo.channels)
    phases, space = range(2, 2 * rank + 1, 2), range(1, 2 * rank, 2)
    order = (2 * rank + 1, *phases, 2 * rank + 2, *self.positions(space, 0))
    shape = (geo.groups, math.prod(geo.strides), geo.channels)
    return lhs.transpose(order).reshape(*shape, *self.positions(self.grid, geo.batch))

  def of_filters(self, rhs: Array) -> Array:
    """Filters as [groups, taps, channels, features]; one for all features has one of these."""
    geo = self.geo
    shape = (math.prod(geo.window), geo.channels)
    if rhs.shape[-1] == 1:
      return jnp.broadcast_to(rhs.reshape(1, *shape, 1), (geo.groups, *shape, 1))
    return jnp.moveaxis(rhs.reshape(*shape, geo.groups, geo.features), 2, 0)

  def of_parameter(self, value: Array) -> Array:
    """A parameter as [groups, features]."""
    shape = (self.geo.groups, self.geo.features)
    return jnp.broadcast_to(value, shape) if value.ndim == 0 else value.reshape(shape)

  def of_output(self, out: Array) -> Array:
    """An array like the output as [groups, features, *out_spatial]."""
    out = out.reshape(*out.shape[:-1], self.geo.groups, self.geo.features)
    space = range(1, out.ndim - 2)
    return out.transpose(out.ndim - 2, out.ndim - 1, *self.positions(space, 0))

  def to_output(self, value: Array) -> Array:
    """The inverse of :meth:`of_output`."""
    batch = value.ndim - 1 if self.batch_last else 2
    space = [axis for axis in range(2, value.ndim) if axis != batch]
    return value.transpose(batch, *space, 0, 1).reshape(self.geo.out_shape)


class Rows(NamedTuple):
  """How positions in space are cut into ``count`` rows of ``lanes``, padded where need be.

  Sums over rows vectorize over lanes, whatever the axis of the batch beside these.
  """

  space: Any
  count: Any
  lanes: Any
  unroll: int

  @classmethod
  def of(cls, geo: Geometry) -> "Rows":
    space = math.prod(geo.out_spatial)
    if not isinstance(space, int) or not isinstance(geo.batch, int):  # one row of the image each
      return cls(space, geo.out_spatial[0], math.prod(geo.out_spatial[1:]), 1)
    size = space * geo.batch
    weights = geo.groups * geo.channels * geo.features
    count = min(max(-(-size * weights // _PARTIAL), 2 * _ROWS), -(-size // 16), space)
    lanes = space // count
    fitting = max(n for n in range(1, lanes + 1) if space % n == 0)
    lanes = fitting if 2 * fitting > lanes else -(-space // count)
    count = -(-space // lanes)
    unroll = max(n for n in range(1, _ROWS + 1) if count % n == 0)
    if 2 * unroll < _ROWS < count:
      unroll = _ROWS
      count = -(-count // unroll) * unroll
    return cls(space, count, lanes, unroll)
