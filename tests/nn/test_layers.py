"""The linen layer: ``nn.Conv`` in all but the operator, and hyperparameters that learn."""

import copy
import functools
import itertools
import pickle
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization
from flax.core import FrozenDict, freeze
from flax.traverse_util import flatten_dict
from jax import lax
from numpy.testing import assert_allclose

from kerv_jax import kernels, kerv_general_dilated
from kerv_jax.kernels import Hyperparameter, hyperparameter
from kerv_jax.nn import KervConv, hyperparameters
from tests.trees import close, normal, numpy_init, random_variables, same

KEY = jax.random.key(0)
LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}

Conv = functools.partial(nn.Conv, kernel_init=numpy_init)
Kerv = functools.partial(KervConv, kernel_init=numpy_init)
LinearConv = functools.partial(Kerv, kernel_fn=kernels.Linear())
GaussianConv = functools.partial(Kerv, kernel_fn=kernels.Gaussian(0.1), learnable=True)


def shapes(tree):
  return jax.tree.map(jnp.shape, tree)


def perturbed(variables, seed=1):
  """Other values of every parameter, so that no bias is 0."""
  leaves, tree = jax.tree.flatten(variables)
  rng = np.random.default_rng(seed)
  return jax.tree.unflatten(
    tree,
    [leaf + jnp.asarray(0.2 * rng.normal(size=leaf.shape) + 0.1, leaf.dtype) for leaf in leaves],
  )


@functools.partial(jax.jit, static_argnums=0)
def init(module, x):
  return module.init(KEY, x)


@functools.partial(jax.jit, static_argnums=0)
def apply(module, variables, x):
  return module.apply(variables, x)


# The same as nn.Conv, bit for bit.

IMAGE = (2, 7, 6, 4)
OPTIONS = {
  "default": (IMAGE, {}),
  "strides": (IMAGE, {"strides": 2}),
  "strides_tuple": (IMAGE, {"strides": (3, 1)}),
  "strides_none": (IMAGE, {"strides": None}),
  "valid": (IMAGE, {"padding": "VALID"}),
  "same_lower": (IMAGE, {"padding": "SAME_LOWER", "strides": 2}),
  "lower_case": (IMAGE, {"padding": "same"}),
  "circular": (IMAGE, {"padding": "CIRCULAR"}),
  "circular_even_strided_dilated": (
    IMAGE,
    {"padding": "CIRCULAR", "kernel_size": (2, 3), "strides": (2, 1), "kernel_dilation": 2},
  ),
  "reflect": (IMAGE, {"padding": "REFLECT", "kernel_size": (4, 3), "strides": 2}),
  "causal": ((2, 9, 3), {"padding": "CAUSAL", "kernel_size": (3,), "kernel_dilation": 2}),
  "padding_int": (IMAGE, {"padding": 2}),
  "padding_ints": (IMAGE, {"padding": (2, 0)}),
  "padding_pairs": (IMAGE, {"padding": ((2, 0), (0, 3))}),
  "padding_mixed": (IMAGE, {"padding": [(0, 1), 2]}),
  "padding_negative": (IMAGE, {"padding": ((-1, 2), (1, -2))}),
  "input_dilation": (IMAGE, {"input_dilation": (2, 3), "padding": 0, "strides": 2}),
  "kernel_dilation": (IMAGE, {"kernel_dilation": (2, 1)}),
  "both_dilations": (
    IMAGE,
    {"kernel_dilation": 2, "input_dilation": (1, 2), "padding": ((1, 0), (2, 2))},
  ),
  "groups": (IMAGE, {"feature_group_count": 2}),
  "depthwise": (IMAGE, {"feature_group_count": 4, "features": 8, "strides": (1, 2)}),
  "mask": (IMAGE, {"mask": np.tril(np.ones((3, 3, 4, 6), np.float32))}),
  "no_bias": (IMAGE, {"use_bias": False}),
  "bfloat16": (IMAGE, {"dtype": jnp.bfloat16}),
  "float16": (IMAGE, {"dtype": jnp.float16}),
  "bfloat16_parameters": (IMAGE, {"param_dtype": jnp.bfloat16}),
  "all_bfloat16": (IMAGE, {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}),
  "float16_parameters": (IMAGE, {"dtype": jnp.float16, "param_dtype": jnp.float16}),
  "precision": (IMAGE, {"precision": "highest"}),
  "precision_pair": (IMAGE, {"precision": (lax.Precision.HIGH, lax.Precision.DEFAULT)}),
  "initialisers": (
    IMAGE,
    {"kernel_init": nn.initializers.lecun_normal(), "bias_init": nn.initializers.normal()},
  ),
  "extra_batch": ((2, 3, 1, 7, 6, 4), {"strides": 2}),
  "unbatched": ((7, 6, 4), {"padding": "VALID"}),
  "unbatched_circular": ((7, 6, 4), {"padding": "CIRCULAR"}),
  "empty_batch": ((0, 7, 6, 4), {}),
  "one_pixel": ((2, 1, 1, 4), {}),
  "pointwise": (IMAGE, {"kernel_size": (1, 1), "strides": 2}),
  "rank_1": ((3, 11, 4), {"kernel_size": (4,), "strides": 3}),
  "rank_1_int": ((3, 11, 4), {"kernel_size": 5}),
  "rank_1_circular": ((3, 11, 4), {"kernel_size": (4,), "padding": "CIRCULAR"}),
  "rank_1_unbatched": ((11, 4), {"kernel_size": (4,), "padding": "CAUSAL"}),
  "rank_3": ((2, 4, 5, 3, 2), {"kernel_size": (2, 3, 2), "strides": (1, 2, 1)}),
  "rank_3_reflect": ((2, 4, 5, 4, 2), {"kernel_size": (2, 3, 2), "padding": "REFLECT"}),
  "list_kernel_size": (IMAGE, {"kernel_size": [3, 2], "strides": [2, 1]}),
}


def pair(options, **more):
  options = {"features": 6, "kernel_size": (3, 3), **options, **more}
  return Conv(**options), LinearConv(**options)


@pytest.mark.parametrize("option", OPTIONS)
def test_linear_is_conv_bit_for_bit(option):
  shape, options = OPTIONS[option]
  conv, kerv = pair(options)
  x = normal(*shape)
  assert jax.eval_shape(kerv.init, KEY, x) == jax.eval_shape(conv.init, KEY, x)
  variables = random_variables(conv, x)
  expected, out = conv.apply(variables, x), kerv.apply(variables, x)
  same(out, expected)
  assert expected.size == 0 or np.ptp(np.asarray(expected, np.float32)) > 0

  # The gradients' programs are the same to the letter, and so their bits.
  def program(layer):
    weight = normal(*expected.shape, seed=2, dtype=expected.dtype)

    def loss(variables, x):
      return jnp.sum(weight * layer.apply(variables, x))

    return str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(variables, x))

  assert "conv_general_dilated" in program(conv)
  assert program(kerv) == program(conv)


def test_linear_is_initialised_and_differentiated_as_conv():
  conv = nn.Conv(6, (3, 3), feature_group_count=2)
  kerv = KervConv(6, (3, 3), feature_group_count=2, kernel_fn=kernels.Linear())
  x = normal(*IMAGE)
  variables = conv.init(KEY, x)
  same(kerv.init(KEY, x), variables)

  def gradients(layer):
    return jax.grad(lambda v, x: jnp.sum(jnp.sin(layer.apply(v, x))), (0, 1))(variables, x)

  same(gradients(kerv), gradients(conv))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("compute", [None, jnp.float32, jnp.bfloat16])
