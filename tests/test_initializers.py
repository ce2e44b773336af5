import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kerv_jax import kernels
from kerv_jax.initializers import for_kernel, torch_bias_init, torch_kernel_init

SHAPES = {
  (7, 2, 40): 14,  # 1-D convolution
  (5, 5, 1, 300): 25,
  (3, 3, 8, 60): 72,  # one of two groups of 16 input features
  (3, 2, 4, 5, 60): 120,
  (200, 40): 200,  # dense
}


def assert_uniform(values: np.ndarray, bound: float) -> None:
  """Kolmogorov-Smirnov against U(-bound, bound): by chance it fails once in a billion."""
  assert values.size > 400
  assert np.abs(values).max() <= bound
  levels = (np.sort(values.ravel()) / bound + 1) / 2
  distance = np.abs(levels - (np.arange(values.size) + 0.5) / values.size).max()
  assert distance < 3.3 / np.sqrt(values.size)


@pytest.mark.parametrize(("shape", "fan_in"), SHAPES.items())
def test_kernel_is_uniform_with_the_bound_of_pytorch(shape, fan_in):
  weights = torch_kernel_init(jax.random.key(3), shape)
  assert weights.shape == shape
  gain = np.sqrt(2 / (1 + np.sqrt(5) ** 2))  # kaiming_uniform_(a=sqrt(5))
  assert_uniform(np.asarray(weights), np.sqrt(3) * gain / np.sqrt(fan_in) * (1 + 1e-6))
  assert np.abs(weights).max() > 0.98 / np.sqrt(fan_in)


@pytest.mark.parametrize("fan_in", [1, 25, np.int64(400)])
def test_bias_is_uniform_with_the_bound_of_its_fan_in(fan_in):
  bias = torch_bias_init(fan_in)(jax.random.key(4), (3000,))
  assert_uniform(np.asarray(bias), 1 / np.sqrt(fan_in))
  assert np.abs(bias).max() > 0.98 / np.sqrt(fan_in)


def test_the_assertion_of_uniformity_can_fail():
  normal = np.clip(np.asarray(jax.random.normal(jax.random.key(0), (3000,))) / 3, -1, 1)
  with pytest.raises(AssertionError):
    assert_uniform(normal, 1.0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_dtype_and_bound_hold_in_low_precision(dtype):
  for values in (
    torch_kernel_init(jax.random.key(0), (5, 5, 3, 100), dtype),
    torch_bias_init(75)(jax.random.key(0), (7500,), dtype),
  ):
    assert values.dtype == dtype
    assert jnp.abs(values).max() <= 75**-0.5 * (1 + float(jnp.finfo(dtype).eps))
    assert jnp.std(values.astype(jnp.float32)) == pytest.approx(75**-0.5 / 3**0.5, rel=0.03)


def test_default_dtype_is_jax_default_float():
  assert torch_kernel_init(jax.random.key(0), (3, 4)).dtype == jnp.float32
  with jax.enable_x64(True):
    assert torch_kernel_init(jax.random.key(0), (3, 4)).dtype == jnp.float64
    assert torch_bias_init(3)(jax.random.key(0), (4,), jnp.float64).dtype == jnp.float64


def test_keys_decide():
  a, b = jax.random.split(jax.random.key(0))
  np.testing.assert_array_equal(torch_kernel_init(a, (3, 4)), torch_kernel_init(a, (3, 4)))
  assert np.all(np.asarray(torch_kernel_init(a, (3, 4)) != torch_kernel_init(b, (3, 4))))


@pytest.mark.usefixtures("promotion")
def test_layers_of_flax_take_them():
  x = jnp.zeros((1, 8, 8, 6))
  grouped = nn.Conv(
    40,
    (3, 3),
    feature_group_count=2,
    kernel_init=torch_kernel_init,
    bias_init=torch_bias_init(27),
    param_dtype=jnp.bfloat16,
  )
  params = grouped.init(jax.random.key(0), x)["params"]
  for value in params.values():
    assert value.dtype == jnp.bfloat16
    assert 0.8 * 27**-0.5 < jnp.abs(value).max() <= 27**-0.5 * 1.01
  dense = nn.Dense(40, kernel_init=torch_kernel_init, bias_init=torch_bias_init(6))
  params = dense.init(jax.random.key(0), x)["params"]
  for value in params.values():
    assert 0.8 * 6**-0.5 < jnp.abs(value).max() <= 6**-0.5


@pytest.mark.parametrize("shape", [(), (6,)])
def test_shape_of_a_bias_is_refused_by_the_kernel_initialiser(shape):
  with pytest.raises(ValueError, match=r"`shape` must be .*got \(.*torch_bias_init"):
    torch_kernel_init(jax.random.key(0), shape)


def test_shape_without_inputs_is_refused():
  with pytest.raises(ValueError, match=r"`shape` must have at least one input.*\(3, 0, 4\)"):
    torch_kernel_init(jax.random.key(0), (3, 0, 4))


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.complex64, bool])
def test_dtypes_that_are_not_real_floats_are_refused(dtype):
  name = jnp.dtype(dtype).name
  with pytest.raises(TypeError, match=f"`dtype` must be a real floating dtype, got {name}"):
    torch_kernel_init(jax.random.key(0), (3, 4), dtype)
  with pytest.raises(TypeError, match=f"`dtype` must be a real floating dtype, got {name}"):
    torch_bias_init(3)(jax.random.key(0), (4,), dtype)


