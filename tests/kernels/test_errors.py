"""What the constructors of kernels refuse, and how they say so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from kerv_jax import kernels
from kerv_jax.kernels.base import require_kernel
from tests.kernels.cases import A, B, Chebyshev, ShiftedGaussian, Softened, hadamard_max, refused

POSITIVE = [
  (kernels.Gaussian, "gamma"),
  (kernels.Laplacian, "gamma"),
  (kernels.Cauchy, "sigma"),
  (kernels.RationalQuadratic, "alpha"),
  (kernels.RationalQuadratic, "length"),
  (Softened, "rate"),
  (ShiftedGaussian, "gamma"),
]


ANY = [
  (kernels.Sigmoid, "scale"),
  (kernels.Sigmoid, "offset"),
  (lambda **kwargs: kernels.Scaled(kernel=A, **kwargs), "scale"),
]


EVERY = [*POSITIVE, *ANY, (kernels.Polynomial, "balance"), (Chebyshev, "weight")]


@pytest.mark.parametrize(("make", "name"), POSITIVE)
@pytest.mark.parametrize(
  "value",
  [0, 0.0, -0.0, -1, -1e-30, np.float32(-2), np.array([0.5, 0.0]), jnp.array([0.5, -0.5])],
  ids=repr,
)
def test_what_must_be_positive(make, name, value):
  refused(ValueError, make, name, value)


@pytest.mark.parametrize(("make", "name"), [(kernels.Polynomial, "balance"), (Chebyshev, "weight")])
def test_what_must_not_be_negative(make, name):
  for value in (-1, -1e-30, np.array([0.5, -0.5]), jnp.float32(-1.0)):
    refused(ValueError, make, name, value)
  for value in (0, 0.0, np.array([0.0, 1.0]), jnp.zeros(2)):
    make(**{name: value})


@pytest.mark.parametrize(("make", "name"), EVERY)
@pytest.mark.parametrize(
  "value",
  [np.nan, np.inf, -np.inf, np.array([1.0, np.nan]), jnp.array([1.0, jnp.inf])],
  ids=repr,
)
def test_what_must_be_finite(make, name, value):
  refused(ValueError, make, name, value)


@pytest.mark.parametrize(("make", "name"), EVERY)
@pytest.mark.parametrize(
  "value",
  [
    None,
    "1",
    b"1",
    True,
    np.True_,
    1j,
    np.array(1j),
    np.array([True]),
    ["a", "b"],
    [1.0, None],
    [[1.0], [1.0, 2.0]],
    {},
    object,
    kernels.L1,
    kernels.L1(),
    jnp.sum,
    10**400,
  ],
  ids=lambda value: type(value).__name__,
)
def test_what_must_be_a_number(make, name, value):
  refused(TypeError, make, name, value)


@pytest.mark.parametrize(("make", "name"), EVERY)
@pytest.mark.parametrize("value", [np.ones((2, 3)), np.ones((1, 1)), jnp.ones((1, 2, 2))])
def test_at_most_one_axis(make, name, value):
  refused(ValueError, make, name, value)
  refused(ValueError, make, name, jnp.asarray(value))


@pytest.mark.parametrize(("make", "name"), EVERY)
def test_any_finite_number_that_is_allowed(make, name):
  for value in (1e-30, 1, 1e30, np.float16(2), np.array([1, 2]), jnp.array([1, 2]), [0.5, 0.25]):
    kernel = make(**{name: value})
    found = kernel.hyperparameters()[name]
    assert isinstance(found, (float, np.ndarray, jax.Array))
    assert jnp.issubdtype(jnp.result_type(found), jnp.floating)
    assert_allclose(found, value, rtol=1e-6, atol=0)
  if (make, name) in ANY:
    make(**{name: -1.0})
    make(**{name: 0})


@pytest.mark.parametrize(
  ("degree", "error"),
  [
    (0, ValueError),
    (-1, ValueError),
    (np.int64(0), ValueError),
    (3.0, TypeError),
    (2.5, TypeError),
    (True, TypeError),
    (False, TypeError),
    (np.True_, TypeError),
    (np.float64(3), TypeError),
    ("3", TypeError),
    (None, TypeError),
    ([3], TypeError),
    (np.array([3, 4]), TypeError),
    (jnp.float32(3), TypeError),
    (jnp.array(True), TypeError),
    (1j, TypeError),
    (np.nan, TypeError),
  ],
  ids=repr,
)
def test_degree_must_be_an_integer_of_at_least_one(degree, error):
  refused(error, kernels.Polynomial, "degree", degree)


def test_degree_must_be_known():
  with pytest.raises(TypeError, match="`degree` must be"):
    jax.jit(lambda d: kernels.Polynomial(d)(jnp.ones(2), jnp.ones(2)))(3)


@pytest.mark.parametrize("value", ["no", None, 2, 0.5, 2.0], ids=repr)
def test_squared_must_be_a_bool(value):
  """``L2("no")`` and ``L2(0.5)``, as if it had a width, would silently be the squared norm."""
  refused(TypeError, kernels.L2, "squared", value)


def test_custom_must_be_callable():
  for value in (None, "sum", 1.0, ()):
    refused(TypeError, kernels.Custom, "fn", value)
  with pytest.raises(TypeError, match="fn"):
    kernels.Custom()


def test_composites_must_be_of_kernels():
  for value in (kernels.Gaussian, None, 1.0, "L1", hadamard_max):
    refused(TypeError, kernels.Negative, "kernel", value)
    refused(TypeError, lambda kernel: kernels.Scaled(2.0, kernel), "kernel", value)
    with pytest.raises(TypeError, match="`terms`") as caught:
      kernels.Sum((A, value))
    assert repr(value) in str(caught.value)
  for terms in ((), [A, B], A, None):
    refused(TypeError, kernels.Sum, "terms", terms)
    refused(TypeError, kernels.Product, "terms", terms)


def test_errors_say_what_to_write_instead():
  with pytest.raises(TypeError, match=r"call it: Gaussian\(\)"):
    require_kernel("kernel_fn", kernels.Gaussian)
  with pytest.raises(TypeError, match=r"kernels\.Custom\(fn\)"):
    require_kernel("kernel_fn", hadamard_max)
  require_kernel("kernel_fn", A)


@pytest.mark.parametrize(
  "make",
  [
    lambda: kernels.Gaussian(1.0, 2.0),
    lambda: kernels.Gaussian(width=1.0),
    lambda: kernels.Linear(1.0),
    lambda: Softened(),
    lambda: kernels.Scaled(),
  ],
)
def test_wrong_signatures(make):
  with pytest.raises(TypeError):
    make()


def test_tracers_are_not_validated_but_their_shape_is():
  assert_allclose(
    jax.jit(lambda g: kernels.Gaussian(g)(jnp.ones(1), jnp.zeros(1)))(0.5),
    np.exp(-0.5),
    rtol=1e-5,
    atol=0,
  )
  with pytest.raises(ValueError, match=r"`gamma`.*\(2, 2\)"):
    jax.jit(lambda g: kernels.Gaussian(g)(jnp.ones(1), jnp.zeros(1)))(jnp.ones((2, 2)))
  with pytest.raises(TypeError, match=r"`gamma`"):
    jax.jit(lambda g: kernels.Gaussian(g > 0)(jnp.ones(1), jnp.zeros(1)))(0.5)
