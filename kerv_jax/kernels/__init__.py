"""Kernel functions: what a kervolution puts in the place of the inner product.

A kernel function maps a patch and a filter, two vectors of the same length, to a number.  All
the built-in ones are a scalar *profile* of one *patch statistic* (the inner product, the squared
distance or the absolute distance of patch and filter), and that is what makes them fast: the
statistic is computed like a convolution, and the profile is pointwise.

Every kernel is an immutable pytree.  Its hyperparameters (``gamma``, ``balance``, ...) are leaves,
each a scalar or one value per output feature; structure, such as the ``degree`` of a polynomial,
is static.  So :func:`jax.grad` with respect to a kernel is a kernel of gradients, and a kernel
passes through :func:`jax.jit`, :func:`jax.vmap` and :func:`jax.lax.scan`.

Called on two vectors, a kernel is its own definition:

>>> import jax
>>> import jax.numpy as jnp
>>> from kerv_jax import kernels
>>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
>>> print(kernels.Polynomial(degree=2, balance=1.0)(x, w))  # (1*0.5 + 2*1 + 1) ** 2
12.25
>>> kernel = 2.0 * kernels.Gaussian(gamma=0.5) + kernels.Linear()
>>> print(f"{kernel(x, w):.4f}")  # 2 exp(-0.5 * 1.25) + 2.5
3.5705
>>> jax.grad(lambda k: k(x, w))(kernels.Polynomial(degree=2, balance=1.0))
Polynomial(degree=2, balance=Array(7., dtype=float32, weak_type=True))

References:
  Wang, Yang, Xie, Yuan, "Kervolutional Neural Networks", CVPR 2019 ("the paper" below).
"""

from kerv_jax.kernels.additive import AdditiveKernel
from kerv_jax.kernels.base import Kernel, Negative, Product, Scaled, Sum
from kerv_jax.kernels.beyond import Cauchy, Cosine, Custom, Laplacian, RationalQuadratic
from kerv_jax.kernels.builtin import L1, L2, Gaussian, Linear, Polynomial, Sigmoid
from kerv_jax.kernels.concatenate import Concatenate
from kerv_jax.kernels.definitions import (
  ABSOLUTE_DISTANCE,
  ADDER_DISTANCE,
  FILTER_SQUARED_NORM,
  INNER_PRODUCT,
  PATCH_SQUARED_NORM,
  SQUARED_DISTANCE,
  safe_sqrt,
)
from kerv_jax.kernels.fields import Hyperparameter, hyperparameter, static
from kerv_jax.kernels.names import with_current_names
from kerv_jax.kernels.normalized import Normalized
from kerv_jax.kernels.pairwise import (
  Chebyshev,
  ChiSquared,
  Huber,
  Intersection,
  MaxPlus,
  Minkowski,
)
from kerv_jax.kernels.profiles import (
  AbsoluteDistanceKernel,
  InnerProductKernel,
  SquaredDistanceKernel,
)

__all__ = [
  "ABSOLUTE_DISTANCE", "ADDER_DISTANCE", "FILTER_SQUARED_NORM", "INNER_PRODUCT", "L1", "L2",
  "PATCH_SQUARED_NORM", "SQUARED_DISTANCE", "AbsoluteDistanceKernel", "AdditiveKernel", "Cauchy",
  "Chebyshev", "ChiSquared", "Concatenate", "Cosine", "Custom", "Gaussian", "Huber",
  "Hyperparameter", "InnerProductKernel", "Intersection", "Kernel", "Laplacian", "Linear",
  "MaxPlus", "Minkowski", "Negative", "Normalized", "Polynomial", "Product", "RationalQuadratic",
  "Scaled", "Sigmoid", "SquaredDistanceKernel", "Sum", "hyperparameter", "safe_sqrt", "static",
  "with_current_names",
]  # fmt: skip
