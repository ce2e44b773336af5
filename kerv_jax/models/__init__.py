"""The paper's networks and a fast one; each takes the class of its layers as an argument."""

from kerv_jax.models.densenet import DenseNet
from kerv_jax.models.fastnet import FastNet
from kerv_jax.models.googlenet import GoogLeNet
from kerv_jax.models.lenet import LeNet5, lenet5
from kerv_jax.models.resnet import CifarResNet, ResNet, ResNet18, ResNet34, ResNet50, ResNet101

__all__ = [
  "CifarResNet",
  "DenseNet",
  "FastNet",
  "GoogLeNet",
  "LeNet5",
  "ResNet",
  "ResNet18",
  "ResNet34",
  "ResNet50",
  "ResNet101",
  "lenet5",
]