def test_inputs_are_promoted_as_by_conv(dtype, compute):
  conv, kerv = pair({"dtype": compute})
  x = jnp.asarray(np.random.default_rng(0).integers(0, 9, IMAGE), dtype)
  assert jax.eval_shape(kerv.init, KEY, x) == jax.eval_shape(conv.init, KEY, x)
  variables = random_variables(conv, x)
  expected = conv.apply(variables, x)
  same(kerv.apply(variables, x), expected)
  # And any other kernel has that dtype too, and close values.
  out = kerv.clone(kernel_fn=kernels.Polynomial(1, 0.0)).apply(variables, x)
  assert out.dtype == expected.dtype
  close(out, expected, rtol=2e-2 if compute == jnp.bfloat16 else 1e-5)


def test_float64():
  with jax.enable_x64(True):
    conv, kerv = pair({"param_dtype": jnp.float64})
    x = normal(*IMAGE, dtype=np.float64)
    variables = random_variables(conv, x)
    same(kerv.apply(variables, x), conv.apply(variables, x))
    layer = kerv.clone(kernel_fn=kernels.Polynomial(2, 0.05), learnable=True)
    variables = init(layer, x)
    assert variables["params"]["balance"].dtype == jnp.float64
    assert apply(layer, variables, x).dtype == jnp.float64
    read = hyperparameters(layer, variables, x)
    assert_allclose(read["balance"], 0.05, rtol=1e-12, atol=0)


def test_promote_dtype_of_the_callers_own():
  def to_bfloat16(*args, dtype):
    del dtype
    return tuple(None if a is None else a.astype(jnp.bfloat16) for a in args)

  conv, kerv = pair({"promote_dtype": to_bfloat16})
  x = normal(*IMAGE)
  variables = random_variables(conv, x)
  assert conv.apply(variables, x).dtype == jnp.bfloat16
  same(kerv.apply(variables, x), conv.apply(variables, x))


def test_a_learnable_layer_initialises_weights_as_conv_does():
  x = normal(*IMAGE)
  fields = {"feature_group_count": 2}
  learning = KervConv(6, (3, 3), learnable=True, **fields).init(KEY, x)["params"]
  expected = nn.Conv(6, (3, 3), **fields).init(KEY, x)["params"]
  assert learning.keys() == {"kernel", "bias", "balance"}
  same({name: learning[name] for name in expected}, expected)


def test_strict_promotion():
  """Where nn.Conv needs no implicit promotion, neither does a kervolution."""
  x = normal(*IMAGE)
  layers = [
    GaussianConv(6, (3, 3), per_feature=True, dtype=dtype) for dtype in (None, jnp.bfloat16)
  ]
  layers += [Kerv(6, (3, 3), dtype=dtype) for dtype in (None, jnp.bfloat16)]
  with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
    for dtype in (None, jnp.bfloat16):
      jax.eval_shape(Conv(6, (3, 3), dtype=dtype).init_with_output, KEY, x)
    for layer in layers:
      jax.eval_shape(layer.init_with_output, KEY, x)


def test_default_is_the_cubic_polynomial():
  layer = Kerv(6, (3, 3))
  assert layer.kernel_fn == kernels.Polynomial(3, 1.0)
  assert layer.learnable is False
  assert layer.per_feature is False
  x = normal(*IMAGE)
  variables = perturbed(init(layer, x))
  bias = variables["params"]["bias"]
  linear = apply(LinearConv(6, (3, 3)), variables, x) - bias
  assert_allclose(apply(layer, variables, x), (linear + 1) ** 3 + bias, rtol=1e-4, atol=1e-4)


# Against the operator and against the kernel on patches.


class Small(nn.Module):
  """A model as Flax's examples write them: the layer is an argument."""

  conv: Any = Conv
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, train=False):
    conv = functools.partial(self.conv, dtype=self.dtype)
    x = conv(4, (3, 3), strides=(2, 2), padding=[(1, 1), (1, 1)], name="stem")(x)
    x = nn.BatchNorm(use_running_average=not train)(x)
    x = conv(4, (3, 3), use_bias=False)(nn.relu(x))
    x = conv(3, kernel_size=(1, 1))(x)
    x = nn.Dropout(0.3, deterministic=not train)(x)
    return nn.Dense(5, kernel_init=numpy_init)(jnp.mean(x, (1, 2)))


def small(**fields):
  return Small(functools.partial(Kerv, **fields))


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


class Named(nn.Module):
  conv: Any = Conv

  @nn.compact
  def __call__(self, x):
    x = nn.relu(self.conv(4, (3, 3), name="conv1")(x))
    x = self.conv(3, (2, 2), strides=2, padding="VALID", name="conv2")(x)
    return nn.Dense(2, kernel_init=numpy_init, name="dense")(x.reshape(len(x), -1))


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
    h = nn.relu(kerv(x, jnp.asarray(p["conv1"]["kernel"]), (1, 1), "SAME") + p["conv1"]["bias"])
    h = kerv(h, jnp.asarray(p["conv2"]["kernel"]), (2, 2), "VALID") + p["conv2"]["bias"]
    expected = h.reshape(2, -1) @ p["dense"]["kernel"] + p["dense"]["bias"]
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


class Chebyshev(kernels.Kernel):
  weight: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  def __call__(self, x, w):
    return self.weight * jnp.max(jnp.abs(x - w), axis=-1)


