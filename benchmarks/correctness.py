"""The operator's values and gradients on this device against float64 on the host."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.rivals import KERNELS
from benchmarks.shapes import Shape
from kerv_jax import kernels, kerv_general_dilated

SHAPES = (
  Shape("plain", 4, (20, 20), 8, 16, (3, 3)),
  Shape("strided", 4, (21, 21), 3, 8, (5, 5), stride=2),
  Shape("grouped", 4, (16, 16), 8, 16, (3, 3), groups=4, padding="VALID"),
)
# Largest error over the largest value. A device may round the factors of a product in float32 to
# TF32 (2**-11 each) unless asked not to, which distances do; bfloat16 rounds the result to 2**-9,
# and a kernel function multiplies what comes in by its slope.
BOUNDS = {"float32": 5e-3, "bfloat16": 2e-2}
DISTANCE_BOUND = 1e-4
NEAR_BOUND = 1e-3
"""Largest relative error of any squared distance in float32 where patch and filter are close."""
QUICK: dict[str, Any] = {}


def rows() -> Iterator[dict[str, Any]]:
  """Checks every kernel on every shape in both types, and distances where patch meets filter.

  Yields:
    A row with "error", "bound" and "ok".
  """
  for name, kernel in KERNELS.items():
    for dtype, bound in BOUNDS.items():
      if dtype == "float32" and isinstance(
        kernel, kernels.SquaredDistanceKernel | kernels.AbsoluteDistanceKernel
      ):
        bound = DISTANCE_BOUND
      for shape in SHAPES:
        errors = _errors(kernel, shape, dtype)
        for what, error in zip(
          ("output", "input gradient", "filter gradient"), errors, strict=True
        ):
          # A gradient sums over positions or features what each is off by.
          yield _row(name, f"{shape.name}, {what}", dtype, error, bound)
  for name in ("L2", "L1"):
    yield _row(name, "patch near filter, relative", "float32", _near(KERNELS[name]), NEAR_BOUND)


def label(row: dict[str, Any]) -> str:
  """A line about a row."""
  case = f"{row['kernel']}, {row['dtype']}, {row['case']}"
  return f"{case}: error {row['error']:.1e}, at most {row['bound']:g}"


def failures(found: Sequence[dict[str, Any]], noise: float) -> list[str]:
  """A line for each error that is larger than its bound, which no noise widens."""
  del noise
  return [label(row) for row in found if not row["ok"]]


def _row(kernel: str, case: str, dtype: str, error: float, bound: float) -> dict[str, Any]:
  ok = bool(error <= bound)
  error = float(f"{error:.3g}")
  return {"kernel": kernel, "case": case, "dtype": dtype, "error": error, "bound": bound, "ok": ok}


def _both(shape: Shape, kernel: kernels.Kernel, method: Any) -> Callable[..., tuple]:
  def both(lhs: Array, rhs: Array, cotangent: Array) -> tuple:
    def layer(lhs: Array, rhs: Array) -> Array:
      return kerv_general_dilated(lhs, rhs, **shape.options(), kernel_fn=kernel, method=method)

    out, pullback = jax.vjp(layer, lhs, rhs)
    return (out, *pullback(cotangent.astype(out.dtype)))

  return jax.jit(both)


def _exact(shape: Shape, kernel: kernels.Kernel, operands: tuple[Array, ...]) -> list[np.ndarray]:
  """By the definition in float64 on the host."""
  with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
    wide = [jnp.asarray(np.asarray(operand, np.float64)) for operand in operands]
    return [np.asarray(result) for result in _both(shape, kernel, "patches")(*wide)]


def _errors(kernel: kernels.Kernel, shape: Shape, dtype: str) -> list[float]:
  operands = tuple(operand.astype(dtype) for operand in shape.operands())
  exact = _exact(shape, kernel, operands)
  actual = _both(shape, kernel, "auto")(*operands)
  return [
    float(np.max(np.abs(np.asarray(a, np.float64) - e)) / np.max(np.abs(e)))
    for a, e in zip(actual, exact, strict=True)
  ]


def _near(kernel: kernels.Kernel) -> float:
  """Largest relative error where each filter is one of the patches plus noise of 0.01."""
  shape = Shape("near", 4, (16, 16), 3, 6, (5, 5), padding="VALID")
  rng = np.random.default_rng(0)
  lhs = (1 + rng.standard_normal(shape.lhs)).astype(np.float32)
  patches = np.stack([lhs[i % 4, i : i + 5, i : i + 5] for i in range(6)], axis=-1)
  rhs = (patches + 0.01 * rng.standard_normal(patches.shape)).astype(np.float32)
  operands = jnp.asarray(lhs), jnp.asarray(rhs), jnp.ones(shape.out, jnp.float32)
  exact = _exact(shape, kernel, operands)[0]
  actual = np.asarray(_both(shape, kernel, "auto")(*operands)[0], np.float64)
  return float(np.max(np.abs(actual - exact) / exact))
