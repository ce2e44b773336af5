"""Patch statistics at the cost of a convolution: one function each, no patches built.

Every function takes the operands in the layout of the resolved options and returns an array that
broadcasts with the output, in the output's layout and ``options.compute_dtype``.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from kerv_jax import kernels
from kerv_jax._absolute import absolute_distance as _absolute_distance
from kerv_jax._options import Options

# From this many taps on, a window sum along one axis is a `reduce_window`; below, shifted adds.
_SHIFTED_ADDS = 16


def inner_product(lhs: Array, rhs: Array, options: Options) -> Array:
  """``<patch, filter>``: the convolution.  Accumulates in ``options.compute_dtype``."""
  return convolve(lhs, rhs, options, preferred_element_type=options.compute_dtype)


def convolve(lhs: Array, rhs: Array, options: Options, *, preferred_element_type: object) -> Array:
  """``lax.conv_general_dilated`` with the resolved options.

  Args:
    lhs: the input.
    rhs: the filters, same dtype.
    options: the resolved options.
    preferred_element_type: as in ``lax``; None keeps the operands' dtype.

  Returns:
    The convolution, in the output's layout.
  """
  if preferred_element_type == lhs.dtype:
    preferred_element_type = None  # so that a kernel's program is the convolution's own
  return lax.conv_general_dilated(
    lhs,
    rhs,
    options.strides,
    options.padding,
    options.lhs_dilation,
    options.rhs_dilation,
    options.dimension_numbers,
    options.feature_group_count,
    options.batch_group_count,
    options.precision,
    preferred_element_type,
  )


def squared_distance(lhs: Array, rhs: Array, options: Options) -> Array:
  """``sum (patch - filter)**2`` as ``|x|^2 - 2<x, w> + |w|^2``, centred, never negative.

  The expansion cancels where patch and filter are close, in proportion to their norms.  So the
  same constant, each input feature's mean over the filters, is first taken from both, which
  changes no distance; and the product is in full precision unless the caller asks for less.  The
  constant depends on the filters alone: no batch item sees another.
  """
  lhs, rhs = lhs.astype(options.compute_dtype), rhs.astype(options.compute_dtype)
  centre = lax.stop_gradient(_filter_mean(rhs, options))
  lhs, options = _pad(lhs, options)
  lhs = lhs - _along(centre, lhs.ndim, options.dimension_numbers.lhs_spec[1])
  rhs = rhs - _centre_of_filters(centre, rhs, options)
  if options.precision is None:
    options = dataclasses.replace(options, precision=lax.Precision.HIGHEST)
  squares = _window_squares(lhs, options) + filter_squared_norm(lhs, rhs, options)
  distance = squares - 2 * inner_product(lhs, rhs, options)
  # Rounding can leave it below 0.  The bound must not reach the derivatives, which stay those of
  # the expansion, of any order: 0, and a second derivative of 2, where patch and filter are equal.
  return distance + lax.stop_gradient(jnp.maximum(distance, 0) - distance)


def absolute_distance(lhs: Array, rhs: Array, options: Options) -> Array:
  """``sum |patch - filter|``, in memory of the size of the output."""
  lhs, options = _pad(lhs.astype(options.compute_dtype), options)
  dnums = options.dimension_numbers
  distance = _absolute_distance(
    jnp.transpose(lhs, (dnums.lhs_spec[0], *dnums.lhs_spec[2:], dnums.lhs_spec[1])),
    jnp.transpose(rhs, (*dnums.rhs_spec[2:], dnums.rhs_spec[1], dnums.rhs_spec[0])).astype(
      options.compute_dtype
    ),
    strides=options.strides,
    rhs_dilation=options.rhs_dilation,
    groups=options.feature_group_count,
  )
  return from_channels_last(distance, options)


def patch_squared_norm(lhs: Array, rhs: Array, options: Options) -> Array:
  """``<patch, patch>``, the same for every feature of a group."""
  del rhs
  lhs, options = _pad(lhs.astype(options.compute_dtype), options)
  return _window_squares(lhs, options)


def filter_squared_norm(lhs: Array, rhs: Array, options: Options) -> Array:
  """``<filter, filter>``, the same at every position."""
  del lhs
  out_axis, *others = options.dimension_numbers.rhs_spec
  del out_axis
  squares = jnp.sum(jnp.square(rhs.astype(options.compute_dtype)), axis=tuple(others))
  return options.per_feature(squares)


STATISTICS: dict[str, Callable[[Array, Array, Options], Array]] = {
  kernels.INNER_PRODUCT: inner_product,
  kernels.SQUARED_DISTANCE: squared_distance,
  kernels.ABSOLUTE_DISTANCE: absolute_distance,
  kernels.PATCH_SQUARED_NORM: patch_squared_norm,
  kernels.FILTER_SQUARED_NORM: filter_squared_norm,
}
"""How each statistic a kernel may ask for is computed."""


def from_channels_last(out: Array, options: Options) -> Array:
  """Brings an output of layout (batch, *space, feature) into the layout of ``options``."""
  batch, feature, *space = options.dimension_numbers.out_spec
  order = [0] * out.ndim
  for source, axis in enumerate((batch, *space, feature)):
    order[axis] = source
  return jnp.transpose(out, order)


def _along(vector: Array, ndim: int, axis: int) -> Array:
  """A vector shaped to broadcast along one axis."""
  return vector.reshape([-1 if a == axis else 1 for a in range(ndim)])


def _pad(lhs: Array, options: Options) -> tuple[Array, Options]:
  """Pads and dilates the input with the zeros that a convolution only implies.

  Zero padding is data for a distance: a padded tap contributes ``|0 - w|``.
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
  return padded, dataclasses.replace(options, padding=no_padding, lhs_dilation=no_dilation)


