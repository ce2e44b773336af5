"""The operator: its bits, its gradients, its transformations and its errors."""

import functools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

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
  return str(value) if isinstance(value, (kernels.Kernel, tuple)) else None


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
def test_strict_promotion_of_ranks_and_dtypes(kernel):
  lhs, rhs = operands(dtype="bfloat16")
  kernel = jax.tree.map(jnp.float32, kernel)
  with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
    for method in ("conv", "patches"):
      jax.grad(lambda *args, m=method: jnp.sum(kerv(*args, method=m)), (0, 1, 2))(lhs, rhs, kernel)


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


# Derivatives


@pytest.mark.parametrize("method", ["conv", "patches"])
@pytest.mark.parametrize("kernel", ALL, ids=name)
def test_gradients_in_float64(kernel, method):
  with jax.enable_x64(True):
    lhs, rhs = operands((1, 4, 4, 4), (3, 2, 2, 2), dtype="float64")
    kernel = jax.tree.map(jnp.float64, kernel)
    check_grads(
      jax.jit(functools.partial(kerv, method=method)),
      (lhs, rhs, kernel),
      order=2 if kernel in SMOOTH and method == "conv" else 1,
      modes=("fwd", "rev"),
      rtol=1e-5,
      atol=1e-5,
    )


@pytest.mark.parametrize("kernel", [k for k in ALL if k.hyperparameters()], ids=name)
def test_gradients_of_hyperparameters_per_feature(kernel):
  with jax.enable_x64(True):
    lhs, rhs = operands((1, 4, 4, 4), (3, 2, 2, 2), dtype="float64")
    kernel = jax.tree.map(lambda leaf: leaf * jnp.array([1.0, 1.3]), kernel)
    check_grads(lambda k: kerv(lhs, rhs, k), (kernel,), order=1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [kernels.Laplacian(0.1), kernels.Laplacian(0.1) * kernels.L1()])
def test_second_derivatives_of_absolute_distance_agree_with_the_definition(kernel):
  # |.| has none of its own away from 0, where finite differences would do; products of first
  # derivatives remain.
  with jax.enable_x64(True):
    lhs, rhs = operands((1, 4, 4, 4), (3, 2, 2, 2), dtype="float64")

    def loss(rhs, method):
      return jnp.sum(jnp.square(kerv(lhs, rhs, kernel, method=method)))

    vector = operands(rhs_shape=rhs.shape, seed=5, dtype="float64")[1]
    for mode in (lambda f: jax.jvp(jax.grad(f), (rhs,), (vector,))[1],
                 lambda f: jax.grad(lambda r: jnp.vdot(jax.grad(f)(r), vector))(rhs)):  # fmt: skip
      conv, patches = (mode(functools.partial(loss, method=m)) for m in ("conv", "patches"))
      assert jnp.max(jnp.abs(conv)) > 1e-3
      np.testing.assert_allclose(conv, patches, rtol=1e-8, atol=1e-8)


