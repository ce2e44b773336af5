"""How time and memory grow with the sizes of a layer."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.measure import compare, compiled, spread
from benchmarks.rivals import BASELINE, layer, program
from benchmarks.shapes import Shape

BASE = Shape("base", 8, (32, 32), 16, 16, (3, 3))
RIVALS = ("polynomial", "Gaussian", "L1", "patches: L1")
SIZES: dict[str, Sequence[int]] = {
  "batch": (4, 8, 16, 32),
  "image side": (16, 32, 64, 128),
  "input channels": (8, 16, 32, 64),
  "window side": (2, 3, 5, 8),
  "output features": (8, 16, 32, 64),
}
"""What is varied, and how; the rest is as in BASE."""

QUICK: dict[str, Any] = {"rounds": 3, "seconds": 0.3, "rivals": RIVALS[:2], "sizes": 2}


def shape(what: str, size: int) -> Shape:
  """BASE with one size changed."""
  changes: dict[str, Any] = {
    "batch": {"batch": size},
    "image side": {"spatial": (size, size)},
    "input channels": {"in_features": size},
    "window side": {"window": (size, size)},
    "output features": {"out_features": size},
  }[what]
  return dataclasses.replace(BASE, name=f"{what} {size}", **changes)


def rows(
  *,
  rounds: int = 15,
  seconds: float = 3.0,
  rivals: Sequence[str] = RIVALS,
  sizes: int | None = None,
) -> Iterator[dict[str, Any]]:
  """Measures forward and backward, one row for each size and rival.

  Args:
    rivals: by name.
    sizes: of how many, from the smallest; None is all.
    rounds: of each comparison.
    seconds: after which a comparison stops early.

  Yields:
    A row.
  """
  for what, values in SIZES.items():
    for size in values[:sizes]:
      layout = shape(what, size)
      operands = layout.operands()
      baseline = compiled(program(layer(BASELINE, layout), backward=True), *operands)
      for rival in rivals:
        mine = compiled(program(layer(rival, layout), backward=True), *operands)
        comparison = compare(mine.call, baseline.call, rounds=rounds, seconds=seconds)
        yield {
          "what": what,
          "size": size,
          "rival": rival,
          **comparison.row(),
          "temp_bytes": mine.temp_bytes,
          "baseline_temp_bytes": baseline.temp_bytes,
        }


def label(row: dict[str, Any]) -> str:
  """A line about a row."""
  return f"{row['what']} {row['size']}, {row['rival']}: {spread(row)}"


def failures(found: Sequence[dict[str, Any]], noise: float) -> list[str]:
  """Nothing: no target is set."""
  del found, noise
  return []


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
  """Exponent of the power of the size that fits best, by least squares in the logarithms."""
  x, y = [math.log(size) for size in sizes], [math.log(max(value, 1)) for value in values]
  mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
  rise = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
  return rise / sum((a - mean_x) ** 2 for a in x)


def slopes(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """Slopes of time and memory, the convolution's among them.

  Args:
    found: rows.

  Returns:
    One row for each thing varied and each rival, with "time" and "memory".
  """
  result = []
  for what in SIZES:
    for rival in (BASELINE, *RIVALS):
      prefix = "baseline_" if rival == BASELINE else ""
      of = RIVALS[0] if rival == BASELINE else rival
      mine = [row for row in found if (row["what"], row["rival"]) == (what, of)]
      if len(mine) < 2:
        continue
      sizes = [row["size"] for row in mine]
      times = [1e6 * row[f"{prefix}milliseconds"] for row in mine]
      bytes_ = [row[f"{prefix}temp_bytes"] for row in mine]
      result.append(
        {"what": what, "rival": rival, "time": slope(sizes, times), "memory": slope(sizes, bytes_)}
      )
  return result
