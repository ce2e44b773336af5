"""Residual networks: for CIFAR as in He et al. section 4.2, for ImageNet as in torchvision."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from kerv_jax.initializers import torch_bias_init
from kerv_jax.models._layers import Layers, classify, require_images

__all__ = ["CifarResNet", "ResNet", "ResNet18", "ResNet34", "ResNet50", "ResNet101"]


class _BasicBlock(nn.Module):
  """Two 3x3 convolutions beside a shortcut."""

  features: int
  stride: int
  layers: Layers
  shortcut: Literal["project", "pad"]
  expansion = 1

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    conv, norm = self.layers.convolution, self.layers.norm
    y = conv(self.features, 3, self.stride, name="conv1")(x)
    y = nn.relu(norm(name="bn1")(y))
    y = conv(self.features, 3, name="conv2")(y)
    y = norm(name="bn2")(y)
    return nn.relu(y + _shortcut(self, x, y.shape))


class _Bottleneck(nn.Module):
  """1x1, 3x3 and 1x1 convolutions beside a shortcut; the 3x3 one has the stride."""

  features: int
  stride: int
  layers: Layers
  shortcut: Literal["project", "pad"]
  expansion = 4

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    conv, norm = self.layers.convolution, self.layers.norm
    y = conv(self.features, 1, name="conv1")(x)
    y = nn.relu(norm(name="bn1")(y))
    y = conv(self.features, 3, self.stride, name="conv2")(y)
    y = nn.relu(norm(name="bn2")(y))
    y = conv(self.expansion * self.features, 1, name="conv3")(y)
    y = norm(name="bn3")(y)
    return nn.relu(y + _shortcut(self, x, y.shape))


def _shortcut(
  block: _BasicBlock | _Bottleneck, x: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
  """The input in the shape of the block's output, by a projection or by zeros."""
  if block.stride == 1 and x.shape[-1] == shape[-1]:
    return x
  if block.shortcut == "pad":
    if shape[-1] < x.shape[-1]:
      raise ValueError(
        f"a shortcut without parameters cannot lead from {x.shape[-1]} features to {shape[-1]}: "
        "a layer must not have fewer features than the one before"
      )
    x = x[:, :: block.stride, :: block.stride]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, shape[-1] - x.shape[-1])))
  x = block.layers.convolution(shape[-1], 1, block.stride, name="downsample_0")(x)
  return block.layers.norm(name="downsample_1")(x)


def _stages(
  x: jax.Array,
  layers: Layers,
  block: type[_BasicBlock | _Bottleneck],
  shortcut: Literal["project", "pad"],
  *,
  width: int,
  sizes: Sequence[int],
  remat: bool,
) -> jax.Array:
  """Stages of blocks; each stage but the first halves the image and doubles the features."""
  make = nn.remat(block) if remat else block
  for stage, blocks in enumerate(sizes):
    for i in range(blocks):
      stride = 2 if stage > 0 and i == 0 else 1
      name = f"layer{stage + 1}_{i}"
      x = make(width * 2**stage, stride, layers, shortcut, name=name)(x)
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
  bias: the initialisation of fb.resnet.torch. Batch normalisation is PyTorch's.

  Attributes:
    depth: 6n + 2.
    num_classes: outputs of the last layer.
    conv: class of every convolution, or anything called with the arguments of `flax.linen.Conv`.
      What a `functools.partial` sets, the network does not override.
    stem: the same for the first convolution; None for that of the others. The networks of the
      kervolution paper have a `kerv_jax.nn.KervConv` there.
    dtype: of the computation, such as ``jnp.bfloat16``; None for that of the images and the
      parameters. Parameters, statistics, the classifier and its scores are in float32 all the same.
    remat: compute each block again in the backward pass instead of keeping what is inside it.
    axis_name: axis of `jax.vmap` or `jax.shard_map` over which batch statistics are averaged. Not
      needed under `jax.jit`, where a batch sharded over devices has global statistics.

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
      train: whether batch normalisation uses the statistics of the batch and, but for `init`,
        updates its running averages, which are in the collection ``batch_stats``.

    Returns:
      Unnormalised scores, (batch, num_classes), in float32 or wider.

    Raises:
      ValueError: if ``depth``, ``num_classes`` or the shape of ``x`` is not as above.
    """
    if self.depth < 8 or self.depth % 6 != 2:
      raise ValueError(f"`depth` must be 6n + 2 with n >= 1, such as 32 or 110, got {self.depth}")
    require_images(x)
    layers = Layers(self.conv, train, self.dtype, self.axis_name)
    x = layers.first(self.stem).convolution(16, 3, name="conv1")(x)
    x = nn.relu(layers.norm(name="bn1")(x))
    sizes = (self.depth // 6,) * 3
    x = _stages(x, layers, _BasicBlock, "pad", width=16, sizes=sizes, remat=self.remat)
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
    conv, stem, dtype, remat, axis_name: see `CifarResNet`.
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
      train: whether batch normalisation is training, see `CifarResNet`.

    Returns:
      Unnormalised scores, (batch, num_classes), in float32 or wider.

    Raises:
      ValueError: if ``num_classes`` or the shape of ``x`` is not as above.
    """
    require_images(x)
    layers = Layers(self.conv, train, self.dtype, self.axis_name)
    x = layers.first(self.stem).convolution(64, 7, 2, name="conv1")(x)
    x = nn.relu(layers.norm(name="bn1")(x))
    x = nn.max_pool(x, (3, 3), (2, 2), [(1, 1), (1, 1)])
    block = _Bottleneck if self.bottleneck else _BasicBlock
    x = _stages(x, layers, block, "project", width=64, sizes=self.stage_sizes, remat=self.remat)
    bias_init = torch_bias_init(x.shape[-1])
    return classify(x, self.num_classes, bias_init, name="fc")


class ResNet18(ResNet):
  """`ResNet` of 18 layers: 11,689,512 parameters for 1000 classes and 3 channels."""


class ResNet34(ResNet):
  """`ResNet` of 34 layers: 21,797,672 parameters for 1000 classes and 3 channels."""

  stage_sizes: Sequence[int] = (3, 4, 6, 3)


class ResNet50(ResNet):
  """`ResNet` of 50 layers, with bottlenecks: 25,557,032 parameters for 1000 classes, 3 channels."""

  stage_sizes: Sequence[int] = (3, 4, 6, 3)
  bottleneck: bool = True


class ResNet101(ResNet):
  """`ResNet` of 101 layers, with bottlenecks: 44,549,160 parameters for 1000 classes, 3 channels."""

  stage_sizes: Sequence[int] = (3, 4, 23, 3)
  bottleneck: bool = True
