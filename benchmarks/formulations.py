"""Other ways to compute distances, to be weighed on a GPU: one question, several answers.

Does the branch of the squared distance cost time? What does full precision cost, and do two TF32
parts of every factor do as well? Which sum of absolute differences is the fastest?
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks import rivals
from benchmarks.shapes import Shape

Layer = rivals.Layer
_GAMMA = 0.1  # of the Gaussian kernel of `rivals`
_NEAR = 1e-3  # of the norms, below which the expansion is replaced by the sum


def convolution(shape: Shape, precision: lax.PrecisionLike) -> Layer:
  """A convolution whose products have a precision."""
  return functools.partial(lax.conv_general_dilated, **shape.options(), precision=precision)


def in_parts(shape: Shape) -> Layer:
  """A convolution of the upper and lower TF32 parts of its factors.

  It is one of three times the channels: the product of two lower parts is left out.
  """

  @jax.custom_vjp
  def layer(lhs: Array, rhs: Array) -> Array:
    (upper, lower), (heavy, light) = parts(lhs), parts(rhs)
    images = jnp.concatenate([upper, upper, lower], axis=-1)
    filters = jnp.concatenate([heavy, light, heavy], axis=-2)
    return convolution(shape, lax.Precision.DEFAULT)(images, filters)

  def forward(lhs: Array, rhs: Array) -> tuple[Array, tuple[Array, Array]]:
    return layer(lhs, rhs), (lhs, rhs)

  def backward(operands: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    _, pullback = jax.vjp(convolution(shape, lax.Precision.DEFAULT), *operands)
    return pullback(cotangent)

  layer.defvjp(forward, backward)
  return layer


def parts(array: Array) -> tuple[Array, Array]:
  """What TF32 keeps of a float32, its first 10 bits, and the rest.

  Args:
    array: of float32.

  Returns:
    The two parts, whose sum is the array.
  """
  bits = lax.bitcast_convert_type(array, jnp.uint32) & jnp.uint32(0xFFFFE000)
  upper = lax.bitcast_convert_type(bits, jnp.float32)
  return upper, array - upper


def fused_sum(shape: Shape, term: Callable[[Array], Array]) -> Layer:
  """The sum of a term of all differences.

  For each tap of the window it is a broadcast, a subtraction and a sum over the channels, which XLA
  fuses on a GPU.
  """

  def layer(lhs: Array, rhs: Array) -> Array:
    rank, stride = len(shape.spatial), shape.stride
    pads = lax.padtype_to_pads(shape.spatial, shape.window, (stride,) * rank, shape.padding)
    padded = jnp.pad(lhs, [(0, 0), *pads, (0, 0)])
    total = jnp.zeros(shape.out, lhs.dtype)
    for tap in np.ndindex(*shape.window):
      ends = [
        start + stride * (side - 1) + 1 for start, side in zip(tap, shape.out[1:-1], strict=True)
      ]
      taken = tuple(slice(start, end, stride) for start, end in zip(tap, ends, strict=True))
      weights = rhs[tap].reshape((1,) * (rank + 1) + rhs.shape[-2:])
      total += jnp.sum(term(padded[:, *taken, :, None] - weights), axis=-2)
    return total

  return layer


def gaussian(shape: Shape, product: Layer, *, near: str = "nothing") -> Layer:
  """A Gaussian kernel by the expansion of the squared distance.

  Args:
    shape: of the layer.
    product: of patches and filters.
    near: what is done where the expansion cancels: "nothing"; "branch" to the sum if it does
      anywhere; "select" from the sum, which is always computed.
  """
  squares = fused_sum(shape, jnp.square)

  def layer(lhs: Array, rhs: Array) -> Array:
    ones = jnp.ones((*shape.window, 1, 1), lhs.dtype)
    options: dict[str, Any] = {**shape.options(), "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    square = jnp.sum(jnp.square(lhs), axis=-1, keepdims=True)
    norms = lax.conv_general_dilated(square, ones, **options, precision=lax.Precision.HIGHEST)
    norms += jnp.sum(jnp.square(rhs), axis=(0, 1, 2)).reshape(1, 1, 1, -1)
    distance = norms - 2 * product(lhs, rhs)
    close = lax.stop_gradient(distance < _NEAR * norms)
    fixed = lax.stop_gradient((lhs, rhs))
    if near == "select":
      distance = jnp.where(close, squares(*fixed), distance)
    elif near == "branch":
      distance = lax.cond(
        jnp.any(close),
        lambda distance: jnp.where(close, squares(*fixed), distance),
        lambda distance: distance,
        distance,
      )
    return jnp.exp(-_GAMMA * jnp.maximum(distance, 0))

  return layer


def answers(shape: Shape) -> dict[str, Layer]:
  """Every way for a layer of images and one group, by its name; the kernel's comes first.

  Args:
    shape: of the layer.
  """
  full = convolution(shape, lax.Precision.HIGHEST)
  split = in_parts(shape)
  return {
    "convolution: full precision": full,
    "convolution: TF32 parts": split,
    "Gaussian: the library's": rivals.layer("Gaussian", shape),
    "Gaussian: no branch": gaussian(shape, full),
    "Gaussian: branch": gaussian(shape, full, near="branch"),
    "Gaussian: select": gaussian(shape, full, near="select"),
    "Gaussian: TF32 parts, no branch": gaussian(shape, split),
    "Gaussian: TF32 parts, select": gaussian(shape, split, near="select"),
    "L1: the library's": rivals.layer("L1", shape),
    "L1: fused sum": fused_sum(shape, jnp.abs),
  }
