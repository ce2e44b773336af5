"""The layer is its kernel on every patch."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization
from numpy.testing import assert_allclose

from kerv_jax import kernels, kerv_general_dilated
from tests.nn.layers import (
  IMAGE,
  KEY,
  LAYOUTS,
  Chebyshev,
  Exponential,
  GaussianConv,
  Kerv,
  Named,
  Small,
  apply,
  init,
  perturbed,
  shapes,
  small,
)
from tests.trees import normal, same


def test_a_model_takes_the_layer_as_an_argument():
  x = normal(2, 8, 8, 3)
  cnn = Small()
  variables = perturbed(init(cnn, x))
  knn = small(kernel_fn=kernels.Linear())
  assert shapes(init(cnn, x)["params"]).keys() == {
    "stem",
    "BatchNorm_0",
    "Conv_0",
    "Conv_1",
    "Dense_0",
  }
  renamed = {
    collection: {name.replace("Conv", "KervConv"): value for name, value in tree.items()}
    for collection, tree in variables.items()
  }
  assert shapes(init(knn, x)) == shapes(renamed)
  same(apply(knn, renamed, x), apply(cnn, variables, x))
  out = apply(small(kernel_fn=kernels.Sigmoid()), renamed, x)
  assert out.shape == (2, 5)
  assert not np.allclose(out, apply(cnn, variables, x), rtol=1e-2, atol=1e-2)


def test_checkpoint_of_a_cnn_loads():
  x = normal(2, 6, 6, 3)
  cnn, knn = Named(), Named(functools.partial(Kerv, kernel_fn=kernels.Polynomial(2)))
  trained = perturbed(init(cnn, x))
  blob = serialization.to_bytes(trained)
  kerv = jax.jit(
    functools.partial(
      kerv_general_dilated, dimension_numbers=LAYOUTS[2], kernel_fn=kernels.Polynomial(2)
    ),
    static_argnums=(2, 3),
  )
  target = jax.tree.map(jnp.zeros_like, init(knn, x))
  for loaded in (
    serialization.from_bytes(target, blob),
    serialization.from_state_dict(target, serialization.to_state_dict(trained)),
    serialization.msgpack_restore(blob),
  ):
    assert shapes(loaded) == shapes(target)
    same(jax.tree.map(jnp.asarray, loaded), trained)
    p = loaded["params"]
    h = np.asarray(kerv(x, jnp.asarray(p["conv1"]["kernel"]), (1, 1), "SAME"))
    h = jnp.maximum(h + np.asarray(p["conv1"]["bias"]), 0)
    h = np.asarray(kerv(h, jnp.asarray(p["conv2"]["kernel"]), (2, 2), "VALID"))
    h = (h + np.asarray(p["conv2"]["bias"])).reshape(2, -1)
    expected = h @ np.asarray(p["dense"]["kernel"]) + np.asarray(p["dense"]["bias"])
    assert_allclose(apply(knn, loaded, x), expected, rtol=1e-5, atol=1e-5)
  assert not np.allclose(apply(knn, trained, x), apply(cnn, trained, x), rtol=1e-2, atol=1e-2)


def patches(x, window, strides, dilation):
  """(*batch, *out, K) of an already padded input, in the order (tap, channel); with loops."""
  x = np.asarray(x)
  rank = len(window)
  space = x.shape[-rank - 1 : -1]
  extent = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
  out = [(n - e) // s + 1 for n, e, s in zip(space, extent, strides, strict=True)]
  result = np.zeros((*x.shape[: -rank - 1], *out, int(np.prod(window)), x.shape[-1]), x.dtype)
  for position in itertools.product(*map(range, out)):
    for number, tap in enumerate(itertools.product(*map(range, window))):
      where = tuple(
        p * s + t * d for p, s, t, d in zip(position, strides, tap, dilation, strict=True)
      )
      result[(..., *position, number, slice(None))] = x[(..., *where, slice(None))]
  return result.reshape(*result.shape[:-2], -1)


PER_FEATURE = np.array([0.05, 0.1, 0.2, 0.4, 0.8, 1.6], np.float32)


KERNELS = [
  kernels.Linear(),
  kernels.Polynomial(2, 0.5),
  kernels.Polynomial(3, PER_FEATURE),
  kernels.Sigmoid(0.2, PER_FEATURE),
  kernels.Gaussian(0.1),
  kernels.Gaussian(PER_FEATURE),
  kernels.L1(),
  kernels.L2(),
  kernels.L2(squared=True),
  kernels.Laplacian(PER_FEATURE / 5),
  kernels.Cauchy(jnp.asarray(PER_FEATURE)),
  kernels.RationalQuadratic(PER_FEATURE, 2.0),
  kernels.Cosine(),
  kernels.Custom(lambda x, w: jnp.max(x * w, axis=-1)),
  Chebyshev(PER_FEATURE),
  Exponential(0.2, PER_FEATURE),
  2.0 * kernels.Gaussian(PER_FEATURE) - kernels.L1() * kernels.Cosine(),
  PER_FEATURE * kernels.Custom(lambda x, w: jnp.sum(x * w * w, axis=-1)) + kernels.L2(),
]


@pytest.mark.parametrize(
  ("kernel_fn", "groups"),
  [*((kernel_fn, 2) for kernel_fn in KERNELS), (KERNELS[2], 1), (KERNELS[5], 1), (KERNELS[13], 1)],
  ids=lambda value: value if isinstance(value, int) else type(value).__name__,
)
def test_every_kernel_is_its_definition_on_patches(kernel_fn, groups):
  strides, dilation, window = (2, 1), (1, 2), (3, 2)
  x = normal(2, 7, 6, 4)
  layer = Kerv(
    6,
    window,
    strides,
    padding="CIRCULAR",
    kernel_dilation=dilation,
    feature_group_count=groups,
    kernel_fn=kernel_fn,
  )
  variables = perturbed(init(layer, x))
  kernel, bias = (np.asarray(variables["params"][name]) for name in ("kernel", "bias"))
  assert shapes(variables["params"]) == {"kernel": (3, 2, 4 // groups, 6), "bias": (6,)}
  padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], "wrap")
  filters = np.asarray(kernel).reshape(-1, 6).T
  by_group = []
  for g in range(groups):
    channels = slice(g * 4 // groups, (g + 1) * 4 // groups)
    by_group.append(patches(padded[..., channels], window, strides, dilation))
  per_filter = np.stack([by_group[f // (6 // groups)] for f in range(6)], axis=-2)
  expected = np.asarray(kernel_fn(jnp.asarray(per_filter), jnp.asarray(filters))) + bias
  out = np.asarray(apply(layer, variables, x))
  assert out.shape == expected.shape == (2, 4, 6, 6)
  assert_allclose(out, expected, rtol=2e-4, atol=2e-4)
  assert np.ptp(out - bias) > 0.05


def test_padding_with_zeros_is_data():
  x = normal(1, 4, 4, 2)
  layer = Kerv(3, (3, 3), kernel_fn=kernels.L1())
  variables = perturbed(init(layer, x))
  padded = jnp.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
  expected = apply(layer.clone(padding="VALID"), variables, padded)
  assert_allclose(apply(layer, variables, x), expected, rtol=1e-5, atol=1e-5)


def test_a_masked_weight_is_a_zero():
  x = normal(*IMAGE)
  mask = (np.random.default_rng(0).uniform(size=(3, 3, 4, 6)) > 0.5).astype(np.float32)
  plain, layer = GaussianConv(6, (3, 3)), GaussianConv(6, (3, 3), mask=mask)
  params = perturbed(init(plain, x))["params"]
  out, pullback = jax.vjp(jax.jit(lambda p: layer.apply({"params": p}, x)), params)
  masked = {**params, "kernel": params["kernel"] * mask}
  assert_allclose(out, apply(plain, {"params": masked}, x), rtol=1e-6, atol=1e-6)
  (gradient,) = pullback(jnp.ones_like(out))
  assert np.all(np.asarray(gradient["kernel"])[mask == 0] == 0)
  assert np.all(np.asarray(gradient["kernel"])[mask == 1] != 0)


def test_extra_batch_dimensions_and_unbatched_inputs():
  x = normal(2, 3, 6, 5, 4)
  layer = GaussianConv(6, (3, 3), per_feature=True, padding="CIRCULAR")
  variables = perturbed(init(layer, x))
  assert shapes(variables) == shapes(jax.eval_shape(layer.init, KEY, x[0, 0]))
  out = apply(layer, variables, x)
  assert out.shape == (2, 3, 6, 5, 6)
  for i, j in itertools.product(range(2), range(3)):
    assert_allclose(apply(layer, variables, x[i, j]), out[i, j], rtol=1e-5, atol=1e-6)
    assert_allclose(apply(layer, variables, x[i])[j], out[i, j], rtol=1e-5, atol=1e-6)
