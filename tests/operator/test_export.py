"""Kervolutions are exported as convolutions are: for any batch, any image, any platform."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from kerv_jax import kernels, kerv_general_dilated
from tests.operator.cases import NHWC, name, operands

KERNELS = [
  kernels.Linear(),
  kernels.Polynomial(),
  kernels.Gaussian(0.05),
  kernels.L2(),
  kernels.L1(),
  kernels.Laplacian(0.05),
  kernels.Huber(0.8),
  kernels.Chebyshev(),
  kernels.Minkowski(3.0),
  kernels.Cosine(),
  -kernels.L1(surrogate=True),
  kernels.Custom(lambda x, w: jnp.max(jnp.abs(x - w))),
]
PLATFORMS = ["cpu", "cuda", "rocm", "tpu"]


@pytest.mark.parametrize("shape", ["b, 8, 9, 4", "2, h, w, 4", "b, h, w, 4"])
@pytest.mark.parametrize(
  ("strides", "padding"), [((1, 1), "SAME"), ((2, 1), "SAME"), ((1, 1), "VALID")], ids=str
)
@pytest.mark.parametrize("kernel", KERNELS, ids=name)
def test_symbolic_sizes(kernel, strides, padding, shape):
  if padding == "VALID" and "h" in shape and isinstance(kernel, kernels.Custom):
    pytest.skip("JAX cannot tell that a product of two symbolic sizes is not negative")
  layer = functools.partial(
    kerv_general_dilated,
    window_strides=strides,
    padding=padding,
    dimension_numbers=NHWC,
    kernel_fn=kernel,
  )

  def both(lhs, rhs):
    if "h" in shape and (strides != (1, 1) or padding == "VALID"):
      return (layer(lhs, rhs),)  # JAX derives no convolution there
    gradients = jax.grad(lambda *args: jnp.sum(jnp.sin(layer(*args))), (0, 1))(lhs, rhs)
    return layer(lhs, rhs), *gradients

  lhs, rhs = operands((2, 8, 9, 4), (3, 3, 4, 6))
  # Sums over pairs must know that the window fits in; a convolution need not.
  known = padding == "SAME" or "h" not in shape or isinstance(kernel, kernels.Polynomial)
  symbols = export.symbolic_shape(shape, constraints=() if known else ("h >= 3", "w >= 3"))
  shapes = [jax.ShapeDtypeStruct(symbols, lhs.dtype), rhs]
  exported = export.export(jax.jit(both), platforms=PLATFORMS)(*shapes)
  assert list(exported.platforms) == PLATFORMS
  found = exported.call(lhs, rhs)
  for a, b in zip(found, jax.jit(both)(lhs, rhs), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