def test_gaussian_gradients_are_the_paper_s_closed_forms():
  # Paper, eq. (13): d/dw = 2 gamma (x - w) kappa, d/dgamma = -|x - w|^2 kappa.
  lhs, rhs = operands((3, 4, 4, 2), (3, 3, 2, 5))
  gamma = 0.07

  def forward(rhs, gamma):
    return kerv_general_dilated(
      lhs, rhs, (1, 1), "VALID", dimension_numbers=NHWC, kernel_fn=kernels.Gaussian(gamma)
    )

  out, pull = jax.vjp(forward, rhs, gamma)
  cotangent = operands(out.shape, seed=3)[0]
  by_weight, by_gamma = pull(cotangent)
  expected_weight, expected_gamma = np.zeros(rhs.shape), 0.0
  for n, i, j in np.ndindex(out.shape[:3]):
    difference = np.asarray(lhs[n, i : i + 3, j : j + 3, :, None] - rhs, np.float64)
    kappa = np.exp(-gamma * np.sum(difference**2, axis=(0, 1, 2)))
    g = np.asarray(cotangent[n, i, j])
    expected_weight += g * 2 * gamma * difference * kappa
    expected_gamma += np.sum(g * -np.sum(difference**2, axis=(0, 1, 2)) * kappa)
  np.testing.assert_allclose(by_weight, expected_weight, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(by_gamma, expected_gamma, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ALL, ids=name)
def test_derivatives_are_finite_where_patch_and_filter_are_equal(kernel):
  lhs, _ = operands((1, 6, 5, 4))
  rhs = jnp.stack([lhs[0, 0:3, 0:4:2, :2]] * 3 + [lhs[0, 0:3, 0:4:2, 2:]] * 3, axis=-1)

  def loss(lhs, rhs, kernel):
    return jnp.sum(kerv(lhs, rhs, kernel, padding="VALID"))

  values = kerv(lhs, rhs, kernel, padding="VALID")
  if kernel in (kernels.L1(), kernels.L2()):
    np.testing.assert_array_equal(values[0, 0, 0], 0)  # they are equal
  kernel = jax.tree.map(jnp.float32, kernel)
  first = jax.grad(loss, argnums=(0, 1, 2))(lhs, rhs, kernel)
  second = jax.grad(
    lambda *args: sum(jnp.sum(jnp.sin(g)) for g in jax.tree.leaves(jax.grad(loss, (0, 1))(*args))),
    argnums=(0, 1),
  )(lhs, rhs, kernel)
  for value in jax.tree.leaves((values, first, second)):
    assert jnp.all(jnp.isfinite(value))


def test_second_derivative_of_the_gaussian_where_patch_and_filter_are_equal():
  x = operands((1, 1, 6))[0]

  def kappa(w):
    return kerv_general_dilated(x, w, (1,), "VALID", kernel_fn=kernels.Gaussian(0.5))[0, 0, 0]

  hessian = jax.hessian(kappa)(x).reshape(6, 6)
  np.testing.assert_allclose(hessian, -np.eye(6), rtol=1e-5, atol=1e-5)  # -2 gamma


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 7])
def test_polynomials_of_negative_bases(degree):
  x, w = jnp.full((1, 1, 3), 2.0), jnp.full((1, 1, 3), -1.0)

  def value(x, w, balance):
    kernel = kernels.Polynomial(degree, balance)
    return kerv_general_dilated(x, w, (1,), "VALID", kernel_fn=kernel)[0, 0, 0]

  np.testing.assert_allclose(value(x, w, 1.0), (-5.0) ** degree, rtol=1e-6)
  gradient = jax.grad(value, argnums=(0, 1, 2))(x, w, 1.0)
  slope = degree * (-5.0) ** (degree - 1)
  np.testing.assert_allclose(gradient[0], jnp.full_like(x, -slope), rtol=1e-6)
  np.testing.assert_allclose(gradient[1], jnp.full_like(w, 2 * slope), rtol=1e-6)
  np.testing.assert_allclose(gradient[2], slope, rtol=1e-6)


# Transformations


@pytest.mark.parametrize(
  ("kernel", "axes"),
  [(kernel, (0, 0, 0)) for kernel in ALL]
  + [(k, axes) for k in ONE_PER_STATISTIC for axes in ((0, None, None), (None, 0, None))],
  ids=name,
)
def test_vmap_of_operands_and_kernel(kernel, axes):
  def item(value, axis, index):
    return value if axis is None else jax.tree.map(lambda leaf: leaf[index], value)

  def loss(lhs, rhs, kernel):
    return jnp.sum(jnp.sin(kerv(lhs, rhs, kernel)))

  with jax.enable_x64(True):
    lhs, rhs = operands((3, 2, 4, 5, 4), (3, 3, 2, 2, 4), dtype="float64")
    several = jax.tree.map(lambda leaf: leaf * jnp.array([1.0, 1.2, 0.8]), kernel)
    args = [
      value if axis == 0 else item(value, 0, 1)
      for value, axis in zip((lhs, rhs, several), axes, strict=True)
    ]
    for function in (jax.jit(kerv), jax.jit(jax.grad(loss, argnums=(0, 1)))):
      batched = jax.vmap(function, axes)(*args)
      looped = [function(*map(item, args, axes, [i] * 3)) for i in range(3)]
      jax.tree.map(
        lambda together, *apart: np.testing.assert_allclose(together, apart, rtol=1e-9, atol=1e-9),
        batched,
        *looped,
      )


