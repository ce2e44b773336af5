"""Kernels side by side, and the gradients of an AdderNet."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels, kerv_general_dilated
from kerv_jax.kernels import Concatenate
from kerv_jax.kernels.definitions import huber_difference
from kerv_jax.nn import KervConv, hyperparameters
from tests import reference

KEY = jax.random.key(0)
NHWC = ("NHWC", "HWIO", "NHWC")
NCHW = ("NCHW", "OIHW", "NCHW")


def normal(*shape, seed=0, dtype=np.float32):
  return jnp.asarray(np.random.default_rng(seed).normal(0.1, 0.6, shape), dtype)


VECTOR = np.array([0.5, 1.0, 2.0], np.float32)
# Each with the part of the six features that is whose, as NumPy functions of the feature.
CASES = {
  "two": (
    Concatenate([(2, kernels.Linear()), (4, kernels.Polynomial(2, 0.5))]),
    lambda x, w, o: reference.linear(x, w) if o < 2 else reference.polynomial(x, w, 2, 0.5),
  ),
  "vectors_inside": (
    Concatenate([(3, kernels.Gaussian(VECTOR / 9)), (3, kernels.Sigmoid(1.0, VECTOR))]),
    lambda x, w, o: (
      reference.gaussian(x, w, VECTOR[o] / 9)
      if o < 3
      else reference.sigmoid(x, w, 1.0, VECTOR[o - 3])
    ),
  ),
  "in_an_expression": (
    2.0 * Concatenate([(1, kernels.L1()), (5, kernels.Cosine())])
    - np.arange(6.0) * Concatenate([(4, kernels.L2()), (2, kernels.Linear())]),
    lambda x, w, o: (
      2 * (reference.l1(x, w) if o < 1 else reference.cosine(x, w))
      - o * (reference.l2(x, w) if o < 4 else reference.linear(x, w))
    ),
  ),
  "nested": (
    Concatenate(
      [
        (1, kernels.L1()),
        (5, Concatenate([(2, kernels.Linear()), (3, kernels.L1())]) * kernels.L2()),
      ]
    ),
    lambda x, w, o: (
      reference.l1(x, w)
      if o < 1
      else (reference.linear(x, w) if o < 3 else reference.l1(x, w)) * reference.l2(x, w)
    ),
  ),
  "own_function": (
    Concatenate([(4, kernels.Custom(lambda x, w: jnp.max(x * w, axis=-1))), (2, kernels.Linear())]),
    lambda x, w, o: np.max(x * w) if o < 4 else reference.linear(x, w),
  ),
}


@pytest.mark.parametrize(
  ("name", "groups"),
  [(name, groups) for groups in (1, 2) for name in CASES] + [("nested", 6), ("own_function", 6)],
)
def test_each_range_of_features_has_its_kernel(name, groups):
  kernel, kappa = CASES[name]
  x, w = normal(2, 5, 4, 6), normal(3, 2, 6 // groups, 6, seed=1)
  expected = reference.kervolution(
    x,
    w,
    kappa,
    strides=(2, 1),
    padding="SAME",
    lhs_dilation=(1, 1),
    rhs_dilation=(1, 1),
    layouts=NHWC,
    feature_group_count=groups,
  )

  @jax.jit
  def both(x, w):
    options = {"feature_group_count": groups, "kernel_fn": kernel}
    first = kerv_general_dilated(
      x, w, (2, 1), "SAME", dimension_numbers=NHWC, method="patches", **options
    )
    x, w = jnp.transpose(x, (0, 3, 1, 2)), jnp.transpose(w, (3, 2, 0, 1))
    second = kerv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=NCHW, **options)
    return first, jnp.transpose(second, (0, 2, 3, 1))

  for out in both(x, w):
    assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_batch_groups():
  kernel, kappa = CASES["two"]
  x, w = normal(4, 5, 4, 3), normal(2, 2, 3, 6, seed=1)
  options = {"dimension_numbers": NHWC, "batch_group_count": 2, "kernel_fn": kernel}
  expected = reference.kervolution(
    x,
    w,
    kappa,
    strides=(1, 1),
    padding="VALID",
    lhs_dilation=(1, 1),
    rhs_dilation=(1, 1),
    layouts=NHWC,
    batch_group_count=2,
  )
  for method in ("conv", "patches"):
    apply = functools.partial(
      kerv_general_dilated, window_strides=(1, 1), padding="VALID", method=method, **options
    )
    out = jax.jit(apply)(x, w)
    assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_called_on_vectors(name):
  kernel, kappa = CASES[name]
  x, w = normal(3, 1, 7), normal(6, 7, seed=1)
  xs, ws = np.asarray(x, np.float64), np.asarray(w, np.float64)
  expected = [[kappa(row[0], ws[o], o) for o in range(6)] for row in xs]
  called = jax.jit(kernel)
  assert_allclose(called(x, w), expected, rtol=1e-5, atol=1e-5)
  assert_allclose(called(x[0, 0], w), expected[0], rtol=1e-5, atol=1e-5)
  assert jax.eval_shape(kernel, x[:, :, None], w).shape == (3, 1, 6)


def primitives(kernel, features=6, groups=1):
  """The sizes of the filters of each convolution and loop in the program of a layer."""
  x, w = jnp.zeros((2, 5, 4, 6)), jnp.zeros((3, 2, 6 // groups, features))
  program = jax.make_jaxpr(
    lambda x, w: kerv_general_dilated(
      x, w, (1, 1), "SAME", dimension_numbers=NHWC, kernel_fn=kernel, feature_group_count=groups
    )
  )(x, w)
  convolutions, loops = [], []

  def walk(jaxpr):
    platforms = [e.outvars[0] for e in jaxpr.eqns if e.primitive.name == "platform_index"]
    for eqn in jaxpr.eqns:
      if eqn.primitive.name == "conv_general_dilated":
        convolutions.append(eqn.invars[1].aval.shape[-1])
      if eqn.primitive.name == "cond":
        if eqn.invars[0] in platforms:
          walk(eqn.params["branches"][0].jaxpr)  # that of CPUs
        continue  # the direct sum, where the expansion cancels
      if eqn.primitive.name == "scan":
        loops.append(eqn.outvars[0].aval.shape[0])
      for value in eqn.params.values():
        for inner in value if isinstance(value, (list, tuple)) else [value]:
          if hasattr(inner, "eqns"):
            walk(inner)
          elif hasattr(inner, "jaxpr"):
            walk(inner.jaxpr)

  walk(program.jaxpr)
  return convolutions, loops


def test_statistics_that_kernels_share_are_computed_once():
  linear, cubic, l1 = kernels.Linear(), kernels.Polynomial(), kernels.L1()
  gauss, sigmoid = kernels.Gaussian(), kernels.Sigmoid()
  assert primitives(linear + cubic * sigmoid - 2.0 * linear) == ([6], [])
  assert primitives(gauss + kernels.Cauchy() * kernels.L2()) == ([6], [])
  assert primitives(kernels.Cosine() + cubic) == ([6], [])
  assert primitives(l1 * kernels.Laplacian() - l1) == ([], [6])
  assert primitives(l1 + cubic) == ([6], [6])
  assert primitives(gauss - cubic) == primitives(linear * gauss + kernels.Cosine()) == ([6], [])
  assert primitives(Concatenate([(2, gauss * linear), (4, gauss + cubic)])) == ([6], [])
  assert primitives(Concatenate([(2, gauss), (4, gauss + cubic)])) == ([4, 6], [])
  assert primitives(Concatenate([(2, linear), (4, cubic)])) == ([6], [])
  assert primitives(Concatenate([(2, linear), (4, cubic)]) + sigmoid) == ([6], [])
  # And only for the features that need them.
  assert primitives(Concatenate([(2, l1), (4, cubic)])) == ([4], [2])
  assert primitives(Concatenate([(2, cubic), (1, l1), (3, sigmoid)])) == ([5], [1])
  assert primitives(Concatenate([(2, cubic), (1, l1), (3, sigmoid)]) * l1) == ([5], [6])
  # In small groups the inner product is a sum over pairs: one loop for both groups.
  assert primitives(Concatenate([(2, cubic), (4, sigmoid)]), groups=2) == ([], [2])


def test_hyperparameters_by_path():
  kernel = Concatenate([(2, kernels.Linear()), (3, 2.0 * kernels.Gaussian(VECTOR))])
  assert kernel.hyperparameters().keys() == {"parts_1_scale", "parts_1_inner_gamma"}
  assert kernel.constraints()["parts_1_inner_gamma"] == "positive"
  other = kernel.with_hyperparameters({"parts_1_inner_gamma": 3.0})
  assert other == Concatenate([(2, kernels.Linear()), (3, 2.0 * kernels.Gaussian(3.0))])
  assert dataclasses.replace(kernel) == kernel
  assert hash(dataclasses.replace(kernel)) == hash(kernel)
  assert kernel != Concatenate([(3, kernels.Linear()), (3, 2.0 * kernels.Gaussian(VECTOR))])
  gradient = jax.grad(lambda k: jnp.sum(k(jnp.ones(4), jnp.zeros((5, 4)))))(kernel)
  assert type(gradient) is Concatenate
  assert gradient.parts[1].kernel.gamma.shape == (3,)


@pytest.mark.parametrize("per_feature", [False, True])
def test_inner_hyperparameters_learn(per_feature):
  kernel = Concatenate(
    [(2, kernels.Polynomial(2, 0.5)), (4, kernels.Gaussian(0.1) + kernels.Sigmoid(0.2))]
  )
  layer = KervConv(
    6,
    (3, 3),
    kernel_fn=kernel,
    learnable=("parts_0_balance", "parts_1_terms_0_gamma"),
    per_feature=per_feature,
    kernel_init=nn_init,
  )
  x = normal(2, 5, 4, 3)
  variables = jax.jit(layer.init)(KEY, x)
  params = variables["params"]
  assert params["parts_0_balance"].shape == ((2,) if per_feature else ())
  assert params["parts_1_terms_0_gamma"].shape == ((4,) if per_feature else ())
  read = hyperparameters(layer, variables, x)
  assert_allclose(read["parts_0_balance"], 0.5, rtol=1e-6)
  assert_allclose(read["parts_1_terms_0_gamma"], 0.1, rtol=1e-6)
  gradient = jax.jit(jax.grad(lambda v: jnp.sum(layer.apply(v, x))))(variables)["params"]
  for name in ("parts_0_balance", "parts_1_terms_0_gamma"):
    assert gradient[name].shape == params[name].shape
    assert np.all(gradient[name] != 0)


def nn_init(key, shape, dtype=jnp.float32):
  del key
  return normal(*shape, seed=3, dtype=dtype)


@pytest.mark.parametrize(
  ("make", "error", "message"),
  [
    (lambda: Concatenate([]), TypeError, "`parts`"),
    (lambda: Concatenate(kernels.L1()), TypeError, "`parts`"),
    (lambda: Concatenate([kernels.L1(), kernels.L2()]), TypeError, "`parts`"),
    (lambda: Concatenate([(2, kernels.L1)]), TypeError, r"call it: L1\(\)"),
    (lambda: Concatenate([(2.5, kernels.L1())]), TypeError, "`parts`"),
    (lambda: Concatenate([(0, kernels.L1())]), ValueError, "at least 1"),
    (lambda: Concatenate([(2, kernels.Gaussian(VECTOR))]), ValueError, "each of the 2"),
    (
      lambda: Concatenate([(3, Concatenate([(2, kernels.L1())]))]),
      ValueError,
      "2 output features where there are 3",
    ),
    (lambda: CASES["two"][0](jnp.ones(3), jnp.ones(3)), ValueError, "`w`"),
    (lambda: CASES["two"][0](jnp.ones(3), jnp.ones((5, 3))), ValueError, "`w`"),
    (
      lambda: KervConv(8, (3, 3), kernel_fn=2.0 * CASES["two"][0]),
      ValueError,
      "6 output features where there are 8",
    ),
  ],
)
def test_errors(make, error, message):
  with pytest.raises(error, match=message):
    make()


# AdderNet.


def test_surrogate_gradients_are_those_of_the_paper():
  x, w = normal(3, 4, 5) * 2, normal(4, 5, seed=1)
  difference = np.asarray(x) - np.asarray(w)
  assert np.any(np.abs(difference) > 1)
  assert np.any(np.abs(difference) < 1)
  g = normal(3, 4, seed=2)
  kernel = -kernels.L1(surrogate=True)
  value, to_x, to_w = jax.jit(lambda x, w: (kernel(x, w), *jax.vjp(kernel, x, w)[1](g)))(x, w)
  assert_array_equal(value, jax.jit(-kernels.L1())(x, w))
  g = np.asarray(g)[..., None]
  assert_allclose(to_x, g * np.clip(-difference, -1, 1), rtol=1e-6, atol=1e-6)
  assert_allclose(to_w, np.sum(g * difference, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
def test_surrogate_gradients_of_a_layer_are_those_of_its_patches(groups):
  x, w = normal(2, 6, 5, 4) * 2, normal(3, 2, 4 // groups, 6, seed=1)
  g = normal(2, 3, 4, 6, seed=2)

  def layer(method):
    def apply(x, w):
      return kerv_general_dilated(
        x,
        w,
        (2, 1),
        [(1, 0), (0, 0)],
        rhs_dilation=(1, 1),
        dimension_numbers=NHWC,
        feature_group_count=groups,
        kernel_fn=-kernels.L1(surrogate=True),
        method=method,
      )

    return apply

  @jax.jit
  def results(x, w, g):
    value, tangent = jax.jvp(layer("conv"), (x, w), (jnp.sin(x), jnp.cos(w)))
    return value, jax.vjp(layer("conv"), x, w)[1](g), tangent

  @jax.jit
  def by_patches(x, w, g):
    value, pull = jax.vjp(layer("patches"), x, w)
    return value, pull(g)

  value, (to_x, to_w), tangent = results(x, w, g)
  expected, gradients = by_patches(x, w, g)
  assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
  assert_allclose(to_x, gradients[0], rtol=1e-4, atol=1e-4)
  assert_allclose(to_w, gradients[1], rtol=1e-4, atol=1e-4)
  # Forward mode is the same linear map.
  paired = jnp.sum(to_x * jnp.sin(x)) + jnp.sum(to_w * jnp.cos(w))
  assert_allclose(jnp.sum(g * tangent), paired, rtol=1e-4)


def test_the_huber_function_has_the_slope_hard_tanh():
  huber = functools.partial(huber_difference, w=0.0)
  d = jnp.array([-3.0, -1.5, -0.4, 0.0, 0.7, 2.0])
  assert_allclose(huber(d), np.where(abs(d) < 1, d**2 / 2, abs(d) - 0.5), rtol=1e-6)
  assert_allclose(jax.vmap(jax.grad(huber))(d), np.clip(d, -1, 1), rtol=1e-6)


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_surrogate_must_be_a_bool(value):
  with pytest.raises(TypeError, match="`surrogate`"):
    kernels.L1(surrogate=value)
