"""What the speed and the memory of the operator are held to, on CPU, forward and backward."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import rivals
from benchmarks.shapes import TARGETED

MODE = "forward + backward"


@dataclasses.dataclass(frozen=True)
class Target:
  """Bounds for kernels, relative to a convolution's time and memory.

  Attributes:
    kernels: names of rivals.
    mean: of the ratios of time, their geometric mean over the six shapes.
    worst: the largest of them.
    outputs: arrays of the output's size that scratch memory may have beyond a convolution's.
    inputs: the same of the input's size.
  """

  kernels: Sequence[str]
  mean: float
  worst: float
  outputs: int
  inputs: int = 0


TARGETS = (
  Target(("linear",), 1.05, 1.15, 0),  # the same program: what is not 1.00 is noise
  Target(("polynomial", "sigmoid"), 1.10, 1.25, 3),
  Target(("Gaussian", "L2", "Cauchy", "rational quadratic"), 1.20, 1.40, 4),
  Target(("L1", "Laplacian"), 4.0, 10.0, 3, 2),
)
PAIRS = {"sum": 1.3, "max": 2.0, "min": 2.0, "logsumexp": 2.0, "norm": 2.0}
"""By its reduction, how often the time of L1 and the time of its own term an additive kernel takes.

The term's is what it and its derivatives take on as many pairs, fused, in a cache: `elementwise`.
"""
PAIRS_OUTPUTS = 1
"""Arrays of the output's size that its scratch memory may have beyond L1's."""
GROUPED = 0.3
"""Of a convolution's time, what GROUPED_KERNELS may take on GROUPED_SHAPES."""
GROUPED_KERNELS = ("polynomial", "Gaussian")
GROUPED_SHAPES = ("depthwise", "8 groups")
AGAINST_TORCH = 20.0
"""Times as fast, and times less memory, than unfold and broadcast, where images are large."""
TORCH_SHAPES = ("CIFAR stem", "CIFAR middle", "ResNet-50 middle")
NOISE = 1.25
"""By how much a check of the times is wider than a target."""


def geometric_mean(values: Iterable[float]) -> float:
  """Of positive numbers."""
  logs = [math.log(value) for value in values]
  return math.exp(sum(logs) / len(logs))


def ratios(rows: Iterable[dict[str, Any]], rival: str, mode: str = MODE) -> dict[str, float]:
  """The rival's ratios of time over the six shapes, as far as they were measured."""
  names = [shape.name for shape in TARGETED]
  found = {row["shape"]: row for row in rows if (row["rival"], row["mode"]) == (rival, mode)}
  return {name: found[name]["ratio"] for name in names if "ratio" in found.get(name, {})}


def allowed_bytes(target: Target, row: dict[str, Any]) -> int:
  """Scratch memory that a target allows for the shape of a row."""
  extra = target.outputs * row["out_bytes"] + target.inputs * row["in_bytes"]
  return row["baseline_temp_bytes"] + extra


def failures(
  rows: Sequence[dict[str, Any]], peaks: Sequence[dict[str, Any]], noise: float = NOISE
) -> list[str]:
  """What misses a target.

  Args:
    rows: times of the benchmark of the operator.
    peaks: its resident memory.
    noise: factor by which times may exceed their target; memory may not.

  Returns:
    A line for each miss.
  """
  found = []
  for target in TARGETS:
    for kernel in target.kernels:
      values = ratios(rows, kernel)
      if not values:
        continue
      mean, worst = geometric_mean(values.values()), max(values.values())
      if mean > noise * target.mean or worst > noise * target.worst:
        found.append(
          f"{kernel}: time {mean:.2f} of a convolution's, worst {worst:.2f}; "
          f"the target is {target.mean:.2f}, worst {target.worst:.2f}"
        )
      names = [shape.name for shape in TARGETED]
      found += [
        f"{kernel}, {row['shape']}: scratch memory {row['temp_bytes']:,} bytes; the target is "
        f"{allowed_bytes(target, row):,}"
        for row in rows
        if (row["rival"], row["mode"]) == (kernel, MODE)
        and row["shape"] in names
        and "temp_bytes" in row
        and row["temp_bytes"] > allowed_bytes(target, row)
      ]
  found += [
    f"{r['rival']}, {r['shape']}: time {r['ratio']:.2f} of a convolution's; the target is {GROUPED}"
    for r in rows
    if r["mode"] == MODE and r["rival"] in GROUPED_KERNELS and r["shape"] in GROUPED_SHAPES
    if r.get("ratio", 0) > noise * GROUPED
  ]
  return found + _additive_failures(rows, noise) + _torch_failures(rows, peaks, noise)


