"""Other forms of kervolution, for the layers of linen and NNX: over a dilated input, and dense."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.linen.linear import canonicalize_padding
from jax import Array, lax

from kerv_jax._operator import sharding

_LETTERS = "HWDXYZ"

Operator = Callable[..., Array]
"""With the arguments of ``lax.conv_general_dilated``."""


def require_space(inputs: Array, kernel_size: int | Sequence[int]) -> None:
  """Raises an error unless inputs have the dimensions of the window.

  Args:
    inputs: shape (*batch, *space, in_features).
    kernel_size: the window.

  Raises:
    ValueError: if they do not.
  """
  rank = np.size(kernel_size)
  if jnp.ndim(inputs) < rank + 1 or rank < 1:
    raise ValueError(
      f"`inputs` must have shape (*batch, *space, in_features) with {rank} spatial dimensions "
      f"for `kernel_size` {kernel_size}, got shape {jnp.shape(inputs)}"
    )


def require_groups(groups: int, what: str, number: int) -> None:
  """Raises an error unless a number of groups divides a number of features.

  Args:
    groups: ``feature_group_count``.
    what: what has the features, for the message.
    number: number of features.

  Raises:
    ValueError: if it does not.
  """
  if groups < 1 or number % groups:
    raise ValueError(f"`feature_group_count` must divide {what}, got {groups}")


def masked(kernel: Array, mask: Any) -> Array:
  """Weights times a mask, if there is one.

  Args:
    kernel: the weights.
    mask: None or of their shape.

  Returns:
    The product.

  Raises:
    ValueError: for a mask of another shape.
  """
  if mask is None:
    return kernel
  if mask.shape != kernel.shape:
    raise ValueError(f"`mask` must have the shape of the weights {kernel.shape}, got {mask.shape}")
  return kernel * mask


def over_dilated_input(operator: Operator, layer: Any, x: Array, w: Array) -> Array:
  """A transposed kervolution: one of stride 1 over the dilated input, as ``nn.ConvTranspose``'s.

  ``nn.ConvTranspose`` takes no operator in place of its own, and its circular padding sums periods
  of the output, which only a linear layer may; hence this function.

  Args:
    operator: what is done over the dilated input.
    layer: the options, with the names that ``nn.ConvTranspose`` and ``nnx.ConvTranspose`` share.
    x: shape (*batch, *space, in_features).
    w: shape (*window, in_features, features), or (*window, features, in_features) if
      ``layer.transpose_kernel``.

  Returns:
    Shape (*batch, *out_space, features), without bias.

  Raises:
    ValueError: for an unknown ``padding``.
  """
  rank = np.size(layer.kernel_size)
  window = w.shape[:rank]
  strides = _per_dimension(layer.strides, rank)
  dilation = _per_dimension(layer.kernel_dilation, rank)
  if layer.transpose_kernel:
    w = jnp.swapaxes(jnp.flip(w, range(rank)), -1, -2)
  batch, space = x.shape[: -rank - 1], x.shape[-rank - 1 :]
  x = x.reshape(math.prod(batch), *space)
  extent = [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]
  padding = canonicalize_padding(layer.padding, rank)
  if padding == "CIRCULAR":
    x = _wrapped(x, extent, strides, layer.transpose_kernel)
    pads, strides = [(0, 0)] * rank, (1,) * rank
  elif isinstance(padding, str):
    pads = [_pads(e, s, padding) for e, s in zip(extent, strides, strict=True)]
  else:
    pads = padding
  letters = _LETTERS[:rank]
  y = operator(
    x,
    w,
    (1,) * rank,
    pads,
    lhs_dilation=strides,
    rhs_dilation=dilation,
    dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
    precision=layer.precision,
    preferred_element_type=layer.preferred_element_type,
  )
  return y.reshape(*batch, *y.shape[1:])


def with_bias(y: Array, bias: Array | None) -> Array:
  """Adds a bias over the last axis, unless it is None."""
  return y if bias is None else y + bias.reshape((1,) * (y.ndim - 1) + bias.shape)


def _per_dimension(value: Any, rank: int) -> tuple[int, ...]:
  return (1 if value is None else value,) * rank if np.ndim(value) == 0 else tuple(value)


def _pads(extent: int, stride: int, padding: str) -> tuple[int, int]:
  """What ``lax.conv_transpose`` pads a dilated dimension with."""
  if padding == "VALID":
    return extent - 1, max(extent, stride) - 1
  if padding != "SAME":
    raise ValueError(
      f"`padding` must be 'SAME', 'VALID', 'CIRCULAR', an integer or pairs of them, got {padding!r}"
    )
  total = extent + stride - 2
  low = extent - 1 if stride > extent - 1 else -(-total // 2)
  return low, total - low


def _wrapped(x: Array, extent: Sequence[int], strides: Sequence[int], transposed: bool) -> Array:
  """Dilates the input and continues it periodically, aligned as ``nn.ConvTranspose`` does.

  That sums the periods of an output of full padding, shifted by half of what that is longer than a
  period; which of two halves is the larger depends on ``transpose_kernel``.
  """
  for axis, (size, stride) in enumerate(zip(extent, strides, strict=True), start=1):
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (0, stride - 1, stride - 1) if x.shape[axis] else (0, 0, 0)
    x = lax.pad(x, jnp.zeros((), x.dtype), config)
    period = x.shape[axis]
    if not period:
      continue
    low, high = _pads(size, stride, "VALID")
    longer = -(period - stride + 1 + low + high - size + 1 - period) % (2 * period)
    shift = size - 1 + (longer // 2 if transposed else -(-longer // 2))
    x = jnp.take(x, np.arange(-shift, period + size - 1 - shift) % period, axis=axis)
  return x


def dense_product(operator: Operator) -> Callable[..., Array]:
  """The product of a dense layer: an operator whose window is one.

  Args:
    operator: what is done with each row and filter; a pytree, such as a ``jax.tree_util.Partial``.

  Returns:
    A function with the arguments with which the dense layers of Flax call ``lax.dot_general``: of
    inputs, shape (*batch, in_features), and weights, shape (in_features, features).
  """

  def product(
    inputs: Array,
    kernel: Array,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
  ) -> Array:
    def of_one_window(inputs: Array, kernel: Array, operator: Operator) -> Array:
      out = operator(
        inputs.reshape(math.prod(inputs.shape[:-1]), 1, inputs.shape[-1]),
        kernel[None],
        (1,),
        "VALID",
        dimension_numbers=("NWC", "WIO", "NWC"),
        precision=precision,
        preferred_element_type=preferred_element_type,
      )
      return out.reshape(*inputs.shape[:-1], kernel.shape[-1])

    linear = functools.partial(lax.dot_general, dimension_numbers=dimension_numbers)
    return sharding.apply(of_one_window, linear, out_sharding, inputs, kernel, operator)

  return product
