"""One layer of every kernel beside convolution and other ways to compute it."""

import dataclasses
import importlib.util
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from benchmarks import rivals
from benchmarks.measure import Program, compare, compiled, spread
from benchmarks.shapes import SHAPES, TARGETED, Shape
from benchmarks.worker import Worker

_MOST_TERMS = 300_000_000  # that the definition by patches is timed with


@dataclasses.dataclass(frozen=True)
class Plan:
  """What to measure.

  Attributes:
    shapes: by name.
    rivals: by name.
    modes: "forward" and "forward + backward".
    rounds: of each comparison.
    seconds: after which a comparison stops early.
  """

  shapes: Sequence[str] = tuple(SHAPES)
  rivals: Sequence[str] = (*rivals.JAX_RIVALS, *rivals.TORCH_RIVALS)
  modes: Sequence[str] = ("forward", "forward + backward")
  rounds: int = 25
  seconds: float = 4.0


QUICK = Plan(
  shapes=[shape.name for shape in TARGETED],
  rivals=[f"{rivals.BASELINE} + ReLU", "linear", "polynomial", "Gaussian", "L1"],
  modes=["forward + backward"],
  rounds=7,
  seconds=0.7,
)
"""About a minute on an idle machine: 45 seconds of a core."""


def rows(plan: Plan, done: Sequence[dict[str, Any]] = ()) -> Iterator[dict[str, Any]]:
  """Measures everything in a plan, one row for each shape, mode and rival.

  Args:
    plan: what to measure.
    done: rows of what need not be measured again.

  Yields:
    A row; one with "skipped" says why there is no measurement.
  """
  there = {(row["shape"], row["mode"], row["rival"]) for row in done}
  limits: dict[str, Any] = {"rounds": plan.rounds, "seconds": plan.seconds}
  for name in plan.shapes:
    shape = SHAPES[name]
    operands = shape.operands()
    for mode in plan.modes:
      wanted = [rival for rival in plan.rivals if (name, mode, rival) not in there]
      if not wanted:
        continue
      backward = mode != "forward"

      def program(rival: str, backward: bool = backward, shape: Shape = shape) -> Any:
        return rivals.program(rivals.layer(rival, shape), backward=backward)

      baseline = compiled(program(rivals.BASELINE), *operands)
      for rival in wanted:
        row = {"shape": name, "mode": mode, "rival": rival}
        reason = _unfit(rival, shape)
        if reason:
          yield row | {"skipped": reason}
        elif rival in rivals.TORCH_RIVALS:
          with Worker(rival, shape, backward=backward) as worker:
            comparison = compare(worker, baseline.call, **limits)
            yield row | comparison.row()
        else:
          mine = compiled(program(rival), *operands)
          comparison = compare(mine.call, baseline.call, **limits)
          row |= comparison.row() | _work(mine, baseline, shape)
          if backward and rival in rivals.ADDITIVE:
            function, arguments = rivals.elementwise(rival)
            pairs = compare(compiled(function, *arguments).call, baseline.call, **limits)
            row["elementwise_ratio"] = float(f"{pairs.ratio * shape.terms / rivals.PAIRS:.4g}")
          yield row


def _work(mine: Program, baseline: Program, shape: Shape) -> dict[str, float | int]:
  """Memory and work of a program."""
  return {
    "temp_bytes": mine.temp_bytes,
    "baseline_temp_bytes": baseline.temp_bytes,
    "out_bytes": 4 * math.prod(shape.out),
    "in_bytes": 4 * math.prod(shape.lhs),
    "flops": mine.flops,
    "bytes_accessed": mine.bytes_accessed,
    "compile_seconds": round(mine.compile_seconds, 3),
    "baseline_compile_seconds": round(baseline.compile_seconds, 3),
  }


def peaks(
  rows: Sequence[dict[str, Any]], done: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
  """Measures resident memory of one run at its peak, forward and backward, in a fresh process each.

  Args:
    rows: of the times.
    done: rows of what need not be measured again.

  Yields:
    A row for each shape and rival timed forward and backward, and for each shape's convolution;
    its "peak_bytes" is None where the system does not tell, or has ended the process.
  """
  timed = [row for row in rows if row["mode"] != "forward" and "skipped" not in row]
  wanted = [(row["shape"], rivals.BASELINE) for row in timed]
  wanted += [(row["shape"], row["rival"]) for row in timed]
  there = {(row["shape"], row["rival"]) for row in done}
  for name, rival in dict.fromkeys(wanted):
    if (name, rival) in there:
      continue
    try:
      with Worker(rival, SHAPES[name], backward=True) as worker:
        yield {"shape": name, "rival": rival, "peak_bytes": worker.peak_bytes}
    except RuntimeError as error:
      yield {"shape": name, "rival": rival, "peak_bytes": None, "failed": str(error)}


def _unfit(rival: str, shape: Shape) -> str | None:
  """Why a rival cannot run on a shape here; None if it can."""
  if rival in rivals.TORCH_RIVALS:
    if not shape.planar:
      return "not written for this rank or these groups"
    if importlib.util.find_spec("torch") is None:
      return "PyTorch is not installed"
  needed, there = rivals.bytes_of_patches(rival, shape), _free_bytes()
  if needed > there:
    return f"needs about {needed / 2**30:.1f} GiB, {there / 2**30:.1f} GiB are free"
  if rival in rivals.PATCHES and shape.terms > _MOST_TERMS:
    return f"{shape.terms:,} terms, more than {_MOST_TERMS:,}, would take minutes a run"
  return None


def _free_bytes() -> int:
  """Memory that is free on the device."""
  if jax.default_backend() != "cpu":
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_limit", 2**33) - stats.get("bytes_in_use", 0)
  try:
    with open("/proc/meminfo") as info:
      lines = dict(line.split(":", 1) for line in info)
    return 1024 * int(lines["MemAvailable"].split()[0])
  except (OSError, KeyError):
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def label(row: dict[str, Any]) -> str:
  """A line about a row."""
  what = f"{row['shape']}, {row['mode']}, {row['rival']}: "
  if "skipped" in row:
    return what + f"skipped, {row['skipped']}"
  return what + spread(row)


def peak_label(row: dict[str, Any]) -> str:
  """A line about a row of resident memory."""
  peak = row["peak_bytes"]
  size = "unknown" if peak is None else f"{peak / 1e6:.1f} MB"
  return f"{row['shape']}, {row['rival']}: resident at the peak {size}"
