"""What the networks share: how layers are made, batch normalization, pooling, the classifier."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from kerv_jax.initializers import torch_kernel_init
from kerv_jax.kernels.definitions import at_least_float32

he_normal = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
"""N(0, 2 / fan_out) with fan_out = prod(window) * features, as in the residual networks' code.

It keeps the variance of gradients, He et al., "Delving Deep into Rectifiers", ICCV 2015, eq. (14).
"""


def already_set(layer: Callable[..., Any]) -> Mapping[str, Any]:
  """The keyword arguments that a partial sets.

  Args:
    layer: a layer's class, or a ``functools.partial`` or another callable that makes it.

  Returns:
    Them by name; none for anything but a ``functools.partial``.
  """
  return layer.keywords if isinstance(layer, functools.partial) else {}


def make(layer: Callable[..., Any], **arguments: Any) -> Any:
  """Makes a layer; what its partial sets goes before the network's arguments.

  Args:
    layer: as for ``already_set``.
    **arguments: of the network.

  Returns:
    The layer.
  """
  return layer(**{**arguments, **already_set(layer)})


class BatchNorm(nn.Module):
  """Batch normalization over all axes but the last, with the arithmetic of PyTorch's.

  It differs from ``flax.linen.BatchNorm`` in two things. As in PyTorch, the variance that enters
  the running average is the unbiased one (divided by n - 1), while the one that normalizes is not.
  And the sums are taken about the running mean, so that features far from 0 do not cancel.
  Parameters (``scale``, ``bias``), statistics (``mean``, ``var`` in ``batch_stats``) and the
  computation are in float32 or wider; the result is rounded to the dtype of the features.

  Attributes:
    train: whether to normalize by the batch, and to update the running averages.
    momentum: part of the old average that is kept. PyTorch counts the other part: its 0.1 is 0.9.
    epsilon: added to the variance.
    axis_name: axis of ``jax.vmap`` or ``jax.shard_map`` over which statistics are averaged too.
      Under ``jax.jit`` with a batch sharded over devices they are global as it is.
    use_scale: whether there is the parameter ``scale``.
  """

  train: bool
  momentum: float = 0.9
  epsilon: float = 1e-5
  axis_name: str | None = None
  use_scale: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalizes each of the features, (..., features).

    Raises:
      ValueError: in training, if there is only one value of each feature.
    """
    shape = x.shape[-1:]
    scale = None
    if self.use_scale:
      scale = self.param("scale", nn.initializers.ones, shape, jnp.float32)
    bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)
    mean_average = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
    var_average = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)

    wide = x.astype(at_least_float32(x.dtype))
    if self.train and not self.is_initializing():
      mean, var, number = _moments(wide, mean_average.value.astype(wide.dtype), self.axis_name)
      if number < 2:
        raise ValueError(
          "batch normalization needs more than one value of each feature in training, got "
          f"features of shape {x.shape}"
        )
      unbiased = var * (number / (number - 1))
      for average, value in ((mean_average, mean), (var_average, unbiased)):
        kept = self.momentum * average.value
        average.value = kept + (1 - self.momentum) * value.astype(kept.dtype)
    else:
      mean, var = mean_average.value, var_average.value
    factor = lax.rsqrt(var.astype(wide.dtype) + self.epsilon)
    factor = factor if scale is None else factor * scale.astype(wide.dtype)
    mean, factor, bias = (_along_features(v, wide) for v in (mean, factor, bias))
    y = (wide - mean) * factor + bias
    return y.astype(x.dtype)


def _along_features(values: jax.Array, x: jax.Array) -> jax.Array:
  """A value for each feature as an array of the dtype of ``x`` that broadcasts with it."""
  return lax.expand_dims(values.astype(x.dtype), range(x.ndim - 1))


def _moments(
  x: jax.Array, origin: jax.Array, axis_name: str | None
) -> tuple[jax.Array, jax.Array, int]:
  """Mean and biased variance of each feature, and the number of values of each.

  They are taken about an origin, in one pass: E (x - o)^2 - (E (x - o))^2 cancels where the mean is
  far from the origin, as it would be from 0 for kernel functions whose values hardly vary.
  """
  axes = tuple(range(x.ndim - 1))
  number = math.prod(x.shape[:-1])
  x = x - _along_features(lax.stop_gradient(origin), x)
  mean, square = jnp.mean(x, axes), jnp.mean(lax.square(x), axes)
  if axis_name is not None:
    mean, square = lax.pmean((mean, square), axis_name)
    number *= lax.axis_size(axis_name)
  return origin + mean, jnp.maximum(square - lax.square(mean), 0), number


