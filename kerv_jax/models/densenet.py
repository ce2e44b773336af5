"""Densely connected networks for CIFAR, without bottlenecks, as in Huang et al."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from kerv_jax.models._layers import Layers, classify, pool_pairs, require_images

__all__ = ["DenseNet"]

_BLOCKS = 3
_STEM_FEATURES = 16
_SMALLEST = 2 ** (_BLOCKS - 1)


class _DenseLayer(nn.Module):
  """Batch normalization, relu and a 3x3 convolution, joined to the layer's input."""

  growth: int
  layers: Layers

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    y = nn.relu(self.layers.norm(name="norm1")(x))
    y = self.layers.convolution(self.growth, 3, name="conv1")(y)
    return jnp.concatenate([x, y], axis=-1)


class _Transition(nn.Module):
  """Batch normalization, relu, a 1x1 convolution, and average pooling over 2x2."""

  layers: Layers

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    y = nn.relu(self.layers.norm(name="norm")(x))
    y = self.layers.convolution(x.shape[-1], 1, name="conv")(y)
    return pool_pairs(y, jnp.mean)


class DenseNet(nn.Module):
  """Densely connected network for small images: DenseNet-40-12 unless told otherwise.

  A 3x3 convolution with 16 features, then three dense blocks of (depth - 4) / 3 layers with a
  transition after the first and the second, global average pooling and a dense layer. Each layer of
  a block reads all features before it and adds ``growth`` of its own; a transition keeps their
  number. There are no bottlenecks, no compression and no dropout, as in the paper where data are
  augmented.

  With 40 layers, growth 12, 10 classes and 3 channels that is 1,019,722 parameters, and
  1,060,132 with 100 classes. A kervolution adds none but the hyperparameters that it learns.

  Convolutions start from N(0, 2 / fan_out), the classifier from PyTorch's default weights and no
  bias, as in the authors' code. Batch normalization is PyTorch's.

  Attributes:
    depth: 3n + 4 with n layers in each block.
    growth: features that each layer adds.
    num_classes: outputs of the last layer.
    conv: class of every convolution, or anything called with the arguments of ``flax.linen.Conv``.
      What a ``functools.partial`` sets, the network does not override.
    stem: the same for the first convolution; None for that of the others.
    dtype: of the computation, such as ``jnp.bfloat16``; None for that of the images and the
      parameters. Parameters, statistics, the classifier and its scores are in float32 all the same.
    remat: compute each dense layer again in the backward pass instead of keeping what is inside it.
    axis_name: axis of ``jax.vmap`` or ``jax.shard_map`` over which batch statistics are averaged.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from kerv_jax.models import DenseNet
    >>> images = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    >>> variables = jax.eval_shape(DenseNet(depth=40, growth=12).init, jax.random.key(0), images)
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    1019722

  References:
    Huang, Liu, van der Maaten, Weinberger, "Densely Connected Convolutional Networks", CVPR 2017.
    Their code: github.com/liuzhuang13/DenseNet, with 2 * growth features in the first convolution.
  """

  depth: int = 40
  growth: int = 12
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
      x: images, (batch, height, width, channels), height and width at least 4.
      train: whether batch normalization uses the statistics of the batch and, but for ``init``,
        updates its running averages, which are in the collection ``batch_stats``.

    Returns:
      Unnormalized scores, (batch, num_classes), in float32 or wider.

    Raises:
      ValueError: if ``depth``, ``growth``, ``num_classes`` or the shape of ``x`` is not as above.
    """
    if self.depth < 7 or self.depth % 3 != 1:
      raise ValueError(f"`depth` must be 3n + 4 with n >= 1, such as 40, got {self.depth}")
    if self.growth < 1:
      raise ValueError(f"`growth` must be at least 1, got {self.growth}")
    require_images(x, _SMALLEST)
    layers = Layers(self.conv, train, self.dtype, self.axis_name)
    dense_layer = nn.remat(_DenseLayer) if self.remat else _DenseLayer
    x = layers.first(self.stem).convolution(_STEM_FEATURES, 3, name="conv0")(x)
    for block in range(1, _BLOCKS + 1):
      for i in range(1, (self.depth - 4) // 3 + 1):
        x = dense_layer(self.growth, layers, name=f"denseblock{block}_denselayer{i}")(x)
      if block < _BLOCKS:
        x = _Transition(layers, name=f"transition{block}")(x)
    x = nn.relu(layers.norm(name="norm")(x))
    return classify(x, self.num_classes, nn.initializers.zeros, name="classifier")
