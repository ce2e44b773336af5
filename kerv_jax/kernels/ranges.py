"""Which output features a kernel function is for, and how many each hyperparameter serves."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from kerv_jax.kernels.base import Kernel, Range


def take_features(value: Array, start: int, stop: int, axis: int) -> Array:
  """A range of the features of an array that has all of them along an axis, or one for all."""
  if jnp.ndim(value) == 0 or value.shape[axis] in (1, stop - start):
    return value
  return jax.lax.slice_in_dim(value, start, stop, axis=axis)


def _operands(kernel: Kernel) -> tuple[list[Any], Any]:
  """The hyperparameters and kernels that a kernel is made of, and how to make it of others."""
  return jax.tree.flatten(kernel, is_leaf=lambda k: k is not kernel and isinstance(k, Kernel))


def feature_counts(kernel: Kernel, features: int) -> dict[str, int]:
  """How many output features each hyperparameter serves.

  Args:
    kernel: the kernel function.
    features: number of output features of the whole.

  Returns:
    The number by the names of ``kernel.hyperparameters()``: ``features``, or that of the part of a
    ``Concatenate`` that the hyperparameter belongs to.
  """
  return dict(zip(kernel.hyperparameters(), _counts(kernel, features), strict=True))


def _counts(kernel: Kernel, features: int) -> Iterator[int]:
  if kernel.ranges:
    for part in kernel.ranges:
      yield from _counts(part.kernel, part.size)
    return
  for operand in _operands(kernel)[0]:
    yield from _counts(operand, features) if isinstance(operand, Kernel) else (features,)


def _cuts(kernel: Kernel) -> set[int]:
  """The features that a part of a ``Concatenate``, anywhere in the kernel, starts with."""
  if kernel.ranges:
    return {start + cut for start, _, part in kernel.ranges for cut in {0, *_cuts(part)}}
  kernels = [operand for operand in _operands(kernel)[0] if isinstance(operand, Kernel)]
  return {cut for operand in kernels for cut in _cuts(operand)}


def _restricted(kernel: Kernel, start: int, stop: int) -> Kernel:
  """The kernel of a range of features in which no part of a ``Concatenate`` ends."""
  if kernel.ranges:
    (own,) = [own for own in kernel.ranges if own.start <= start < own.stop]
    return _restricted(own.kernel, start - own.start, stop - own.start)
  operands, tree = _operands(kernel)
  restricted = [
    _restricted(operand, start, stop)
    if isinstance(operand, Kernel)
    else take_features(operand, start, stop, 0)
    for operand in operands
  ]
  return jax.tree.unflatten(tree, restricted)


def split(kernel: Kernel, features: int) -> list[Range]:
  """Writes a kernel as kernels without ``Concatenate`` for ranges of the output features.

  Args:
    kernel: the kernel function, which may have a ``Concatenate`` anywhere inside.
    features: number of output features.

  Returns:
    The ranges, each with a kernel that has the hyperparameters of its features; one range with the
    kernel itself if there is nothing to split.
  """
  cuts = sorted(_cuts(kernel))
  if not cuts:
    return [Range(0, features, kernel)]
  return [
    Range(start, stop, _restricted(kernel, start, stop))
    for start, stop in zip(cuts, [*cuts[1:], features], strict=True)
  ]


def require_features(name: str, kernel: Kernel, features: int) -> None:
  """Raises an error unless a kernel fits a number of output features.

  Args:
    name: the argument's name, for the message.
    kernel: the kernel function.
    features: number of output features.

  Raises:
    ValueError: for a hyperparameter that is neither a scalar nor has a value for each feature that
      it serves, and for parts of a ``Concatenate`` that are not as many as the features.
  """
  _require_sizes(name, kernel, features)
  counts = feature_counts(kernel, features)
  for path, value in kernel.hyperparameters().items():
    shape = jnp.shape(value)
    if shape not in ((), (counts[path],)):
      raise ValueError(
        f"`{path}` of `{name}` must be a scalar or have one value for each of the {counts[path]} "
        f"output features, got shape {shape}"
      )


def _require_sizes(name: str, kernel: Kernel, features: int) -> None:
  if kernel.ranges:  # what is inside a Concatenate was checked when that was made
    if kernel.ranges[-1].stop != features:
      raise ValueError(
        f"`{name}` has kernels for {kernel.ranges[-1].stop} output features where there are "
        f"{features}: {kernel!r}"
      )
    return
  for operand in _operands(kernel)[0]:
    if isinstance(operand, Kernel):
      _require_sizes(name, operand, features)
