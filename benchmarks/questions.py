"""What other ways to compute distances take on this device, and what several devices take."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import formulations, rivals
from benchmarks.measure import compare, compiled, spread
from benchmarks.shapes import SHAPES

SHAPE_NAMES = ("ResNet-50 middle", "CIFAR stem", "ImageNet stem")
SHARED = (rivals.BASELINE, "polynomial", "Gaussian", "L1")
QUICK: dict[str, Any] = {"shapes": ("LeNet conv2",), "rounds": 3, "seconds": 0.1}


def rows(
  *, shapes: Sequence[str] = SHAPE_NAMES, rounds: int = 9, seconds: float = 0.3
) -> Iterator[dict[str, Any]]:
  """Times every way, forward and backward, beside a convolution at the default precision.

  Args:
    shapes: by name.
    rounds: of each comparison.
    seconds: after which a comparison stops early.

  Yields:
    A row for each shape and way; "error" is the largest of the output against the definition in
    float64 on the host, over its largest value. Where there are several devices, also a row for
    each kernel on all of them beside itself on one, with as many times the images.
  """
  for name in shapes:
    shape = SHAPES[name]
    operands = shape.operands()
    options = {"rounds": rounds, "seconds": seconds}
    base = rivals.layer(rivals.BASELINE, shape)
    baseline = compiled(rivals.program(base, backward=True), *operands)
    for way, layer in formulations.answers(shape).items():
      mine = compiled(rivals.program(layer, backward=True), *operands)
      comparison = compare(mine.call, baseline.call, **options)
      error = _error(layer, exact(way, shape), operands)
      yield {"shape": name, "way": way, "devices": 1, **comparison.row(), "error": error}
    if jax.device_count() > 1:
      yield from shared(name, options)


def exact(way: str, shape: Any) -> formulations.Layer:
  """The layer that a way should equal, by the definition."""
  kernel = rivals.KERNELS.get(way.split(":")[0], rivals.KERNELS["linear"])
  return rivals.by_definition(kernel, shape)


def _error(layer: formulations.Layer, exact: formulations.Layer, operands: Sequence[Any]) -> float:
  few = operands[0][:1], operands[1]
  with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
    wide = [jnp.asarray(np.asarray(operand, np.float64)) for operand in few]
    right = np.asarray(exact(*wide))
  found = np.asarray(jax.jit(layer)(*operands[:2])[:1], np.float64)
  return float(f"{np.max(np.abs(found - right)) / np.max(np.abs(right)):.2g}")


def shared(name: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
  """Times kernels on all devices, each with the batch of one, beside themselves on one.

  Args:
    name: of the shape.
    options: of `measure.compare`.

  Yields:
    A row for each kernel.
  """
  shape, number = SHAPES[name], jax.device_count()
  mesh = Mesh(np.asarray(jax.devices()), ("batch",))
  batch, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("batch"), PartitionSpec()))
  alone = shape.operands()
  lhs, rhs, cotangent = alone
  shared = (
    jax.device_put(jnp.concatenate([lhs] * number), batch),
    jax.device_put(rhs, whole),
    jax.device_put(jnp.concatenate([cotangent] * number), batch),
  )
  for kernel in SHARED:
    program = rivals.program(rivals.layer(kernel, shape), backward=True)
    one, all_ = compiled(program, *alone), compiled(program, *shared)
    comparison = compare(all_.call, one.call, **options)
    yield {"shape": name, "way": f"{kernel}: shared", "devices": number, **comparison.row()}


def label(row: dict[str, Any]) -> str:
  """A line about a row."""
  error = f", error {row['error']:.1e}" if "error" in row else ""
  return f"{row['shape']}, {row['way']}, {row['devices']} devices: {spread(row)}{error}"


def failures(found: Sequence[dict[str, Any]], noise: float) -> list[str]:
  """Nothing: these are questions."""
  del found, noise
  return []
