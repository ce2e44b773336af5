"""The cosine normalization, against its definition in NumPy float64 with explicit loops."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels, kerv_general_dilated
from kerv_jax import nnx as kerv_nnx
from kerv_jax.kernels import Normalized
from kerv_jax.nn import KervConv, kervolve
from tests import reference

_BALANCES = np.array([0.1, 0.5, 1.0, 2.0])
KERNELS = {
  "Linear": (kernels.Linear(), lambda x, w, o: reference.linear(x, w)),
  "Polynomial": (
    kernels.Polynomial(3, _BALANCES),
    lambda x, w, o: reference.polynomial(x, w, 3, _BALANCES[o]),
  ),
  "Even": (kernels.Polynomial(2, 0.0), lambda x, w, o: reference.polynomial(x, w, 2, 0.0)),
  "Gaussian": (kernels.Gaussian(0.1), lambda x, w, o: reference.gaussian(x, w, 0.1)),
  "Laplacian": (kernels.Laplacian(0.1), lambda x, w, o: reference.laplacian(x, w, 0.1)),
  "Cauchy": (kernels.Cauchy(2.0), lambda x, w, o: reference.cauchy(x, w, 2.0)),
  "RationalQuadratic": (
    kernels.RationalQuadratic(0.8, 1.5),
    lambda x, w, o: reference.rational_quadratic(x, w, 0.8, 1.5),
  ),
  "Cosine": (kernels.Cosine(), lambda x, w, o: reference.cosine(x, w)),
  "Sum": (
    kernels.Linear() + 3.0 * kernels.Gaussian(0.2),
    lambda x, w, o: reference.linear(x, w) + 3 * reference.gaussian(x, w, 0.2),
  ),
  "Product": (
    kernels.Laplacian(0.05) * kernels.Polynomial(2, 1.0),
    lambda x, w, o: reference.laplacian(x, w, 0.05) * reference.polynomial(x, w, 2, 1.0),
  ),
  "Nested": (
    Normalized(kernels.Polynomial(2, 1.0)) + kernels.Linear(),
    lambda x, w, o: (
      normalized(lambda x, w, o: reference.polynomial(x, w, 2, 1.0), x, w, o)
      + reference.linear(x, w)
    ),
  ),
}
SHAPES = {
  "groups": (
    (2, 5, 4, 4),
    (2, 2, 2, 4),
    {
      "strides": (2, 1), "padding": ((1, 2), (0, 1)),
      "lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "feature_group_count": 2,
    },
  ),
  "dilated": (
    (1, 5, 5, 2),
    (2, 2, 2, 4),
    {
      "strides": (1, 1), "padding": ((0, 0), (1, 0)),
      "lhs_dilation": (2, 1), "rhs_dilation": (1, 2),
    },
  ),
}  # fmt: skip


def normalized(kappa, x, w, o):
  norm = np.sqrt(kappa(x, x, o) * kappa(w, w, o))
  return kappa(x, w, o) / norm if norm > 0 else 0.0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", KERNELS)
def test_values_and_gradients_are_those_of_the_definition(name, shape):
  kernel, kappa = KERNELS[name]
  lhs_shape, rhs_shape, options = SHAPES[shape]
  rng = np.random.default_rng(0)
  lhs, rhs = rng.normal(size=lhs_shape) + 0.2, rng.normal(size=rhs_shape) - 0.1
  layouts = ("NHWC", "HWIO", "NHWC")
  defined = functools.partial(
    reference.kervolution, kappa=functools.partial(normalized, kappa), layouts=layouts, **options
  )

  operands = jnp.asarray(lhs, jnp.float32), jnp.asarray(rhs, jnp.float32)
  own = {("window_strides" if key == "strides" else key): v for key, v in options.items()}
  kervolution = jax.jit(
    functools.partial(
      kerv_general_dilated, kernel_fn=Normalized(kernel), dimension_numbers=layouts, **own
    )
  )
  wanted = defined(lhs, rhs)
  assert np.ptp(wanted) > 0.05
  cotangent = rng.normal(size=wanted.shape)
  out, pull = jax.vjp(kervolution, *operands)
  assert_allclose(out, wanted, rtol=1e-4, atol=2e-6)
  found = pull(jnp.asarray(cotangent, jnp.float32))
  for place, gradient in enumerate(found):
    steps = [np.zeros(lhs_shape), np.zeros(rhs_shape)]
    steps[place] = 1e-6 * rng.normal(size=steps[place].shape)
    ahead, behind = (
      np.sum(cotangent * defined(lhs + sign * steps[0], rhs + sign * steps[1])) for sign in (1, -1)
    )
    along = np.sum(np.asarray(gradient, np.float64) * steps[place]) * 1e6
    assert_allclose(along, (ahead - behind) / 2e-6, rtol=2e-4, atol=2e-4)


def test_patches_method_and_plain_call_agree():
  kernel = Normalized(kernels.Polynomial(3, _BALANCES))
  rng = np.random.default_rng(1)
  lhs = jnp.asarray(rng.normal(size=(2, 4, 4, 3)), jnp.float32)
  rhs = jnp.asarray(rng.normal(size=(2, 2, 3, 4)), jnp.float32)
  fast, plain = (
    kerv_general_dilated(
      lhs, rhs, (1, 1), "VALID",
      dimension_numbers=("NHWC", "HWIO", "NHWC"), kernel_fn=kernel, method=method,
    )
    for method in ("conv", "patches")
  )  # fmt: skip
  assert_allclose(fast, plain, rtol=1e-5, atol=1e-6)
  patch, filters = lhs[1, 1:3, 2:4].reshape(-1), rhs.reshape(-1, 4).T
  assert_allclose(fast[1, 1, 2], kernel(patch, filters), rtol=1e-5, atol=1e-6)


def test_normalized_linear_is_the_cosine_and_of_a_radial_kernel_itself():
  rng = np.random.default_rng(2)
  x, w = rng.normal(size=(2, 3, 5)).astype(np.float32)
  assert_allclose(Normalized(kernels.Linear())(x, w), kernels.Cosine()(x, w), rtol=1e-6)
  assert_array_equal(Normalized(kernels.Gaussian(0.1))(x, w), kernels.Gaussian(0.1)(x, w))
  for name, (kernel, _) in KERNELS.items():
    if name != "Polynomial":
      assert_allclose(Normalized(kernel)(x, x), np.ones(3), rtol=1e-5, err_msg=name)


def test_no_more_is_computed_for_pairs():
  assert Normalized(kernels.Gaussian()).statistics == (kernels.SQUARED_DISTANCE,)
  assert Normalized(kernels.Polynomial()).statistics == kernels.Cosine().statistics
  kervolution = functools.partial(
    kerv_general_dilated, window_strides=(1, 1), padding="VALID",
    kernel_fn=Normalized(kernels.Polynomial(3)),
  )  # fmt: skip
  lhs, rhs = jnp.ones((1, 2, 5, 5)), jnp.ones((3, 2, 2, 2))
  text = str(jax.make_jaxpr(kervolution)(lhs, rhs))
  assert text.count("conv_general_dilated") == 1


@pytest.mark.parametrize("kernel", [kernels.Linear(), kernels.Polynomial(3, 0.0)], ids=repr)
def test_zero_over_zero_is_zero_with_gradient_zero(kernel):
  zero, one = jnp.zeros(3), jnp.ones(3)
  for x, w in [(zero, one), (one, zero), (zero, zero)]:
    value, gradients = jax.value_and_grad(Normalized(kernel), (0, 1))(x, w)
    assert value == 0
    assert_array_equal(np.stack(gradients), 0)


class Exponential(kernels.InnerProductKernel):
  """Positive everywhere, and says so."""

  positive_diagonal = True

  def profile(self, statistic):
    return jnp.exp(statistic)


class Lowered(kernels.Gaussian):
  """A subclass of a positive kernel that is none itself."""

  def profile(self, statistic):
    return super().profile(statistic) - 2


def test_a_kernel_of_ones_own_may_say_that_it_is_positive():
  x, w = jnp.array([1.0, 0.5]), jnp.array([0.25, -1.0])
  wanted = np.exp(-np.sum((x - w) ** 2) / 2)  # exp(<x, w>) normalized is a Gaussian
  assert_allclose(Normalized(Exponential())(x, w), wanted, rtol=1e-5)


@pytest.mark.parametrize(
  ("kernel", "reason"),
  [
    (kernels.L1(), "L1 is a distance, 0 there"),
    (kernels.L2(), "L2 is a distance, 0 there"),
    (kernels.Sigmoid(), "Sigmoid is negative there where"),
    (-kernels.Linear(), "Negative has the opposite sign"),
    (-2.0 * kernels.Gaussian(), "the factor -2.0 is not positive"),
    (np.array([1.0, 0.0]) * kernels.Gaussian(), "the factor .* is not positive"),
    (kernels.Gaussian() + kernels.Linear() * kernels.L1(), "L1 is a distance"),
    (kernels.Custom(jnp.dot), "Custom may be any function"),
    (kernels.Concatenate([(2, kernels.Linear())]), "normalize its parts"),
    (kernels.Intersection(), "Intersection does not say"),
    (Lowered(), "Lowered does not say"),
  ],
  ids=lambda value: type(value).__name__,
)
def test_kernels_that_may_not_be_positive_are_refused_with_the_reason(kernel, reason):
  with pytest.raises(ValueError, match=f"`kernel` must be positive at .*{reason}"):
    Normalized(kernel)


def test_what_is_no_kernel_is_refused():
  with pytest.raises(TypeError, match="`kernel` must be a kernel"):
    Normalized("gaussian")  # pyright: ignore


def test_it_learns_in_layers_of_linen_and_nnx_and_in_models_of_others():
  kernel = Normalized(kernels.Polynomial(2))
  x = jnp.asarray(np.random.default_rng(3).normal(size=(2, 5, 5, 3)), jnp.float32)
  options = {"kernel_fn": kernel, "learnable": True, "per_feature": True}
  layer = KervConv(4, (3, 3), **options)
  variables = layer.init(jax.random.key(0), x)
  assert set(variables["params"]) == {"kernel", "bias", "inner_balance"}
  gradients = jax.grad(lambda v: jnp.sum(jnp.sin(layer.apply(v, x))))(variables)["params"]
  assert np.all(np.abs(gradients["inner_balance"]) > 0)
  out = layer.apply(variables, x)
  assert np.ptp(out) > 0.1

  changed = kervolve(nn.Conv(4, (3, 3)), kernel, learnable=True, per_feature=True)
  assert_allclose(changed.apply(variables, x), out, rtol=1e-6)

  twin = kerv_nnx.KervConv(3, 4, (3, 3), **options, rngs=nnx.Rngs(0))
  for name, value in variables["params"].items():
    getattr(twin, name)[...] = value
  assert_allclose(twin(x), out, rtol=1e-6)
  parts = kernels.Concatenate([(2, Normalized(kernels.Linear())), (2, kernel)])
  both = KervConv(4, (3, 3), kernel_fn=parts, use_bias=False)
  values = both.apply({"params": {"kernel": variables["params"]["kernel"]}}, x)
  assert_allclose(values[..., 2:], out[..., 2:], rtol=1e-5)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("size", [1e-8, 1.0, 300.0, 1e6, 1e16])
@pytest.mark.parametrize("degree", [3, 5, 9])
def test_a_polynomial_does_not_overflow_whatever_the_lengths(degree, size, run):
  kernel = kernels.Normalized(kernels.Polynomial(degree, 0.0))
  x = np.full(576, size, np.float32)
  w = x * np.where(np.arange(576) % 4, 1, -1).astype(np.float32)
  value, gradient = run(jax.value_and_grad(lambda w: kernel(x, w)))(w)
  np.testing.assert_allclose(value, 0.5**degree, rtol=1e-5)
  # The gradient is that of the power of the cosine.
  wanted = degree * 0.5 ** (degree - 1) * (x - 0.5 * w) / (576 * np.float64(size) ** 2)
  np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-45)