@pytest.mark.parametrize("kernel", ALL, ids=name)
def test_jit_checkpoint_scan_and_forward_mode(kernel):
  lhs, rhs = operands()
  kernel = jax.tree.map(jnp.float32, kernel)

  def loss(lhs, rhs, kernel):
    return jnp.mean(jnp.sin(kerv(lhs, rhs, kernel)))

  args = (lhs, rhs, kernel)
  expected = jax.grad(loss, argnums=(0, 1, 2))(*args)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5)
  jitted = jax.jit(jax.grad(jax.checkpoint(loss), argnums=(0, 1, 2)))(*args)
  jax.tree.map(close, jitted, expected)
  tangents = jax.tree.map(
    lambda v: jnp.cos(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape), args
  )
  _, forward = jax.jvp(loss, args, tangents)
  inner = sum(
    jnp.vdot(a, b)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(tangents), strict=True)
  )
  close(forward, inner)
  _, linear = jax.linearize(loss, *args)
  close(linear(*tangents), inner)
  _, scanned = lax.scan(lambda carry, x: (carry, jax.grad(loss)(x, rhs, kernel)), 0, lhs[None])
  close(scanned[0], expected[0])


@pytest.mark.parametrize(
  ("lhs", "rhs", "squared", "gaussian"),
  [
    (np.inf, 1.0, np.inf, 0.0),
    (-np.inf, 1.0, np.inf, 0.0),
    (1e19, 1e19, 0.0, 1.0),
    (0.0, 2e38, np.inf, 0.0),
    (np.nan, 1.0, np.nan, np.nan),
  ],
)
def test_distances_that_overflow_on_the_way_are_as_defined(lhs, rhs, squared, gaussian):
  x, w = jnp.zeros((1, 5, 5, 3)).at[0, 2, 2, 1].set(lhs), jnp.full((3, 3, 3, 2), rhs)
  x = jnp.full_like(x, lhs) if lhs == rhs else x
  for kernel, expected in (
    (kernels.L2(squared=True), squared),
    (kernels.Gaussian(1.0), gaussian),
  ):
    out = kerv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NHWC, kernel_fn=kernel)
    np.testing.assert_array_equal(out[0, 1, 1], np.full(2, expected))


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
  largest = max(math.prod(v.aval.shape) for e in equations(traced.jaxpr.jaxpr) for v in e.outvars)
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
  patches = functools.partial(kerv, lhs, rhs, kernels.Polynomial(), method="patches")
  np.testing.assert_allclose(patches(precision="highest"), patches(), rtol=1e-5)


# Errors


