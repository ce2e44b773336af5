"""Kervolution by patch statistics: what is computed for which output features, and shared."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from kerv_jax._operator.additive import reduced_terms
from kerv_jax._operator.distances import STATISTICS, precise_product, squared_distance
from kerv_jax._operator.options import Options
from kerv_jax.kernels.additive import PairStatistic
from kerv_jax.kernels.base import Range
from kerv_jax.kernels.definitions import INNER_PRODUCT, SQUARED_DISTANCE
from kerv_jax.kernels.pytree import map_leaves
from kerv_jax.kernels.ranges import take_features


def from_statistics(lhs: Array, rhs: Array, options: Options, parts: Sequence[Range]) -> Array:
  """Kervolution by patch statistics, each computed once for the features that need it.

  Args:
    lhs: the input, in the layout of ``options``.
    rhs: the filters.
    options: the resolved options, without batch groups.
    parts: the ranges of output features, each with its kernel.

  Returns:
    The output, in its layout and in ``options.compute_dtype``.
  """
  axis = options.dimension_numbers.out_spec[1]
  users: dict[Any, list[Range]] = {}
  for part in parts:
    for name in part.kernel.statistics or ():
      users.setdefault(name, []).append(part)
  same_users = _starts(users.get(INNER_PRODUCT, ())) == _starts(users.get(SQUARED_DISTANCE, ()))
  product = None  # that of the squared distance too, where both have the same users
  found: dict[int, dict[Any, Array]] = {part.start: {} for part in parts}
  for name in sorted(users, key=[INNER_PRODUCT, *users].index):
    operands = _of_features(rhs, options, users[name])
    if name == INNER_PRODUCT and same_users:
      value = product = precise_product(lhs, *operands)
    elif name == SQUARED_DISTANCE:
      value = squared_distance(lhs, *operands, product)
    elif isinstance(name, PairStatistic):
      kernel = map_leaves(
        functools.partial(_of_all, parts=users[name], options=operands[1]), name.kernel
      )
      value = reduced_terms(lhs, *operands, kernel)
    else:
      value = STATISTICS[name](lhs, *operands)
    first = 0
    for part in users[name]:
      if options.feature_group_count > 1:
        first = part.start  # all were computed
      found[part.start][name] = take_features(value, first, first + part.size, axis)
      first += part.size
  out = []
  for part in parts:
    vectors = map_leaves(lambda v: options.per_feature(v) if v.ndim else v, part.kernel)
    renamed = zip(vectors.statistics or (), part.kernel.statistics or (), strict=True)
    value = vectors.from_statistics({new: found[part.start][old] for new, old in renamed})
    shape = list(value.shape)
    shape[axis] = part.size
    out.append(jnp.broadcast_to(value, shape) if len(parts) > 1 else value)
  return jnp.concatenate(out, axis)


def _starts(parts: Sequence[Range]) -> list[int]:
  return [part.start for part in parts]


def _of_all(leaf: Array, parts: Sequence[Range], options: Options) -> Array:
  """A hyperparameter of every range of features as one of all that are computed."""
  if leaf.ndim == 0:
    return leaf
  if options.feature_group_count == 1:
    return jnp.concatenate([leaf] * len(parts))
  # All features are computed; the values of those that nobody asks for are of no interest.
  whole = jnp.broadcast_to(leaf[:1], (options.features,))
  for part in parts:
    whole = lax.dynamic_update_slice(whole, leaf, (part.start,))
  return whole


def _of_features(rhs: Array, options: Options, parts: Sequence[Range]) -> tuple[Array, Options]:
  """The filters and options of some of the output features; of all where they are in groups."""
  features = sum(part.size for part in parts)
  if features == options.features or options.feature_group_count > 1:
    return rhs, options
  axis = options.dimension_numbers.rhs_spec[0]
  taken = [lax.slice_in_dim(rhs, part.start, part.stop, axis=axis) for part in parts]
  return jnp.concatenate(taken, axis), dataclasses.replace(options, features=features)
