import functools
import math

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from kerv_jax import kernels, kerv_general_dilated
from kerv_jax.initializers import torch_bias_init
from kerv_jax.models import LeNet5, lenet5
from kerv_jax.nn import KervConv

ARRANGEMENTS = ("conv-conv", "kerv-conv", "conv-kerv", "kerv-kerv")
SUBMODULES = {"conv1": 156, "conv2": 2416, "fc1": 48120, "fc2": 10164, "fc3": 850}


def images(shape=(3, 28, 28, 1), seed=0):
  return np.random.default_rng(seed).uniform(size=shape).astype(np.float32)


def random_params(model, shape, seed=0):
  """Signed weights, larger than the initial ones, so that images are told apart."""
  rng = np.random.default_rng(seed)

  def draw(leaf):
    fan_in = math.prod(leaf.shape[:-1]) if len(leaf.shape) > 1 else 1
    return rng.normal(size=leaf.shape).astype(np.float32) / fan_in**0.5

  return jax.tree.map(draw, shapes_of(model, shape))


def shapes_of(model, shape=(1, 28, 28, 1)):
  variables = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, "float32"))
  assert set(variables) == {"params"}
  return variables["params"]


def size(tree):
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def expected(params, x, arrangement, kernel_fn, activation, pool):
  """The network again, from the operators that it is made of."""
  for name, layer, padding in zip(
    ("conv1", "conv2"), arrangement.split("-"), ("SAME", "VALID"), strict=True
  ):
    operator = lax.conv_general_dilated
    if layer == "kerv":
      operator = functools.partial(kerv_general_dilated, kernel_fn=kernel_fn)
    layout = ("NHWC", "HWIO", "NHWC")
    x = operator(x, params[name]["kernel"], (1, 1), padding, dimension_numbers=layout)
    x = pool(activation(x + params[name]["bias"][None, None, None]), (2, 2), (2, 2))
  x = np.asarray(x).reshape(len(x), -1)  # height, width, channel
  for name in ("fc1", "fc2"):
    x = activation(x @ params[name]["kernel"] + params[name]["bias"][None])
  return x @ params["fc3"]["kernel"] + params["fc3"]["bias"][None]


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize(
  ("activation", "pool", "shape"),
  [
    (nn.relu, "max", (3, 28, 28, 1)),
    (None, "avg", (2, 15, 13, 3)),
    (jnp.tanh, "max", (2, 15, 13, 3)),
  ],
)
@pytest.mark.usefixtures("promotion")
def test_network_is_made_of_the_layers_that_its_name_says(arrangement, activation, pool, shape):
  kernel_fn = kernels.Polynomial(2, 0.5)
  model = lenet5(arrangement, kernel_fn, activation=activation, pool=pool)
  x, params = images(shape), random_params(model, shape)
  pools = {"max": nn.max_pool, "avg": nn.avg_pool}
  wanted = expected(params, x, arrangement, kernel_fn, activation or (lambda y: y), pools[pool])
  assert wanted.shape == (shape[0], 10)
  assert np.ptp(np.asarray(wanted), axis=0).max() > 0.03  # the images are told apart
  np.testing.assert_allclose(model.apply({"params": params}, x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 28, 28, 1), (2, 32, 32, 3), (1, 12, 12, 1), (2, 27, 14, 4)])
def test_output_shape(shape):
  model = lenet5(num_classes=7)
  output = jax.eval_shape(
    lambda x: model.init_with_output(jax.random.key(0), x)[0],
    jax.ShapeDtypeStruct(shape, "float32"),
  )
  assert output.shape == (shape[0], 7)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_parameter_count_is_the_papers(arrangement):
  params = shapes_of(lenet5(arrangement))
  assert {name: size(layer) for name, layer in params.items()} == SUBMODULES
  assert size(params) == 61_706
  assert all(set(layer) == {"kernel", "bias"} for layer in params.values())


def test_learnable_hyperparameters_are_added_to_the_count():
  assert size(shapes_of(lenet5("kerv-kerv", kernels.Gaussian(), learnable=True))) == 61_708
  params = shapes_of(lenet5("kerv-kerv", learnable=("balance",), per_feature=True))
  assert size(params) == 61_706 + 6 + 16
  assert params["conv2"]["balance"].shape == (16,)


def test_default_is_the_cubic_polynomial_first():
  default, x = lenet5(), images()
  explicit = LeNet5(conv1=functools.partial(KervConv, kernel_fn=kernels.Polynomial(3, 1.0)))
  variables = {"params": random_params(default, x.shape)}
  np.testing.assert_array_equal(default.apply(variables, x), explicit.apply(variables, x))
  cnn = LeNet5().apply(variables, x)
  assert np.abs(np.asarray(default.apply(variables, x) - cnn)).max() > 1e-3


