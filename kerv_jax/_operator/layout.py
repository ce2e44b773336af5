"""One layout for what runs over windows: batch, space, features, and padding that is there."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from kerv_jax._operator.options import Options

_MOST_TAPS = 128  # Of longer windows a program does not name each tap: it would compile for long.


class Geometry(NamedTuple):
  """Static sizes of inputs (batch, *spatial, groups * channels), padded, and of the filters.

  A size of the batch or of space may be symbolic, as ``jax.export`` has them.

  Attributes:
    batch: number of items.
    groups: number of groups of input and output features.
    channels: input features of a group.
    features: output features of a group.
    spatial: spatial shape of the padded input.
    window: spatial shape of the filters.
    strides: steps of the window.
    dilation: spacing of the window's taps.
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
    """Spatial shape of the output."""
    dims = zip(self.spatial, self.window, self.strides, self.dilation, strict=True)
    sizes = ((n - (k - 1) * d - 1) // s + 1 for n, k, s, d in dims)
    return tuple(max(n, 0) if isinstance(n, int) else n for n in sizes)

  @property
  def out_shape(self) -> tuple[int, ...]:
    """Shape (batch, *out_spatial, features) of the output."""
    return (self.batch, *self.out_spatial, self.groups * self.features)

  @property
  def taps(self) -> Iterator[tuple[tuple[int, ...], list[int], list[int]]]:
    """Each tap of the window, with where its view of the input starts and stops."""
    for tap in itertools.product(*map(range, self.window)):
      first = [i * d for i, d in zip(tap, self.dilation, strict=True)]
      last = [
        a + (n - 1) * s + 1 for a, n, s in zip(first, self.out_spatial, self.strides, strict=True)
      ]
      yield tap, first, last

  def view(self, lhs: Array, first: list[int], last: list[int]) -> Array:
    """What one tap sees of a padded input: shape (batch, *out_spatial, groups, channels)."""
    stop = [self.batch, *last, lhs.shape[-1]]
    view = lax.slice(lhs, [0, *first, 0], stop, [1, *self.strides, 1])
    return view.reshape(self.batch, *self.out_spatial, self.groups, self.channels)

  @property
  def unrolled(self) -> bool:
    """Whether the taps are few enough for a program that names each of them."""
    return math.prod(self.window) <= _MOST_TAPS

  def patches(self, lhs: Array) -> Array:
    """All patches of a padded input: shape (batch, *out_spatial, groups, taps, channels)."""
    shape = (self.batch, *self.out_spatial, self.groups, math.prod(self.window), self.channels)
    if self.unrolled:
      views = [self.view(lhs, first, last) for _, first, last in self.taps]
      return jnp.stack(views, axis=-2)
    rank = len(self.window)
    for i in range(rank):  # of the axes (batch, *out_spatial, *spatial left, features, *window)
      starts = jnp.arange(self.out_spatial[i]) * self.strides[i]
      taps = jnp.arange(self.window[i]) * self.dilation[i]
      lhs = jnp.take(lhs, starts[:, None] + taps[None], axis=i + 1)
      lhs = jnp.moveaxis(lhs, i + 2, -1)
    lhs = jnp.moveaxis(lhs, rank + 1, -1)
    lhs = lhs.reshape(*lhs.shape[: rank + 1], shape[-2], self.groups, self.channels)
    return jnp.swapaxes(lhs, -2, -3)


def channels_last(lhs: Array, rhs: Array, options: Options) -> tuple[Array, Array, Geometry]:
  """Brings the operands into the layout of :class:`Geometry`.

  Args:
    lhs: the input, in the layout of ``options``.
    rhs: the filters.
    options: the resolved options, without batch groups.

  Returns:
    The input (batch, *spatial, features), padded; the filters (*window, channels, features); both
    in ``options.compute_dtype``; and their sizes.
  """
  lhs, options = padded(lhs.astype(options.compute_dtype), options)
  rhs = rhs.astype(options.compute_dtype)
  lhs_batch, lhs_feature, *lhs_space = options.dimension_numbers.lhs_spec
  rhs_out, rhs_in, *rhs_space = options.dimension_numbers.rhs_spec
  lhs = jnp.transpose(lhs, (lhs_batch, *lhs_space, lhs_feature))
  rhs = jnp.transpose(rhs, (*rhs_space, rhs_in, rhs_out))
  geometry = Geometry(
    batch=lhs.shape[0],
    groups=options.feature_group_count,
    channels=rhs.shape[-2],
    features=options.features // options.feature_group_count,
    spatial=lhs.shape[1:-1],
    window=options.window,
    strides=options.strides,
    dilation=options.rhs_dilation,
  )
  return lhs, rhs, geometry


def from_channels_last(out: Array, options: Options) -> Array:
  """Brings an output of layout (batch, *space, feature) into the layout of ``options``."""
  batch, feature, *space = options.dimension_numbers.out_spec
  order = [0] * out.ndim
  for source, axis in enumerate((batch, *space, feature)):
    order[axis] = source
  return jnp.transpose(out, order)


def padded(lhs: Array, options: Options) -> tuple[Array, Options]:
  """Pads and dilates the input with the zeros that a convolution only implies.

  Zero padding is data for a distance: a padded tap contributes ``|0 - w|``.

  Args:
    lhs: the input, in the layout of ``options``.
    options: the resolved options.

  Returns:
    The input, and the options without padding and dilation of the input.
  """
  no_padding = ((0, 0),) * len(options.window)
  no_dilation = (1,) * len(options.window)
  if (options.padding, options.lhs_dilation) == (no_padding, no_dilation):
    return lhs, options
  config = [(0, 0, 0)] * lhs.ndim
  for axis, (low, high), dilation in zip(
    options.dimension_numbers.lhs_spec[2:], options.padding, options.lhs_dilation, strict=True
  ):
    config[axis] = (low, high, dilation - 1)
  padded = lax.pad(lhs, jnp.zeros((), lhs.dtype), config)
  return padded, dataclasses.replace(
    options, padding=no_padding, padding_name=None, lhs_dilation=no_dilation
  )
