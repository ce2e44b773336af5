"""Meshes with explicit axis types, whose arrays have their sharding in their type."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec


def apply(
  function: Callable[..., Array],
  convolution: Callable[[Array, Array], Array],
  out_sharding: NamedSharding | PartitionSpec | None,
  lhs: Array,
  rhs: Array,
  *others: Any,
) -> Array:
  """Applies a function whose result is sharded as a convolution's, whatever the axis types.

  Within the function the axes are of type ``Auto``: there XLA shards what lies between.

  Args:
    function: called with the operands and the others.
    convolution: of the same operands, which tells the result's sharding where it is not given.
    out_sharding: the result's sharding, or None.
    lhs: the input.
    rhs: the filters.
    *others: pytrees of arrays; those of NumPy are constants.

  Returns:
    The function's value.

  Raises:
    ShardingTypeError: (of JAX) where the convolution raises it: for sharded filters or features of
      the input, without ``out_sharding``.
  """
  meshes = [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves((lhs, rhs, *others))]
  # Operands from outside of the mesh that is set meet arrays on it within the function.
  meshes.append(jax.sharding.get_abstract_mesh())
  mesh = next((mesh for mesh in meshes if mesh.explicit_axes), None)
  if mesh is None:
    return function(lhs, rhs, *others)
  if out_sharding is None:
    (like,) = jax.make_jaxpr(convolution)(lhs, rhs).out_avals
    inside = like.sharding.mesh.explicit_axes  # not where the input is from outside
    out_sharding = like.sharding if inside else NamedSharding(mesh, PartitionSpec())
  elif isinstance(out_sharding, PartitionSpec):
    out_sharding = NamedSharding(mesh, out_sharding)
  leaves, tree = jax.tree.flatten(others)
  known = [isinstance(leaf, np.ndarray) for leaf in leaves]  # they stay so

  def with_known(lhs: Array, rhs: Array, arrays: list[Array]) -> Array:
    rest = iter(arrays)
    every = [leaf if fixed else next(rest) for leaf, fixed in zip(leaves, known, strict=True)]
    return function(lhs, rhs, *jax.tree.unflatten(tree, every))

  arrays = [leaf for leaf, fixed in zip(leaves, known, strict=True) if not fixed]
  axes = tuple(mesh.explicit_axes)
  applied: Any = jax.sharding.auto_axes(with_known, axes=axes, out_sharding=out_sharding)
  return applied(lhs, rhs, arrays)
