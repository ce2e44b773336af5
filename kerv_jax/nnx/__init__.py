"""Kervolutional layers for Flax NNX, and models of others made kervolutional."""

from kerv_jax.nnx.hyperparameters import hyperparameters
from kerv_jax.nnx.kervolve import kervolve, summary
from kerv_jax.nnx.layers import KervConv, KervConvTranspose, KervDense

__all__ = [
  "KervConv", "KervConvTranspose", "KervDense", "hyperparameters", "kervolve", "summary",
]  # fmt: skip
