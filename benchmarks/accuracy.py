"""How far distances and sums are from float64, by method, offset, dtype and number of terms."""

import functools
import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kerv_jax import kernels, kerv_general_dilated

NHWC = ("NHWC", "HWIO", "NHWC")
OFFSETS = (0.0, 1.0, 10.0, 100.0)
OF_GRADIENTS = tuple(itertools.product((*OFFSETS, 1000.0), (0.1, 0.01, 0.001)))
DIFFERENCES = (0.1, 0.01)
CHANNELS = (1, 8, 32, 128, 1024)
"""Of a group, times the window of 3x3 the terms of a sum."""
HEADER = """# Accuracy of distances and sums

## The squared distance

The largest relative error of `sum (x - w)**2` over all outputs, against the definition in float64
on the same inputs. Patches are `offset + N(0, 1)`; filters are six of the patches plus
`difference * N(0, 1)`, so each filter has a patch right beside it. Window 5x5, 3 channels, padding
"SAME". One seed; {versions}.

- **conv**: `method="conv"`, the default. The expansion `|x|^2 - 2<x, w> + |w|^2`, and the direct
  sum wherever the expansion would lose more than about the square root of the dtype's precision.
- **patches**: `method="patches"`, the definition in the dtype's own arithmetic (float32 for 16-bit
  inputs).
- **expansion alone**: what the default would be without the direct sum; infinite means that it
  came out as zero or less.

The result is rounded to float32 in all rows, so that the rows of 16-bit inputs show the
arithmetic and not the rounding of the result; 0 is where float32 holds every product and sum. A
difference that a 16-bit dtype cannot represent beside the offset is the input's, not the method's:
the reference sees the rounded inputs.

"""
GRADIENT = """
## The gradient

The gradient is that of the expansion everywhere. Where the expansion's value loses the ratio of the
offset to the difference twice, its gradient loses it once: its error is here at most 5e-7 of that
ratio, and a few times as much with few channels and many positions. Where that nears 1, the
gradient is lost. If your data have such an offset, take it off inputs and filters, which changes no
distance. `Minkowski(2.0)` and `method="patches"` have no such error; the first takes two to three
times as long as L1, the second as long as patches take.

The table has the largest error of the filters' gradient over its largest value, for the sum of the
distances weighted with N(0, 1) noise. Inputs and filters are `offset + difference * N(0, 1)` in
float32, all of them close to each other.

"""
SUMS = """
## Sums over pairs

On CPU some kernels are summed term by term, and rounded at every term: absolute distances, additive
kernels and, in groups of up to 32 channels and as many features, inner products. `precision` makes
no difference to these. XLA's convolution rounds less often. The table has the largest error of the
output over the root mean square of the exact one, for two groups of one feature, a window of 3x3,
and inputs and filters `N(0, 1)` in float32.

"""


def _sum_errors(channels: int) -> list[str]:
  rng = np.random.default_rng(0)
  lhs = rng.standard_normal((2, 8, 8, 2 * channels)).astype(np.float32)
  rhs = rng.standard_normal((3, 3, channels, 2)).astype(np.float32)
  run = functools.partial(
    kerv_general_dilated,
    window_strides=(1, 1),
    padding="VALID",
    dimension_numbers=NHWC,
    feature_group_count=2,
  )

  cells = []
  # `Linear` stays the convolution; `Polynomial(1)`, the same function, does not.
  for kernel in (kernels.L1(), kernels.Polynomial(degree=1, balance=0.0), kernels.Linear()):
    found = np.asarray(run(jnp.asarray(lhs), jnp.asarray(rhs), kernel_fn=kernel), np.float64)
    with jax.enable_x64(True):
      wide = jnp.float64(lhs), jnp.float64(rhs)
      exact = np.asarray(run(*wide, kernel_fn=kernel, method="patches"))
    size = np.sqrt(np.mean(np.square(exact)))
    cells.append(f"{np.max(np.abs(found - exact)) / size:.0e}")
  return cells


def _operands(offset: float, difference: float, dtype: str) -> tuple[Array, Array]:
  rng = np.random.default_rng(0)
  lhs = offset + rng.standard_normal((4, 16, 16, 3))
  patches = np.stack([lhs[i % 4, i : i + 5, i : i + 5] for i in range(6)], axis=-1)
  rhs = patches + difference * rng.standard_normal(patches.shape)
  return jnp.asarray(lhs.astype(dtype)), jnp.asarray(rhs.astype(dtype))