class Exponential(kernels.InnerProductKernel):
  rate: Hyperparameter = hyperparameter(default=0.1, constraint="positive")
  shift: Hyperparameter = hyperparameter(default=0.0)

  def profile(self, statistic):
    return jnp.exp(self.rate * statistic + self.shift)


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
  kernel, bias = variables["params"]["kernel"], variables["params"]["bias"]
  assert shapes(variables["params"]) == {"kernel": (3, 2, 4 // groups, 6), "bias": (6,)}
  padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], "wrap")
  filters = np.asarray(kernel).reshape(-1, 6).T
  by_group = []
  for g in range(groups):
    channels = slice(g * 4 // groups, (g + 1) * 4 // groups)
    by_group.append(patches(padded[..., channels], window, strides, dilation))
  per_filter = np.stack([by_group[f // (6 // groups)] for f in range(6)], axis=-2)
  expected = kernel_fn(jnp.asarray(per_filter), jnp.asarray(filters)) + bias
  out = apply(layer, variables, x)
  assert out.shape == expected.shape == (2, 4, 6, 6)
  assert_allclose(out, expected, rtol=2e-4, atol=2e-4)
  assert np.ptp(np.asarray(out - bias)) > 0.05


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


# Learnable hyperparameters.

LEARNABLE = {
  "Polynomial": (kernels.Polynomial(2, 0.5), {"balance": 0.5}),
  "Sigmoid": (kernels.Sigmoid(0.2, -0.1), {"scale": 0.2, "offset": -0.1}),
  "Gaussian": (kernels.Gaussian(0.05), {"gamma": 0.05}),
  "Laplacian": (kernels.Laplacian(0.05), {"gamma": 0.05}),
  "Cauchy": (kernels.Cauchy(2.0), {"sigma": 2.0}),
  "RationalQuadratic": (kernels.RationalQuadratic(0.5, 3.0), {"alpha": 0.5, "length": 3.0}),
  "Sum": (
    0.5 * kernels.Sigmoid(0.3, 0.1) + kernels.Polynomial(1, 2.0),
    {
      "terms.0.scale": 0.5,
      "terms.0.kernel.scale": 0.3,
      "terms.0.kernel.offset": 0.1,
      "terms.1.balance": 2.0,
    },
  ),
  "Negative": (-kernels.Polynomial(2, 0.5), {"kernel.balance": 0.5}),
  "Chebyshev": (Chebyshev(0.5), {"weight": 0.5}),
  "Exponential": (Exponential(0.1, -0.2), {"rate": 0.1, "shift": -0.2}),
}
UNBOUNDED = {
  "scale",
  "offset",
  "shift",
  "terms.0.scale",
  "terms.0.kernel.scale",
  "terms.0.kernel.offset",
}
every_way_to_learn = pytest.mark.parametrize(
  "fields",
  [{}, {"learnable": True}, {"learnable": True, "per_feature": True}],
  ids=["fixed", "learnable", "per_feature"],
)
every_learnable = pytest.mark.parametrize("name", LEARNABLE)


@functools.partial(jax.jit, static_argnums=0)
def sgd_step(layer, params, x, target, rate):
  """The output, the gradient of a quadratic loss and what one step makes of the parameters."""

  def loss(params):
    out = layer.apply({"params": params}, x)
    return jnp.mean((out - target) ** 2), out

  optimizer = optax.sgd(rate)
  gradient, out = jax.grad(loss, has_aux=True)(params)
  updates, _ = optimizer.update(gradient, optimizer.init(params), params)
  return out, gradient, optax.apply_updates(params, updates)


@functools.partial(jax.jit, static_argnums=0)
def fixed_step(layer, kernel_fn, params, x, target):
  """The output of a layer that learns nothing, and the gradient with respect to its kernel."""
  weights = {name: params[name] for name in ("kernel", "bias")}

  def loss(kernel_fn):
    fixed = layer.clone(kernel_fn=kernel_fn, learnable=False, per_feature=False)
    out = fixed.apply({"params": weights}, x)
    return jnp.mean((out - target) ** 2), out

  gradient, out = jax.grad(loss, has_aux=True)(kernel_fn)
  return out, gradient


@pytest.mark.parametrize(
  ("name", "per_feature"),
  [*((name, False) for name in LEARNABLE), ("Sigmoid", True), ("Sum", True)],
)
def test_learnable_hyperparameters_are_parameters(name, per_feature):
  kernel_fn, values = LEARNABLE[name]
  layer = Kerv(
    3, (2, 2), padding="VALID", kernel_fn=kernel_fn, learnable=True, per_feature=per_feature
  )
  x, target = normal(2, 4, 4, 2), normal(2, 3, 3, 3, seed=3)
  shape = (3,) if per_feature else ()
  params = init(layer, x)["params"]
  assert shapes(params) == {
    "kernel": (2, 2, 2, 3),
    "bias": (3,),
    **dict.fromkeys(values, shape),
  }
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
  assert layer.learnable_names == tuple(values)
  read = hyperparameters(layer, {"params": params}, x)
  assert read.keys() == values.keys()
  for key, value in values.items():
    assert read[key].shape == shape
    assert_allclose(read[key], np.full(shape, value), rtol=1e-6, atol=0)

  # Step 0 is the layer that does not learn; each hyperparameter has a gradient, the kernel's
  # own, times the slope of softplus where the value must be positive.
  out, gradient, after = sgd_step(layer, params, x, target, 0.05)
  initial = jax.tree.map(lambda leaf: jnp.full(shape, leaf), kernel_fn)
  expected, by_kernel = fixed_step(layer, initial, params, x, target)
  assert_allclose(out, expected, rtol=2e-5, atol=1e-6)
  for key in values:
    slope = 1.0 if key in UNBOUNDED else jax.nn.sigmoid(params[key])
    assert np.all(np.abs(gradient[key]) > 1e-6)
    assert_allclose(gradient[key], by_kernel.hyperparameters()[key] * slope, rtol=1e-3, atol=1e-6)

  # One step changes it, against the gradient, and the value read back is what the layer then uses.
  read = hyperparameters(layer, {"params": after}, x)
  for key, value in values.items():
    assert np.all(after[key] != params[key])
    assert np.all(np.abs(read[key] - value) > 1e-7)
    assert np.all(np.sign(read[key] - value) == -np.sign(gradient[key]))
  out, _, _ = sgd_step(layer, after, x, target, 0.05)
  learned = kernel_fn.with_hyperparameters(read)
  expected, _ = fixed_step(layer, learned, after, x, target)
  assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "value", [1.0, 2.0, 0.5, 3.0, 0.1, 0.05, 1e-3, 1e-6, 2e-9, 0.6931472, 20.0, 100.0, 1e6]
)
@pytest.mark.parametrize("per_feature", [False, True])
def test_step_0_has_the_value_asked_for(value, per_feature):
  x = normal(1, 3, 3, 1)
  for kernel_fn in (kernels.Polynomial(1, value), Exponential(value, -value), Chebyshev(value)):
    layer = Kerv(2, (2, 2), kernel_fn=kernel_fn, learnable=True, per_feature=per_feature)
    read = hyperparameters(layer, layer.init(KEY, x), x)
    assert read.keys() == kernel_fn.hyperparameters().keys()
    for name, asked in kernel_fn.hyperparameters().items():
      assert_allclose(read[name], np.full((2,) * per_feature, asked), rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [1.0, 2.0, 0.5, 0.25, 3.0])
def test_step_0_is_exact_for_common_values(value):
  x = normal(1, 3, 3, 1)
  layer = Kerv(2, (2, 2), kernel_fn=kernels.Polynomial(2, value), learnable=True)
  for variables in (layer.init(KEY, x), init(layer, x)):  # eagerly and under jit
    assert float(hyperparameters(layer, variables, x)["balance"]) == value


@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("module", [np, jnp])
def test_vectors_of_initial_values(per_feature, module):
  x = normal(1, 3, 3, 1)
  balance = np.array([0.01, 0.1, 1.0])
  kernel_fn = kernels.Polynomial(2, module.asarray(balance))
  layer = Kerv(3, (2, 2), kernel_fn=kernel_fn, learnable=True, per_feature=per_feature)
  variables = layer.init(KEY, x)
  assert variables["params"]["balance"].shape == (3,)
  read = hyperparameters(layer, variables, x)
  assert_allclose(read["balance"], balance, rtol=1e-6, atol=0)
  jitted = init(layer, x)
  assert_allclose(jitted["params"]["balance"], variables["params"]["balance"], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
  "name", ["Polynomial", "Sigmoid", "Gaussian", "RationalQuadratic", "Sum", "Chebyshev"]
)
def test_positive_and_finite_whatever_the_learning_rate(name):
  """Steps of that length, up and down, with the weights held: nothing else may blow up first."""
  kernel_fn, values = LEARNABLE[name]
  layer = Kerv(3, (2, 2), kernel_fn=kernel_fn, learnable=True, per_feature=True)
  x = normal(2, 3, 3, 2)
  start = init(layer, x)["params"]
  labels = {n: "learn" if n in values else "hold" for n in start}
  optimizer = optax.multi_transform(
    {"learn": optax.chain(optax.clip(1.0), optax.sgd(1.0)), "hold": optax.set_to_zero()}, labels
  )

  @jax.jit
  def step(params, rate):
    def loss(params):
      return jnp.mean(layer.apply({"params": params}, x))

    value, gradient = jax.value_and_grad(loss)(params)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    updates = jax.tree.map(lambda u: rate * u, updates)
    return value, gradient, optax.apply_updates(params, updates)

  for rate in (1e3, -1e3, 1e6, -1e6):
    params = start
    for _ in range(4):
      value, gradient, params = step(params, rate)
      assert np.isfinite(value)
      assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
      for key, found in hyperparameters(layer, {"params": params}, x).items():
        assert np.all(np.isfinite(found)), (key, found)
        if key not in UNBOUNDED:
          assert np.all(found > 0), (key, found)
    assert any(np.any(np.abs(params[n] - start[n]) > abs(rate) * 1e-4) for n in values)


@pytest.mark.parametrize("name", ["Gaussian", "Laplacian", "Cauchy", "RationalQuadratic"])
def test_bounded_kernels_survive_a_learning_rate_for_all_parameters(name):
  kernel_fn, values = LEARNABLE[name]
  layer = Kerv(3, (2, 2), padding="VALID", kernel_fn=kernel_fn, learnable=True)
  x, target = normal(2, 4, 4, 2), normal(2, 3, 3, 3, seed=3)
  for rate in (1e3, 1e6):
    params = init(layer, x)["params"]
    for _ in range(4):
      _, _, params = sgd_step(layer, params, x, target, rate)
      read = hyperparameters(layer, {"params": params}, x)
      assert read.keys() == values.keys()
      for key, found in read.items():
        assert np.all(np.isfinite(found)), (key, found)
        assert np.all(found > 0), (key, found)


def test_save_and_restore_learned_hyperparameters():
  x = normal(2, 4, 4, 2)
  kernel_fn = 0.5 * kernels.Sigmoid() + kernels.Polynomial(2)
  layer = Kerv(3, (2, 2), kernel_fn=kernel_fn, learnable=True, per_feature=True)
  trained = perturbed(init(layer, x))
  expected = hyperparameters(layer, trained, x)
  assert len(expected) == 4
  fresh = jax.tree.map(jnp.zeros_like, trained)
  for restored in (
    serialization.from_bytes(fresh, serialization.to_bytes(trained)),
    serialization.from_state_dict(fresh, serialization.to_state_dict(trained)),
    pickle.loads(pickle.dumps(jax.tree.map(np.asarray, trained))),
  ):
    same(jax.tree.map(jnp.asarray, restored), trained)
    same(hyperparameters(layer, restored, x), expected)
    same(apply(layer, restored, x), apply(layer, trained, x))
  # The parameter's name may hold dots; paths joined by another separator come apart again.
  flat = flatten_dict(trained, sep="/")
  assert "params/terms.0.kernel.offset" in flat
  same(flax.traverse_util.unflatten_dict(flat, sep="/"), trained)


def test_a_tuple_of_names_chooses():
  x = normal(1, 3, 3, 2)
  kernel_fn = kernels.Polynomial(2, 0.5) + kernels.Sigmoid(0.2)
  for names in (
    (),
    ("terms.0.balance",),
    ("terms.1.offset", "terms.1.scale"),
    ("terms.1.scale", "terms.0.balance"),
  ):
    layer = Kerv(2, (2, 2), kernel_fn=kernel_fn, learnable=names)
    variables = init(layer, x)
    assert variables["params"].keys() == {"kernel", "bias", *names}
    assert layer.learnable_names == tuple(names)
    read = hyperparameters(layer, variables, x)
    assert set(read) == set(names)
    for name in names:
      assert_allclose(read[name], kernel_fn.hyperparameters()[name], rtol=1e-6, atol=0)
    plain = Kerv(2, (2, 2), kernel_fn=kernel_fn)
    weights = {n: variables["params"][n] for n in ("kernel", "bias")}
    expected = plain.apply({"params": weights}, x)
    assert_allclose(layer.apply(variables, x), expected, rtol=1e-5, atol=1e-6)


def test_a_list_of_names_is_a_tuple():
  layer = Kerv(2, (2, 2), learnable=["balance"])
  twin = Kerv(2, (2, 2), learnable=("balance",))
  assert layer.learnable_names == ("balance",)
  assert layer == twin
  assert hash(layer) == hash(twin)


def test_not_learnable_by_default():
  x = normal(1, 3, 3, 2)
  layer = Kerv(2, (2, 2), kernel_fn=kernels.Gaussian(0.1))
  variables = init(layer, x)
  assert variables["params"].keys() == {"kernel", "bias"}
  assert hyperparameters(layer, variables, x) == {}
  nothing = init(LinearConv(2, (2, 2), learnable=True), x)
  assert nothing["params"].keys() == {"kernel", "bias"}


def test_homogeneous_polynomial_learns_nothing_but_works():
  x = normal(1, 3, 3, 2)
  layer = Kerv(2, (2, 2), kernel_fn=kernels.Polynomial(2, 0.0))
  variables = init(layer, x)
  linear = apply(LinearConv(2, (2, 2)), variables, x)  # the bias is 0
  assert_allclose(apply(layer, variables, x), linear**2, rtol=1e-5, atol=1e-6)


# Reading hyperparameters back from models.


class Setup(nn.Module):
  """Setup style, a list of layers, a dictionary, one layer called twice, one never."""

  def setup(self):
    self.first = GaussianConv(2, (3, 3))
    self.layers = [GaussianConv(2, (3, 3), kernel_fn=kernels.Gaussian(0.2 + i)) for i in range(2)]
    self.table = {"a": GaussianConv(2, (1, 1), kernel_fn=kernels.Gaussian(0.7))}
    self.unused = GaussianConv(2, (1, 1))
    self.plain = nn.Conv(2, (1, 1))

  def __call__(self, x):
    x = self.first(self.first(x))
    for layer in self.layers:
      x = layer(x)
    return self.plain(self.table["a"](x))


class Inner(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = GaussianConv(2, (3, 3), name="kerv")(x)
    return Kerv(2, (1, 1))(x)  # nothing to learn


class Outer(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = Inner()(Inner(name="inner")(x))
    return Kerv(2, (1, 1), learnable=True)(x)


def check_read(variables, read):
  """Every learnable Gaussian's or polynomial's value is there, and softplus of its parameter."""
  params = flatten_dict(variables["params"])
  for path, value in flatten_dict(read).items():
    assert params[path].shape == value.shape
    raw = np.asarray(params[path], np.float64)
    assert_allclose(value, np.log1p(np.exp(raw)), rtol=1e-5, atol=0)
  learnable = {path for path in params if path[-1] in ("gamma", "balance")}
  assert set(flatten_dict(read)) == learnable
  assert learnable


def test_read_back_setup_style():
  x = normal(1, 5, 5, 2)
  model = Setup()
  variables = init(model, x)
  read = hyperparameters(model, variables, x)
  assert shapes(read) == {
    "first": {"gamma": ()},
    "layers_0": {"gamma": ()},
    "layers_1": {"gamma": ()},
    "table_a": {"gamma": ()},
  }
  assert_allclose(read["layers_1"]["gamma"], 1.2, rtol=1e-6, atol=0)
  variables = perturbed(variables)
  check_read(variables, hyperparameters(model, variables, x))


def test_read_back_nested_models():
  x = normal(1, 5, 5, 2)
  model = Outer()
  variables = perturbed(init(model, x))
  read = hyperparameters(model, variables, x)
  assert shapes(read) == {
    "inner": {"kerv": {"gamma": ()}},
    "Inner_0": {"kerv": {"gamma": ()}},
    "KervConv_0": {"balance": ()},
  }
  check_read(variables, read)
  frozen = hyperparameters(model, freeze(variables), x)
  same(frozen, read)
  jitted = jax.jit(lambda v: hyperparameters(model, v, x))(variables)
  close(jitted, read, rtol=1e-6, atol=0)


def test_read_back_in_sequential():
  x = normal(1, 5, 5, 2)
  model = nn.Sequential([GaussianConv(2, (3, 3)), nn.relu, Kerv(3, (1, 1), learnable=True)])
  variables = perturbed(jax.jit(model.init)(KEY, x))
  read = hyperparameters(model, variables, x)
  assert shapes(read) == {"layers_0": {"gamma": ()}, "layers_2": {"balance": ()}}
  check_read(variables, read)


def test_read_back_with_batch_norm_dropout_and_keywords():
  x = normal(2, 8, 8, 3)
  model = small(kernel_fn=kernels.Gaussian(0.1), learnable=True)
  variables = perturbed(init(model, x))
  read = hyperparameters(model, variables, x)
  assert set(read) == {"stem", "KervConv_0", "KervConv_1"}
  training = hyperparameters(
    model, variables, x, train=True, mutable=["batch_stats"], rngs={"dropout": KEY}
  )
  same(training, read)


class Methods(nn.Module):
  def setup(self):
    self.kerv = GaussianConv(2, (3, 3))
    self.other = GaussianConv(2, (3, 3))

  def encode(self, x):
    return self.kerv(x)

  def __call__(self, x):
    return self.other(self.encode(x))


def test_read_back_through_another_method():
  x = normal(1, 5, 5, 2)
  model = Methods()
  variables = init(model, x)
  assert set(hyperparameters(model, variables, x)) == {"kerv", "other"}
  assert set(hyperparameters(model, variables, x, method="encode")) == {"kerv"}
  assert set(hyperparameters(model, variables, x, method=Methods.encode)) == {"kerv"}


def test_reading_back_computes_nothing():
  calls = []

  def seen(x):
    calls.append(1)
    return x

  class Watched(nn.Module):
    @nn.compact
    def __call__(self, x):
      x = jax.pure_callback(seen, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
      return GaussianConv(2, (3, 3))(x)

  x = normal(1, 5, 5, 2)
  model = Watched()
  variables = jax.jit(model.init)(KEY, x)
  jax.block_until_ready(variables)
  calls.clear()
  assert set(hyperparameters(model, variables, x)) == {"KervConv_0"}
  assert not calls


# Transformations.


class Block(nn.Module):
  per_feature: bool = False

  @nn.compact
  def __call__(self, x, _=None):
    kernel_fn = kernels.Polynomial(2, 0.3)
    layer = Kerv(
      2, (3,), kernel_fn=kernel_fn, learnable=True, per_feature=self.per_feature, name="kerv"
    )
    return x + 0.1 * layer(x), None


@pytest.mark.parametrize("per_feature", [False, True])
def test_scan_over_layers(per_feature):
  x = normal(2, 5, 2)
  scanned = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)(
    per_feature
  )
  variables = perturbed(init(scanned, x))
  shape = (3, 2) if per_feature else (3,)
  assert shapes(variables["params"]) == {
    "kerv": {"kernel": (3, 3, 2, 2), "bias": (3, 2), "balance": shape}
  }
  read = hyperparameters(scanned, variables, x)
  assert shapes(read) == {"kerv": {"balance": shape}}
  check_read(variables, read)
  expected = x
  for layer in range(3):
    one = jax.tree.map(lambda leaf, layer=layer: leaf[layer], variables)
    expected, _ = apply(Block(per_feature), one, expected)
  assert_allclose(apply(scanned, variables, x)[0], expected, rtol=1e-5, atol=1e-5)
  gradient = jax.grad(lambda v: jnp.sum(apply(scanned, v, x)[0] ** 2))(variables)
  assert np.all(np.asarray(gradient["params"]["kerv"]["balance"]) != 0)


class InsideScan(nn.Module):
  """A scan within a model, over a rematerialised block."""

  @nn.compact
  def __call__(self, x):
    block = nn.remat(Block)
    stack = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
    x, _ = stack(name="stack")(x, None)
    return GaussianConv(2, (1,), name="last")(x)


def test_scan_and_remat_inside_a_model():
  x = normal(2, 5, 2)
  model = InsideScan()
  variables = perturbed(init(model, x))
  read = hyperparameters(model, variables, x)
  assert shapes(read) == {"stack": {"kerv": {"balance": (2,)}}, "last": {"gamma": ()}}
  check_read(variables, read)


@every_way_to_learn
def test_remat(fields):
  x = normal(2, 5, 5, 2)
  layer = Kerv(3, (3, 3), kernel_fn=kernels.Polynomial(2), **fields)
  remat = nn.remat(KervConv)(
    3, (3, 3), kernel_init=numpy_init, kernel_fn=kernels.Polynomial(2), **fields
  )
  variables = init(layer, x)
  same(init(remat, x), variables)
  variables = perturbed(variables)

  def gradients(layer):
    def loss(variables, x):
      return jnp.sum(layer.apply(variables, x) ** 2)

    return jax.jit(jax.value_and_grad(loss, (0, 1)))

  close(gradients(remat)(variables, x), gradients(layer)(variables, x))
  same(hyperparameters(remat, variables, x), hyperparameters(layer, variables, x))
  assert "prevent_cse" in str(jax.make_jaxpr(gradients(remat))(variables, x))


@pytest.mark.parametrize(
  "lift",
  [
    nn.remat,
    nn.jit,
    lambda layer: nn.vmap(layer, variable_axes={"params": 0}, split_rngs={"params": True}),
    lambda layer: nn.map_variables(layer, "params", init=True),
  ],
  ids=["remat", "jit", "vmap", "map_variables"],
)
def test_read_back_from_a_lifted_layer_inside_a_model(lift):
  class Inside(nn.Module):
    @nn.compact
    def __call__(self, x):
      layer = lift(KervConv)
      fields = {"kernel_fn": kernels.Gaussian(0.3), "learnable": True}
      return layer(2, (3, 3), **fields, kernel_init=numpy_init, name="kerv")(x)

  class Top(nn.Module):
    @nn.compact
    def __call__(self, x):
      return Inside(name="inside")(x)

  x = normal(2, 5, 5, 2)
  for model in (Inside(), Top()):
    variables = init(model, x)
    read = hyperparameters(model, variables, x)
    params = variables["params"] if isinstance(model, Inside) else variables["params"]["inside"]
    found = read if isinstance(model, Inside) else read["inside"]
    assert found["kerv"].keys() == {"gamma"}
    assert found["kerv"]["gamma"].shape == params["kerv"]["gamma"].shape
    assert_allclose(found["kerv"]["gamma"], 0.3, rtol=1e-6, atol=0)


def test_lifted_vmap():
  x = normal(3, 2, 5, 5, 2)
  many = nn.vmap(KervConv, variable_axes={"params": 0}, split_rngs={"params": True})(
    2, (3, 3), kernel_fn=kernels.Polynomial(2), learnable=True, kernel_init=numpy_init
  )
  variables = perturbed(init(many, x))
  assert shapes(variables["params"]) == {"kernel": (3, 3, 3, 2, 2), "bias": (3, 2), "balance": (3,)}
  one = Kerv(2, (3, 3), kernel_fn=kernels.Polynomial(2), learnable=True)
  for i, out in enumerate(apply(many, variables, x)):
    own = jax.tree.map(lambda leaf, i=i: leaf[i], variables)
    assert_allclose(out, apply(one, own, x[i]), rtol=1e-5, atol=1e-5)
  read = hyperparameters(many, variables, x)
  assert shapes(read) == {"balance": (3,)}
  check_read(variables, read)

  shared = nn.vmap(KervConv, variable_axes={"params": None}, split_rngs={"params": False})(
    2, (3, 3), kernel_fn=kernels.Polynomial(2), learnable=True, kernel_init=numpy_init
  )
  variables = init(shared, x)
  assert shapes(hyperparameters(shared, variables, x)) == {"balance": ()}
  assert_allclose(apply(shared, variables, x), apply(one, variables, x), rtol=1e-5, atol=1e-5)


def test_lifted_jit():
  x = normal(2, 5, 5, 2)
  kernel_fn = kernels.Polynomial(2, np.array([0.1, 0.2]))
  fields = {"kernel_fn": kernel_fn, "learnable": True, "kernel_init": numpy_init}
  jitted = nn.jit(KervConv)(2, (3, 3), **fields)
  variables = jitted.init(KEY, x)
  close(variables, KervConv(2, (3, 3), **fields).init(KEY, x))
  close(jitted.apply(variables, x), apply(KervConv(2, (3, 3), **fields), variables, x))


LAYERS = {
  "polynomial": Kerv(3, (3, 3), kernel_fn=kernels.Polynomial(2), learnable=True),
  "gaussian": GaussianConv(3, (3, 3), per_feature=True, feature_group_count=1),
  "l1": Kerv(3, (3, 3), kernel_fn=kernels.L1(), padding="CIRCULAR"),
  "composite": Kerv(3, (3, 3), kernel_fn=LEARNABLE["Sum"][0], learnable=True),
  "own": Kerv(3, (3, 3), kernel_fn=Chebyshev(0.5), learnable=True),
}
every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


@every_layer
def test_jit_vmap_and_derivatives_are_those_of_the_definition(layer):
  x = normal(3, 4, 5, 2)
  variables = perturbed(init(layer, x))
  stack = [perturbed(variables, seed) for seed in (5, 6)]
  rng = np.random.default_rng(7)
  direction = jax.tree.map(
    lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), (variables, x)
  )

  def definition(variables, x):
    if x.ndim == 3:
      return definition(variables, x[None])[0]
    params = variables["params"]
    kernel_fn = layer.kernel_fn.with_hyperparameters(
      {
        name: params[name] if name in UNBOUNDED else jax.nn.softplus(params[name])
        for name in layer.learnable_names
      }
    )
    padding = "VALID" if layer.padding == "CIRCULAR" else layer.padding
    if layer.padding == "CIRCULAR":
      x = jnp.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="wrap")
    return params["bias"] + kerv_general_dilated(
      x,
      params["kernel"],
      (1, 1),
      padding,
      dimension_numbers=LAYOUTS[2],
      kernel_fn=kernel_fn,
      method="patches",
    )

  @functools.partial(jax.jit, static_argnums=0)
  def everything(function, variables, stacked, x):
    def loss(variables, x):
      return jnp.mean(jnp.square(function(variables, x)))

    derivatives = jax.grad(loss, (0, 1))(variables, x), jax.jvp(loss, (variables, x), direction)
    over_inputs = jax.vmap(function, (None, 0))(variables, x)
    over_parameters = jax.vmap(function, (0, None))(stacked, x)
    return derivatives, (function(variables, x), over_inputs, over_parameters)

  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stack)
  derivatives, values = everything(layer.apply, variables, stacked, x)
  expected_derivatives, expected = everything(definition, variables, stacked, x)
  assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(expected_derivatives))
  close(derivatives, expected_derivatives, rtol=1e-3, atol=1e-5)
  close(values, expected, rtol=1e-4, atol=1e-5)
  assert_allclose(values[1], values[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [Conv(3, (3, 3)), *LAYERS.values()], ids=["conv", *LAYERS])
def test_shard_map(layer):
  """Data parallelism by hand; on one device, as its types are checked on any number."""
  mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  batch, everywhere = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
  x = normal(2, 4, 4, 2)
  variables = jax.eval_shape(layer.init, KEY, x)

  def gradient(variables, x):
    out, pullback = jax.vjp(layer.apply, variables, x)
    return out, pullback(out)

  sharded = jax.shard_map(
    gradient,
    mesh=mesh,
    in_specs=(everywhere, batch),
    out_specs=(batch, (everywhere, batch)),
  )
  assert shapes(jax.eval_shape(sharded, variables, x)) == shapes(
    jax.eval_shape(gradient, variables, x)
  )


def test_gradient_with_respect_to_the_kernel_in_the_module():
  """The kernel is a pytree, so a module made within the traced function passes gradients."""
  x = normal(2, 5, 5, 2)
  variables = perturbed(init(Kerv(3, (3, 3)), x))

  @jax.jit
  def loss(kernel_fn):
    return jnp.sum(Kerv(3, (3, 3), kernel_fn=kernel_fn).apply(variables, x))

  gradient = jax.grad(loss)(kernels.Polynomial(2, 0.5))
  linear = LinearConv(3, (3, 3)).apply(variables, x) - variables["params"]["bias"]
  assert_allclose(gradient.balance, jnp.sum(2 * (linear + 0.5)), rtol=1e-4, atol=1e-3)


@every_layer
def test_capture_intermediates_is_as_of_conv(layer):
  x = normal(2, 5, 5, 2)

  def captured(module):
    return module.apply(
      module.init(KEY, x), x, capture_intermediates=True, mutable=["intermediates"]
    )

  out, state = jax.eval_shape(lambda: captured(layer))
  _, expected = jax.eval_shape(lambda: captured(Conv(3, (3, 3))))
  assert state == expected
  assert state["intermediates"]["__call__"] == (out,)


def test_captured_intermediate_is_the_output():
  x = normal(2, 5, 5, 2)
  layer = LAYERS["polynomial"]
  variables = init(layer, x)
  out, state = layer.apply(variables, x, capture_intermediates=True, mutable=["intermediates"])
  same(state["intermediates"]["__call__"][0], out)
  close(out, apply(layer, variables, x))


def test_capture_intermediates_of_a_model_is_as_of_a_cnn():
  x = normal(2, 6, 6, 3)

  def structure(model):
    _, state = jax.eval_shape(
      lambda: model.apply(
        model.init(KEY, x), x, capture_intermediates=True, mutable="intermediates"
      )
    )
    return shapes(state)

  assert structure(Named(GaussianConv)) == structure(Named())


def test_interceptors_see_one_call():
  x = normal(2, 5, 5, 2)
  seen = []

  def record(call, args, kwargs, context):
    seen.append((context.method_name, type(context.module).__name__))
    return call(*args, **kwargs)

  for layer in (Conv(3, (3, 3)), LAYERS["polynomial"]):
    variables = init(layer, x)
    seen.clear()
    with nn.intercept_methods(record):
      layer.apply(variables, x)
    assert seen == [("__call__", type(layer).__name__)]


def test_tabulate():
  x = normal(2, 6, 6, 3)

  def table(model):
    console = {"width": 250, "force_terminal": False, "force_jupyter": False}
    return model.tabulate(
      KEY, x, console_kwargs=console, compute_flops=True, compute_vjp_flops=True
    )

  text = table(Named(functools.partial(GaussianConv, per_feature=True)))
  assert "KervConv" in text
  assert "gamma: float32[4]" in text
  assert "gamma: float32[3]" in text
  assert "kernel: float32[3,3,3,4]" in text
  # One row for each call, as for a CNN: none for the checks or the kernel.
  rows = [line for line in text.splitlines() if "KervConv" in line]
  assert len(rows) == len([line for line in table(Named()).splitlines() if " Conv " in line]) == 2


def test_lazy_init_and_eval_shape():
  spec = jax.ShapeDtypeStruct((2, 5, 5, 2), jnp.float32)
  x = normal(2, 5, 5, 2)
  for layer in (LAYERS["polynomial"], LAYERS["gaussian"]):
    variables = init(layer, x)
    close(layer.lazy_init(KEY, spec), variables, rtol=1e-6, atol=1e-6)
    assert shapes(jax.eval_shape(layer.init, KEY, spec)) == shapes(variables)


def test_frozen_dict():
  x = normal(2, 5, 5, 2)
  layer = LAYERS["polynomial"]
  variables = perturbed(init(layer, x))
  frozen = freeze(variables)
  assert isinstance(frozen, FrozenDict)
  close(apply(layer, frozen, x), apply(layer, variables, x))
  gradient = jax.grad(lambda v: jnp.sum(apply(layer, v, x)))(frozen)
  assert isinstance(gradient, FrozenDict)


def test_bound_module():
  x = normal(2, 5, 5, 2)
  layer = LAYERS["polynomial"]
  variables = init(layer, x)
  close(layer.bind(variables)(x), apply(layer, variables, x))


# Module fields: equality, hash, copies, caches.

FIELDS = [
  {},
  {"kernel_fn": kernels.Gaussian(0.1), "learnable": True},
  {"kernel_fn": kernels.Polynomial(2, np.array([0.1, 0.2, 0.3])), "learnable": ("balance",)},
  {"kernel_fn": kernels.Cauchy(jnp.array([1.0, 2.0, 3.0])), "per_feature": True, "learnable": True},
  {"kernel_fn": 2.0 * kernels.Gaussian(0.1) + kernels.Sigmoid()},
]


@pytest.mark.parametrize("fields", FIELDS, ids=range(len(FIELDS)))
def test_equality_hash_and_copies(fields):
  x = normal(2, 5, 5, 2)
  layer, twin = Kerv(3, (3, 3), **fields), Kerv(3, (3, 3), **copy.deepcopy(fields))
  assert layer == twin
  assert hash(layer) == hash(twin)
  assert layer != layer.clone(kernel_fn=kernels.Sigmoid(), learnable=True)
  variables = perturbed(init(layer, x))
  expected = apply(layer, variables, x)
  for other in (twin, layer.clone(), layer.copy(), copy.copy(layer), copy.deepcopy(layer)):
    assert type(other) is KervConv
    assert other == layer
    assert hash(other) == hash(layer)
    assert other.kernel_fn == layer.kernel_fn
    same(apply(other, variables, x), expected)


def test_clone_with_another_kernel_checks_it():
  layer = GaussianConv(3, (3, 3))
  assert layer.clone(kernel_fn=kernels.Gaussian(2.0)).kernel_fn == kernels.Gaussian(2.0)
  with pytest.raises(TypeError, match="`kernel_fn`"):
    layer.clone(kernel_fn=kernels.Gaussian)
  with pytest.raises(ValueError, match="`learnable`"):
    layer.clone(learnable=("balance",))


def test_repr_shows_the_kernel():
  text = repr(Kerv(3, (3, 3), kernel_fn=kernels.Gaussian(0.25), learnable=True))
  assert "kernel_fn = Gaussian(gamma=0.25)" in text
  assert "learnable = True" in text


@pytest.mark.parametrize("make", [lambda v: v, lambda v: np.full(3, v), lambda v: jnp.full(3, v)])
def test_equal_layers_do_not_trace_again(make):
  traces = []

  @functools.partial(jax.jit, static_argnums=0)
  def run(layer, variables, x):
    traces.append(layer)
    return apply(layer, variables, x)

  def layer(balance):
    return Kerv(3, (3, 3), kernel_fn=kernels.Polynomial(2, make(balance)), learnable=True)

  x = normal(2, 5, 5, 2)
  variables = init(layer(0.1), x)
  for _ in range(3):
    run(layer(0.1), variables, x)
  assert len(traces) == 1
  run(layer(0.2), variables, x)
  assert len(traces) == 2


def test_jitted_apply_does_not_trace_again():
  traces = []

  class Counted(kernels.SquaredDistanceKernel):
    gamma: Hyperparameter = hyperparameter(default=0.1, constraint="positive")

    def profile(self, statistic):
      traces.append(1)
      return jnp.exp(-self.gamma * statistic)

  layer = Kerv(3, (3, 3), kernel_fn=Counted(), learnable=True)
  x = normal(2, 5, 5, 2)
  variables = init(layer, x)
  apply = jax.jit(layer.apply)
  traces.clear()
  for seed in range(3):
    apply(perturbed(variables, seed), x + seed)
  assert len(traces) == 1


def test_eager_calls_do_not_compile_again(caplog):
  """As nn.Conv's do not: a notebook calls layers without ``jit``."""
  x, y = normal(2, 4, 4, 2), normal(2, 4, 4, 2, seed=1)
  for kernel_fn in (kernels.Linear(), kernels.Polynomial(), kernels.Gaussian(0.1), kernels.L1()):
    layer = Kerv(3, (3, 3), kernel_fn=kernel_fn)
    variables = init(layer, x)
    layer.apply(variables, x)
    caplog.clear()
    with jax.log_compiles(True):
      layer.apply(variables, y)
    compiled = [r.getMessage() for r in caplog.records if "Finished XLA" in r.getMessage()]
    assert not compiled, kernel_fn


# Training.


OPTIMIZERS = {
  "sgd": optax.sgd(0.05, momentum=0.9),
  "adam": optax.adam(0.02),
  "adamw": optax.adamw(0.02),
}


@pytest.mark.parametrize(
  ("name", "optimizer"),
  [
    ("polynomial", "sgd"),
    ("gaussian", "sgd"),
    ("l1", "sgd"),
    ("composite", "adam"),
    ("own", "adamw"),
  ],
)
def test_optimizers_train_the_tree(name, optimizer):
  layer, optimizer = LAYERS[name], OPTIMIZERS[optimizer]
  x = normal(4, 5, 5, 2)
  params = start = init(layer, x)["params"]
  target = apply(layer, perturbed({"params": start}), x)
  state = optimizer.init(params)

  @jax.jit
  def step(params, state):
    def loss(p):
      return jnp.mean(jnp.abs(apply(layer, {"params": p}, x) - target))

    value, gradient = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradient, state, params)
    return value, optax.apply_updates(params, updates), state

  losses = []
  for _ in range(25):
    value, params, state = step(params, state)
    losses.append(float(value))
  assert losses[-1] < 0.9 * losses[0]
  for before, after in zip(jax.tree.leaves(start), jax.tree.leaves(params), strict=True):
    assert np.all(np.isfinite(after))
    assert np.any(before != after)


def test_a_kernel_that_learns_finds_the_teachers_width():
  x = normal(8, 4, 4, 2)
  teacher = GaussianConv(4, (3, 3), kernel_fn=kernels.Gaussian(0.15))
  variables = init(teacher, x)
  target = apply(teacher, variables, x)
  student = GaussianConv(4, (3, 3), kernel_fn=kernels.Gaussian(0.02))
  gamma = init(student, x)["params"]["gamma"]
  optimizer = optax.adam(0.05)
  state = optimizer.init(gamma)

  @jax.jit
  def step(gamma, state):
    def loss(gamma):
      params = {**variables["params"], "gamma": gamma}
      return jnp.mean((apply(student, {"params": params}, x) - target) ** 2)

    updates, state = optimizer.update(jax.grad(loss)(gamma), state)
    return optax.apply_updates(gamma, updates), state

  for _ in range(150):
    gamma, state = step(gamma, state)
  learned = {"params": {**variables["params"], "gamma": gamma}}
  assert_allclose(hyperparameters(student, learned, x)["gamma"], 0.15, rtol=0.02, atol=0)


@pytest.mark.parametrize(
  ("dtype", "kernel_fn"),
  [
    (jnp.bfloat16, kernels.Gaussian(0.1)),
    (jnp.float16, kernels.Gaussian(0.1)),
    (jnp.bfloat16, kernels.Polynomial(2, 0.5)),
    (jnp.float16, Chebyshev(0.5)),
  ],
)
def test_16_bit_compute_with_float32_parameters(dtype, kernel_fn):
  x = normal(2, 5, 5, 2)
  wide = Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=True, per_feature=True)
  narrow = wide.clone(dtype=dtype)
  variables = init(narrow, x)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
  same(variables, init(wide, x))
  variables = perturbed(variables)

  @functools.partial(jax.jit, static_argnums=0)
  def value_and_gradient(layer, variables):
    out, pullback = jax.vjp(lambda v: layer.apply(v, x), variables)
    return out, pullback(jnp.ones_like(out))[0]

  out, gradient = value_and_gradient(narrow, variables)
  expected, wide_gradient = value_and_gradient(wide, variables)
  assert out.dtype == dtype
  assert_allclose(np.asarray(out, np.float32), expected, rtol=0.03, atol=0.03)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(gradient))
  for key in kernel_fn.hyperparameters():
    found, exact = gradient["params"][key], wide_gradient["params"][key]
    assert np.all(np.abs(exact) > 0.1)
    assert_allclose(found, exact, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_16_bit_parameters(dtype):
  """The value asked for, as nearly as the dtype holds its parameter; nothing infinite."""
  x = normal(2, 5, 5, 2)
  for value in (1.0, 0.5, 2.0, 3.0, 0.05, 1e-3):
    kernel_fn = kernels.Polynomial(2, value)
    layer = Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=True, param_dtype=dtype)
    variables = layer.init(KEY, x)
    assert variables["params"]["balance"].dtype == dtype
    eps = float(jnp.finfo(dtype).eps)
    raw = abs(float(np.log(np.expm1(value))))
    found = hyperparameters(layer, variables, x)["balance"]
    assert found.dtype == jnp.float32
    assert_allclose(found, value, rtol=eps * max(1.0, raw), atol=0)
    assert np.all(np.isfinite(np.asarray(layer.apply(variables, x), np.float32)))


