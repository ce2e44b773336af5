"""Whole networks with every convolution kervolved: activations and gradients at the start."""

from collections.abc import Iterable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from experiments.depth.kernels import convolution
from experiments.depth.stacks import FIGURES, compiler, finite, left, values
from experiments.engine.optim import cross_entropy
from kerv_jax import models

CLASSES = 10
NETWORKS = {"CIFAR ResNet-20": (8, 32), "ResNet-18": (4, 64)}
"""By name: number of images, and their sides."""


def network(name: str, kernel: str, way: str) -> nn.Module:
  """Returns a network.

  Args:
    name: one of `NETWORKS`.
    kernel: name of the kernel function of all its layers, or "convolution".
    way: "default" or "deep", see `experiments.depth.kernels.convolution`.
  """
  conv = convolution(kernel, way, 1)
  if name == "ResNet-18":
    return models.ResNet18(num_classes=CLASSES, conv=conv)
  return models.CifarResNet(depth=20, num_classes=CLASSES, conv=conv)


def measure(name: str, kernel: str, way: str, *, seeds: int = 3) -> list[dict[str, Any]]:
  """Measures a network at the start of training, for normal images and random classes.

  Args:
    name: one of `NETWORKS`.
    kernel: name of the kernel function of all its layers.
    way: "default" or "deep".
    seeds: number of seeds, from 0.

  Returns:
    A row for each seed: "layers", the paths of the convolutions, and by layer "raw", the standard
    deviation of what leaves the kernel function, "positions" and "features", what batch
    normalization after it leaves of the variation (see `experiments.depth.stacks.left`), and
    "gradient", the norm of that of the cross entropy with respect to the filters.
  """
  model = network(name, kernel, way)
  number, side = NETWORKS[name]

  def one(key: Array) -> tuple[dict[str, Any], dict[str, Array]]:
    image_key, label_key, key = jax.random.split(key, 3)
    images = jax.random.normal(image_key, (number, side, side, 3))
    labels = jax.random.randint(label_key, (number,), 0, CLASSES)
    variables = model.init(key, images[:1])

    def loss(params: Any) -> tuple[Array, dict[str, Any]]:
      with values() as seen:
        scores, _ = model.apply(
          {**variables, "params": params}, images, train=True, mutable=["batch_stats"]
        )
      found = {
        path: left(seen[_normalization(path)]) | {"raw": jnp.std(seen[path])}
        for path in _in_order(seen)
      }
      return jnp.mean(cross_entropy(scores, labels, 0.0)), found

    gradient, found = jax.grad(loss, has_aux=True)(variables["params"])
    return found, {path: _norm(gradient, path) for path in found}

  program, rows = jax.jit(one, compiler_options=compiler()), []
  paths = list(jax.eval_shape(one, jax.random.key(0))[0])  # jit sorts them
  for seed in range(seeds):
    found, gradient = program(jax.random.key(seed))
    row: dict[str, Any] = {"seed": seed, "layers": paths}
    for figure in FIGURES:
      row[figure] = [finite(float(found[path][figure])) for path in paths]
    row["gradient"] = [finite(float(gradient[path])) for path in paths]
    rows.append(row)
  return rows


def _norm(tree: Any, path: str) -> Array:
  """The norm of a gradient with respect to the filters of a layer."""
  for part in path.split("/"):
    tree = tree[part]
  return jnp.sqrt(jnp.sum(jnp.square(tree["kernel"])))


def _in_order(seen: Iterable[str]) -> list[str]:
  """Returns the convolutions from the images on; those of shortcuts are left out."""
  return [path for path in seen if path.rpartition("/")[2].startswith("conv")]


def _normalization(path: str) -> str:
  """Returns the path of the batch normalization after a convolution."""
  before, _, name = path.rpartition("/")
  return "/".join(filter(None, (before, name.replace("conv", "bn"))))
