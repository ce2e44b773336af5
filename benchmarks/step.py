"""A whole step of training, networks with kervolutions beside their convolutional twins."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.measure import compare, compiled, spread
from benchmarks.rivals import KERNELS
from kerv_jax.models import CifarResNet, ResNet50, lenet5
from kerv_jax.nn import KervConv

KERNEL_NAMES = ("polynomial", "sigmoid", "Gaussian", "L2", "L1")
TARGETS = {
  ("LeNet-5", "polynomial"): 1.10,
  ("LeNet-5", "Gaussian"): 1.25,
  ("ResNet-32", "polynomial"): 1.05,
  ("ResNet-50", "polynomial"): 1.05,
}
"""Of the ratio of a step's time to that of the convolutional twin."""


QUICK: dict[str, Any] = {"networks": ("LeNet-5",), "rounds": 15, "seconds": 4.0}


def _lenet(kernel: str | None) -> nn.Module:
  if kernel is None:
    return lenet5("conv-conv")
  return lenet5("kerv-kerv", KERNELS[kernel])


def _resnet(network: Callable[..., nn.Module], kernel: str | None) -> nn.Module:
  stem = None if kernel is None else functools.partial(KervConv, kernel_fn=KERNELS[kernel])
  return network(num_classes=10, stem=stem)


NETWORKS: dict[str, tuple[Callable[[str | None], nn.Module], tuple[int, ...], str]] = {
  "LeNet-5": (_lenet, (50, 28, 28, 1), "both convolutions"),
  "ResNet-32": (functools.partial(_resnet, CifarResNet), (64, 32, 32, 3), "the first convolution"),
  "ResNet-50": (functools.partial(_resnet, ResNet50), (4, 224, 224, 3), "the first convolution"),
}
"""By name: the network with a kernel, or None for convolutions; its images; what is replaced."""


def _step(model: nn.Module, images: jax.Array, labels: jax.Array) -> tuple[Any, ...]:
  """A step of SGD with momentum 0.9, and the arguments that it is called with."""
  fast = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
  init = jax.jit(model.init, compiler_options=fast)
  variables = init(jax.random.key(0), images[:1])
  optimizer = optax.sgd(0.01, momentum=0.9)
  params = variables["params"]
  statistics = {name: value for name, value in variables.items() if name != "params"}
  train: dict[str, Any] = {"train": True} if statistics else {}

  def step(params: Any, statistics: Any, state: Any, images: jax.Array, labels: jax.Array):
    def loss(params: Any) -> tuple[jax.Array, Any]:
      logits, updated = model.apply(
        {"params": params, **statistics}, images, **train, mutable=list(statistics)
      )
      assert isinstance(logits, jax.Array)
      return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), updated

    (value, updated), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), updated, state, value

  return step, (params, statistics, optimizer.init(params), images, labels)


def rows(
  *, networks: tuple[str, ...] = tuple(NETWORKS), rounds: int = 31, seconds: float = 15.0
) -> Iterator[dict[str, Any]]:
  """Measures steps, one row for each network and kernel.

  Args:
    networks: by name.
    rounds: of each comparison.
    seconds: after which a comparison stops early.

  Yields:
    A row.
  """
  rng = np.random.default_rng(0)
  for name in networks:
    build, shape, replaced = NETWORKS[name]
    images = jax.device_put(jnp.asarray(rng.uniform(size=shape), jnp.float32))
    labels = jax.device_put(jnp.asarray(rng.integers(10, size=shape[0])))
    step, arguments = _step(build(None), images, labels)
    twin = compiled(step, *arguments)
    for kernel in KERNEL_NAMES:
      step, arguments = _step(build(kernel), images, labels)
      mine = compiled(step, *arguments)
      comparison = compare(mine.call, twin.call, rounds=rounds, seconds=seconds)
      yield {
        "network": name,
        "replaced": replaced,
        "batch": shape[0],
        "kernel": kernel,
        **comparison.row(),
        "temp_bytes": mine.temp_bytes,
        "baseline_temp_bytes": twin.temp_bytes,
        "compile_seconds": round(mine.compile_seconds, 3),
        "baseline_compile_seconds": round(twin.compile_seconds, 3),
      }


def label(row: dict[str, Any]) -> str:
  """A line about a row."""
  return f"{row['network']}, {row['kernel']}: {spread(row)}"


def failures(found: list[dict[str, Any]], noise: float) -> list[str]:
  """What misses a target.

  Args:
    found: rows.
    noise: factor by which times may exceed it.

  Returns:
    A line for each miss.
  """
  return [
    f"{row['network']}, {row['kernel']}: a step takes {row['ratio']:.2f} of the convolutional "
    f"network's; the target is {TARGETS[row['network'], row['kernel']]:.2f}"
    for row in found
    if row["ratio"] > noise * TARGETS.get((row["network"], row["kernel"]), float("inf"))
  ]
