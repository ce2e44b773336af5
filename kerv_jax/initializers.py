"""Weight initializers: PyTorch's defaults, which the paper's results depend on, and others.

The authors trained with PyTorch's default initialization, and kernel functions feel the scale of
their filters: a LeNet-5 with polynomial kervolution in both layers learns MNIST from it, and gives
NaN from Flax's default (LeCun normal).
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kerv_jax.kernels.base import Kernel, require_kernel
from kerv_jax.kernels.definitions import (
  ABSOLUTE_DISTANCE,
  ADDER_DISTANCE,
  DEFINITIONS,
  SQUARED_DISTANCE,
)
from kerv_jax.kernels.ranges import split

__all__ = ["dirac_kernel_init", "for_kernel", "torch_bias_init", "torch_kernel_init", "whitening"]


def torch_kernel_init(key: jax.Array, shape: Sequence[int], dtype: Any = None) -> jax.Array:
  """PyTorch's default initializer for the weights of a convolution or a dense layer.

  ``w ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in))`` with ``fan_in = prod(shape[:-1])``, the number of
  inputs that one output sees; for a grouped convolution, ``prod(window) * in_features / groups``.
  PyTorch writes it as ``kaiming_uniform_(a=sqrt(5))``, whose gain is ``sqrt(2 / (1 + 5))`` and
  whose bound is ``sqrt(3) * gain / sqrt(fan_in)``.

  It is the initializer itself: pass it, do not call it.

  Args:
    key: a PRNG key.
    shape: of the weights, in Flax's layout: ``(*window, in_features / groups, out_features)`` for
      a convolution, ``(in_features, out_features)`` for a dense layer. A transposed convolution
      is out of scope: PyTorch counts its fan-in over the output features.
    dtype: a real floating dtype; None is JAX's default float.

  Returns:
    The weights, of that shape and dtype.

  Raises:
    ValueError: if ``shape`` has fewer than two axes, or no inputs.
    TypeError: if ``dtype`` is not a real floating dtype.

  Example:
    >>> import flax.linen as nn, jax, jax.numpy as jnp
    >>> from kerv_jax.initializers import torch_bias_init, torch_kernel_init
    >>> fan_in = 5 * 5 * 3
    >>> conv = nn.Conv(
    ...   16, (5, 5), kernel_init=torch_kernel_init, bias_init=torch_bias_init(fan_in)
    ... )
    >>> params = conv.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"]
    >>> all(bool(jnp.abs(p).max() <= fan_in**-0.5) for p in params.values())
    True

  References:
    ``reset_parameters`` in PyTorch's ``torch/nn/modules/conv.py`` and ``linear.py``.
    He, Zhang, Ren, Sun, "Delving Deep into Rectifiers", ICCV 2015.
  """
  return _uniform(key, shape, dtype, 1 / math.sqrt(_fan_in(shape)))


def torch_bias_init(fan_in: int) -> Callable[..., jax.Array]:
  """PyTorch's default initializer for the bias of a convolution or a dense layer.

  ``b ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in))``, with the ``fan_in`` of the layer's weights. The shape
  of a bias does not show it, so it is an argument.

  Args:
    fan_in: inputs that one output sees: ``prod(window) * in_features / groups`` for a convolution,
      ``in_features`` for a dense layer.

  Returns:
    An initializer ``(key, shape, dtype=None) -> bias``. It raises a TypeError if ``dtype`` is not
    a real floating dtype.

  Raises:
    TypeError: if ``fan_in`` is not an integer.
    ValueError: if ``fan_in`` is less than 1.

  Example:
    >>> import jax
    >>> from kerv_jax.initializers import torch_bias_init
    >>> bias = torch_bias_init(25)(jax.random.key(0), (6,))
    >>> bias.shape, bool(abs(bias).max() <= 1 / 5)
    ((6,), True)

  References:
    ``reset_parameters`` in PyTorch's ``torch/nn/modules/conv.py`` and ``linear.py``.
  """
  try:
    count = operator.index(fan_in)
  except TypeError:
    raise TypeError(f"`fan_in` must be an integer, got {fan_in!r}") from None
  if count < 1:
    raise ValueError(f"`fan_in` must be at least 1, got {fan_in}")

  def init(key: jax.Array, shape: Sequence[int], dtype: Any = None) -> jax.Array:
    return _uniform(key, shape, dtype, 1 / math.sqrt(count))

  return init


def dirac_kernel_init(key: jax.Array, shape: Sequence[int], dtype: Any = None) -> jax.Array:
  """Initializer of a convolution that starts by passing its input on.

  Filter i, for each of the first ``in_features`` filters, is 1 at the middle of the window in
  channel i and 0 elsewhere; the rest are ``torch_kernel_init``'s.

  It is the initializer itself: pass it, do not call it.

  Args:
    key: a PRNG key.
    shape: of the weights, ``(*window, in_features, out_features)``.
    dtype: a real floating dtype; None is JAX's default float.

  Returns:
    The weights, of that shape and dtype.

  Raises:
    ValueError: if ``shape`` has fewer than two axes, or no inputs.
    TypeError: if ``dtype`` is not a real floating dtype.

  Example:
    >>> import jax
    >>> from kerv_jax.initializers import dirac_kernel_init
    >>> kernel = dirac_kernel_init(jax.random.key(0), (3, 3, 2, 5))
    >>> print(kernel[1, 1, :, :2], abs(kernel[..., :2]).sum())
    [[1. 0.]
     [0. 1.]] 2.0

  Reference:
    Zagoruyko and Komodakis, "DiracNets", 2017.
  """
  weights = torch_kernel_init(key, shape, dtype)
  *window, inputs, outputs = shape
  same = min(inputs, outputs)
  middle = tuple((size - 1) // 2 for size in window)
  dirac = jnp.zeros((*window, inputs, same), weights.dtype)
  dirac = dirac.at[(*middle, slice(None, same))].set(jnp.eye(same, dtype=weights.dtype))
  return weights.at[..., :same].set(dirac)


def whitening(images: Any, epsilon: float = 5e-4) -> Callable[..., jax.Array]:
  r"""Makes an initializer of filters that whiten patches of images.

  The filters are :math:`v / \sqrt{\lambda + \epsilon}` for the eigenvectors v and eigenvalues
  :math:`\lambda` of the covariance of all patches, the largest first, and then their negatives.
  An eigenvector's largest element is positive.

  Args:
    images: images as the network sees them, (number, height, width, channels), say 5,000 of the
      training set.
    epsilon: :math:`\epsilon`, positive.

  Returns:
    An initializer ``(key, shape, dtype=None) -> filters``, for the shape
    ``(height, width, channels, features)`` with at most ``2 * height * width * channels``
    features, an even number; the key has no part in it. It raises a ValueError for any other.

  Raises:
    ValueError: if ``images`` are not images, or ``epsilon`` is not positive.

  Example:
    >>> import jax, numpy as np
    >>> from kerv_jax.initializers import whitening
    >>> images = np.random.default_rng(0).normal(size=(10, 8, 8, 3))
    >>> filters = whitening(images)(jax.random.key(0), (2, 2, 3, 24))
    >>> bool((filters[..., :12] == -filters[..., 12:]).all())
    True

  Reference:
    Page, "How to train your ResNet 8: bag of tricks", 2019.
  """
  images = np.asarray(images, np.float32)
  if images.ndim != 4 or 0 in images.shape:
    raise ValueError(
      f"`images` must be (number, height, width, channels), got shape {images.shape}"
    )
  if not epsilon > 0:
    raise ValueError(f"`epsilon` must be positive, got {epsilon}")

  @functools.cache
  def filters(height: int, width: int) -> np.ndarray:
    values, vectors = np.linalg.eigh(_patch_covariance(images, height, width))
    vectors = vectors[:, ::-1]
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[None], axis=0)
    scaled = vectors * np.sign(largest) / np.sqrt(np.maximum(values[::-1], 0) + epsilon)
    return scaled.reshape(height, width, images.shape[-1], -1)

  def init(key: jax.Array, shape: Sequence[int], dtype: Any = None) -> jax.Array:
    del key
    most = 2 * math.prod(shape[:-1])
    fits = len(shape) == 4 and shape[0] <= images.shape[1] and shape[1] <= images.shape[2]
    if not fits or shape[2] != images.shape[-1] or not (0 < shape[3] <= most) or shape[3] % 2:
      raise ValueError(
        f"`shape` must be (height, width, {images.shape[-1]}, an even number of features, at most "
        f"{most}) for images of shape {images.shape}, got {tuple(shape)}"
      )
    half = filters(shape[0], shape[1])[..., : shape[3] // 2]
    return jnp.asarray(np.concatenate([half, -half], axis=-1), dtype or jnp.float32)

  return init


def _patch_covariance(images: np.ndarray, height: int, width: int) -> np.ndarray:
  """Covariance of patches, in float64, features in the order (row, column, channel)."""
  rows, columns = images.shape[1] - height + 1, images.shape[2] - width + 1
  taps = [
    images[:, i : i + rows, j : j + columns].reshape(-1, images.shape[-1])
    for i in range(height)
    for j in range(width)
  ]
  number = len(taps[0])
  means = np.concatenate([tap.mean(axis=0, dtype=np.float64) for tap in taps])
  moments = np.block([[np.asarray(a.T @ b, np.float64) for b in taps] for a in taps]) / number
  return moments - np.outer(means, means)


def for_kernel(kernel_fn: Kernel) -> Callable[..., jax.Array]:
  """Returns an initializer that puts filters in a kernel's range, whatever the fan-in.

  Filters are normal.  For inputs that are independent, of mean 0 and variance 1:

  * where the kernel needs an inner product or a norm, weights have the variance ``1 / fan_in``, so
    that ``<x, w>`` has variance 1;
  * where it is a function of distances alone, weights have variance 1, as the elements of patches
    have: ``sum (x - w)**2`` is around ``2 fan_in``, and for normal inputs ``sum |x - w|`` around
    ``2 fan_in / sqrt(pi)``.  So the width that puts a value of ``Gaussian`` around exp(-1) is
    ``gamma = 1 / (2 fan_in)``, of ``Laplacian`` ``sqrt(pi) / (2 fan_in)``; the ``sigma`` of
    ``Cauchy`` and the ``length`` of ``RationalQuadratic`` are of the size ``sqrt(2 fan_in)``.

  Each part of a ``Concatenate`` has its own.  Inputs that a ReLU leaves are not such: of normal
  ones it keeps half the second moment, so inner products have variance 1/2; nor is zero padding,
  whose taps add nothing to an inner product, and ``w**2`` to a squared distance.  The values of a
  distance kernel differ little between filters at a large fan-in: all of them share the norm of
  the patch.  Subtract the mean over features, or normalize over them.

  Args:
    kernel_fn: the kernel function of the layer, a function of patch statistics.

  Returns:
    An initializer ``(key, shape, dtype=None) -> weights`` for shapes as those of
    :func:`torch_kernel_init`, with the same errors.

  Raises:
    TypeError: if ``kernel_fn`` is not a kernel.
    ValueError: if it is not a function of inner product, distances and norms.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from kerv_jax.initializers import for_kernel
    >>> from kerv_jax.kernels import Gaussian
    >>> from kerv_jax.nn import KervConv
    >>> kernel_fn = Gaussian(gamma=1 / (2 * 3 * 3 * 16))
    >>> conv = KervConv(8, (3, 3), kernel_fn=kernel_fn, kernel_init=for_kernel(kernel_fn))
    >>> x = jax.random.normal(jax.random.key(0), (4, 8, 8, 16))
    >>> y, _ = conv.init_with_output(jax.random.key(1), x)
    >>> print(f"{y[:, 1:-1, 1:-1].mean():.1f}")  # around exp(-1)
    0.4
  """
  require_kernel("kernel_fn", kernel_fn)
  if kernel_fn.statistics is None or not DEFINITIONS.keys() >= {*kernel_fn.statistics}:
    raise ValueError(
      "`kernel_fn` must be a function of inner product, distances and norms, whose range is known, "
      f"got {kernel_fn!r}"
    )

  def init(key: jax.Array, shape: Sequence[int], dtype: Any = None) -> jax.Array:
    inverse = 1 / math.sqrt(_fan_in(shape))
    _require_real(dtype)
    distances = {SQUARED_DISTANCE, ABSOLUTE_DISTANCE, ADDER_DISTANCE}
    deviations = [
      jnp.full(part.size, 1.0 if distances >= {*(part.kernel.statistics or ())} else inverse, dtype)
      for part in split(kernel_fn, shape[-1])
    ]
    weights = jax.random.normal(key, tuple(shape), dtype)
    return weights * jnp.broadcast_to(jnp.concatenate(deviations), weights.shape)

  return init


def _fan_in(shape: Sequence[int]) -> int:
  """The number of inputs of an output."""
  if len(shape) < 2:
    raise ValueError(
      "`shape` must be (*window, in_features, out_features) or (in_features, out_features), got "
      f"{tuple(shape)}; for a bias, use `torch_bias_init(fan_in)`"
    )
  fan_in = math.prod(shape[:-1])
  if fan_in < 1:
    raise ValueError(f"`shape` must have at least one input per output, got {tuple(shape)}")
  return fan_in


def _require_real(dtype: Any) -> None:
  if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
    raise TypeError(f"`dtype` must be a real floating dtype, got {jnp.dtype(dtype).name}")


def _uniform(key: jax.Array, shape: Sequence[int], dtype: Any, bound: float) -> jax.Array:
  """Draws from U(-bound, bound)."""
  _require_real(dtype)
  return jax.random.uniform(key, tuple(shape), dtype, minval=-bound, maxval=bound)
