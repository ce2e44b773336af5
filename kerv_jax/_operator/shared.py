"""Kervolution by patch statistics: what is computed for which output features, and shared."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from kerv_jax._operator.additive import reduced_terms
from kerv_jax._operator.options import Options
from kerv_jax._operator.statistics import STATISTICS, precise_product, squared_distance
from kerv_jax.kernels.additive import PairStatistic
from kerv_jax.kernels.base import Kernel
from kerv_jax.kernels.concatenate import take_features
from kerv_jax.kernels.definitions import INNER_PRODUCT, SQUARED_DISTANCE
from kerv_jax.kernels.pytree import map_leaves


def from_statistics(
  lhs: Array, rhs: Array, options: Options, parts: Sequence[tuple[int, int, Kernel]]
) -> Array:
  """Kervolution by patch statistics, each computed once for the features that need it.

  Args:
    lhs: the input, in the layout of ``options``.
    rhs: the filters.
    options: the resolved options, without batch groups.
    parts: first and last output feature (that one left out) of each range of them, and the kernel
      of that range; its hyperparameters of shape () or with a value for each feature of the range.

  Returns:
    The output, in its layout and in ``options.compute_dtype``.
  """
  axis = options.dimension_numbers.out_spec[1]
  own: list[dict[Any, Array]] = [{} for _ in parts]
  users: dict[Any, list[int]] = {}
  for i, (_, _, kernel) in enumerate(parts):
    for name in kernel.statistics or ():
      users.setdefault(name, []).append(i)
  product, distance = INNER_PRODUCT, SQUARED_DISTANCE
  shared = None
  for name in sorted(users, key=[product, *users].index):  # the product first: the distance has one
    ranges = [parts[i][:2] for i in users[name]]
    operands = _of_features(rhs, options, ranges)
    if name == product and users.get(distance) == users[name]:
      value = shared = precise_product(lhs, *operands)
    elif name == distance:
      value = squared_distance(lhs, *operands, shared)
    elif isinstance(name, PairStatistic):
      kernel = map_leaves(
        functools.partial(_of_all, ranges=ranges, options=operands[1]), name.kernel
      )
      value = reduced_terms(lhs, *operands, kernel)
    else:
      value = STATISTICS[name](lhs, *operands)
    first = 0
    for i, (start, stop) in zip(users[name], ranges, strict=True):
      if options.feature_group_count > 1:
        first = start  # all were computed
      own[i][name] = take_features(value, first, first + stop - start, axis)
      first += stop - start
  out = []
  for (start, stop, kernel), statistics in zip(parts, own, strict=True):
    vectors = map_leaves(lambda v: options.per_feature(v) if v.ndim else v, kernel)
    renamed = zip(vectors.statistics or (), kernel.statistics or (), strict=True)
    value = vectors.from_statistics({new: statistics[old] for new, old in renamed})
    shape = list(value.shape)
    shape[axis] = stop - start
    out.append(jnp.broadcast_to(value, shape) if len(parts) > 1 else value)
  return jnp.concatenate(out, axis)


def _of_all(leaf: Array, ranges: Sequence[tuple[int, int]], options: Options) -> Array:
  """A hyperparameter of every range of features as one of all that are computed."""
  if leaf.ndim == 0:
    return leaf
  if options.feature_group_count == 1:
    return jnp.concatenate([leaf] * len(ranges))
  # All features are computed; the values of those that nobody asks for are of no interest.
  whole = jnp.broadcast_to(leaf[:1], (options.features,))
  for start, _ in ranges:
    whole = lax.dynamic_update_slice(whole, leaf, (start,))
  return whole


def _of_features(
  rhs: Array, options: Options, ranges: Sequence[tuple[int, int]]
) -> tuple[Array, Options]:
  """The filters and options of some of the output features; of all where they are in groups."""
  features = sum(stop - start for start, stop in ranges)
  if features == options.features or options.feature_group_count > 1:
    return rhs, options
  axis = options.dimension_numbers.rhs_spec[0]
  taken = [lax.slice_in_dim(rhs, start, stop, axis=axis) for start, stop in ranges]
  return jnp.concatenate(taken, axis), dataclasses.replace(options, features=features)