def test_a_value_that_the_parameters_dtype_cannot_hold_is_refused():
  """float16 ends at 65504."""
  kernel_fn = kernels.Polynomial(2, 1e6)
  with pytest.raises(ValueError, match="balance"):
    Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=True, param_dtype=jnp.float16)


# Errors, named and early.


def no_kernel(x, w):
  return jnp.sum(x * w)


@pytest.mark.parametrize("kernel_fn", [kernels.Gaussian, no_kernel, None, "gaussian", 3, nn.Conv])
def test_kernel_fn_must_be_a_kernel(kernel_fn):
  with pytest.raises(TypeError, match=r"`kernel_fn` must be a kernel") as caught:
    Kerv(3, (3, 3), kernel_fn=kernel_fn)
  assert repr(kernel_fn) in str(caught.value)


@pytest.mark.parametrize(
  ("kernel_fn", "name"),
  [
    (kernels.Polynomial(), "degree"),
    (kernels.Polynomial(), "gamma"),
    (kernels.Polynomial(), "kernel"),
    (kernels.Polynomial(), 0),
    (kernels.Linear(), "balance"),
    (kernels.Gaussian() + kernels.L1(), "gamma"),
    (kernels.Gaussian() + kernels.L1(), "terms.1.gamma"),
    (kernels.L2(), "squared"),
  ],
)
def test_unknown_learnable_names(kernel_fn, name):
  with pytest.raises(ValueError, match="`learnable` must name hyperparameters") as caught:
    Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=(name,))
  assert repr(name) in str(caught.value)
  assert repr(kernel_fn) in str(caught.value)


