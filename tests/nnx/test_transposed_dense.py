"""Transposed and dense kervolution in NNX against Flax's layers and linen's."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels
from kerv_jax import nnx as kerv_nnx
from kerv_jax.nn import KervConvTranspose, KervDense
from tests.nn.layers import KEY
from tests.trees import normal


def nnx_pair(name, fields, kernel_fn, **learning):
  """The layer of Flax NNX and ours, with the same weights: those of the seed."""
  plain, kerv, size = {
    "transposed": (nnx.ConvTranspose, kerv_nnx.KervConvTranspose, {"kernel_size": (3, 2)}),
    "dense": (nnx.Linear, kerv_nnx.KervDense, {}),
  }[name]
  fields = {"bias_init": nnx.initializers.normal(), **size, **fields}
  ours = kerv(3, 6, kernel_fn=kernel_fn, **learning, **fields, rngs=nnx.Rngs(0))
  return plain(3, 6, **fields, rngs=nnx.Rngs(0)), ours


@pytest.mark.parametrize(
  ("name", "fields"),
  [
    ("transposed", {}),
    ("transposed", {"strides": (2, 3), "padding": "CIRCULAR", "transpose_kernel": True}),
    ("transposed", {"strides": 2, "padding": ((2, 0), (1, 3)), "kernel_dilation": (2, 1)}),
    ("transposed", {"mask": np.tril(np.ones((3, 2, 3, 6), np.float32)), "use_bias": False}),
    ("transposed", {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}),
    ("dense", {}),
    ("dense", {"dtype": jnp.bfloat16, "use_bias": False}),
    ("dense", {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}),
  ],
  ids=str,
)
@pytest.mark.usefixtures("promotion")
def test_nnx_is_that_of_flax(name, fields):
  x = normal(2, 4, 5, 3)
  plain, linear = nnx_pair(name, fields, kernels.Linear())
  general = nnx_pair(name, fields, kernels.Polynomial(1, 0.0))[1]
  assert jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(linear))) == jax.tree.map(
    jnp.shape, nnx.to_pure_dict(nnx.state(plain))
  )
  expected, out = plain(x), linear(x)
  assert out.dtype == expected.dtype
  assert_array_equal(np.asarray(out), np.asarray(expected))
  out = nnx.jit(lambda layer, x: layer(x))(general, x)
  assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
  tolerance = 2e-2 if "dtype" in fields else 1e-5
  assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
  "kernel_fn",
  [
    kernels.Gaussian(np.linspace(0.05, 0.3, 6)),
    kernels.Concatenate([(2, kernels.Cosine()), (4, kernels.Polynomial(2) - kernels.L1())]),
  ],
  ids=repr,
)
@pytest.mark.parametrize("name", ["transposed", "dense"])
def test_nnx_has_the_numbers_of_linen(name, kernel_fn):
  x = normal(2, 4, 3)
  fields = {"kernel_size": (3,), "strides": 2} if name == "transposed" else {}
  linen = {"transposed": KervConvTranspose, "dense": KervDense}[name](
    6, kernel_fn=kernel_fn, learnable=True, per_feature=True, **fields
  )
  layer = nnx_pair(name, fields, kernel_fn, learnable=True, per_feature=True)[1]
  variables = {"params": nnx.to_pure_dict(nnx.state(layer, nnx.Param))}
  like = jax.eval_shape(linen.init, KEY, x)
  assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, like)

  @nnx.jit
  def gradient(layer):
    return nnx.value_and_grad(lambda layer: jnp.mean(layer(x) ** 2))(layer)

  @jax.jit
  def linen_gradient(variables):
    return jax.value_and_grad(lambda v: jnp.mean(linen.apply(v, x) ** 2))(variables)

  (value, grads), (expected, expected_grads) = gradient(layer), linen_gradient(variables)
  assert_allclose(value, expected, rtol=1e-5)
  chex.assert_trees_all_close(
    nnx.to_pure_dict(grads), expected_grads["params"], rtol=1e-4, atol=1e-6
  )
  for learned, value in kernel_fn.hyperparameters().items():
    found = kerv_nnx.hyperparameters(layer)[""][learned]
    assert_allclose(found, np.broadcast_to(value, found.shape), rtol=1e-5)
    assert np.all(grads[learned][...] != 0)


def test_nnx_summary():
  model = nnx.Sequential(
    kerv_nnx.KervConvTranspose(3, 6, (3, 2), rngs=nnx.Rngs(0)),
    kerv_nnx.KervDense(6, 2, kernel_fn=kernels.Gaussian(), learnable=True, rngs=nnx.Rngs(0)),
  )
  rows = [" ".join(line.split()) for line in kerv_nnx.summary(model).splitlines()[2:]]
  assert rows == [
    "layers/0 KervConvTranspose 3x2, 6 features Polynomial(degree=3, balance=1.0) -",
    "layers/1 KervDense, 2 features Gaussian(gamma=1.0) gamma",
  ]


@pytest.mark.parametrize(
  ("layer", "fields", "message"),
  [
    (kerv_nnx.KervConvTranspose, {"kernel_fn": kernels.L1}, "`kernel_fn`"),
    (kerv_nnx.KervConvTranspose, {"learnable": ("gamma",)}, "gamma"),
    (kerv_nnx.KervConvTranspose, {"kernel_fn": kernels.Gaussian(np.ones(3))}, "4 output features"),
    (kerv_nnx.KervConvTranspose, {"mask": np.ones((1, 2, 3, 4))}, "`mask`"),
    (kerv_nnx.KervDense, {"per_feature": True}, "`per_feature`"),
    (
      kerv_nnx.KervDense,
      {"dot_general": jax.lax.dot_general},
      "unexpected .*dot_general",
    ),
  ],
)
def test_nnx_refuses(layer, fields, message):
  window = ((3, 2),) if layer is kerv_nnx.KervConvTranspose else ()
  with pytest.raises((TypeError, ValueError), match=message):
    layer(3, 4, *window, **fields, rngs=nnx.Rngs(0))(jnp.ones((2, 4, 5, 3)))
