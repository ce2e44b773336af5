"""The plain definition: build the patches, apply the kernel function to each with each filter."""

import contextlib
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kerv_jax._operator.layout import channels_last, from_channels_last
from kerv_jax._operator.options import Options
from kerv_jax.kernels.base import Kernel, Range
from kerv_jax.kernels.ranges import take_features


def from_patches(lhs: Array, rhs: Array, options: Options, parts: Sequence[Range]) -> Array:
  """Kervolution by its definition, for any kernel function.

  Time and memory are those of all patches, and for a kernel that XLA cannot fuse of all pairs of
  patch and filter: this is what the other methods are tested against, and the fallback for
  functions that are none of patch statistics.

  Args:
    lhs: the input, in the layout of ``options``.
    rhs: the filters.
    options: the resolved options, without batch groups.
    parts: the ranges of output features, each with its kernel.

  Returns:
    The output, in its layout and in ``options.compute_dtype``.

  Raises:
    ValueError: if a kernel function does not return a real scalar for a patch and a filter.
  """
  lhs, rhs, geo = channels_last(lhs, rhs, options)
  length = math.prod(geo.window) * geo.channels
  # The batch stays an axis of its own, so that it may be sharded over devices.
  lead = (geo.batch, math.prod(geo.out_spatial), geo.groups)
  patches = geo.patches(lhs).reshape(*lead, length)
  filters = jnp.moveaxis(rhs.reshape(length, geo.groups, geo.features), 0, -1)
  out = []
  with _matmul_precision(options.precision):
    for start, stop, kernel_fn in parts:
      for first, last in _whole_groups(start, stop, max(filters.shape[1], 1)):
        own = jax.tree.map(
          lambda leaf, a=first - start, b=last - start: take_features(leaf, a, b, 0), kernel_fn
        )
        out.append(_of_range(own, patches, filters, first, last))
  out = jnp.concatenate(out, axis=-1)
  return from_channels_last(out.reshape(geo.out_shape), options)


def _whole_groups(start: int, stop: int, size: int) -> list[tuple[int, int]]:
  """Cuts a range of features into ranges that lie in one group or are whole groups."""
  first, last = -(-start // size) * size, stop // size * size
  if first >= last:  # no whole group in it
    cuts = [start, first, stop] if start < first < stop else [start, stop]
  else:
    cuts = sorted({start, first, last, stop})
  return list(itertools.pairwise(cuts))


def _of_range(kernel_fn: Kernel, patches: Array, filters: Array, first: int, last: int) -> Array:
  """The outputs of a range of features, (batch, positions, features), from all groups' patches."""
  size = max(filters.shape[1], 1)
  groups = slice(first // size, -(-last // size))
  patches, filters = patches[:, :, groups], filters[groups]
  if filters.shape[0] == 1:
    begin = groups.start * size
    filters = filters[:, first - begin : last - begin]
  per_filter = jax.tree.map(
    lambda leaf: jnp.broadcast_to(leaf, (last - first,)).reshape(filters.shape[:2]), kernel_fn
  )
  _require_scalar(kernel_fn, per_filter, filters)
  over_filters = jax.vmap(lambda kernel, patch, w: kernel(patch, w), (0, None, 0))
  over_groups = jax.vmap(over_filters)
  over_positions = jax.vmap(over_groups, (None, 0, None))
  out = jax.vmap(over_positions, (None, 0, None))(per_filter, patches, filters)
  return out.reshape(*out.shape[:2], last - first)


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
  if isinstance(precision, lax.DotAlgorithmPreset):
    return jax.default_matmul_precision(precision.name)
  if isinstance(precision, lax.DotAlgorithm):
    return contextlib.nullcontext()  # JAX has no such default
  both = precision if isinstance(precision, tuple) else (precision,)
  return jax.default_matmul_precision(max(both, key=lambda p: p.value).name.lower())