@pytest.mark.parametrize("learnable", ["balance", None, 1, 0.5, {"balance"}, {"balance": 1}])
def test_learnable_must_be_a_bool_or_names(learnable):
  with pytest.raises(TypeError, match="`learnable` must be a bool or a tuple of names") as caught:
    Kerv(3, (3, 3), learnable=learnable)
  assert repr(learnable) in str(caught.value)


def test_learnable_must_not_repeat_a_name():
  with pytest.raises(ValueError, match="`learnable`"):
    Kerv(3, (3, 3), learnable=("balance", "balance"))


@pytest.mark.parametrize(
  "fields",
  [
    {},
    {"learnable": False},
    {"learnable": ()},
    {"learnable": True, "kernel_fn": kernels.Linear()},
  ],
)
def test_per_feature_needs_something_learnable(fields):
  with pytest.raises(ValueError, match="`per_feature`"):
    Kerv(3, (3, 3), per_feature=True, **fields)


@pytest.mark.parametrize("value", ["no", 3])
def test_per_feature_must_be_a_bool(value):
  with pytest.raises((TypeError, ValueError), match="`per_feature`"):
    Kerv(3, (3, 3), per_feature=value, learnable=True)


@pytest.mark.parametrize(
  ("kernel_fn", "name"),
  [
    (kernels.Polynomial(2, 0.0), "balance"),
    (kernels.Polynomial(2, np.array([1.0, 0.0, 1.0])), "balance"),
    (kernels.Gaussian(1e-12), "gamma"),
    (kernels.Linear() + kernels.Polynomial(2, 0.0), "terms.1.balance"),
  ],
)
def test_learning_cannot_start_at_zero(kernel_fn, name):
  with pytest.raises(ValueError, match=rf"`{name}`"):
    Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=True)
  Kerv(3, (3, 3), kernel_fn=kernel_fn)


