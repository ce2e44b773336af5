"""Derivatives and transformations of the operator."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

from kerv_jax import kernels, kerv_general_dilated
from tests.operator.cases import (
  ALL,
  NHWC,
  ONE_PER_STATISTIC,
  SMOOTH,
  kerv,
  name,
  operands,
)


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

  def bent(lhs, rhs, kernel):
    return sum(jnp.sum(jnp.sin(g)) for g in jax.grad(loss, (0, 1))(lhs, rhs, kernel))

  values = kerv(lhs, rhs, kernel, padding="VALID")
  if kernel in (kernels.L1(), kernels.L2()):
    np.testing.assert_array_equal(values[0, 0, 0], 0)  # they are equal
  kernel = jax.tree.map(jnp.float32, kernel)
  first = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(lhs, rhs, kernel)
  second = jax.jit(jax.grad(bent, argnums=(0, 1)))(lhs, rhs, kernel)
  chex.assert_tree_all_finite((values, first, second))


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
  close = functools.partial(chex.assert_trees_all_close, rtol=1e-3, atol=1e-5)
  close(jax.jit(jax.grad(jax.checkpoint(loss), argnums=(0, 1, 2)))(*args), expected)
  tangents = jax.tree.map(
    lambda v: jnp.cos(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape), args
  )
  inner = sum(
    jnp.vdot(a, b)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(tangents), strict=True)
  )

  @jax.jit
  def others(args, tangents):
    forward = jax.jvp(loss, args, tangents)[1]
    linear = jax.linearize(loss, *args)[1](*tangents)

    def step(carry, x):
      return carry, jax.grad(loss)(x, *args[1:])

    return forward, linear, lax.scan(step, 0, args[0][None])[1][0]

  close(others(args, tangents), (inner, inner, expected[0]))


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


@pytest.mark.parametrize(("offset", "difference"), [(1.0, 0.1), (100.0, 0.01), (1000.0, 0.001)])
def test_the_gradient_of_a_squared_distance_loses_what_the_page_on_accuracy_says(
  offset, difference
):
  rng = np.random.default_rng(0)
  lhs = np.float32(offset + difference * rng.standard_normal((2, 9, 9, 3)))
  rhs = np.float32(offset + difference * rng.standard_normal((3, 3, 3, 4)))
  g = rng.standard_normal((2, 7, 7, 4))

  def gradient(lhs, rhs, kernel, **options):
    run = functools.partial(
      kerv_general_dilated, lhs, window_strides=(1, 1), padding="VALID", dimension_numbers=NHWC
    )
    loss = lambda rhs: jnp.vdot(run(rhs, kernel_fn=kernel, **options), jnp.asarray(g, rhs.dtype))  # noqa: E731
    return np.float64(jax.grad(loss)(jnp.asarray(rhs)))

  with jax.enable_x64(True):
    exact = gradient(np.float64(lhs), np.float64(rhs), kernels.L2(squared=True), method="patches")
    exact_norm = gradient(np.float64(lhs), np.float64(rhs), kernels.L2(), method="patches")
  error = np.max(np.abs(gradient(lhs, rhs, kernels.L2(squared=True)) - exact))
  assert error <= 5e-7 * offset / difference * np.max(np.abs(exact))
  norm = gradient(lhs, rhs, kernels.Minkowski(2.0))
  np.testing.assert_allclose(norm, exact_norm, rtol=1e-4, atol=1e-5 * np.max(np.abs(exact_norm)))


@pytest.mark.parametrize(("scale", "expected"), [(1e-20, 0.0), (1e20, np.inf)])
def test_the_range_of_a_squared_distance(scale, expected):
  x, w = jnp.full((1, 1, 3), scale), jnp.zeros((1, 1, 3))
  run = lambda x, kernel: kerv_general_dilated(x, w, (1,), "VALID", kernel_fn=kernel)[0, 0, 0]  # noqa: E731
  value, gradient = jax.value_and_grad(run)(x, kernels.L2())
  assert value == expected
  np.testing.assert_array_equal(gradient, np.zeros_like(x))
  value, gradient = jax.value_and_grad(run)(x, kernels.Minkowski(2.0))
  np.testing.assert_allclose(value, scale * 3**0.5, rtol=1e-5)
  np.testing.assert_allclose(gradient, np.full(x.shape, 3**-0.5), rtol=1e-5)
