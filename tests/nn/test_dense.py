"""Dense kervolution against Flax's layer and the definition."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels
from kerv_jax.nn import KervDense
from tests.nn.layers import KEY, apply
from tests.trees import normal, random_variables


@pytest.mark.parametrize("shape", [(3, 5), (5,), (2, 3, 4, 5), (0, 5)])
@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"dtype": jnp.bfloat16}], ids=str)
def test_linear_is_dense_bit_for_bit(shape, options):
  dense = nn.Dense(4, **options)
  layer = KervDense(4, kernel_fn=kernels.Linear(), **options)
  x = normal(*shape)
  assert jax.eval_shape(layer.init, KEY, x) == jax.eval_shape(dense.init, KEY, x)
  variables = random_variables(dense, x)
  expected = dense.apply(variables, x)
  out = layer.apply(variables, x)
  assert out.dtype == expected.dtype
  assert_array_equal(np.asarray(out), np.asarray(expected))


@pytest.mark.parametrize(
  "kernel_fn",
  [
    kernels.Polynomial(2, np.array([0.5, 1.0, 0.0, 2.0])),
    kernels.Gaussian(0.1) - kernels.L1(),
    kernels.Cosine(),
    kernels.Custom(lambda x, w: jnp.max(x * w)),
    kernels.Concatenate([(1, kernels.L2()), (3, kernels.Sigmoid(0.5))]),
  ],
  ids=lambda kernel: type(kernel).__name__,
)
@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)])
def test_dense_is_the_kernel_of_input_and_column(kernel_fn, shape):
  x = normal(*shape)
  layer = KervDense(4, kernel_fn=kernel_fn)
  variables = random_variables(layer, x)
  w, bias = variables["params"]["kernel"], variables["params"]["bias"]
  assert w.shape == (5, 4)
  flat = x.reshape(-1, 5)
  if isinstance(kernel_fn, kernels.Custom):
    expected = jnp.stack([jnp.stack([kernel_fn(row, w[:, o]) for o in range(4)]) for row in flat])
  else:
    expected = kernel_fn(flat[:, None], w.T)
  out = apply(layer, variables, x)
  assert out.shape == (*shape[:-1], 4)
  expected = np.asarray(expected).reshape(out.shape) + np.asarray(bias)
  assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_the_product_is_not_a_field():
  with pytest.raises(TypeError):
    KervDense(3, dot_general=jax.lax.dot_general)
