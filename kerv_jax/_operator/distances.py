"""Inner product, distances and norms at the cost of a convolution: one function each, no patches.

Every function takes the operands in the layout of the resolved options and returns an array that
broadcasts with the output, in the output's layout and ``options.compute_dtype``.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kerv_jax._operator.layout import channels_last, from_channels_last, padded
from kerv_jax._operator.options import Options
from kerv_jax._operator.pairs import Pairwise, reduce_pairs
from kerv_jax._operator.reductions import SUM, Reduction
from kerv_jax.kernels.definitions import (
  ABSOLUTE_DISTANCE,
  ADDER_DISTANCE,
  FILTER_SQUARED_NORM,
  INNER_PRODUCT,
  PATCH_SQUARED_NORM,
  SQUARED_DISTANCE,
  absolute_difference,
  huber_difference,
  squared_difference,
  with_value,
)

# From this many taps on, a window sum along one axis is a `reduce_window`; below, shifted adds.
_SHIFTED_ADDS = 16
_SMALL_GROUP = 32 * 32
"""Channels times features, up to which the sum over pairs was measured to be the faster one."""


def inner_product(lhs: Array, rhs: Array, options: Options) -> Array:
  """``<patch, filter>``: the convolution.  Accumulates in ``options.compute_dtype``.

  In small groups it is a sum over pairs on CPU, where the derivatives of XLA's convolution take
  many times as long.
  """
  wider = None if lhs.dtype == options.compute_dtype else options.compute_dtype
  convolution = functools.partial(convolve, options=options, preferred_element_type=wider)
  groups = options.feature_group_count
  channels = rhs.shape[options.dimension_numbers.rhs_spec[1]]
  if groups == 1 or channels * (options.features // groups) > _SMALL_GROUP:
    return convolution(lhs, rhs)
  pairs = functools.partial(over_pairs, _product, SUM, options=options)
  return lax.platform_dependent(lhs, rhs, cpu=pairs, default=convolution)


def _product(x: Array, w: Array) -> Array:
  return x * w


def convolve(
  lhs: Array,
  rhs: Array,
  options: Options,
  *,
  preferred_element_type: Any,
  out_sharding: Any = None,
) -> Array:
  """``lax.conv_general_dilated`` with the resolved options.

  Args:
    lhs: the input.
    rhs: the filters, same dtype.
    options: the resolved options.
    preferred_element_type: as in ``lax``; None keeps the operands' dtype.
    out_sharding: as in ``lax``.

  Returns:
    The convolution, in the output's layout.
  """
  return lax.conv_general_dilated(
    lhs,
    rhs,
    options.strides,
    options.padding_name or options.padding,
    options.lhs_dilation,
    options.rhs_dilation,
    options.dimension_numbers,
    options.feature_group_count,
    options.batch_group_count,
    options.precision,
    preferred_element_type,
    out_sharding,
  )


def squared_distance(
  lhs: Array, rhs: Array, options: Options, product: Array | None = None
) -> Array:
  """``sum (patch - filter)**2`` as ``|x|^2 - 2<x, w> + |w|^2``, never negative.

  The expansion cancels where patch and filter are close: its error is that of the norms.  Where
  that would be more than about the square root of the dtype's precision, the distance is summed
  as it is defined, at the cost of an absolute distance; where it is nowhere so, that costs only
  the comparison.  The product is in full precision unless the caller asks for less; one that is
  needed for itself too is given, and shared.
  """
  lhs, rhs = lhs.astype(options.compute_dtype), rhs.astype(options.compute_dtype)
  options = _in_full_precision(options)
  norms = patch_squared_norm(lhs, rhs, options) + filter_squared_norm(lhs, rhs, options)
  # -2 goes into the small filters, and the cotangent of the expansion is then that of the product:
  # backward has one array of the output's size less to write.
  scaled = inner_product(lhs, -2 * rhs, options) if product is None else -2 * product
  expansion = norms + scaled
  frozen = lax.stop_gradient((lhs, rhs, norms, expansion))
  value = _without_cancellation(*frozen, options)
  # The derivatives of the expansion lose far less: the value is of second order in the difference,
  # they are of first.
  return with_value(expansion, value)


# Compiled as one, so that calls outside of `jit` do not compile the loop anew.
@functools.partial(jax.jit, static_argnames="options", inline=True)
def _without_cancellation(
  lhs: Array, rhs: Array, norms: Array, expansion: Array, options: Options
) -> Array:
  """The expansion, but the sum of squared differences wherever it has lost its accuracy.

  What is lost is marked by a negative number: one minimum, which XLA vectorizes as it does no test
  of a condition, then tells whether there is any.
  """
  # The negation holds for NaN too, where infinities or overflows have met.
  lost = ~(expansion >= 8 * jnp.finfo(expansion.dtype).eps ** 0.5 * norms)
  marked = jnp.where(lost, -1, expansion)

  def as_defined(marked: Array) -> Array:
    direct = over_pairs(squared_difference, SUM, lhs, rhs, options)
    return jnp.where(marked < 0, direct, marked)

  return lax.cond(_least(marked) < 0, as_defined, lambda marked: marked, marked)


@jax.custom_batching.custom_vmap
def _least(values: Array) -> Array:
  """The minimum over everything, all items of a ``vmap`` included: so that a branch stays one."""
  return jnp.min(values, initial=jnp.inf)


@_least.def_vmap
def _least_batched(axis_size: int, in_batched: list[bool], values: Array) -> tuple:
  del axis_size, in_batched
  return _least(values), False


def absolute_distance(lhs: Array, rhs: Array, options: Options) -> Array:
  """``sum |patch - filter|``, in memory of the size of the output."""
  return over_pairs(absolute_difference, SUM, lhs, rhs, options)


def adder_distance(lhs: Array, rhs: Array, options: Options) -> Array:
  """``sum |patch - filter|`` with an AdderNet's gradients, as in ``kernels.definitions``.

  That of the patches takes as long as an absolute distance's, that of the filters a convolution's.
  """
  lhs, rhs = lhs.astype(options.compute_dtype), rhs.astype(options.compute_dtype)
  fixed = lax.stop_gradient((lhs, rhs))
  to_patch = over_pairs(huber_difference, SUM, lhs, fixed[1], options)
  product = precise_product(fixed[0], rhs, options)
  to_filter = filter_squared_norm(lhs, rhs, options) / 2 - product
  return with_value(to_patch + to_filter, absolute_distance(*fixed, options))


def precise_product(lhs: Array, rhs: Array, options: Options) -> Array:
  """The inner product for what cancels: in ``options.compute_dtype``, in full precision."""
  lhs, rhs = lhs.astype(options.compute_dtype), rhs.astype(options.compute_dtype)
  return inner_product(lhs, rhs, _in_full_precision(options))


def _in_full_precision(options: Options) -> Options:
  """The same, with products in full precision unless the caller asks for less."""
  if options.precision is None:
    return dataclasses.replace(options, precision=lax.Precision.HIGHEST)
  return options


def over_pairs(
  term: Pairwise,
  reduction: Reduction,
  lhs: Array,
  rhs: Array,
  options: Options,
  params: tuple[Array, ...] = (),
) -> Array:
  """A pointwise function of the elements of patch and filter, reduced over the patch.

  Args:
    term: the function ``t(x, w, *params)``; hashable.
    reduction: how its values are brought together.
    lhs: the input, in the layout of ``options``.
    rhs: the filters.
    options: the resolved options, without batch groups.
    params: parameters of the function, of shape () or with a value for each output feature.

  Returns:
    The output, in its layout and in ``options.compute_dtype``, in memory of its size.
  """
  lhs, rhs, geometry = channels_last(lhs, rhs, options)
  return from_channels_last(reduce_pairs(term, reduction, lhs, rhs, geometry, params), options)


def patch_squared_norm(lhs: Array, rhs: Array, options: Options) -> Array:
  """``<patch, patch>``, the same for every feature of a group.

  The features of a group are summed first, so what the window runs over has one channel a group.
  """
  del rhs
  batch, feature, *space = options.dimension_numbers.lhs_spec
  groups, shape = options.feature_group_count, lhs.shape
  grouped = lhs.reshape(*shape[:feature], groups, shape[feature] // groups, *shape[feature + 1 :])
  sums = jnp.sum(jnp.square(grouped.astype(options.compute_dtype)), axis=feature + 1)
  sums, options = padded(sums, options)
  for axis, size, stride, dilation, out in zip(
    space, options.window, options.strides, options.rhs_dilation, options.out_spatial, strict=True
  ):
    sums = _window_sum(sums, axis, size, stride, dilation, out)
  sums = from_channels_last(jnp.transpose(sums, (batch, *space, feature)), options)
  if groups > 1:
    out_feature = options.dimension_numbers.out_spec[1]
    sums = jnp.repeat(sums, options.features // groups, axis=out_feature)
  return sums


def filter_squared_norm(lhs: Array, rhs: Array, options: Options) -> Array:
  """``<filter, filter>``, the same at every position."""
  del lhs
  taps_and_channels = options.dimension_numbers.rhs_spec[1:]
  squares = jnp.sum(jnp.square(rhs.astype(options.compute_dtype)), axis=taps_and_channels)
  return options.per_feature(squares)


STATISTICS: dict[str, Callable[[Array, Array, Options], Array]] = {
  INNER_PRODUCT: inner_product,
  SQUARED_DISTANCE: squared_distance,
  ABSOLUTE_DISTANCE: absolute_distance,
  ADDER_DISTANCE: adder_distance,
  PATCH_SQUARED_NORM: patch_squared_norm,
  FILTER_SQUARED_NORM: filter_squared_norm,
}
"""How each statistic a kernel may ask for is computed."""


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
