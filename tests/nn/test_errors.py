"""What the layer refuses: named, and early."""

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from kerv_jax import kernels
from kerv_jax.kernels import Hyperparameter, hyperparameter
from tests.nn.layers import IMAGE, KEY, GaussianConv, Kerv, every_way_to_learn, init, pair
from tests.trees import normal


def no_kernel(x, w):
  return jnp.sum(x * w)


@pytest.mark.parametrize("kernel_fn", [kernels.Gaussian, no_kernel, None, "gaussian", 3, nn.Conv])
def test_kernel_fn_must_be_a_kernel(kernel_fn):
  with pytest.raises(TypeError, match=r"`kernel_fn` must be a kernel") as caught:
    Kerv(3, (3, 3), kernel_fn=kernel_fn)
  assert repr(kernel_fn) in str(caught.value)


@pytest.mark.parametrize(
  ("kernel_fn", "name"),
  [
    (kernels.Polynomial(), "degree"),
    (kernels.Polynomial(), "gamma"),
    (kernels.Polynomial(), "kernel"),
    (kernels.Polynomial(), 0),
    (kernels.Linear(), "balance"),
    (kernels.Gaussian() + kernels.L1(), "gamma"),
    (kernels.Gaussian() + kernels.L1(), "terms_1_gamma"),
    (kernels.L2(), "squared"),
  ],
)
def test_unknown_learnable_names(kernel_fn, name):
  with pytest.raises(ValueError, match="`learnable` must name hyperparameters") as caught:
    Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=(name,))
  assert repr(name) in str(caught.value)
  assert repr(kernel_fn) in str(caught.value)


@pytest.mark.parametrize("learnable", ["balance", None, 1, 0.5, {"balance"}, {"balance": 1}])
def test_learnable_must_be_a_bool_or_names(learnable):
  with pytest.raises(TypeError, match="`learnable` must be a bool or a tuple of names") as caught:
    Kerv(3, (3, 3), learnable=learnable)
  assert repr(learnable) in str(caught.value)


def test_learnable_must_not_repeat_a_name():
  with pytest.raises(ValueError, match="`learnable`"):
    Kerv(3, (3, 3), learnable=("balance", "balance"))


@pytest.mark.parametrize(
  "fields",
  [
    {},
    {"learnable": False},
    {"learnable": ()},
    {"learnable": True, "kernel_fn": kernels.Linear()},
  ],
)
def test_per_feature_needs_something_learnable(fields):
  with pytest.raises(ValueError, match="`per_feature`"):
    Kerv(3, (3, 3), per_feature=True, **fields)


@pytest.mark.parametrize("value", ["no", 3])
def test_per_feature_must_be_a_bool(value):
  with pytest.raises((TypeError, ValueError), match="`per_feature`"):
    Kerv(3, (3, 3), per_feature=value, learnable=True)


@pytest.mark.parametrize(
  ("kernel_fn", "name"),
  [
    (kernels.Polynomial(2, 0.0), "balance"),
    (kernels.Polynomial(2, np.array([1.0, 0.0, 1.0])), "balance"),
    (kernels.Gaussian(1e-12), "gamma"),
    (kernels.Linear() + kernels.Polynomial(2, 0.0), "terms_1_balance"),
  ],
)
def test_learning_cannot_start_at_zero(kernel_fn, name):
  with pytest.raises(ValueError, match=rf"`{name}`"):
    Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=True)
  Kerv(3, (3, 3), kernel_fn=kernel_fn)


def test_learning_must_start_at_a_known_value():
  @jax.jit
  def build(gamma):
    Kerv(3, (3, 3), kernel_fn=kernels.Gaussian(gamma), learnable=True)

  with pytest.raises(TypeError, match="`gamma`"):
    build(0.1)


@every_way_to_learn
@pytest.mark.parametrize("length", [1, 4])
def test_vectors_of_the_wrong_length(fields, length):
  """The number of features is known, so the constructor can tell."""
  kernel_fn = kernels.Gaussian(np.full(length, 0.1))
  with pytest.raises(ValueError, match=r"`gamma` of `kernel_fn`") as caught:
    Kerv(3, (3, 3), kernel_fn=kernel_fn, **fields)
  assert str((length,)) in str(caught.value)
  assert "3 output features" in str(caught.value)


