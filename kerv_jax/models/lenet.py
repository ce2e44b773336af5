"""LeNet-5 as in the paper's MNIST experiments (sections 3.3 and 4)."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from kerv_jax import kernels
from kerv_jax.initializers import torch_bias_init, torch_kernel_init
from kerv_jax.models._layers import already_set, make, pool_pairs, require_images
from kerv_jax.nn import KervConv

ARRANGEMENTS = ("conv-conv", "kerv-conv", "conv-kerv", "kerv-kerv")
"""What ``lenet5`` accepts: the first and the second layer, each a convolution or a kervolution."""

_POOLS = {"max": jnp.max, "avg": jnp.mean}
_SMALLEST = 12  # 12 -> pool 6 -> 5x5 VALID 2 -> pool 1


class LeNet5(nn.Module):
  """LeNet-5: two convolutions or kervolutions, each pooled, then three dense layers.

  ====== ============================== ==================== ==========
  name   layer                          for 28x28x1          parameters
  ====== ============================== ==================== ==========
  conv1  5x5, SAME, 6 features          28x28x6, pool 14x14  156
  conv2  5x5, VALID, 16 features        10x10x16, pool 5x5   2,416
  fc1    dense                          120                  48,120
  fc2    dense                          84                   10,164
  fc3    dense                          num_classes (10)     850
  ====== ============================== ==================== ==========

  61,706 parameters in all; a kervolution adds none but the hyperparameters that it learns. The
  activation follows each layer but the last, before the pooling. Every weight and bias starts from
  PyTorch's default initialization, see ``kerv_jax.initializers``. Dense layers read the features in
  the order (height, width, channel), channel fastest, where PyTorch has (channel, height, width).

  Attributes:
    num_classes: outputs of the last layer.
    conv1: class of the first layer, or anything called with the arguments of ``flax.linen.Conv``,
      such as ``functools.partial(KervConv, kernel_fn=Gaussian())``. What a ``functools.partial``
      sets, the network does not override.
    conv2: the same for the second layer.
    activation: a pointwise function, or None for none.
    pool: "max" or "avg", over windows of 2x2; an odd last row or column is dropped. Where several
      elements of a window are the maximum, they share its gradient equally.

  Example:
    >>> import functools, jax, jax.numpy as jnp
    >>> from kerv_jax.kernels import Gaussian
    >>> from kerv_jax.models import LeNet5
    >>> from kerv_jax.nn import KervConv
    >>> model = LeNet5(conv1=functools.partial(KervConv, kernel_fn=Gaussian()))
    >>> images = jnp.zeros((2, 28, 28, 1))  # in [0, 1], as in the paper's experiments
    >>> variables = model.init(jax.random.key(0), images)
    >>> model.apply(variables, images).shape
    (2, 10)

  References:
    Wang, Yang, Xie, Yuan, "Kervolutional Neural Networks", CVPR 2019.
    LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998.
  """

  num_classes: int = 10
  conv1: Callable[..., Any] = nn.Conv
  conv2: Callable[..., Any] = nn.Conv
  activation: Callable[[jax.Array], jax.Array] | None = nn.relu
  pool: Literal["max", "avg"] = "max"

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Class scores of images.

    Args:
      x: images, (batch, height, width, channels), height and width at least 12.

    Returns:
      Unnormalized scores, (batch, num_classes).

    Raises:
      ValueError: if the shape of ``x``, ``pool`` or ``num_classes`` is not as above.
    """
    require_images(x, _SMALLEST)
    if self.pool not in _POOLS:
      raise ValueError(f"`pool` must be one of {', '.join(map(repr, _POOLS))}, got {self.pool!r}")
    if self.num_classes < 1:
      raise ValueError(f"`num_classes` must be at least 1, got {self.num_classes}")
    activation = self.activation or (lambda features: features)

    x = _conv(self.conv1, 6, "SAME", x.shape[-1], name="conv1")(x)
    x = pool_pairs(activation(x), _POOLS[self.pool])
    x = _conv(self.conv2, 16, "VALID", x.shape[-1], name="conv2")(x)
    x = pool_pairs(activation(x), _POOLS[self.pool])
    x = x.reshape(x.shape[0], -1)
    x = activation(_dense(120, x.shape[-1], name="fc1")(x))
    x = activation(_dense(84, x.shape[-1], name="fc2")(x))
    return _dense(self.num_classes, x.shape[-1], name="fc3")(x)


def lenet5(
  arrangement: str = "kerv-conv",
  kernel_fn: kernels.Kernel | None = None,
  *,
  learnable: bool | tuple[str, ...] = False,
  per_feature: bool = False,
  **options: Any,
) -> LeNet5:
  """A LeNet-5 named by its arrangement of convolutions and kervolutions.

  Args:
    arrangement: "conv-conv" (the CNN), "kerv-conv", "conv-kerv" or "kerv-kerv": what the first
      and the second layer are.
    kernel_fn: kernel function of the kervolutions; None is the default of ``KervConv``, the cubic
      polynomial. For a different one in each layer, give ``LeNet5`` its layers.
    learnable: which hyperparameters of the kernel function are learned, see ``KervConv``.
    per_feature: whether those are one per output feature, see ``KervConv``.
    **options: the other attributes of ``LeNet5``: ``num_classes``, ``activation``, ``pool``.

  Returns:
    The network.

  Raises:
    ValueError: if ``arrangement`` is none of these.

  Example:
    >>> from kerv_jax.kernels import Polynomial
    >>> from kerv_jax.models import lenet5
    >>> model = lenet5("kerv-kerv", Polynomial(degree=2, balance=0.5), activation=None, pool="avg")
  """
  if arrangement not in ARRANGEMENTS:
    raise ValueError(
      f"`arrangement` must be one of {', '.join(map(repr, ARRANGEMENTS))}, got {arrangement!r}"
    )
  kervolution: dict[str, Any] = {"learnable": learnable, "per_feature": per_feature}
  if kernel_fn is not None:
    kervolution["kernel_fn"] = kernel_fn
  layers = {"conv": nn.Conv, "kerv": functools.partial(KervConv, **kervolution)}
  first, second = arrangement.split("-")
  return LeNet5(conv1=layers[first], conv2=layers[second], **options)


def _conv(layer: Callable[..., Any], features: int, padding: str, in_features: int, *, name: str):
  """The layer, with PyTorch's initialization; what its partial sets goes before all of this."""
  window = already_set(layer).get("kernel_size", (5, 5))
  groups = already_set(layer).get("feature_group_count", 1)
  return make(
    layer,
    features=features,
    kernel_size=window,
    padding=padding,
    kernel_init=torch_kernel_init,
    bias_init=torch_bias_init(math.prod(window) * in_features // groups),
    name=name,
  )


def _dense(features: int, in_features: int, *, name: str) -> nn.Dense:
  """A dense layer with PyTorch's initialization."""
  bias_init = torch_bias_init(in_features)
  return nn.Dense(features, kernel_init=torch_kernel_init, bias_init=bias_init, name=name)
