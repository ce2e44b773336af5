"""The learned hyperparameters of an NNX model, as plain values."""

from typing import Any

from flax import nnx

from kerv_jax._flax.learnable import plain_values
from kerv_jax.nnx.layers import KernelLayer
from kerv_jax.nnx.traversal import modules


def hyperparameters(model: nnx.Module) -> dict[str, Any]:
  """The learned hyperparameters of a model as plain values.

  Args:
    model: any ``nnx.Module``.

  Returns:
    For the path of each kervolutional layer that learns any, such as ``"blocks/0/conv"``, their
    values by name; {} if there is none.

  Example:
    >>> from flax import nnx
    >>> from kerv_jax import kernels
    >>> from kerv_jax.nnx import KervConv, hyperparameters
    >>> layer = KervConv(3, 4, (3, 3), kernel_fn=kernels.Gaussian(0.5), learnable=True,
    ...                  rngs=nnx.Rngs(0))
    >>> float(hyperparameters(nnx.Sequential(layer))["layers/0"]["gamma"])
    0.5
  """
  return {
    paths[0]: plain_values(
      {name: getattr(layer, name)[...] for name in layer.kernel_spec.names},
      layer.kernel_spec.kernel_fn,
      layer.kernel_spec.names,
    )
    for paths, layer in modules(model, KernelLayer)
    if layer.kernel_spec.names
  }
