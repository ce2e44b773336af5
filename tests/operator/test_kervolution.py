"""The operator: its bits, its values, its work and its memory."""

import functools
import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from kerv_jax import kernels, kerv_general_dilated
from kerv_jax._operator import distances
from tests.operator.cases import (
  ALL,
  NHWC,
  ONE_PER_STATISTIC,
  kerv,
  name,
  operands,
)


def equations(jaxpr):
  """Every equation of a jaxpr and of those inside it."""
  for equation in jaxpr.eqns:
    yield equation
    for value in equation.params.values():
      for inner in value if isinstance(value, (tuple, list)) else (value,):
        if hasattr(inner, "jaxpr"):
          inner = inner.jaxpr
        if hasattr(inner, "eqns"):
          yield from equations(inner)


# Linear


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"padding": "SAME_LOWER", "rhs_dilation": (2, 2)},
    {"padding": "VALID", "preferred_element_type": jnp.float32},
    {"padding": ((-1, 2), (3, -1)), "lhs_dilation": (2, 1)},
    {"precision": "highest", "padding": "SAME"},
  ],
)
def test_linear_is_the_convolution_bit_for_bit(options, dtype):
  lhs, rhs = operands(dtype=dtype)

  def convolution(lhs, rhs):
    defaults = {
      "window_strides": (2, 1),
      "padding": ((1, 2), (0, 1)),
      "rhs_dilation": (1, 2),
      "feature_group_count": 2,
      "dimension_numbers": NHWC,
    }
    return lax.conv_general_dilated(lhs, rhs, **(defaults | options))

  def kervolution(lhs, rhs):
    return kerv(lhs, rhs, kernels.Linear(), **options)

  assert str(jax.make_jaxpr(kervolution)(lhs, rhs)) == str(jax.make_jaxpr(convolution)(lhs, rhs))
  expected, pull = jax.vjp(convolution, lhs, rhs)
  actual, pull_kerv = jax.vjp(kervolution, lhs, rhs)
  np.testing.assert_array_equal(actual, expected)
  assert actual.dtype == expected.dtype
  for a, b in zip(pull_kerv(expected), pull(expected), strict=True):
    np.testing.assert_array_equal(a, b)


def test_a_subclass_of_linear_is_itself():
  class Leaky(kernels.Linear):
    def profile(self, statistic):
      return jnp.maximum(statistic, 0.1 * statistic)

  lhs, rhs = operands()
  plain = kerv(lhs, rhs, kernels.Linear())
  expected = jnp.maximum(plain, 0.1 * plain)
  assert jnp.any(expected != plain)
  for method in ("auto", "conv", "patches"):
    np.testing.assert_allclose(
      kerv(lhs, rhs, Leaky(), method=method), expected, rtol=1e-5, atol=1e-5
    )


def test_linear_with_batch_groups_is_the_convolution():
  lhs, rhs = operands((4, 6, 5, 2), (3, 2, 2, 6))
  options = {"feature_group_count": 1, "batch_group_count": 2}
  expected = lax.conv_general_dilated(
    lhs, rhs, (2, 1), ((1, 2), (0, 1)), None, (1, 2), NHWC, **options
  )
  np.testing.assert_array_equal(kerv(lhs, rhs, kernels.Linear(), **options), expected)
  np.testing.assert_allclose(
    kerv(lhs, rhs, kernels.Polynomial(1, 0.0), **options), expected, rtol=1e-5, atol=1e-5
  )


# Values


@pytest.mark.parametrize("kernel", ALL, ids=name)
def test_padding_is_data(kernel):
  lhs, rhs = operands()
  implied = kerv(lhs, rhs, kernel)
  explicit = kerv(jnp.pad(lhs, ((0, 0), (1, 2), (0, 1), (0, 0))), rhs, kernel, padding="VALID")
  np.testing.assert_allclose(implied, explicit, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 10.0, 100.0])
