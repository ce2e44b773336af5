"""From a configuration to the network that it names."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from experiments.common.kernels import KERNELS, kernel
from experiments.configs.config import ModelConfig
from kerv_jax import models
from kerv_jax.initializers import whitening
from kerv_jax.nn import KervConv

WHITENED = 5000
"""Training images whose patches decide the whitening of fastnet."""


def network(config: ModelConfig, num_classes: int, images: np.ndarray | None = None) -> nn.Module:
  """Returns the network that a configuration names.

  Args:
    config: configuration of the network.
    num_classes: number of classes, the outputs of the last layer.
    images: training images as the network sees them, for fastnet's whitening; without them its
      filters are random.
  """
  kerv = kervolution(config)
  first, rest = (kerv, kerv if config.layers == "all" else nn.Conv)
  if config.name == "lenet5":
    return models.LeNet5(num_classes=num_classes, conv1=first, conv2=rest)
  dtype = jnp.bfloat16 if config.dtype == "bfloat16" else None
  if config.name == "fastnet":
    given: dict[str, Any] = {} if images is None else {"whitening_init": whitening(images)}
    widths = config.widths or (64, 256, 256)
    return models.FastNet(widths, num_classes, rest, first, dtype=dtype, **given)
  options: dict[str, Any] = {
    "num_classes": num_classes,
    "conv": rest,
    "stem": first,
    "dtype": dtype,
    "remat": config.remat,
  }
  if config.name in ("resnet8", "resnet20", "resnet32", "resnet110"):
    return models.CifarResNet(depth=int(config.name.removeprefix("resnet")), **options)
  classes: dict[str, Callable[..., nn.Module]] = {
    "resnet18": models.ResNet18,
    "resnet34": models.ResNet34,
    "resnet50": models.ResNet50,
    "resnet101": models.ResNet101,
    "googlenet": models.GoogLeNet,
    "densenet40": models.DenseNet,
  }
  return classes[config.name](**options)


def kervolution(config: ModelConfig) -> Callable[..., nn.Module]:
  """Returns the class of the kervolutional layers; of convolutions for the CNN.

  Args:
    config: configuration of the network.
  """
  if config.kernel == "none":
    return nn.Conv
  kernel_fn = kernel(
    config.kernel, degree=config.degree, balance=config.balance, gamma=config.gamma
  )
  learnable = KERNELS[config.kernel].learnable if config.learnable else False
  return functools.partial(KervConv, kernel_fn=kernel_fn, learnable=learnable)
