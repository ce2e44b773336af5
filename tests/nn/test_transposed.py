"""Transposed kervolution against Flax's layer and the definition; both layers learn."""

import itertools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels
from kerv_jax.nn import KervConvTranspose, KervDense, hyperparameters
from tests import reference
from tests.nn.layers import KEY
from tests.trees import normal, random_variables


def apply(module, variables, x):
  return jax.jit(lambda variables, x: module.apply(variables, x))(variables, x)


IMAGE = (2, 5, 4, 3)


LINE = (2, 5, 3)


OPTIONS = {
  "default": (IMAGE, {}),
  "same": (IMAGE, {"strides": (2, 3)}),
  "same_large_stride": (IMAGE, {"strides": (4, 3), "kernel_size": (2, 3)}),
  "same_even_window": (IMAGE, {"strides": (2, 2), "kernel_size": (4, 4)}),
  "valid": (IMAGE, {"strides": (2, 1), "padding": "VALID"}),
  "valid_large_stride": (IMAGE, {"strides": (4, 2), "padding": "VALID", "kernel_size": (2, 1)}),
  "strides_int": (LINE, {"strides": 2, "kernel_size": 3}),
  "pairs": (IMAGE, {"strides": (2, 1), "padding": ((2, 0), (1, 3))}),
  "integer_padding": (IMAGE, {"strides": (2, 2), "padding": 1}),
  "negative_padding": (IMAGE, {"strides": (2, 2), "padding": ((-1, 3), (1, -1))}),
  "dilation": (IMAGE, {"strides": (2, 1), "kernel_dilation": (2, 3), "padding": "VALID"}),
  "dilation_same": (IMAGE, {"strides": (2, 1), "kernel_dilation": (2, 3)}),
  "transpose_kernel": (IMAGE, {"strides": (2, 1), "transpose_kernel": True}),
  "mask": (IMAGE, {"mask": np.tril(np.ones((3, 2, 3, 6), np.float32))}),
  "no_bias": (IMAGE, {"use_bias": False}),
  "circular": (IMAGE, {"padding": "CIRCULAR"}),
  "circular_strided": (IMAGE, {"padding": "CIRCULAR", "strides": (2, 3)}),
  "circular_even_window": (
    IMAGE,
    {"padding": "CIRCULAR", "strides": (2, 1), "kernel_size": (4, 6)},
  ),
  "circular_transposed": (
    IMAGE,
    {"padding": "CIRCULAR", "strides": (2, 1), "kernel_size": (4, 3), "transpose_kernel": True},
  ),
  "circular_dilated": (
    IMAGE,
    {"padding": "CIRCULAR", "strides": (2, 1), "kernel_dilation": (2, 2)},
  ),
  "circular_window_of_periods": (LINE, {"padding": "CIRCULAR", "kernel_size": (13,)}),
  "unbatched": ((5, 4, 3), {"strides": (2, 2)}),
  "extra_batch": ((2, 1, 2, 5, 3), {"kernel_size": (3,), "strides": (2,)}),
  "rank_3": ((1, 3, 2, 3, 2), {"kernel_size": (2, 1, 3), "strides": (2, 1, 1)}),
  "bfloat16": (IMAGE, {"dtype": jnp.bfloat16, "strides": (2, 2)}),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_transposed_is_that_of_flax(option):
  shape, options = OPTIONS[option]
  options = {"features": 6, "kernel_size": (3, 2), **options}
  conv = nn.ConvTranspose(**options)
  x = normal(*shape)
  variables = random_variables(conv, x)
  expected = apply(conv, variables, x)
  linear = KervConvTranspose(**options, kernel_fn=kernels.Linear())
  assert jax.eval_shape(linear.init, KEY, x) == jax.eval_shape(conv.init, KEY, x)
  assert_array_equal(np.asarray(apply(linear, variables, x)), np.asarray(expected))
  # A kernel that is linear without being Linear goes the way that all others go.
  general = KervConvTranspose(**options, kernel_fn=kernels.Polynomial(1, 0.0))
  assert jax.eval_shape(general.init, KEY, x) == jax.eval_shape(conv.init, KEY, x)
  out = apply(general, variables, x)
  assert out.shape == expected.shape
  assert out.dtype == expected.dtype
  tolerance = 2e-2 if "dtype" in options else 1e-5
  assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
  ("kernel_fn", "kappa"),
  [
    (kernels.Polynomial(2, 0.5), lambda x, w, o: reference.polynomial(x, w, 2, 0.5)),
    (kernels.Gaussian(0.1), lambda x, w, o: reference.gaussian(x, w, 0.1)),
    (-kernels.L1(), lambda x, w, o: -reference.l1(x, w)),
    (
      kernels.Concatenate([(2, kernels.L2()), (2, kernels.Sigmoid())]),
      lambda x, w, o: reference.l2(x, w) if o < 2 else reference.sigmoid(x, w, 1, 0),
    ),
  ],
  ids=["polynomial", "gaussian", "l1", "concatenate"],
)
@pytest.mark.parametrize("circular", [False, True])
def test_transposed_is_kervolution_over_the_dilated_input(kernel_fn, kappa, circular):
  x = normal(2, 4, 3, 2)
  options = {"features": 4, "kernel_size": (3, 2), "strides": (2, 3)}
  layer = KervConvTranspose(
    **options, padding="CIRCULAR" if circular else "VALID", kernel_fn=kernel_fn
  )
  variables = random_variables(layer, x)
  kernel, bias = variables["params"]["kernel"], variables["params"]["bias"]
  dilated = np.zeros((2, 8, 9, 2))
  dilated[:, ::2, ::3] = x
  if circular:
    pads = [(2, 0), (1, 0)]  # one period and the window's reach; checked for `nn` above
    dilated = np.pad(dilated, [(0, 0), *pads, (0, 0)], mode="wrap")
  else:
    dilated = dilated[:, :-1, :-2]
    dilated = np.pad(dilated, [(0, 0), (2, 2), (1, 2), (0, 0)])
  expected = reference.kervolution(
    dilated,
    kernel,
    kappa,
    strides=(1, 1),
    padding="VALID",
    lhs_dilation=(1, 1),
    rhs_dilation=(1, 1),
    layouts=("NHWC", "HWIO", "NHWC"),
  )
  out = np.asarray(apply(layer, variables, x)) - np.asarray(bias)
  if circular:  # up to the alignment, that of nn.ConvTranspose
    shifts = itertools.product(range(8), range(9))
    errors = {s: np.abs(np.roll(out, s, (1, 2)) - expected).max() for s in shifts}
    assert min(errors.values()) < 1e-4
  else:
    assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_inserted_zeros_are_data_for_a_distance():
  layer = KervConvTranspose(1, (2,), strides=(2,), padding="VALID", kernel_fn=kernels.L1())
  x = jnp.array([[[3.0], [5.0]]])
  variables = {"params": {"kernel": jnp.array([[[1.0]], [[10.0]]]), "bias": jnp.zeros(1)}}
  # Over 0 3 0 5 0, by windows of two: |0-1| + |3-10|, |3-1| + |0-10|, |0-1| + |5-10|, ...
  assert_allclose(layer.apply(variables, x)[0, :, 0], [8, 12, 6, 14])


