"""Small networks of each kind, and their shapes."""

import functools
import math

import flax.linen as nn
import jax
import numpy as np
import pytest

from kerv_jax import kernels
from kerv_jax.models import (
  CifarResNet,
  DenseNet,
  GoogLeNet,
  ResNet,
)
from kerv_jax.nn import KervConv

POLYNOMIAL = functools.partial(KervConv, kernel_fn=kernels.Polynomial(3, 2.0))
LEARNABLE = functools.partial(POLYNOMIAL, learnable=("balance",))
BOTTLENECKS = functools.partial(ResNet, stage_sizes=(1, 2), bottleneck=True)
# Of each kind a small one, with the side of its images and the name of its first convolution.
SMALL = {
  "cifar_resnet": (functools.partial(CifarResNet, depth=14, num_classes=5), 8, "conv1"),
  "basic": (functools.partial(ResNet, stage_sizes=(1, 1, 1), num_classes=5), 31, "conv1"),
  "bottleneck": (functools.partial(BOTTLENECKS, num_classes=5), 33, "conv1"),
  "densenet": (functools.partial(DenseNet, depth=10, growth=3, num_classes=5), 9, "conv0"),
  "googlenet": (functools.partial(GoogLeNet, num_classes=5), 5, "conv1/conv"),
}
NETWORKS = pytest.mark.parametrize("kind", SMALL)


def images(side, number=3, seed=0):
  """Neither centred nor alike."""
  rng = np.random.default_rng(seed)
  return rng.normal(0.3, 1.0, (number, side, side, 3)) * (1 + np.arange(number)).reshape(
    -1, 1, 1, 1
  )


@functools.cache
def shapes_of(model, side=32):
  return jax.eval_shape(
    model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, side, side, 3), "f4")
  )


def random_variables(model, side, dtype=np.float64, seed=0):
  """Weights that keep the features' scale; scales, biases and averages that are not 1 and 0."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    name = path[-1].key
    if name in ("scale", "var"):
      return rng.uniform(0.5, 1.5, leaf.shape).astype(dtype)
    if name in ("bias", "mean"):
      return rng.normal(0, 0.3, leaf.shape).astype(dtype)
    if name == "balance":
      return np.full(leaf.shape, 0.7, dtype)
    return (rng.normal(size=leaf.shape) / math.sqrt(math.prod(leaf.shape[:-1]))).astype(dtype)

  return jax.tree_util.tree_map_with_path(draw, shapes_of(model, side))


def size(tree):
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def flat(tree):
  return {
    "/".join(entry.key for entry in path): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def in_train(model):
  """Scores and new statistics in training, as a function of the variables and the images."""
  return lambda variables, x: model.apply(variables, x, train=True, mutable=["batch_stats"])


def intermediate_shapes(model, side):
  """Shape and dtype of what every module returns."""

  def run(x):
    variables = model.init(jax.random.key(0), x)
    return model.apply(variables, x, capture_intermediates=True, mutable=["intermediates"])[1]

  tree = jax.eval_shape(run, jax.ShapeDtypeStruct((2, side, side, 3), "f4"))
  calls = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree["intermediates"]):
    names = [entry.key for entry in path if hasattr(entry, "key")]
    calls["/".join(names[:-1])] = leaf
  return calls


def modules(model, side, classes):
  """The modules of some classes by their paths."""
  found = {}

  def record(call, args, kwargs, context):
    if isinstance(context.module, classes):
      found["/".join(context.module.path)] = context.module
    return call(*args, **kwargs)

  with nn.intercept_methods(record):
    shapes_of.__wrapped__(model, side)
  return found