def _filter_mean(rhs: Array, options: Options) -> Array:
  """Mean over taps and the group's filters, one value per input feature; 0 if not finite."""
  out_axis, in_axis, *space = options.dimension_numbers.rhs_spec
  per_filter = jnp.mean(jnp.transpose(rhs, (out_axis, in_axis, *space)), axis=range(2, rhs.ndim))
  groups = options.feature_group_count
  means = jnp.mean(per_filter.reshape(groups, -1, per_filter.shape[1]), axis=1).reshape(-1)
  return jnp.where(jnp.isfinite(means), means, 0)


def _centre_of_filters(centre: Array, rhs: Array, options: Options) -> Array:
  """The centre of each input feature, shaped to be taken from the filters."""
  out_axis, in_axis, *_ = options.dimension_numbers.rhs_spec
  groups = options.feature_group_count
  per_group = centre.reshape(groups, -1)  # (group, input feature of the group)
  if groups == 1:
    return _along(per_group[0], rhs.ndim, in_axis)
  per_filter = jnp.repeat(per_group, options.features // groups, axis=0)
  shape = [1] * rhs.ndim
  shape[out_axis], shape[in_axis] = per_filter.shape
  if out_axis > in_axis:
    per_filter = per_filter.T
  return per_filter.reshape(shape)


def _window_squares(lhs: Array, options: Options) -> Array:
  """Sum of squares over each window of a padded input, in the output's layout.

  The features of a group are summed first, so what the window runs over has one channel a group.
  """
  batch, feature, *space = options.dimension_numbers.lhs_spec
  groups = options.feature_group_count
  shape = lhs.shape
  grouped = lhs.reshape(
    *shape[:feature], groups, shape[feature] // groups, *shape[feature + 1 :]
  )
  sums = jnp.sum(jnp.square(grouped), axis=feature + 1)
  for axis, size, stride, dilation, out in zip(
    space, options.window, options.strides, options.rhs_dilation, options.out_spatial, strict=True
  ):
    sums = _window_sum(sums, axis, size, stride, dilation, out)
  sums = from_channels_last(jnp.transpose(sums, (batch, *space, feature)), options)
  if groups > 1:
    out_feature = options.dimension_numbers.out_spec[1]
    sums = jnp.repeat(sums, options.features // groups, axis=out_feature)
  return sums


def _window_sum(x: Array, axis: int, size: int, stride: int, dilation: int, out: int) -> Array:
  """Sums over a window along one axis; a window of several axes is one such sum after another."""
  if size > _SHIFTED_ADDS:
    ones = [1] * x.ndim
    window, strides, dilations = ones.copy(), ones.copy(), ones.copy()
    window[axis], strides[axis], dilations[axis] = size, stride, dilation
    zero = jnp.zeros((), x.dtype)
    return lax.reduce_window(x, zero, lax.add, window, strides, "VALID", None, dilations)
  span = (out - 1) * stride + 1
  total = None
  for tap in range(size):
    start = tap * dilation
    taken = lax.slice_in_dim(x, start, start + span, stride, axis)
    total = taken if total is None else total + taken
  assert total is not None  # a window has at least one tap
  return total
