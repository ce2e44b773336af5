"""The layer is ``nn.Conv`` in all but the operator: bit for bit with ``Linear``."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numpy.testing import assert_allclose

from kerv_jax import kernels
from kerv_jax.nn import KervConv, hyperparameters
from tests.nn.layers import (
  IMAGE,
  KEY,
  Conv,
  GaussianConv,
  Kerv,
  LinearConv,
  apply,
  init,
  pair,
  perturbed,
)
from tests.trees import close, normal, random_variables, same

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


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.usefixtures("promotion")
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
@pytest.mark.usefixtures("promotion")
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


def test_layers_that_compute_in_16_bits_promote_nothing():
  """Where nn.Conv needs no implicit promotion, neither does a kervolution."""
  x = normal(*IMAGE)
  layers = [
    GaussianConv(6, (3, 3), per_feature=True, dtype=dtype) for dtype in (None, jnp.bfloat16)
  ]
  layers += [Kerv(6, (3, 3), dtype=dtype) for dtype in (None, jnp.bfloat16)]
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
  bias = np.asarray(variables["params"]["bias"])
  linear = np.asarray(apply(LinearConv(6, (3, 3)), variables, x)) - bias
  assert_allclose(apply(layer, variables, x), (linear + 1) ** 3 + bias, rtol=1e-4, atol=1e-4)


def test_a_compact_module_names_the_layer_after_its_class():
  def tree(**options):
    class Model(nn.Module):
      @nn.compact
      def __call__(self, x):
        return KervConv(4, (3, 3), **options)(x)

    return jax.eval_shape(Model().init, KEY, jnp.zeros(IMAGE))["params"]

  assert set(tree()) == {"KervConv_0"}
  assert set(tree(name="Conv_0")) == {"Conv_0"}
