"""The paper's networks and a fast one, and what was trained of them, on its way to other places.

Each network takes the class of its layers as an argument. ``load`` reads a trained one.
"""

from kerv_jax.models.deep import deep
from kerv_jax.models.densenet import DenseNet
from kerv_jax.models.description import Description
from kerv_jax.models.fastnet import FastNet
from kerv_jax.models.googlenet import GoogLeNet
from kerv_jax.models.lenet import LeNet5, lenet5
from kerv_jax.models.resnet import CifarResNet, ResNet, ResNet18, ResNet34, ResNet50, ResNet101
from kerv_jax.models.trained import Trained, load, save

__all__ = [
  "CifarResNet",
  "DenseNet",
  "Description",
  "FastNet",
  "GoogLeNet",
  "LeNet5",
  "ResNet",
  "ResNet18",
  "ResNet34",
  "ResNet50",
  "ResNet101",
  "Trained",
  "deep",
  "lenet5",
  "load",
  "save",
]
