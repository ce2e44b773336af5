"""A network and its kervolutional twin."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kerv_jax.models import (
  CifarResNet,
)
from kerv_jax.nn import KervConv, hyperparameters
from tests.models.cases import (
  LEARNABLE,
  NETWORKS,
  POLYNOMIAL,
  SMALL,
  flat,
  images,
  intermediate_shapes,
  modules,
  random_variables,
  shapes_of,
)


def convolutions(model, side):
  """The class of every convolution by its path."""
  return {path: type(layer) for path, layer in modules(model, side, nn.Conv).items()}


@NETWORKS
def test_twin_differs_in_the_first_layer_alone(kind):
  make, side, stem_name = SMALL[kind]
  cnn, knn = make(), make(stem=POLYNOMIAL)
  layers, twins = convolutions(cnn, side), convolutions(knn, side)
  assert set(layers.values()) == {nn.Conv}
  assert twins == layers | {stem_name: KervConv}
  shapes, twin_shapes = shapes_of(cnn, side), shapes_of(knn, side)
  jax.tree.map(
    lambda ours, theirs: np.testing.assert_equal(ours.shape, theirs.shape), shapes, twin_shapes
  )
  assert set(convolutions(make(conv=POLYNOMIAL), side).values()) == {KervConv}
  assert convolutions(make(conv=POLYNOMIAL, stem=nn.Conv), side) == dict.fromkeys(
    layers, KervConv
  ) | {stem_name: nn.Conv}
  learnt = flat(shapes_of(make(stem=LEARNABLE), side))
  assert set(learnt) == set(flat(shapes_of(cnn, side))) | {f"params/{stem_name}/balance"}


def test_twin_starts_from_the_same_weights():
  x = images(8).astype(np.float32)
  cnn = jax.jit(CifarResNet(depth=8).init)(jax.random.key(1), x)
  knn = jax.jit(CifarResNet(depth=8, stem=LEARNABLE).init)(jax.random.key(1), x)
  for name, leaf in flat(cnn).items():
    np.testing.assert_array_equal(flat(knn)[name], leaf)


@pytest.mark.parametrize("remat", [False, True])
def test_learnt_values_are_read_back(remat):
  model, x = CifarResNet(depth=8, stem=LEARNABLE, remat=remat), images(8).astype(np.float32)
  variables = random_variables(model, 8, np.float32)
  wanted = {"conv1": {"balance": np.float32(np.log1p(np.exp(0.7)))}}
  chex.assert_trees_all_close(hyperparameters(model, variables, x), wanted, rtol=1e-6)


@pytest.mark.usefixtures("promotion")
def test_what_a_partial_sets_is_kept():
  stem = functools.partial(
    nn.Conv, features=8, kernel_size=(5, 5), kernel_init=nn.initializers.ones
  )
  model = CifarResNet(
    depth=8, stem=stem, conv=functools.partial(nn.Conv, use_bias=True, dtype=jnp.bfloat16)
  )
  x = images(9).astype(np.float32)
  params = jax.jit(model.init)(jax.random.key(0), x)["params"]
  np.testing.assert_array_equal(params["conv1"]["kernel"], np.ones((5, 5, 3, 8)))
  assert set(params["conv1"]) == {"kernel"}
  assert set(params["layer1_0"]["conv1"]) == {"kernel", "bias"}
  calls = intermediate_shapes(model, 9)
  assert calls["conv1"].shape == (2, 9, 9, 8)
  assert calls["conv1"].dtype == jnp.float32
  assert calls["layer1_0/conv1"].dtype == jnp.bfloat16
  assert calls["layer1_0"].shape == (2, 9, 9, 16)
