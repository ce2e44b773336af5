"""Kernels and operands for the tests of the operator."""

import re

import jax.numpy as jnp
import numpy as np

from kerv_jax import kernels, kerv_general_dilated

NHWC = ("NHWC", "HWIO", "NHWC")
SMOOTH = [
  kernels.Linear(),
  kernels.Polynomial(3, 0.7),
  kernels.Polynomial(2, 0.0),
  kernels.Sigmoid(0.3, 0.1),
  kernels.Gaussian(0.05),
  kernels.L2(),
  kernels.L2(squared=True),
  kernels.Cauchy(2.0),
  kernels.RationalQuadratic(0.8, 1.5),
  kernels.Cosine(),
  2.0 * kernels.Gaussian(0.05) - kernels.Linear() * kernels.Cauchy(3.0),
]
ABSOLUTE = [kernels.L1(), kernels.Laplacian(0.03), -kernels.L1() + kernels.Linear()]
ALL = SMOOTH + ABSOLUTE
ONE_PER_STATISTIC = [
  kernels.Polynomial(3, 0.7),
  kernels.Gaussian(0.05),
  kernels.Laplacian(0.03),
  kernels.Cosine(),
]


def name(value):
  """What stands for a value in a test's name: the same in every process."""
  known = isinstance(value, (kernels.Kernel, tuple))
  return re.sub(r"<.*? at 0x\w+>", "...", str(value)) if known else None


def operands(lhs_shape=(2, 6, 5, 4), rhs_shape=(3, 2, 2, 6), seed=0, dtype="float32"):
  rng = np.random.default_rng(seed)
  return (
    jnp.asarray(rng.standard_normal(lhs_shape), dtype),
    jnp.asarray(rng.standard_normal(rhs_shape), dtype),
  )


def kerv(lhs, rhs, kernel_fn, method="auto", **options):
  options = {
    "window_strides": (2, 1),
    "padding": ((1, 2), (0, 1)),
    "rhs_dilation": (1, 2),
    "feature_group_count": 2,
    "dimension_numbers": NHWC,
  } | options
  return kerv_general_dilated(lhs, rhs, kernel_fn=kernel_fn, method=method, **options)
