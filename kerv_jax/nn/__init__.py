"""Kervolutional layers for Flax linen, and models of others made kervolutional."""

from kerv_jax.nn.hyperparameters import hyperparameters
from kerv_jax.nn.kervolve import kervolve
from kerv_jax.nn.layers import KervConv, KervConvTranspose, KervDense

__all__ = ["KervConv", "KervConvTranspose", "KervDense", "hyperparameters", "kervolve"]