@pytest.mark.parametrize("groups", [2, 4, 0, -1])
def test_groups_must_divide_the_output_features(groups):
  """Known to the constructor as well."""
  with pytest.raises(ValueError, match="`feature_group_count`") as caught:
    Kerv(3, (3, 3), feature_group_count=groups)
  assert str(groups) in str(caught.value)


def test_groups_must_divide_the_input_features():
  layer = Kerv(6, (3, 3), feature_group_count=3)
  with pytest.raises(
    ValueError, match=r"`feature_group_count` must divide the 4 features"
  ) as caught:
    layer.init(KEY, normal(*IMAGE))
  assert "got 3" in str(caught.value)


@pytest.mark.parametrize("fields", [{}, {"padding": "CIRCULAR"}, {"feature_group_count": 3}])
@pytest.mark.parametrize("shape", [(), (5,), (5, 3)])
def test_inputs_of_too_low_rank(shape, fields):
  layer = Kerv(3, (3, 3), **fields)
  with pytest.raises(ValueError, match="`inputs` must have shape") as caught:
    layer.init(KEY, normal(*shape))
  assert str(shape) in str(caught.value)
  assert "(3, 3)" in str(caught.value)


@pytest.mark.parametrize("name", ["conv_general_dilated", "conv_general_dilated_cls"])
def test_the_operator_is_not_a_field(name):
  with pytest.raises(TypeError, match=name):
    Kerv(3, (3, 3), **{name: lax.conv_general_dilated})
  with pytest.raises(TypeError, match=name):
    Kerv(3, (3, 3)).clone(**{name: None})


def test_names_that_collide_with_the_layers_parameters_are_refused():
  class Biased(kernels.InnerProductKernel):
    bias: Hyperparameter = hyperparameter(default=0.5)

    def profile(self, statistic):
      return jnp.tanh(statistic + self.bias)

  class Strided(kernels.InnerProductKernel):
    strides: Hyperparameter = hyperparameter(default=0.5)

    def profile(self, statistic):
      return self.strides * statistic

  x = normal(2, 5, 5, 2)
  for kernel_fn, name in ((Biased(), "bias"), (Strided(), "strides")):
    Kerv(3, (3, 3), kernel_fn=kernel_fn).init_with_output(KEY, x)
    with pytest.raises(ValueError, match=rf"`{name}`"):
      Kerv(3, (3, 3), kernel_fn=kernel_fn, learnable=True)


@pytest.mark.parametrize(
  "options",
  [
    {"mask": np.ones((3, 3, 4, 5))},
    {"padding": "CAUSAL"},
    {"padding": "NOT_A_PADDING"},
    {"padding": (1, 2, 3)},
    {"padding": "SAME", "input_dilation": 2},
    {"padding": "VALID", "input_dilation": (1, 2)},
  ],
  ids=str,
)
def test_what_conv_refuses_is_refused(options):
  for layer in pair(options):
    with pytest.raises((ValueError, TypeError, RuntimeError)):
      layer.init(KEY, normal(*IMAGE))


def test_window_larger_than_the_input():
  layer = Kerv(3, (5, 5), padding="VALID")
  with pytest.raises(ValueError, match="window") as caught:
    layer.init(KEY, normal(2, 4, 6, 2))
  assert "(5, 5)" in str(caught.value)
  assert "(4, 6)" in str(caught.value)


def test_parameters_of_the_wrong_shape_do_not_load():
  x = normal(2, 5, 5, 2)
  scalar, vector = GaussianConv(3, (3, 3)), GaussianConv(3, (3, 3), per_feature=True)
  with pytest.raises(flax.errors.ScopeParamShapeError, match="gamma"):
    vector.apply(scalar.init(KEY, x), x)
  fixed = Kerv(3, (3, 3), kernel_fn=kernels.Gaussian(0.1))
  with pytest.raises(flax.errors.ScopeParamNotFoundError, match="gamma") as caught:
    scalar.apply(init(fixed, x), x)
  note = "".join(caught.value.__notes__)
  assert "`gamma` is a learnable hyperparameter of Gaussian(gamma=0.1)" in note
  assert "from `init`" in note
