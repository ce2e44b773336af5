"""Kervolution for JAX and Flax: convolutions whose inner product is a kernel function.

Wang, Yang, Xie, Yuan, "Kervolutional Neural Networks", CVPR 2019.  The operator is
:func:`kerv_general_dilated`, the kernel functions are in :mod:`kerv_jax.kernels` and the Flax
layer is :class:`kerv_jax.nn.KervConv`, of a module that is imported by its name, as only that
needs Flax.
"""

from kerv_jax import kernels
from kerv_jax.kervolution import kerv_general_dilated

__version__ = "0.1.0"
__all__ = ["kernels", "kerv_general_dilated"]
