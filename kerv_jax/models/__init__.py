"""The paper's networks; each takes the class of its layers as an argument."""

from kerv_jax.models.lenet import LeNet5, lenet5

__all__ = ["LeNet5", "lenet5"]