def test_learning_must_start_at_a_known_value():
  @jax.jit
  def build(gamma):
    Kerv(3, (3, 3), kernel_fn=kernels.Gaussian(gamma), learnable=True)

  with pytest.raises(TypeError, match="`gamma`"):
    build(0.1)


@every_way_to_learn
@pytest.mark.parametrize("length", [1, 4])
def test_vectors_of_the_wrong_length(fields, length):
  """The number of features is known, so the constructor can tell."""
  kernel_fn = kernels.Gaussian(np.full(length, 0.1))
  with pytest.raises(ValueError, match=r"`gamma` of `kernel_fn`") as caught:
    Kerv(3, (3, 3), kernel_fn=kernel_fn, **fields)
  assert str((length,)) in str(caught.value)
  assert "3 output features" in str(caught.value)


@pytest.mark.parametrize("groups", [2, 4, 0, -1])
def test_groups_must_divide_the_output_features(groups):
  """Known to the constructor as well."""
  with pytest.raises(ValueError, match="`feature_group_count`") as caught:
    Kerv(3, (3, 3), feature_group_count=groups)
  assert str(groups) in str(caught.value)


def test_groups_must_divide_the_input_features():
  layer = Kerv(6, (3, 3), feature_group_count=3)
  with pytest.raises(
    ValueError, match=r"`feature_group_count` must divide the 4 features"
  ) as caught:
    layer.init(KEY, normal(*IMAGE))
  assert "got 3" in str(caught.value)


