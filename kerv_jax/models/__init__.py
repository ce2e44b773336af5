"""The paper's networks; each takes the class of its layers as an argument."""

from kerv_jax.models.densenet import DenseNet
from kerv_jax.models.googlenet import GoogLeNet
from kerv_jax.models.lenet import LeNet5, lenet5
from kerv_jax.models.resnet import CifarResNet, ResNet, ResNet18, ResNet34, ResNet50, ResNet101

__all__ = [
  "CifarResNet",
  "DenseNet",
  "GoogLeNet",
  "LeNet5",
  "ResNet",
  "ResNet18",
  "ResNet34",
  "ResNet50",
  "ResNet101",
  "lenet5",
]
