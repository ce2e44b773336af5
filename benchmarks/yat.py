"""YAT layers of the package `nmn` beside the same kernel of this library: the command `rivals`."""

import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks import rivals
from benchmarks.measure import compare, compiled, spread
from benchmarks.shapes import SHAPES, Shape
from kerv_jax import kernels, kerv_general_dilated

PACKAGE = "nmn"
SHAPE_NAMES = ("CIFAR stem", "CIFAR middle", "ResNet-50 middle", "8 groups")
MEANS = (0.0, 1.0, 10.0)
"""Of the inputs whose errors are measured."""
ERROR = 1e-5
"""What the largest relative error of this library's may be."""
QUICK: dict[str, Any] = {"shapes": ("CIFAR stem",), "rounds": 3, "seconds": 0.1}
_EPSILON = 1e-5
_NEAR = Shape("near", 4, (16, 16), 3, 6, (5, 5), padding="VALID")


class Yat(kernels.Kernel):
  """`<x, w>^2 / (|x - w|^2 + epsilon)`, as in `docs/gallery/neighbors.md`."""

  @property
  def statistics(self) -> tuple[str, ...]:
    """Product and distance."""
    return (kernels.INNER_PRODUCT, kernels.SQUARED_DISTANCE)

  def from_statistics(self, statistics: Any) -> Array:
    """The value, from the two statistics."""
    return statistics[kernels.INNER_PRODUCT] ** 2 / (
      statistics[kernels.SQUARED_DISTANCE] + _EPSILON
    )


def ours(shape: Shape) -> rivals.Layer:
  """The layer of this library for a shape."""
  return functools.partial(kerv_general_dilated, kernel_fn=Yat(), **shape.options())


def theirs(shape: Shape) -> rivals.Layer:
  """The linen layer of the package for a shape of images."""
  from nmn.linen import YatConv2D  # pyright: ignore[reportMissingImports]

  layer = YatConv2D(
    features=shape.out_features,
    kernel_size=shape.window,
    strides=(shape.stride,) * 2,
    padding=shape.padding,
    feature_group_count=shape.groups,
    use_bias=False,
    use_alpha=False,
    epsilon=_EPSILON,
  )
  return lambda lhs, rhs: layer.apply({"params": {"kernel": rhs}}, lhs)


def rows(
  *, shapes: Sequence[str] = SHAPE_NAMES, rounds: int = 15, seconds: float = 4.0
) -> Iterator[dict[str, Any]]:
  """Times both layers, forward and backward, side by side, and measures their errors.

  Args:
    shapes: by name.
    rounds: of each comparison.
    seconds: after which a comparison stops early.

  Yields:
    A row for each shape, with this library's time over the package's; then one for each mean of the
    inputs, with the largest errors of each where a filter is a patch and 1e-3 of noise. A single
    row says why there is none where the package is not installed.
  """
  if importlib.util.find_spec(PACKAGE) is None:
    yield {"case": "all", "skipped": f"{PACKAGE} is not installed"}
    return
  for name in shapes:
    shape = SHAPES[name]
    operands = shape.operands()
    mine, other = (
      compiled(rivals.program(layer(shape), backward=True), *operands) for layer in (ours, theirs)
    )
    comparison = compare(mine.call, other.call, rounds=rounds, seconds=seconds)
    memory = {"temp_bytes": mine.temp_bytes, "baseline_temp_bytes": other.temp_bytes}
    yield {"case": name, **comparison.row(), **memory}
  for mean in MEANS:
    found = {**largest_errors(ours, mean), **_of_baseline(largest_errors(theirs, mean))}
    yield {"case": f"filters near patches of mean {mean:g}", **found}


def _of_baseline(errors: dict[str, float]) -> dict[str, float]:
  return {f"baseline_{name}": error for name, error in errors.items()}


def largest_errors(layer: Callable[[Shape], rivals.Layer], mean: float) -> dict[str, float]:
  """The largest errors where a filter meets its patch: that and 1e-3 of noise.

  Args:
    layer: for a shape.
    mean: of the inputs, whose deviation is 1.

  Returns:
    Against the definition in float64 on the same operands, of the outputs of each filter at its
    patch: `error`, relative; `gradient_error`, of the filters' gradient of their sum, over its
    largest value.
  """
  rng = np.random.default_rng(0)
  lhs = (mean + rng.standard_normal(_NEAR.lhs)).astype(np.float32)
  patches = np.stack([lhs[i % 4, i : i + 5, i : i + 5] for i in range(6)], axis=-1)
  rhs = (patches + 1e-3 * rng.standard_normal(patches.shape)).astype(np.float32)
  found = _at_patches(layer(_NEAR), lhs, rhs)
  with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
    wide = [jnp.asarray(operand, jnp.float64) for operand in (lhs, rhs)]
    exact = _at_patches(rivals.by_definition(Yat(), _NEAR), *wide)
  value, gradient = (np.abs(a - b) for a, b in zip(found, exact, strict=True))
  error, of_gradient = value / np.abs(exact[0]), gradient / np.max(np.abs(exact[1]))
  found = {"error": error, "gradient_error": of_gradient}
  return {name: float(f"{np.max(errors):.2g}") for name, errors in found.items()}


def _at_patches(layer: rivals.Layer, lhs: Any, rhs: Any) -> tuple[np.ndarray, np.ndarray]:
  """The outputs of each filter at its patch, and the filters' gradient of their sum."""

  def at_patches(rhs: Array) -> tuple[Array, Array]:
    each = np.arange(6)
    values = layer(lhs, rhs)[each % 4, each, each, each]
    return jnp.sum(values), values

  gradient, values = jax.jit(jax.grad(at_patches, has_aux=True))(rhs)
  return np.asarray(values, np.float64), np.asarray(gradient, np.float64)


def label(row: dict[str, Any]) -> str:
  """A line about a row."""
  if "skipped" in row:
    return f"skipped, {row['skipped']}"
  if "ratio" in row:
    return f"{row['case']}: {spread(row)} of the package's time"
  errors = [
    f"{name.replace('_', ' ')} {row[name]:.1e}, the package's {row[f'baseline_{name}']:.1e}"
    for name in ("error", "gradient_error")
    if name in row
  ]
  return f"{row['case']}: {'; '.join(errors)}"


def failures(found: Sequence[dict[str, Any]], noise: float) -> list[str]:
  """A line for each error of this library that is too large, which no noise widens."""
  del noise
  return [label(row) for row in found if row.get("error", 0) > ERROR]
