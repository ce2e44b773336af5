"""An editor shows every argument of a layer, with its meaning and the default that Flax has."""

import dataclasses
import inspect
import re

import flax.linen as nn
import jax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from kerv_jax import kernels
from kerv_jax import nnx as kerv_nnx
from kerv_jax.nn import KervConv, KervConvTranspose, KervDense, hyperparameters
from tests.trees import normal, same

LINEN = [(KervConv, nn.Conv), (KervConvTranspose, nn.ConvTranspose), (KervDense, nn.Dense)]
NNX = [
  (kerv_nnx.KervConv, nnx.Conv),
  (kerv_nnx.KervConvTranspose, nnx.ConvTranspose),
  (kerv_nnx.KervDense, nnx.Linear),
]
# What these layers are a choice of.
CHOSEN = {"conv_general_dilated", "conv_general_dilated_cls", "dot_general", "dot_general_cls"}
OWN = {"kernel_fn", "learnable", "per_feature"}


def documented(layer, section):
  """The arguments that the docstring of a class lists, in order."""
  text = inspect.getdoc(layer).partition(f"{section}:\n")[2].partition("\n\n")[0]
  return re.findall(r"^  (\w+): \S", text, re.M)


@pytest.mark.parametrize(("layer", "parent"), LINEN)
def test_fields_of_linen_layers_are_those_of_flax_and_documented(layer, parent):
  fields = {field.name: field for field in dataclasses.fields(layer)}
  theirs = {field.name: field for field in dataclasses.fields(parent)}
  assert fields.keys() - theirs.keys() == OWN | {"hyperparameter_init"}
  assert theirs.keys() - fields.keys() == theirs.keys() & CHOSEN
  for name in fields.keys() & theirs.keys():
    assert fields[name].default == theirs[name].default
  shown = [name for name in inspect.signature(layer).parameters if name != "parent"]
  assert sorted(documented(layer, "Attributes")) == sorted(shown)


@pytest.mark.parametrize(("layer", "parent"), NNX)
def test_arguments_of_nnx_layers_are_those_of_flax_and_documented(layer, parent):
  ours = inspect.signature(layer.__init__).parameters
  theirs = inspect.signature(parent.__init__).parameters
  assert ours.keys() - theirs.keys() == OWN | {"hyperparameter_metadata"}
  assert theirs.keys() - ours.keys() == theirs.keys() & CHOSEN
  for name in ours.keys() & theirs.keys():
    assert ours[name].kind is theirs[name].kind, name
    assert ours[name].default == theirs[name].default, name
  assert documented(layer, "Args") == [name for name in ours if name != "self"]


@pytest.mark.parametrize(("layer", "_"), LINEN + NNX)
def test_the_cubic_default_is_said_first(layer, _):
  assert "cubic" in inspect.getdoc(layer).partition("Attributes:")[0].partition("Args:")[0][:400]


def in_model(init):
  return nn.with_partitioning(init, ("model",))


@pytest.mark.parametrize("make", [KervDense, KervConv, KervConvTranspose])
def test_hyperparameters_of_linen_take_partitioning_metadata(make):
  window = {} if make is KervDense else {"kernel_size": (3, 3)}
  options = dict(kernel_fn=kernels.Gaussian(0.1), learnable=True, per_feature=True, **window)
  layer = make(4, hyperparameter_init=in_model(lambda key, value: value), **options)
  plain = make(4, **options)
  x = normal(2, 6, 6, 3)
  variables = layer.init(jax.random.key(0), x)
  assert nn.get_partition_spec(variables)["params"]["gamma"] == PartitionSpec("model")
  same(nn.meta.unbox(variables), plain.init(jax.random.key(0), x))
  same(layer.apply(variables, x), plain.apply(nn.meta.unbox(variables), x))
  same(hyperparameters(layer, variables, x), hyperparameters(plain, nn.meta.unbox(variables), x))


def test_the_initializer_of_hyperparameters_is_checked():
  with pytest.raises(TypeError, match=r"`hyperparameter_init` must be a function .* got None"):
    KervDense(4, hyperparameter_init=None)


@pytest.mark.parametrize(("layer", "_"), NNX)
def test_hyperparameters_of_nnx_take_metadata(layer, _):
  window = () if layer is kerv_nnx.KervDense else ((3, 3),)
  options = {
    "kernel_fn": kernels.Gaussian(0.1),
    "learnable": True,
    "hyperparameter_metadata": {"sharding_hint": "model"},
  }
  made = layer(3, 4, *window, per_feature=True, **options, rngs=nnx.Rngs(0))
  assert made.gamma.get_metadata()["sharding_hint"] == "model"
  assert "sharding_hint" not in made.kernel.get_metadata()
  scalar = layer(3, 4, *window, **options, rngs=nnx.Rngs(0))  # there is no axis to shard
  assert "sharding_hint" not in scalar.gamma.get_metadata()
