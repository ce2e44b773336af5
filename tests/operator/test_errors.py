"""What the operator refuses."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from kerv_jax import kernels, kerv_general_dilated
from tests.operator.cases import NHWC, ONE_PER_STATISTIC, kerv, name, operands


@pytest.mark.parametrize(
  ("change", "error", "words"),
  [
    ({"kernel_fn": jnp.dot}, TypeError, ["`kernel_fn`", "Custom"]),
    ({"kernel_fn": kernels.Gaussian}, TypeError, ["`kernel_fn`", "Gaussian()"]),
    ({"kernel_fn": "gaussian"}, TypeError, ["'gaussian'; perhaps kernels.Gaussian()"]),
    ({"kernel_fn": "rational_quadratic"}, TypeError, ["perhaps kernels.RationalQuadratic()"]),
    ({"kernel_fn": "chi_squared"}, TypeError, ["perhaps kernels.ChiSquared()"]),
    ({"kernel_fn": "fast"}, TypeError, ["`kernel_fn`", "kernels.Gaussian(), got 'fast'"]),
    ({"precision": "BF16"}, ValueError, ["`precision`", "'BF16'", "'BF16_BF16_F32'"]),
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
      ["`terms_1_gamma`", "6", "(5,)"],
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


@pytest.mark.parametrize(
  "kernel", [*ONE_PER_STATISTIC, kernels.Chebyshev(), kernels.Custom(jnp.vdot)], ids=name
)
@pytest.mark.parametrize("method", ["auto", "patches"])
@pytest.mark.parametrize(
  ("lhs", "rhs"),
  [((2, 5, 5, 0), (3, 3, 0, 4)), ((2, 0, 5, 3), (3, 3, 3, 4)), ((0, 5, 5, 3), (3, 3, 3, 4))],
)
def test_empty_operands_give_what_lax_gives(kernel, method, lhs, rhs):
  lhs, rhs = jnp.ones(lhs), jnp.ones(rhs)
  options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": NHWC}
  out = kerv_general_dilated(lhs, rhs, **options, kernel_fn=kernel, method=method)
  assert out.shape == lax.conv_general_dilated(lhs, rhs, **options).shape
