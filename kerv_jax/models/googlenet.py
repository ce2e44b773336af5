"""GoogLeNet for 32x32 images, with batch normalization."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from kerv_jax.initializers import torch_bias_init, torch_kernel_init
from kerv_jax.models._layers import Layers, classify, max_pool, require_images

__all__ = ["GoogLeNet"]


class _Widths(NamedTuple):
  """Features in an inception module: of the 1x1 branch, and before and after the other windows."""

  one: int
  three_before: int
  three: int
  five_before: int
  five: int
  pool: int


# Table 1 of Szegedy et al.; None is max pooling.
_MODULES = {
  "inception3a": _Widths(64, 96, 128, 16, 32, 32),
  "inception3b": _Widths(128, 128, 192, 32, 96, 64),
  "maxpool3": None,
  "inception4a": _Widths(192, 96, 208, 16, 48, 64),
  "inception4b": _Widths(160, 112, 224, 24, 64, 64),
  "inception4c": _Widths(128, 128, 256, 24, 64, 64),
  "inception4d": _Widths(112, 144, 288, 32, 64, 64),
  "inception4e": _Widths(256, 160, 320, 32, 128, 128),
  "maxpool4": None,
  "inception5a": _Widths(256, 160, 320, 32, 128, 128),
  "inception5b": _Widths(384, 192, 384, 48, 128, 128),
}


class _Convolution(nn.Module):
  """A convolution, batch normalization and relu."""

  features: int
  window: int
  layers: Layers

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = self.layers.convolution(self.features, self.window, name="conv")(x)
    return nn.relu(self.layers.norm(name="bn")(x))


class _Inception(nn.Module):
  """Four branches side by side: 1x1, 3x3, 5x5 as two of 3x3, and max pooling."""

  widths: _Widths
  layers: Layers

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    def convolution(x: jax.Array, features: int, window: int, name: str) -> jax.Array:
      return _Convolution(features, window, self.layers, name=name)(x)

    widths = self.widths
    one = convolution(x, widths.one, 1, "branch1")
    three = convolution(x, widths.three_before, 1, "branch2_0")
    three = convolution(three, widths.three, 3, "branch2_1")
    five = convolution(x, widths.five_before, 1, "branch3_0")
    five = convolution(five, widths.five, 3, "branch3_1")
    five = convolution(five, widths.five, 3, "branch3_2")
    pool = convolution(max_pool(x, stride=1), widths.pool, 1, "branch4_1")
    return jnp.concatenate([one, three, five, pool], axis=-1)


class GoogLeNet(nn.Module):
  """GoogLeNet for small images: nine inception modules after one 3x3 convolution.

  The modules are those of the paper's table 1; in place of its three layers and two poolings before
  them stands a 3x3 convolution with 192 features and stride 1, so that they see 32x32, 16x16 and
  8x8. This is the form in use for CIFAR, after kuangliu/pytorch-cifar: batch normalization after
  every convolution, two 3x3 convolutions for each 5x5, no auxiliary classifiers and no dropout.
  Convolutions have no bias here, which batch normalization would take away again.

  With 10 classes and 3 channels that is 6,158,346 parameters (6,166,250 there, with the
  biases). A kervolution adds none but the hyperparameters that it learns.

  Every weight starts from PyTorch's default initialization, as there. Batch normalization is
  PyTorch's. Weights are named as in torchvision's GoogLeNet, with ``_`` for the dot before a
  number.

  Attributes:
    num_classes: outputs of the last layer.
    conv: class of every convolution, or anything called with the arguments of ``flax.linen.Conv``.
      What a ``functools.partial`` sets, the network does not override.
    stem: the same for the first convolution; None for that of the others.
    dtype: of the computation, such as ``jnp.bfloat16``; None for that of the images and the
      parameters. Parameters, statistics, the classifier and its scores are in float32 all the same.
    remat: compute each inception module again in the backward pass instead of keeping what is
      inside it.
    axis_name: axis of ``jax.vmap`` or ``jax.shard_map`` over which batch statistics are averaged.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from kerv_jax.models import GoogLeNet
    >>> images = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    >>> variables = jax.eval_shape(GoogLeNet().init, jax.random.key(0), images)
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    6158346

  References:
    Szegedy et al., "Going Deeper with Convolutions", CVPR 2015.
    Ioffe and Szegedy, "Batch Normalization", ICML 2015: the two 3x3 convolutions.
    github.com/kuangliu/pytorch-cifar, ``models/googlenet.py``.
  """

  num_classes: int = 10
  conv: Callable[..., Any] = nn.Conv
  stem: Callable[..., Any] | None = None
  dtype: Any = None
  remat: bool = False
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Class scores of images.

    Args:
      x: images, (batch, height, width, channels).
      train: whether batch normalization uses the statistics of the batch and, but for ``init``,
        updates its running averages, which are in the collection ``batch_stats``.

    Returns:
      Unnormalized scores, (batch, num_classes), in float32 or wider.

    Raises:
      ValueError: if ``num_classes`` or the shape of ``x`` is not as above.
    """
    require_images(x)
    layers = Layers(self.conv, train, self.dtype, self.axis_name, torch_kernel_init)
    inception = nn.remat(_Inception) if self.remat else _Inception
    x = _Convolution(192, 3, layers.first(self.stem), name="conv1")(x)
    for name, widths in _MODULES.items():
      x = max_pool(x, stride=2) if widths is None else inception(widths, layers, name=name)(x)
    return classify(x, self.num_classes, torch_bias_init(x.shape[-1]), name="fc")
