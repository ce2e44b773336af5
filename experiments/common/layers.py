"""Layers to compare kervolution with: convolution and a function, and Volterra convolution."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from kerv_jax.initializers import torch_bias_init, torch_kernel_init

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")


class PointwiseConv(nn.Module):
  """A convolution followed by a pointwise function.

  With the bias outside, ``f(<x, w>) + b``, this is kervolution by another name; inside,
  ``f(<x, w> + b)``, it is what any convolution with an activation does. Parameters, and attributes
  that it shares with it, are those of `flax.linen.Conv`.

  Attributes:
    function: pointwise, from the convolution's result to that of the layer.
    bias_inside: whether the bias is added before the function.
  """

  features: int
  kernel_size: tuple[int, int]
  function: Callable[[jax.Array], jax.Array]
  bias_inside: bool = False
  padding: str = "SAME"
  kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
  bias_init: Callable[..., Any] = nn.initializers.zeros

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Applies the layer to images, (batch, height, width, channels)."""
    shape = (*self.kernel_size, x.shape[-1], self.features)
    kernel = self.param("kernel", self.kernel_init, shape)
    bias = self.param("bias", self.bias_init, (self.features,))[None, None, None]
    product = _convolve(x, kernel, self.padding)
    if self.bias_inside:
      return self.function(product + bias)
    return self.function(product) + bias


class AuthorsGaussian(nn.Module):
  """The Gaussian of the authors' code of 2018, which is not equation 11 of the paper.

  It is ``exp(-(|x|^2 + |w|^2) / n + 2 (<x, w> + b))``, n weights: the squares are scaled, the
  product is not, and the bias is inside. Parameters are those of `flax.linen.Conv`.
  """

  features: int
  kernel_size: tuple[int, int]
  padding: str = "SAME"
  kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
  bias_init: Callable[..., Any] = nn.initializers.zeros

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Applies the layer to images, (batch, height, width, channels)."""
    shape = (*self.kernel_size, x.shape[-1], self.features)
    kernel = self.param("kernel", self.kernel_init, shape)
    bias = self.param("bias", self.bias_init, (self.features,))[None, None, None]
    product = _convolve(x, kernel, self.padding)
    ones = jnp.ones((*self.kernel_size, 1, 1), x.dtype)
    squares = _convolve(jnp.sum(x**2, axis=-1, keepdims=True), ones, self.padding)
    squares = squares + jnp.sum(kernel**2, axis=(0, 1, 2))[None, None, None]
    return jnp.exp(2 * (product + bias) - squares / math.prod(shape[:-1]))


class VolterraConv(nn.Module):
  """Quadratic convolution, equation 6 of the paper.

  It is ``<x, w> + sum over i <= j of v_ij x_i x_j + b``. For patches of n elements it has
  n (n + 1) / 2 weights more than a convolution, in each feature. Each order is initialized as a
  layer of its own: from U(-1/sqrt(m), 1/sqrt(m)), where m is the number of its terms.

  References:
    Zoumpourlis, Doumanoglou, Vretos, Daras, "Non-linear Convolution Filters for CNN-based
    Learning", ICCV 2017.
  """

  features: int
  kernel_size: tuple[int, int]
  padding: str = "SAME"
  kernel_init: Callable[..., Any] = torch_kernel_init
  bias_init: Callable[..., Any] = nn.initializers.zeros

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Applies the layer to images, (batch, height, width, channels)."""
    size = math.prod(self.kernel_size) * x.shape[-1]
    kernel = self.param("kernel", self.kernel_init, (*self.kernel_size, x.shape[-1], self.features))
    bias = self.param("bias", self.bias_init, (self.features,))[None, None, None]
    pairs = size * (size + 1) // 2
    quadratic = self.param("quadratic", torch_bias_init(pairs), (pairs, self.features))
    linear = _convolve(x, kernel, self.padding)
    patches = jax.lax.conv_general_dilated_patches(
      x, self.kernel_size, (1, 1), self.padding, dimension_numbers=_DIMENSIONS
    )
    first, second = jnp.triu_indices(size)
    upper = jnp.zeros((size, size, self.features), x.dtype).at[first, second].set(quadratic)
    halves = patches @ upper.reshape(size, size * self.features)
    halves = halves.reshape(*patches.shape, self.features)
    return linear + jnp.einsum("...i,...if->...f", patches, halves) + bias


def _convolve(x: jax.Array, kernel: jax.Array, padding: str) -> jax.Array:
  return jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=_DIMENSIONS)