@dataclasses.dataclass(frozen=True)
class Additive:
  """What an additive kernel takes on a shape beside L1.

  Attributes:
    shape: by name.
    time: over that of L1 and of the term's elementwise cost.
    outputs: of scratch memory beyond L1's, to a hundredth.
  """

  shape: str
  time: float
  outputs: float


def additive(rows: Sequence[dict[str, Any]], kernel: str) -> list[Additive]:
  """An additive kernel beside L1, on each of the six shapes where both were measured.

  Args:
    rows: times of the benchmark of the operator.
    kernel: by name.
  """
  by = {(r["shape"], r["rival"]): r for r in rows if r["mode"] == MODE and "ratio" in r}
  found = []
  for shape in TARGETED:
    mine, base = by.get((shape.name, kernel), {}), by.get((shape.name, "L1"))
    if base is None or "elementwise_ratio" not in mine:
      continue
    time = mine["ratio"] / (base["ratio"] + mine["elementwise_ratio"])
    outputs = round((mine["temp_bytes"] - base["temp_bytes"]) / mine["out_bytes"], 2)
    found.append(Additive(shape.name, time, outputs))
  return found


def _additive_failures(rows: Sequence[dict[str, Any]], noise: float) -> list[str]:
  found = []
  for name, kernel in rivals.ADDITIVE.items():
    most = PAIRS[kernel.reduction]
    for beside in additive(rows, name):
      if beside.time > noise * most:
        found.append(
          f"{name}, {beside.shape}: time {beside.time:.2f} of L1's and its term's; the target is "
          f"{most:.2f}"
        )
      if beside.outputs > PAIRS_OUTPUTS:
        found.append(
          f"{name}, {beside.shape}: scratch memory {beside.outputs:.2f} outputs beyond L1's; the "
          f"target is {PAIRS_OUTPUTS}"
        )
  return found


def against_torch(
  rows: Sequence[dict[str, Any]], peaks: Sequence[dict[str, Any]], shape: str, kernel: str
) -> dict[str, float]:
  """How many times as long, and as much memory, unfold and broadcast takes for a kernel.

  Args:
    rows: times of the benchmark of the operator.
    peaks: its resident memory.
    shape: by name.
    kernel: by name.

  Returns:
    "time" and "memory", as far as they were measured.
  """
  result = {}
  for what, field, found in (
    ("time", "ratio", [row for row in rows if row["mode"] == MODE]),
    ("memory", "peak_bytes", peaks),
  ):
    by_rival = {row["rival"]: row.get(field) for row in found if row["shape"] == shape}
    ours, theirs = by_rival.get(kernel), by_rival.get(rivals.broadcast(kernel))
    if ours and theirs:
      result[what] = theirs / ours
  return result


def _torch_failures(
  rows: Sequence[dict[str, Any]], peaks: Sequence[dict[str, Any]], noise: float
) -> list[str]:
  found = []
  for shape in TORCH_SHAPES:
    for kernel in rivals.BROADCAST:
      factors = against_torch(rows, peaks, shape, kernel)
      found += [
        f"{kernel}, {shape}: PyTorch by unfold and broadcast takes {value:.1f} times the {what}; "
        f"the target is {AGAINST_TORCH:g}"
        for what, value in factors.items()
        if value * noise < AGAINST_TORCH
      ]
  return found