def test_layers_may_have_different_kernels():
  model = LeNet5(
    conv1=functools.partial(KervConv, kernel_fn=kernels.Gaussian(), learnable=True),
    conv2=functools.partial(KervConv, kernel_fn=kernels.Polynomial(2), learnable=True),
  )
  params = shapes_of(model)
  assert set(params["conv1"]) == {"kernel", "bias", "gamma"}
  assert set(params["conv2"]) == {"kernel", "bias", "balance"}


def test_every_weight_and_bias_has_pytorchs_initialisation():
  params = lenet5("kerv-kerv").init(jax.random.key(0), images((1, 28, 28, 1)))["params"]
  fan_in = {"conv1": 25, "conv2": 150, "fc1": 400, "fc2": 120, "fc3": 84}
  assert set(params) == set(fan_in)
  for name, layer in params.items():
    for kind, value in layer.items():
      scaled = np.abs(value) * fan_in[name] ** 0.5
      assert scaled.max() <= 1 + 1e-6, (name, kind)
      assert scaled.max() > (0.95 if value.size > 50 else 0.6), (name, kind)
      assert scaled.mean() == pytest.approx(0.5, abs=1.2 / value.size**0.5), (name, kind)


def test_initial_weights_do_not_depend_on_the_arrangement():
  x = images((1, 28, 28, 1))
  first, *others = (lenet5(name).init(jax.random.key(5), x)["params"] for name in ARRANGEMENTS)
  for other in others:
    chex.assert_trees_all_equal(first, other)


def test_what_a_partial_sets_is_kept():
  model = LeNet5(
    conv1=functools.partial(nn.Conv, kernel_init=nn.initializers.ones, features=8),
    conv2=functools.partial(nn.Conv, feature_group_count=2, kernel_size=(3, 3)),
  )
  params = model.init(jax.random.key(0), images())["params"]
  np.testing.assert_array_equal(params["conv1"]["kernel"], jnp.ones((5, 5, 1, 8)))
  assert params["conv2"]["kernel"].shape == (3, 3, 4, 16)
  wanted = torch_bias_init(36)
  assert 0.7 / 6 < jnp.abs(params["conv2"]["bias"]).max() <= 1 / 6
  assert jnp.abs(wanted(jax.random.key(0), (1000,))).max() <= 1 / 6


@pytest.mark.parametrize(
  ("arrangement", "kernel_fn"),
  [
    ("conv-conv", None),
    ("kerv-conv", kernels.L1()),
    ("conv-kerv", kernels.Gaussian(0.1)),
    ("kerv-kerv", kernels.Polynomial(2)),
  ],
)
def test_gradient_reaches_every_parameter(arrangement, kernel_fn):
  # softplus: no unit of a random network is dead, or saturated
  model, x = lenet5(arrangement, kernel_fn, activation=nn.softplus), images((8, 28, 28, 1))
  params = random_params(model, x.shape)
  gradient = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(model.apply({"params": p}, x)))))(params)
  chex.assert_tree_all_finite(gradient)
  for name, layer in gradient.items():
    for kind, value in layer.items():
      assert jnp.mean(value != 0) > 0.9, (name, kind)


@pytest.mark.parametrize("arrangement", ["conv", "kerv_conv", "kerv-conv-conv", "", "Kerv-Conv"])
def test_unknown_arrangement_is_refused(arrangement):
  with pytest.raises(ValueError, match=r"`arrangement` must be one of 'conv-conv'.*got ") as error:
    lenet5(arrangement)
  assert repr(arrangement) in str(error.value)


@pytest.mark.parametrize("shape", [(28, 28, 1), (3, 28, 28), (1, 3, 28, 28, 1), (3, 11, 28, 1)])
def test_input_that_is_no_batch_of_images_is_refused(shape):
  with pytest.raises(ValueError, match=r"`x` must be images.*at least 12, got shape \("):
    shapes_of(lenet5(), shape)


def test_unknown_pool_is_refused():
  with pytest.raises(ValueError, match="`pool` must be one of 'max', 'avg', got 'mean'"):
    shapes_of(lenet5(pool="mean"))


def test_number_of_classes_below_one_is_refused():
  with pytest.raises(ValueError, match="`num_classes` must be at least 1, got 0"):
    shapes_of(lenet5(num_classes=0))
