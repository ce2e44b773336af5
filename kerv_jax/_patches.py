"""The plain definition: build the patches, apply the kernel function to each with each filter."""

import contextlib
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kerv_jax._kernel import Kernel
from kerv_jax._options import Options
from kerv_jax._statistics import from_channels_last


def from_patches(lhs: Array, rhs: Array, options: Options, kernel_fn: Kernel) -> Array:
  """Kervolution by its definition, for any kernel function.

  Time and memory are those of all patches, and for a kernel that XLA cannot fuse of all pairs of
  patch and filter: this is what the other methods are tested against, and the fallback for
  functions that are none of patch statistics.  An infinite input makes NaN of every patch in reach
  of it, as patches are taken by a convolution with zeros and ones.

  Args:
    lhs: the input, in the layout of ``options``.
    rhs: the filters.
    options: the resolved options, without batch groups.
    kernel_fn: the kernel; its hyperparameters of shape () or (features,).

  Returns:
    The output, in its layout and in ``options.compute_dtype``.

  Raises:
    ValueError: if the kernel function does not return a real scalar for a patch and a filter.
  """
  dnums, groups = options.dimension_numbers, options.feature_group_count
  lhs, rhs = lhs.astype(options.compute_dtype), rhs.astype(options.compute_dtype)
  last = len(options.window) + 1
  patches = lax.conv_general_dilated_patches(
    lhs,
    options.window,
    options.strides,
    options.padding,
    options.lhs_dilation,
    options.rhs_dilation,
    lax.ConvDimensionNumbers(dnums.lhs_spec, dnums.rhs_spec, (0, last, *range(1, last))),
    precision=lax.Precision.HIGHEST,  # it moves values: any less would round them
  )
  batch, *space = patches.shape[:-1]
  taps = math.prod(options.window)
  # Features come channel-major, (channel, tap); a filter's order is (tap, channel).
  channels = rhs.shape[dnums.rhs_spec[1]]
  patches = patches.reshape(batch * math.prod(space), groups, channels, taps)
  patches = jnp.swapaxes(patches, 2, 3).reshape(patches.shape[0], groups, taps * channels)
  filters = jnp.transpose(rhs, (dnums.rhs_spec[0], *dnums.rhs_spec[2:], dnums.rhs_spec[1]))
  filters = filters.reshape(groups, options.features // groups, taps * channels)
  per_filter = jax.tree.map(
    lambda leaf: jnp.broadcast_to(leaf, (options.features,)).reshape(filters.shape[:2]), kernel_fn
  )
  _require_scalar(kernel_fn, per_filter, filters)
  over_filters = jax.vmap(lambda kernel, patch, w: kernel(patch, w), (0, None, 0))
  over_groups = jax.vmap(over_filters)
  over_patches = jax.vmap(over_groups, (None, 0, None))
  with _matmul_precision(options.precision):
    out = over_patches(per_filter, patches, filters)
  return from_channels_last(out.reshape(batch, *space, options.features), options)


def _require_scalar(kernel_fn: Kernel, per_filter: Kernel, filters: Array) -> None:
  vector = jax.ShapeDtypeStruct(filters.shape[2:], filters.dtype)
  one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((), leaf.dtype), per_filter)
  out = jax.eval_shape(lambda kernel, patch, w: kernel(patch, w), one, vector, vector)
  ok = isinstance(out, jax.ShapeDtypeStruct) and out.shape == ()
  if not (ok and jnp.issubdtype(out.dtype, jnp.floating)):
    raise ValueError(
      f"`kernel_fn` must return a real scalar for a patch and a filter of shape {vector.shape}, "
      f"got {out} from {kernel_fn!r}"
    )


def _matmul_precision(precision: Any) -> contextlib.AbstractContextManager:
  """The caller's precision, for the products that the kernel function makes."""
  if precision is None:
    return contextlib.nullcontext()
  both = precision if isinstance(precision, tuple) else (precision,)
  return jax.default_matmul_precision(max(both, key=lambda p: p.value).name.lower())