@pytest.mark.parametrize(
  ("change", "error", "words"),
  [
    ({"kernel_fn": jnp.dot}, TypeError, ["`kernel_fn`", "Custom"]),
    ({"kernel_fn": kernels.Gaussian}, TypeError, ["`kernel_fn`", "Gaussian()"]),
    ({"kernel_fn": "gaussian"}, TypeError, ["`kernel_fn`", "'gaussian'"]),
    ({"method": "fft"}, ValueError, ["`method`", "'fft'", "patches"]),
    (
      {"method": "conv", "kernel_fn": kernels.Custom(jnp.dot) + kernels.L1()},
      ValueError,
      ["`method`", "'conv'", "Custom", "patches"],
    ),
    ({"kernel_fn": kernels.Gaussian(np.ones(5))}, ValueError, ["`gamma`", "6", "(5,)"]),
    (
      {"kernel_fn": kernels.L1() + kernels.Gaussian(np.ones(5))},
      ValueError,
      ["`terms.1.gamma`", "6", "(5,)"],
    ),
    ({"lhs": np.ones((2, 6, 5, 4), int)}, TypeError, ["`lhs`", "int", "float32"]),
    ({"rhs": np.ones((3, 2, 2, 6), complex)}, TypeError, ["`rhs`", "complex", "float32"]),
    ({"rhs": np.ones((3, 2, 2, 6), np.float16)}, TypeError, ["float32", "float16"]),
    ({"lhs": np.ones((6, 5, 4), np.float32)}, ValueError, ["`lhs`", "(6, 5, 4)"]),
    (
      {"lhs": np.ones((6, 5), np.float32), "rhs": np.ones((6, 5), np.float32)},
      ValueError,
      ["`lhs`", "n >= 1", "(6, 5)"],
    ),
    ({"dimension_numbers": ("NHWC", "HWIO")}, ValueError, ["`dimension_numbers`", "HWIO"]),
    ({"dimension_numbers": ("NHW", "HWIO", "NHWC")}, ValueError, ["`dimension_numbers`"]),
    ({"window_strides": (0, 1)}, ValueError, ["`window_strides`", "(0, 1)", "positive"]),
    ({"window_strides": (1,)}, ValueError, ["`window_strides`", "(1,)", "2"]),
    ({"window_strides": 1}, TypeError, ["`window_strides`", "1"]),
    ({"window_strides": (1.5, 1)}, TypeError, ["`window_strides`", "1.5"]),
    ({"rhs_dilation": (1, -1)}, ValueError, ["`rhs_dilation`", "-1"]),
    ({"lhs_dilation": (0, 1)}, ValueError, ["`lhs_dilation`", "(0, 1)"]),
    ({"padding": "FULL"}, ValueError, ["`padding`", "'FULL'", "SAME_LOWER"]),
    ({"padding": ((1, 1),)}, ValueError, ["`padding`", "2 pairs"]),
    ({"padding": 1}, ValueError, ["`padding`", "1", "pairs"]),
    ({"padding": ((1, 1), (0.5, 1))}, ValueError, ["`padding`", "0.5"]),
    ({"padding": ((-4, 0), (0, 0))}, ValueError, ["`padding`", "((-4, 0), (0, 0))", "(3, 2)"]),
    (
      {"padding": "SAME", "lhs_dilation": (1, 2)},
      ValueError,
      ["`padding`", "'SAME'", "`lhs_dilation`", "(1, 2)"],
    ),
    ({"padding": "VALID", "rhs_dilation": (1, 5)}, ValueError, ["`rhs_dilation`", "(1, 5)"]),
    ({"feature_group_count": 3}, ValueError, ["`feature_group_count`", "3", "4"]),
    ({"feature_group_count": 4}, ValueError, ["`feature_group_count`", "4", "6"]),
    ({"feature_group_count": 0}, ValueError, ["`feature_group_count`", "0"]),
    ({"feature_group_count": 1}, ValueError, ["`rhs`", "4", "2"]),
    (
      {"batch_group_count": 3, "feature_group_count": 1},
      ValueError,
      ["`batch_group_count`", "3", "2"],
    ),
    ({"batch_group_count": 2}, ValueError, ["`batch_group_count`", "`feature_group_count`"]),
    ({"batch_group_count": -1}, ValueError, ["`batch_group_count`", "-1"]),
    ({"feature_group_count": 1.5}, TypeError, ["`feature_group_count`", "1.5"]),
    ({"lhs": None}, TypeError, ["`lhs`", "None"]),
    ({"preferred_element_type": "foo"}, TypeError, ["`preferred_element_type`", "'foo'"]),
    ({"precision": ["high"]}, ValueError, ["`precision`", "['high']"]),
    ({"precision": "exact"}, ValueError, ["`precision`", "'exact'"]),
    ({"preferred_element_type": jnp.int32}, TypeError, ["`preferred_element_type`", "int32"]),
    ({"preferred_element_type": jnp.bfloat16}, TypeError, ["`preferred_element_type`", "float32"]),
    ({"rhs": np.ones((3, 0, 2, 6), np.float32)}, ValueError, ["`rhs`", "(3, 0)"]),
  ],
)  # fmt: skip
def test_errors_name_argument_value_and_what_is_allowed(change, error, words):
  lhs, rhs = operands()
  arguments = {"lhs": lhs, "rhs": rhs, "kernel_fn": kernels.Gaussian()} | change
  with pytest.raises(error) as raised:
    kerv(**arguments)
  for word in words:
    assert word in str(raised.value)


@pytest.mark.parametrize("fn", [lambda x, w: x * w, lambda x, w: jnp.int32(1), lambda x, w: (x, w)])
def test_a_custom_function_must_return_a_real_scalar(fn):
  lhs, rhs = operands()
  with pytest.raises(ValueError, match="real scalar for a patch and a filter of shape \\(12,\\)"):
    kerv(lhs, rhs, kernels.Custom(fn))


def test_import_switches_nothing_on():
  program = """
import jax
before = dict(jax.config.values)
import kerv_jax, kerv_jax.nn
assert dict(jax.config.values) == before
assert not jax.config.jax_enable_x64
"""
  subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
