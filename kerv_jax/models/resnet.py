"""Residual networks: for CIFAR as in He et al. section 4.2, for ImageNet as in torchvision."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from kerv_jax.initializers import torch_bias_init
from kerv_jax.models._layers import Layers, classify, max_pool, require_images

__all__ = ["CifarResNet", "ResNet", "ResNet18", "ResNet34", "ResNet50", "ResNet101"]


class _Block(nn.Module):
  """Convolutions beside a shortcut: two of 3x3, or a bottleneck of 1x1, 3x3 and 1x1.

  Attributes:
    features: of the convolutions; the last of a bottleneck has four times as many.
    stride: of the first 3x3 convolution.
    bottleneck: which of the two.
    shortcut: what leads to another shape: "project", a 1x1 convolution and batch normalization, or
      "pad", every stride-th row and column with zeros for the missing features at the end.
    layers: how they are made.
  """

  features: int
  stride: int
  bottleneck: bool
  shortcut: Literal["project", "pad"]
  layers: Layers

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    plan = [(self.features, 3, self.stride), (self.features, 3, 1)]
    if self.bottleneck:
      plan = [(self.features, 1, 1), (self.features, 3, self.stride), (4 * self.features, 1, 1)]
    y = x
    for i, (features, window, stride) in enumerate(plan, start=1):
      y = self.layers.convolution(features, window, stride, name=f"conv{i}")(y)
      y = self.layers.norm(name=f"bn{i}")(y)
      y = y if i == len(plan) else nn.relu(y)
    return nn.relu(y + self._shortcut(x, y.shape[-1]))

  @nn.nowrap
  def _shortcut(self, x: jax.Array, features: int) -> jax.Array:
    """The input in the shape of the output."""
    if self.stride == 1 and x.shape[-1] == features:
      return x
    if self.shortcut == "project":
      x = self.layers.convolution(features, 1, self.stride, name="downsample_0")(x)
      return self.layers.norm(name="downsample_1")(x)
    if features < x.shape[-1]:
      raise ValueError(
        f"a shortcut without parameters cannot lead from {x.shape[-1]} features to {features}: "
        "no layer may have fewer than the one before"
      )
    x = x[:, :: self.stride, :: self.stride]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, features - x.shape[-1])))


def _stages(
  x: jax.Array, sizes: Sequence[int], width: int, *, remat: bool, **options: Any
) -> jax.Array:
  """Stages of blocks; each stage but the first halves the image and doubles the features."""
  block = nn.remat(_Block) if remat else _Block
  for stage, blocks in enumerate(sizes):
    for i in range(blocks):
      stride = 2 if stage > 0 and i == 0 else 1
      x = block(width * 2**stage, stride, name=f"layer{stage + 1}_{i}", **options)(x)
  return x


class CifarResNet(nn.Module):
  """Residual network of 6n + 2 layers for small images, with shortcuts that have no parameters.

  A 3x3 convolution with 16 features, three stages of n blocks of two 3x3 convolutions with 16, 32
  and 64 features, global average pooling and a dense layer. Where a stage halves the image, the
  shortcut takes every second row and column and pads the features with zeros at the end (option A
  of the paper). With 10 classes and 3 channels that is

  ======= ===== ==========
  depth   n     parameters
  ======= ===== ==========
  20      3     269,722
  32      5     464,154
  44      7     658,586
  56      9     853,018
  110     18    1,727,962
  ======= ===== ==========

  A kervolution adds none but the hyperparameters that it learns.

  Convolutions start from N(0, 2 / fan_out), the classifier from PyTorch's default weights and no
  bias: the initialization of fb.resnet.torch. Batch normalization is PyTorch's.

  Attributes:
    depth: 6n + 2.
    num_classes: outputs of the last layer.
    conv: class of every convolution, or anything called with the arguments of ``flax.linen.Conv``.
      What a ``functools.partial`` sets, the network does not override.
    stem: the same for the first convolution; None for that of the others. The networks of the
      kervolution paper have a ``kerv_jax.nn.KervConv`` there.
    dtype: of the computation, such as ``jnp.bfloat16``; None for that of the images and the
      parameters. Parameters, statistics, the classifier and its scores are in float32 all the same.
    remat: compute each block again in the backward pass instead of keeping what is inside it.
    axis_name: axis of ``jax.vmap`` or ``jax.shard_map`` over which batch statistics are averaged.
      Not needed under ``jax.jit``, where a batch sharded over devices has global statistics.

  Example:
    >>> import functools, jax, jax.numpy as jnp
    >>> from kerv_jax.kernels import Polynomial
    >>> from kerv_jax.models import CifarResNet
    >>> from kerv_jax.nn import KervConv
    >>> kerv = functools.partial(KervConv, kernel_fn=Polynomial(3, 2.0), learnable=("balance",))
    >>> model = CifarResNet(depth=8, stem=kerv)
    >>> images = jnp.zeros((2, 32, 32, 3))
    >>> variables = model.init(jax.random.key(0), images)
    >>> scores, new = model.apply(variables, images, train=True, mutable=["batch_stats"])
    >>> scores.shape
    (2, 10)

  References:
    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
    Gross and Wilber, "Training and investigating residual nets" (fb.resnet.torch), 2016.
  """

  depth: int = 32
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
      ValueError: if ``depth``, ``num_classes`` or the shape of ``x`` is not as above.
    """
    if self.depth < 8 or self.depth % 6 != 2:
      raise ValueError(f"`depth` must be 6n + 2 with n >= 1, such as 32 or 110, got {self.depth}")
    require_images(x)
    layers = Layers(self.conv, train, self.dtype, self.axis_name)
    x = layers.first(self.stem).convolution(16, 3, name="conv1")(x)
    x = nn.relu(layers.norm(name="bn1")(x))
    options = {"bottleneck": False, "shortcut": "pad", "layers": layers}
    x = _stages(x, (self.depth // 6,) * 3, 16, remat=self.remat, **options)
    return classify(x, self.num_classes, nn.initializers.zeros, name="fc")


class ResNet(nn.Module):
  """Residual network for ImageNet, version 1 as in torchvision.

  A 7x7 convolution with 64 features and stride 2, max pooling over 3x3 with stride 2, four stages
  of blocks with 64, 128, 256 and 512 features (four times as many leave a bottleneck block), global
  average pooling and a dense layer. The first block of the other stages than the first has stride
  2, in the 3x3 convolution of a bottleneck (He et al. have it in the 1x1 before), and a projection
  for its shortcut.

  Weights are named as in torchvision, with ``_`` for the dot before a number, ``kernel`` and
  ``scale`` for ``weight``: ``layer1.0.downsample.1.weight`` is ``layer1_0/downsample_1/scale``.
  They start as there: convolutions from N(0, 2 / fan_out), the classifier from PyTorch's default.

  Attributes:
    num_classes: outputs of the last layer.
    conv, stem, dtype, remat, axis_name: see ``CifarResNet``.
    stage_sizes: number of blocks in each stage.
    bottleneck: whether blocks are bottlenecks.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from kerv_jax.models import ResNet18
    >>> images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
    >>> variables = jax.eval_shape(ResNet18().init, jax.random.key(0), images)
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    11689512

  References:
    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.
    ``torchvision/models/resnet.py``.
  """

  num_classes: int = 1000
  conv: Callable[..., Any] = nn.Conv
  stem: Callable[..., Any] | None = None
  dtype: Any = None
  remat: bool = False
  axis_name: str | None = None
  stage_sizes: Sequence[int] = (2, 2, 2, 2)
  bottleneck: bool = False

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Class scores of images.

    Args:
      x: images, (batch, height, width, channels).
      train: whether batch normalization is training, see ``CifarResNet``.

    Returns:
      Unnormalized scores, (batch, num_classes), in float32 or wider.

    Raises:
      ValueError: if ``num_classes`` or the shape of ``x`` is not as above.
    """
    require_images(x)
    layers = Layers(self.conv, train, self.dtype, self.axis_name)
    x = layers.first(self.stem).convolution(64, 7, 2, name="conv1")(x)
    x = nn.relu(layers.norm(name="bn1")(x))
    x = max_pool(x, stride=2)
    options = {"bottleneck": self.bottleneck, "shortcut": "project", "layers": layers}
    x = _stages(x, self.stage_sizes, 64, remat=self.remat, **options)
    bias_init = torch_bias_init(x.shape[-1])
    return classify(x, self.num_classes, bias_init, name="fc")


class ResNet18(ResNet):
  """A ``ResNet`` of 18 layers, with 11,689,512 parameters for 1000 classes and 3 channels.

  Example:
    >>> from kerv_jax.models import ResNet18
    >>> tuple(ResNet18().stage_sizes)
    (2, 2, 2, 2)
  """


class ResNet34(ResNet):
  """A ``ResNet`` of 34 layers, with 21,797,672 parameters for 1000 classes and 3 channels.

  Example:
    >>> from kerv_jax.models import ResNet34
    >>> tuple(ResNet34().stage_sizes)
    (3, 4, 6, 3)
  """

  stage_sizes: Sequence[int] = (3, 4, 6, 3)


class ResNet50(ResNet):
  """A ``ResNet`` of 50 layers with bottlenecks, and 25,557,032 parameters for 1000 classes.

  Example:
    >>> from kerv_jax.models import ResNet50
    >>> tuple(ResNet50().stage_sizes)
    (3, 4, 6, 3)
  """

  stage_sizes: Sequence[int] = (3, 4, 6, 3)
  bottleneck: bool = True


class ResNet101(ResNet):
  """A ``ResNet`` of 101 layers with bottlenecks, and 44,549,160 parameters for 1000 classes.

  Example:
    >>> from kerv_jax.models import ResNet101
    >>> tuple(ResNet101().stage_sizes)
    (3, 4, 23, 3)
  """

  stage_sizes: Sequence[int] = (3, 4, 23, 3)
  bottleneck: bool = True