def learns(layer, x, shape):
  """The layer has a learnable width of 0.5, and a gradient for each parameter."""
  start = jax.jit(layer.init)(KEY, x)
  assert start["params"]["gamma"].shape == shape
  assert_allclose(hyperparameters(layer, start, x)["gamma"], np.full(shape, 0.5))
  variables = {"params": random_variables(layer, x)["params"] | {"gamma": start["params"]["gamma"]}}
  gradient = jax.jit(jax.grad(lambda v: jnp.sum(layer.apply(v, x))))(variables)["params"]
  chex.assert_tree_all_finite(gradient)
  assert all(np.any(g != 0) for g in gradient.values())


def test_layers_learn_hyperparameters():
  fields = {
    "kernel_fn": kernels.Gaussian(0.5),
    "learnable": True,
    "kernel_init": nn.initializers.ones,
  }
  layer = KervConvTranspose(4, (2, 2), strides=(2, 2), per_feature=True, **fields)
  learns(layer, normal(2, 4, 4, 3), (4,))
  learns(KervDense(3, **fields), normal(6, 5), ())


@pytest.mark.parametrize("kernel_fn", [kernels.Linear(), kernels.Polynomial(2)], ids=repr)
def test_interceptors_see_one_call_of_each_layer(kernel_fn):
  calls = []

  def record(call, args, kwargs, context):
    calls.append((type(context.module).__name__, context.method_name))
    return call(*args, **kwargs)

  x = normal(2, 4, 4, 3)
  layer = KervConvTranspose(4, (2, 2), kernel_fn=kernel_fn)
  dense = KervDense(4, kernel_fn=kernel_fn)
  with nn.intercept_methods(record):
    jax.eval_shape(layer.init, KEY, x)
    jax.eval_shape(dense.init, KEY, x)
  assert calls == [("KervConvTranspose", "__call__"), ("KervDense", "__call__")]


@pytest.mark.parametrize(
  ("fields", "shape", "message"),
  [
    ({"kernel_fn": kernels.L1}, IMAGE, "`kernel_fn`"),
    ({"learnable": ("gamma",)}, IMAGE, "gamma"),
    ({"per_feature": True}, IMAGE, "`per_feature`"),
    ({"kernel_fn": kernels.Gaussian(np.ones(3))}, IMAGE, "4"),
    ({}, (3, 2), "`inputs`"),
    ({"padding": "REFLECT"}, IMAGE, "`padding`"),
    ({"mask": np.ones((1, 2, 3, 4))}, IMAGE, "`mask`"),
  ],
)
def test_transposed_refuses(fields, shape, message):
  with pytest.raises((TypeError, ValueError), match=message):
    KervConvTranspose(4, (3, 2), **fields).init(KEY, jnp.ones(shape))