def _squared_distance(lhs: Array, rhs: Array, method: str, padding: str = "SAME") -> Array:
  return kerv_general_dilated(
    lhs,
    rhs,
    (1, 1),
    padding,
    dimension_numbers=NHWC,
    preferred_element_type=jnp.promote_types(lhs.dtype, jnp.float32),
    kernel_fn=kernels.L2(squared=True),
    method=method,  # pyright: ignore[reportArgumentType]
  )


def _expansion(lhs: Array, rhs: Array) -> Array:
  lhs, rhs = lhs.astype(jnp.float32), rhs.astype(jnp.float32)

  def convolve(x: Array, w: Array) -> Array:
    return lax.conv_general_dilated(
      x, w, (1, 1), "SAME", dimension_numbers=NHWC, precision=lax.Precision.HIGHEST
    )

  norms = convolve(jnp.square(lhs), jnp.ones_like(rhs)) + jnp.sum(jnp.square(rhs), (0, 1, 2))
  return norms - 2 * convolve(lhs, rhs)


def _errors(offset: float, difference: float, dtype: str) -> list[str]:
  lhs, rhs = _operands(offset, difference, dtype)
  with jax.enable_x64(True):
    wide = jnp.asarray(lhs, "float64"), jnp.asarray(rhs, "float64")
    exact = np.asarray(_squared_distance(*wide, "patches"))
  cells = []
  for actual in (
    _squared_distance(lhs, rhs, "conv"),
    _squared_distance(lhs, rhs, "patches"),
    _expansion(lhs, rhs),
  ):
    actual = np.asarray(actual, np.float64)
    positive = exact > 0
    error = np.max(np.abs(actual - exact)[positive] / exact[positive])
    cells.append("inf" if np.any(actual[positive] <= 0) else f"{error:.0e}" if error else "0")
  return cells


def _gradient_error(offset: float, difference: float) -> str:
  rng = np.random.default_rng(0)
  lhs = np.float32(offset + difference * rng.standard_normal((4, 16, 16, 3)))
  rhs = np.float32(offset + difference * rng.standard_normal((5, 5, 3, 6)))
  weights = rng.standard_normal((4, 12, 12, 6))

  def gradient(lhs: Array, rhs: Array, method: str) -> np.ndarray:
    def loss(rhs: Array) -> Array:
      distance = _squared_distance(lhs, rhs, method, "VALID")
      return jnp.sum(distance * jnp.asarray(weights, distance.dtype))

    return np.asarray(jax.grad(loss)(rhs), np.float64)

  with jax.enable_x64(True):
    exact = gradient(jnp.float64(lhs), jnp.float64(rhs), "patches")
  error = np.abs(gradient(jnp.asarray(lhs), jnp.asarray(rhs), "conv") - exact)
  return f"{np.max(error) / np.max(np.abs(exact)):.0e}"


def accuracy(out: pathlib.Path = pathlib.Path("docs/accuracy.md")) -> None:
  """Writes the tables of errors as a page.

  Args:
    out: the page to write.
  """
  versions = f"jax {jax.__version__}, {jax.default_backend()}"
  lines = [
    "| inputs | offset | difference | conv | patches | expansion alone |",
    "|---|---|---|---|---|---|",
  ]
  for dtype in ("float32", "bfloat16", "float16"):
    for offset in OFFSETS:
      for difference in DIFFERENCES:
        cells = _errors(offset, difference, dtype)
        lines.append(f"| {dtype} | {offset:g} | {difference:g} | " + " | ".join(cells) + " |")
  gradients = ["| offset | difference | gradient |", "|---|---|---|"] + [
    f"| {offset:g} | {difference:g} | {_gradient_error(offset, difference)} |"
    for offset, difference in OF_GRADIENTS
  ]
  command = "\nMade by `python -m benchmarks accuracy`.\n"
  out.parent.mkdir(parents=True, exist_ok=True)
  sums = ["| terms | L1 | inner product in groups | convolution |", "|---|---|---|---|"] + [
    f"| {9 * channels} | " + " | ".join(_sum_errors(channels)) + " |" for channels in CHANNELS
  ]
  tables = "\n".join(lines) + "\n" + GRADIENT + "\n".join(gradients) + "\n"
  tables += SUMS + "\n".join(sums) + "\n"
  out.write_text(HEADER.format(versions=versions) + tables + command)
  print(out.read_text())
  print(f"written to {out}")
