"""How far distances are from float64, by method, offset and dtype."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kerv_jax import kernels, kerv_general_dilated

NHWC = ("NHWC", "HWIO", "NHWC")
OFFSETS = (0.0, 1.0, 10.0, 100.0)
DIFFERENCES = (0.1, 0.01)
HEADER = """# Accuracy of the squared distance

Largest relative error of `sum (x - w)**2` over all outputs, against the definition in float64 on
the same inputs. Patches are `offset + N(0, 1)`; filters are six of the patches plus
`difference * N(0, 1)`, so each filter has a patch right beside it. Window 5x5, 3 channels, padding
"SAME". One seed; {versions}.

- **conv**: `method="conv"`, the default. The expansion `|x|^2 - 2<x, w> + |w|^2`, and the direct
  sum wherever the expansion would lose more than about the square root of the dtype's precision.
- **patches**: `method="patches"`, the definition in the dtype's own arithmetic (float32 for 16-bit
  inputs).
- **expansion alone**: what the default would be without the direct sum; infinite means that it
  came out as zero or less.

The result is rounded to float32 in all rows, so that the rows of 16-bit inputs show the
arithmetic and not the rounding of the result. A difference that a 16-bit dtype cannot represent
beside the offset is the input's, not the method's: the reference sees the rounded inputs.

"""


def _operands(offset: float, difference: float, dtype: str) -> tuple[Array, Array]:
  rng = np.random.default_rng(0)
  lhs = offset + rng.standard_normal((4, 16, 16, 3))
  patches = np.stack([lhs[i % 4, i : i + 5, i : i + 5] for i in range(6)], axis=-1)
  rhs = patches + difference * rng.standard_normal(patches.shape)
  return jnp.asarray(lhs.astype(dtype)), jnp.asarray(rhs.astype(dtype))


def _squared_distance(lhs: Array, rhs: Array, method: str) -> Array:
  return kerv_general_dilated(
    lhs,
    rhs,
    (1, 1),
    "SAME",
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
    cells.append("inf" if np.any(actual[positive] <= 0) else f"{error:.0e}")
  return cells


def accuracy(out: pathlib.Path = pathlib.Path("docs/accuracy.md")) -> None:
  """Writes the table of errors as a page.

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
  command = "\nMade by `python -m benchmarks accuracy`.\n"
  out.parent.mkdir(parents=True, exist_ok=True)
  out.write_text(HEADER.format(versions=versions) + "\n".join(lines) + "\n" + command)
  print(out.read_text())
  print(f"written to {out}")
