"""A small network that learns CIFAR-10 in minutes: that of the public record recipes."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from kerv_jax.initializers import dirac_kernel_init, torch_bias_init, torch_kernel_init
from kerv_jax.kernels.definitions import at_least_float32
from kerv_jax.models._layers import BatchNorm, Layers, pool_pairs, require_images

__all__ = ["FastNet"]

_SMALLEST = 9  # 9 -> whitening 8 -> pools 4, 2, 1


class _Whitening(nn.Module):
  """A convolution of 2x2 whose filters do not learn; its bias does.

  Attributes:
    kernel_init: of the filters.
    dtype: of the computation; None for that of the images.
  """

  kernel_init: Callable[..., jax.Array]
  dtype: Any

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    channels = x.shape[-1]
    features = 2 * 4 * channels
    kernel = self.param("kernel", self.kernel_init, (2, 2, channels, features), jnp.float32)
    bias = self.param("bias", torch_bias_init(4 * channels), (features,), jnp.float32)
    dtype = self.dtype or x.dtype
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(
      x.astype(dtype),
      lax.stop_gradient(kernel).astype(dtype),
      (1, 1),
      "VALID",
      dimension_numbers=numbers,
    )
    return y + lax.expand_dims(bias.astype(dtype), range(y.ndim - 1))


class FastNet(nn.Module):
  """Six convolutions behind a whitening of the image, for images of 32x32 such as CIFAR's.

  A 2x2 convolution whose filters are fixed (``whitening_init``) and whose bias is trained; three
  groups of [3x3 convolution, 2x2 max pooling, batch normalization without scale, GELU, 3x3
  convolution, batch normalization, GELU]; the maximum over what is left (3x3 positions of 32x32);
  and a linear layer without bias, times 1/9.  The first filters of each convolution start as the
  identity, see ``kerv_jax.initializers.dirac_kernel_init``.

  =========== =================== =========== ==========
  widths      forward, an image   parameters  epochs
  =========== =================== =========== ==========
  64,256,256  236 MFLOP           1,971,640   9.9 to 94 %
  64,128,128  108 MFLOP           569,016     11 to 93 %
  32,64,64    33 MFLOP            146,424
  =========== =================== =========== ==========

  (Epochs as their authors report them, for CNNs.)

  Attributes:
    widths: features of the three groups.
    num_classes: outputs of the last layer.
    conv: class of every learned convolution, or anything called with the arguments of
      ``flax.linen.Conv``.  What a ``functools.partial`` sets, the network does not override.
    stem: the same for the first learned convolution; None for that of the others.
    whitening_init: initializer of the fixed filters; ``kerv_jax.initializers.whitening(images)``
      makes that of a training set.
    dtype: see ``CifarResNet``.
    axis_name: see ``CifarResNet``.

  Example:
    >>> import functools, jax, jax.numpy as jnp
    >>> from kerv_jax.initializers import whitening
    >>> from kerv_jax.kernels import Polynomial
    >>> from kerv_jax.models import FastNet
    >>> from kerv_jax.nn import KervConv
    >>> images = jax.random.normal(jax.random.key(0), (8, 32, 32, 3))
    >>> kerv = functools.partial(KervConv, kernel_fn=Polynomial(3), learnable=True)
    >>> model = FastNet((8, 16, 16), stem=kerv, whitening_init=whitening(images))
    >>> variables = model.init(jax.random.key(0), images)
    >>> scores, new = model.apply(variables, images, train=True, mutable=["batch_stats"])
    >>> scores.shape
    (8, 10)

  Reference:
    Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024, whose airbench94 and
    airbench93 these networks are.
  """

  widths: Sequence[int] = (64, 256, 256)
  num_classes: int = 10
  conv: Callable[..., Any] = nn.Conv
  stem: Callable[..., Any] | None = None
  whitening_init: Callable[..., jax.Array] = torch_kernel_init
  dtype: Any = None
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Class scores of images.

    Args:
      x: images, (batch, height, width, channels), height and width at least 9.
      train: see ``CifarResNet``.

    Returns:
      Unnormalized scores, (batch, num_classes), in float32 or wider.

    Raises:
      ValueError: if ``widths``, ``num_classes`` or the shape of ``x`` is not as above.
    """
    require_images(x, _SMALLEST)
    if len(self.widths) != 3 or min(self.widths) < 1:
      raise ValueError(f"`widths` must be three positive numbers, got {tuple(self.widths)}")
    if self.num_classes < 1:
      raise ValueError(f"`num_classes` must be at least 1, got {self.num_classes}")
    layers = Layers(self.conv, train, self.dtype, self.axis_name, dirac_kernel_init)
    x = nn.gelu(_Whitening(self.whitening_init, self.dtype, name="whitening")(x), approximate=False)
    for group, width in enumerate(self.widths, start=1):
      for half in (1, 2):
        own = layers.first(self.stem) if (group, half) == (1, 1) else layers
        x = own.convolution(width, 3, name=f"conv{group}_{half}")(x)
        x = pool_pairs(x, jnp.max) if half == 1 else x
        x = nn.gelu(self._norm(train, f"norm{group}_{half}")(x), approximate=False)
    x = jnp.max(x, (1, 2)).astype(at_least_float32(x.dtype))
    head = nn.Dense(self.num_classes, use_bias=False, kernel_init=torch_kernel_init, name="head")
    return head(x) / 9

  @nn.nowrap
  def _norm(self, train: bool, name: str) -> BatchNorm:
    """Batch normalization whose running averages are short, since the training is."""
    return BatchNorm(train, 0.6, 1e-12, self.axis_name, use_scale=False, name=name)