@pytest.mark.parametrize("fields", [{}, {"padding": "CIRCULAR"}, {"feature_group_count": 3}])
@pytest.mark.parametrize("shape", [(), (5,), (5, 3)])
def test_inputs_of_too_low_rank(shape, fields):
  layer = Kerv(3, (3, 3), **fields)
  with pytest.raises(ValueError, match="`inputs` must have shape") as caught:
    layer.init(KEY, normal(*shape))
  assert str(shape) in str(caught.value)
  assert "(3, 3)" in str(caught.value)


@pytest.mark.parametrize("name", ["conv_general_dilated", "conv_general_dilated_cls"])
def test_the_operator_is_not_a_field(name):
  with pytest.raises(TypeError, match=name):
    Kerv(3, (3, 3), **{name: lax.conv_general_dilated})
  with pytest.raises(TypeError, match=name):
    Kerv(3, (3, 3)).clone(**{name: None})


def test_names_that_collide_with_the_layers_parameters_are_refused():
  class Biased(kernels.InnerProductKernel):
    bias: Hyperparameter = hyperparameter(default=0.5)

    def profile(self, statistic):
      return jnp.tanh(statistic + self.bias)

  class Weighed(kernels.InnerProductKernel):
    kernel: Hyperparameter = hyperparameter(default=0.5)

    def profile(self, statistic):
      return self.kernel * statistic

  class Strided(kernels.InnerProductKernel):
    strides: Hyperparameter = hyperparameter(default=0.5)

    def profile(self, statistic):
      return self.strides * statistic

  x = normal(2, 5, 5, 2)
  for kernel_fn, name in ((Biased(), "bias"), (Weighed(), "kernel"), (Strided(), "strides")):
    Kerv(3, (3, 3), kernel_fn=kernel_fn).init_with_output(KEY, x)
    with pytest.raises(ValueError, match=rf"`{name}`"):
      Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=True)