@pytest.mark.parametrize("fan_in", [0, -25])
def test_fan_in_below_one_is_refused(fan_in):
  with pytest.raises(ValueError, match=f"`fan_in` must be at least 1, got {fan_in}"):
    torch_bias_init(fan_in)


@pytest.mark.parametrize("fan_in", [25.0, "25", None, (5, 5)])
def test_fan_in_that_is_no_integer_is_refused(fan_in):
  with pytest.raises(TypeError, match="`fan_in` must be an integer, got"):
    torch_bias_init(fan_in)


@pytest.mark.parametrize("fan_in", [9, 576, 4608])
def test_filters_are_in_the_range_of_their_kernel(fan_in):
  rng = np.random.default_rng(5)
  x = rng.normal(size=(300, fan_in))
  filters = {
    name: np.asarray(for_kernel(kernel)(jax.random.key(6), (3, 3, fan_in // 9, 200)), np.float64)
    for name, kernel in [
      ("product", kernels.Normalized(kernels.Polynomial())), ("distance", kernels.Gaussian()),
      ("mixed", kernels.Gaussian() + kernels.Linear()),
    ]
  }  # fmt: skip
  filters = {name: w.reshape(fan_in, 200) for name, w in filters.items()}
  for name in ("product", "mixed"):
    np.testing.assert_allclose(np.var(x @ filters[name]), 1, atol=0.1)
    # Not so of what a ReLU leaves: half of the second moment.
    np.testing.assert_allclose(np.mean((np.maximum(x, 0) @ filters[name]) ** 2), 0.5, atol=0.1)
  w = filters["distance"]
  squared = np.sum(x**2, 1)[:, None] - 2 * x @ w + np.sum(w**2, 0)
  np.testing.assert_allclose(np.mean(squared) / (2 * fan_in), 1, atol=0.08)
  absolute = np.mean([np.abs(patch[:, None] - w).sum(0) for patch in x[:50]])
  np.testing.assert_allclose(absolute * np.sqrt(np.pi) / (2 * fan_in), 1, atol=0.08)


def test_each_part_of_a_concatenation_has_its_own_range():
  parts = kernels.Concatenate([(30, kernels.Polynomial()), (20, kernels.L1())])
  w = np.asarray(for_kernel(parts)(jax.random.key(7), (400, 50)))
  np.testing.assert_allclose(w[:, :30].std() * 20, 1, atol=0.03)
  np.testing.assert_allclose(w[:, 30:].std(), 1, atol=0.03)


def test_initializer_for_a_kernel_refuses_what_it_cannot_serve():
  for wrong in (kernels.Custom(jnp.dot), kernels.Huber()):
    with pytest.raises(ValueError, match="`kernel_fn` must be a function of inner product"):
      for_kernel(wrong)
  with pytest.raises(TypeError, match="`kernel_fn` must be a kernel"):
    for_kernel("l1")  # pyright: ignore
  init = for_kernel(kernels.L2())
  with pytest.raises(ValueError, match="`shape` must be"):
    init(jax.random.key(0), (3,))
  with pytest.raises(TypeError, match="`dtype` must be a real"):
    init(jax.random.key(0), (3, 4), jnp.complex64)
