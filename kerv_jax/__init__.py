"""Kervolution for JAX and Flax: convolutions whose inner product is a kernel function.

Wang, Yang, Xie, Yuan, "Kervolutional Neural Networks", CVPR 2019.  The operator is
:func:`kerv_general_dilated`, the kernel functions are in :mod:`kerv_jax.kernels` and the Flax
layer is :class:`kerv_jax.nn.KervConv`.  The modules that need Flax or Optax are imported at their
first use, as ``kerv_jax.nn`` or by name.
"""

import importlib
from typing import TYPE_CHECKING, Any

from kerv_jax import kernels
from kerv_jax.kervolution import kerv_general_dilated

if TYPE_CHECKING:
  from kerv_jax import initializers as initializers
  from kerv_jax import models as models
  from kerv_jax import nn as nn
  from kerv_jax import nnx as nnx
  from kerv_jax import optim as optim
  from kerv_jax import torch_import as torch_import

_AT_FIRST_USE = ("initializers", "models", "nn", "nnx", "optim", "torch_import")

__version__ = "0.2.0"
__all__ = ["kernels", "kerv_general_dilated"]


def __getattr__(name: str) -> Any:
  """Imports a module that is asked for as an attribute."""
  if name in _AT_FIRST_USE:
    return importlib.import_module(f"{__name__}.{name}")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  """Returns the names that there are, and those of modules that are not imported yet."""
  return sorted({*globals(), *_AT_FIRST_USE})