@dataclasses.dataclass(frozen=True)
class Layers:
  """How a network makes its layers; the settings that are the same in all of them.

  Attributes:
    conv: class of the convolutions, called with the arguments of ``flax.linen.Conv``.
    train: whether batch normalization is training.
    dtype: of the convolutions; None for that of their input and parameters.
    axis_name: see ``BatchNorm``.
    kernel_init: of the convolutions' weights.
  """

  conv: Callable[..., Any]
  train: bool
  dtype: Any = None
  axis_name: str | None = None
  kernel_init: Callable[..., jax.Array] = he_normal

  def convolution(self, features: int, window: int, stride: int = 1, *, name: str) -> Any:
    """A convolution without bias, padded as in PyTorch: (window - 1) // 2 on every side.

    ("SAME" with a stride of 2 pads an even image on one side only.)
    """
    kernel_size = already_set(self.conv).get("kernel_size", (window, window))
    return make(
      self.conv,
      features=features,
      kernel_size=kernel_size,
      strides=(stride, stride),
      padding=[((size - 1) // 2, (size - 1) // 2) for size in kernel_size],
      use_bias=False,
      kernel_init=self.kernel_init,
      dtype=self.dtype,
      name=name,
    )

  def first(self, stem: Callable[..., Any] | None) -> "Layers":
    """The same, with another class of convolutions; None for this one."""
    return self if stem is None else dataclasses.replace(self, conv=stem)

  def norm(self, *, name: str) -> BatchNorm:
    """Batch normalization."""
    return BatchNorm(self.train, axis_name=self.axis_name, name=name)


def require_images(x: jax.Array, smallest: int = 1) -> None:
  """Raises a ValueError unless x has the shape (batch, height, width, channels).

  Args:
    x: what the network was called with.
    smallest: what height and width must be at least.
  """
  if x.ndim != 4 or min(x.shape[1:3]) < smallest:
    raise ValueError(
      "`x` must be images, (batch, height, width, channels) with height and width at least "
      f"{smallest}, got shape {x.shape}"
    )


def pool_pairs(x: jax.Array, reduction: Callable[..., jax.Array]) -> jax.Array:
  """Reduces windows of 2x2 by a reshape; an odd last row or column is dropped.

  On CPU that is faster than ``flax.linen.max_pool``, whose gradient takes 30 % of a training step
  of LeNet-5.

  Args:
    x: features, (batch, height, width, features).
    reduction: such as ``jnp.max``, called with the windows and ``axis``.

  Returns:
    Features, (batch, height // 2, width // 2, features).
  """
  batch, height, width, features = x.shape
  height, width = height // 2, width // 2
  windows = x[:, : 2 * height, : 2 * width].reshape(batch, height, 2, width, 2, features)
  return reduction(windows, axis=(2, 4))


def max_pool(x: jax.Array, stride: int) -> jax.Array:
  """Maxima over windows of 3x3, with one row and column of padding on every side.

  Args:
    x: features, (batch, height, width, features).
    stride: of the windows.

  Returns:
    Features; height and width are divided by the stride and rounded up.
  """
  padding = ((1, 1), (1, 1))
  return nn.max_pool(x, (3, 3), (stride, stride), padding)  # pyright: ignore[reportArgumentType]


def classify(
  x: jax.Array, num_classes: int, bias_init: Callable[..., jax.Array], *, name: str
) -> jax.Array:
  """Global average pooling and a dense layer, both in float32 or wider.

  Args:
    x: features, (batch, height, width, features).
    num_classes: outputs of the layer.
    bias_init: of the layer's bias; its weights start from PyTorch's default initialization.
    name: of the layer.

  Returns:
    Unnormalized scores, (batch, num_classes).
  """
  if num_classes < 1:
    raise ValueError(f"`num_classes` must be at least 1, got {num_classes}")
  x = jnp.mean(x, (1, 2), at_least_float32(x.dtype))
  return nn.Dense(num_classes, kernel_init=torch_kernel_init, bias_init=bias_init, name=name)(x)