@pytest.mark.parametrize("difference", [0.1, 0.01])
@pytest.mark.parametrize("spread", [0.1, 1.0])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_squared_distance_keeps_its_accuracy_near_the_filters(offset, difference, spread, padding):
  rng = np.random.default_rng(0)
  lhs = np.float32(offset + spread * rng.standard_normal((4, 12, 12, 3)))
  patches = np.stack([lhs[i % 4, i : i + 5, i : i + 5] for i in range(6)], axis=-1)
  rhs = np.float32(patches + difference * rng.standard_normal(patches.shape))
  run = functools.partial(
    kerv_general_dilated,
    window_strides=(1, 1),
    padding=padding,
    dimension_numbers=NHWC,
    kernel_fn=kernels.L2(squared=True),
  )
  with jax.enable_x64(True):
    exact = np.asarray(run(jnp.float64(lhs), jnp.float64(rhs), method="patches"))
  assert np.min(exact) < 75 * (2 * difference) ** 2  # the filters' own patches are there
  np.testing.assert_allclose(run(lhs, rhs), exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kernel", [kernels.L2(), kernels.L1(), kernels.Polynomial(1, 0.0)])
def test_16_bit_inputs_are_summed_in_float32(kernel, dtype):
  rng = np.random.default_rng(0)
  lhs = jnp.asarray(rng.uniform(1, 2, (1, 1, 3000)), dtype)
  rhs = jnp.asarray(rng.uniform(-0.1, 0.1, (1, 1, 3000)), dtype)
  run = functools.partial(
    kerv_general_dilated, window_strides=(1,), padding="VALID", kernel_fn=kernel
  )
  actual = run(lhs, rhs, preferred_element_type=jnp.float32)
  with jax.enable_x64(True):
    exact = np.asarray(run(lhs.astype("float64"), rhs.astype("float64"), method="patches"))
  np.testing.assert_allclose(actual, exact, rtol=1e-4, atol=1e-4)
  rounded = run(lhs, rhs)
  assert rounded.dtype == dtype
  np.testing.assert_allclose(
    rounded.astype("float32"), exact, rtol=float(jnp.finfo(dtype).eps), atol=1e-3
  )


def test_custom_sees_window_positions_then_channels():
  lhs, rhs = operands()
  weights = np.random.default_rng(1).standard_normal(3 * 2 * 2)
  weights = jnp.asarray(weights, jnp.float32)
  custom = kernels.Custom(lambda x, w: jnp.sum(weights * x * w))
  scaled = rhs * weights.reshape(3, 2, 2)[..., None]
  np.testing.assert_allclose(
    kerv(lhs, rhs, custom), kerv(lhs, scaled, kernels.Linear()), rtol=1e-4, atol=1e-4
  )


def test_one_value_per_output_feature_in_any_layout():
  lhs, rhs = operands()
  gamma = jnp.linspace(0.01, 0.3, 6)
  together = kerv(lhs, rhs, kernels.Gaussian(gamma))
  apart = [kerv(lhs, rhs, kernels.Gaussian(float(g)))[..., i] for i, g in enumerate(gamma)]
  np.testing.assert_allclose(together, jnp.stack(apart, axis=-1), rtol=1e-5, atol=1e-6)
  first = kerv(
    lhs.transpose(0, 3, 1, 2),
    rhs.transpose(3, 2, 0, 1),
    kernels.Gaussian(gamma),
    dimension_numbers=None,
  )
  np.testing.assert_allclose(first.transpose(0, 2, 3, 1), together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["conv", "patches"])
@pytest.mark.parametrize("kernel", ALL, ids=name)
def test_a_nan_is_seen_by_every_output_that_sees_it(kernel, method):
  lhs, rhs = operands((2, 6, 6, 2), (3, 3, 2, 3))
  options = {"feature_group_count": 1, "window_strides": (1, 1), "rhs_dilation": (1, 1)}
  run = functools.partial(kerv, kernel_fn=kernel, method=method, padding="SAME", **options)
  seen = np.zeros((2, 6, 6, 3), bool)
  seen[1, 1:4, 2:5] = True
  np.testing.assert_array_equal(jnp.isnan(run(lhs.at[1, 2, 3, 0].set(jnp.nan), rhs)), seen)
  spoilt = run(lhs, rhs.at[0, 1, 1, 2].set(jnp.nan))
  assert not jnp.any(jnp.isnan(spoilt[..., :2]))
  assert jnp.all(jnp.isnan(spoilt[:, 1:5, 1:5, 2]))


@pytest.mark.parametrize("kernel", ONE_PER_STATISTIC, ids=name)
def test_16_bit_operands_take_float32_hyperparameters(kernel):
  lhs, rhs = operands(dtype="bfloat16")
  kernel = jax.tree.map(jnp.float32, kernel)
  for method in ("conv", "patches"):
    gradient = jax.grad(lambda *args, m=method: jnp.sum(kerv(*args, method=m)), (0, 1, 2))
    assert jax.eval_shape(gradient, lhs, rhs, kernel)[0].dtype == jnp.bfloat16


@pytest.mark.parametrize("kernel", ALL, ids=name)
def test_an_empty_batch_gives_an_empty_output(kernel):
  lhs, rhs = operands((0, 6, 5, 4))
  assert kerv(lhs, rhs, kernel).shape == kerv(lhs, rhs, kernels.Linear()).shape
  gradient = jax.grad(lambda rhs: jnp.sum(kerv(lhs, rhs, kernel)))(rhs)
  np.testing.assert_array_equal(gradient, jnp.zeros_like(rhs))


def test_a_window_longer_than_the_unrolled_sum():
  lhs, rhs = operands((2, 70, 3), (23, 3, 2))
  options = {"rhs_dilation": (2,), "window_strides": (3,), "padding": "VALID"}
  options |= {"dimension_numbers": ("NWC", "WIO", "NWC"), "feature_group_count": 1}
  for kernel in (kernels.L2(), kernels.L1()):
    np.testing.assert_allclose(
      kerv(lhs, rhs, kernel, **options),
      kerv(lhs, rhs, kernel, method="patches", **options),
      rtol=1e-5,
      atol=1e-5,
    )


# Work and memory


def test_statistics_that_kernels_share_are_computed_once():
  lhs, rhs = operands()
  combined = (
    kernels.Gaussian(0.1) + kernels.Cauchy(2.0) * kernels.L2() - 2.0 * kernels.Gaussian(1.0)
  )
  assert combined.statistics == ("squared_distance",)

  def convolutions(kernel):
    jaxpr = jax.make_jaxpr(lambda lhs, rhs: kerv(lhs, rhs, kernel))(lhs, rhs)
    return sum(e.primitive.name == "conv_general_dilated" for e in equations(jaxpr.jaxpr))

  assert convolutions(combined) == convolutions(kernels.Gaussian(0.1)) == 1
  assert convolutions(kernels.Polynomial() + kernels.Sigmoid() + kernels.Linear()) == 1


@pytest.mark.parametrize("kernel", ALL, ids=name)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_nothing_as_large_as_patches_is_built(kernel, backward):
  lhs, rhs = operands((8, 24, 24, 8), (5, 5, 8, 16))
  run = functools.partial(
    kerv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=NHWC
  )
  out = jax.eval_shape(functools.partial(run, kernel_fn=kernel), lhs, rhs)

  def forward(lhs, rhs):
    return run(lhs, rhs, kernel_fn=kernel)

  def function(lhs, rhs, g):
    return jax.vjp(forward, lhs, rhs)[1](g) if backward else forward(lhs, rhs)

  traced = jax.jit(function).trace(lhs, rhs, out)
  patches = out.size // 16 * 5 * 5 * 8
  program = traced.lower().as_text()  # for this platform alone
  shapes = re.findall(r"tensor<((?:\d+x)+)f32>", program)
  largest = max(math.prod(map(int, shape.split("x")[:-1])) for shape in shapes)
  assert largest <= 1.5 * (lhs.size + rhs.size + out.size) < patches / 4
  # The CPU compiler's fusion hides scratch memory from the analysis: it is left out.
  options = {"xla_cpu_experimental_ynn_fusion_type": ""}
  convolution = jax.jit(
    lambda lhs, rhs, g: jax.vjp(run_linear, lhs, rhs)[1](g) if backward else run_linear(lhs, rhs)
  )
  run_linear = functools.partial(run, kernel_fn=kernels.Linear())
  base = convolution.lower(lhs, rhs, out).compile(options).memory_analysis().temp_size_in_bytes
  temp = traced.lower().compile(options).memory_analysis().temp_size_in_bytes
  assert temp <= len(kernel.statistics) * (base + 4 * (4 * out.size + 2 * lhs.size))


def test_precision():
  lhs, rhs = operands()

  def precisions(kernel, precision):
    jaxpr = jax.make_jaxpr(lambda *args: kerv(*args, kernel, precision=precision))(lhs, rhs)
    return {e.params["precision"] for e in equations(jaxpr.jaxpr) if "precision" in e.params}

  highest, default = (lax.Precision.HIGHEST,) * 2, (lax.Precision.DEFAULT,) * 2
  assert precisions(kernels.Polynomial(), None) == {None}
  assert precisions(kernels.Gaussian(), None) == {highest}
  assert precisions(kernels.Gaussian(), "default") == {default}
  assert precisions(kernels.Polynomial(), lax.Precision.HIGHEST) == {highest}
  preset = lax.DotAlgorithmPreset.BF16_BF16_F32
  assert precisions(kernels.Gaussian(), "BF16_BF16_F32") == {preset}
  assert precisions(kernels.Polynomial(), preset) == {preset}
  assert precisions(kernels.Linear(), "BF16_BF16_F32") == {preset}
  patches = functools.partial(kerv, lhs, rhs, kernels.Polynomial(), method="patches")
  np.testing.assert_allclose(patches(precision="highest"), patches(), rtol=1e-5)
  np.testing.assert_allclose(patches(precision="BF16_BF16_F32"), patches(), rtol=0.1, atol=0.1)


def test_import_switches_nothing_on():
  program = """
import sys, jax
before = dict(jax.config.values)
import kerv_jax
assert not {"flax", "optax"} & sys.modules.keys()
assert kerv_jax.nn.KervConv and "torch_import" in dir(kerv_jax)
assert not hasattr(kerv_jax, "experiments")
assert dict(jax.config.values) == before
assert not jax.config.jax_enable_x64
"""
  subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("kernel", [kernels.Polynomial(), kernels.Gaussian(0.05)], ids=name)
def test_products_in_small_groups_are_sums_over_pairs_on_a_cpu(kernel, groups, monkeypatch):
  lhs, rhs = operands((2, 6, 5, 4), (3, 2, 4 // groups, 8))

  def both(lhs, rhs):
    out, pull = jax.vjp(
      functools.partial(kerv, kernel_fn=kernel, feature_group_count=groups), lhs, rhs
    )
    return out, *pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

  traced = jax.jit(both).trace(lhs, rhs)
  by_pairs = traced.lower()
  assert "stablehlo.convolution" not in by_pairs.as_text()
  assert "stablehlo.convolution" in traced.lower(lowering_platforms=("cuda",)).as_text()
  monkeypatch.setattr(distances, "_SMALL_GROUP", 0)
  expected = jax.jit(lambda *args: both(*args))(lhs, rhs)
  for a, b in zip(by_pairs.compile()(lhs, rhs), expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.max(np.abs(b)))


@pytest.mark.parametrize(
  ("kernel", "groups", "features"),
  [(kernels.Polynomial(), 1, 8), (kernels.Polynomial(), 2, 2048), (kernels.Linear(), 2, 8)],
  ids=str,
)
def test_other_products_stay_the_convolution(kernel, groups, features):
  lhs, rhs = operands((1, 6, 5, 4), (3, 2, 4 // groups, features))
  run = functools.partial(kerv, kernel_fn=kernel, feature_group_count=groups)
  program = jax.jit(run).lower(lhs, rhs).as_text()
  assert program.count("stablehlo.convolution") == 1
  assert "stablehlo.while" not in program