@pytest.mark.parametrize(
  "options",
  [
    {"mask": np.ones((3, 3, 4, 5))},
    {"padding": "CAUSAL"},
    {"padding": "NOT_A_PADDING"},
    {"padding": (1, 2, 3)},
    {"padding": "SAME", "input_dilation": 2},
    {"padding": "VALID", "input_dilation": (1, 2)},
  ],
  ids=str,
)
def test_what_conv_refuses_is_refused(options):
  for layer in pair(options):
    with pytest.raises((ValueError, TypeError, RuntimeError)):
      layer.init(KEY, normal(*IMAGE))


def test_window_larger_than_the_input():
  layer = Kerv(3, (5, 5), padding="VALID")
  with pytest.raises(ValueError, match="window") as caught:
    layer.init(KEY, normal(2, 4, 6, 2))
  assert "(5, 5)" in str(caught.value)
  assert "(4, 6)" in str(caught.value)


def test_parameters_of_the_wrong_shape_do_not_load():
  x = normal(2, 5, 5, 2)
  scalar, vector = GaussianConv(3, (3, 3)), GaussianConv(3, (3, 3), per_feature=True)
  with pytest.raises(flax.errors.ScopeParamShapeError, match="gamma"):
    vector.apply(scalar.init(KEY, x), x)
  fixed = Kerv(3, (3, 3), kernel_fn=kernels.Gaussian(0.1))
  with pytest.raises(flax.errors.ScopeParamNotFoundError, match="gamma"):
    scalar.apply(init(fixed, x), x)
