"""The operator's kernels in two checkouts of this repository, timed side by side."""

import functools
import itertools
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.measure import paired, spread
from benchmarks.rivals import BASELINE, KERNELS
from benchmarks.shapes import SHAPES, TARGETED
from benchmarks.targets import geometric_mean
from benchmarks.worker import HERE, Worker

RIVALS = (BASELINE, f"{BASELINE} + ReLU", *KERNELS)
"""Of which the convolutions are the same in both: what is not 1.00 there is the machine's noise."""
DEFAULTS: dict[str, Sequence[str]] = {
  "shapes": [shape.name for shape in TARGETED],
  "rivals": RIVALS,
  "modes": ["forward + backward"],
}
"""What is compared if nothing else is asked for."""
_RESAMPLES = 2000


def rows(
  against: pathlib.Path,
  *,
  shapes: Sequence[str] = DEFAULTS["shapes"],
  rivals: Sequence[str] = DEFAULTS["rivals"],
  modes: Sequence[str] = DEFAULTS["modes"],
  rounds: int = 25,
  seconds: float = 4.0,
  launches: int = 2,
) -> Iterator[dict[str, Any]]:
  """Times this checkout beside another, each in a process of its own, round by round in turns.

  Args:
    against: folder of the other checkout.
    shapes: by name.
    rivals: by name.
    modes: "forward" and "forward + backward".
    rounds: of each pair of processes.
    seconds: after which a pair of processes stops early.
    launches: pairs of processes, since where a process has its memory may favor one of them.

  Yields:
    A row for each rival, mode and shape: "ratio", this checkout's time over the other's, the
    median over the rounds; its 95 % interval "low" to "high"; "ratios" of all rounds, by launch;
    resident memory at the peak of a run, "peak_bytes", and the other's, "baseline_peak_bytes".
  """
  for rival, mode, name in itertools.product(rivals, modes, shapes):
    ratios: list[list[float]] = []
    times: list[tuple[float, float]] = []
    peaks: tuple[int | None, int | None] = None, None
    start = functools.partial(Worker, rival, SHAPES[name], backward=mode != "forward")
    for _ in range(launches):
      with start(library=HERE) as mine, start(library=against) as theirs:
        peaks = mine.peak_bytes, theirs.peak_bytes  # both have compiled now
        found = paired(mine, theirs, rounds=rounds, seconds=seconds)
      ratios.append([float(f"{a / b:.4g}") for a, b in found])
      times += found
    mine_ms, theirs_ms = (1e3 * statistics.median(t) for t in zip(*times, strict=True))
    yield {
      "rival": rival,
      "mode": mode,
      "shape": name,
      "milliseconds": float(f"{mine_ms:.4g}"),
      "baseline_milliseconds": float(f"{theirs_ms:.4g}"),
      **interval([ratios]),
      "peak_bytes": peaks[0],
      "baseline_peak_bytes": peaks[1],
      "ratios": ratios,
    }


def means(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """Each rival's geometric mean over the shapes, with its 95 % interval.

  Args:
    found: rows of `rows`.

  Returns:
    A row for each rival and mode, with "ratio", "low" and "high".
  """
  cells: dict[tuple[str, str], list[list[list[float]]]] = {}
  for row in found:
    cells.setdefault((row["rival"], row["mode"]), []).append(row["ratios"])
  return [
    {"rival": rival, "mode": mode, "shapes": len(shapes), **interval(shapes)}
    for (rival, mode), shapes in cells.items()
  ]


def interval(shapes: Sequence[Sequence[Sequence[float]]]) -> dict[str, float]:
  """The geometric mean over shapes of the median ratio, and its 95 % interval by the bootstrap.

  Args:
    shapes: for each shape, for each launch, the ratios of the rounds. Launches are drawn with
      replacement and, within each, rounds.

  Returns:
    "ratio", "low" and "high".
  """
  rng = np.random.default_rng(0)

  def drawn(launches: Sequence[Sequence[float]]) -> list[np.ndarray]:
    chosen = rng.integers(len(launches), size=len(launches))
    return [rng.choice(launches[i], len(launches[i])) for i in chosen]

  def mean(shapes: Iterable[Sequence[Any]]) -> float:
    return geometric_mean(float(np.median(np.concatenate(launches))) for launches in shapes)

  middle = mean(shapes)
  draws = [mean(map(drawn, shapes)) for _ in range(_RESAMPLES)]
  low, high = np.quantile(draws, [0.025, 0.975])
  return {key: float(f"{v:.4g}") for key, v in (("ratio", middle), ("low", low), ("high", high))}


def label(row: dict[str, Any]) -> str:
  """A line about a row."""
  return f"{row['rival']}, {row['mode']}, {row['shape']}: {spread(row, 3)}"


def failures(found: Sequence[dict[str, Any]], bound: float) -> list[str]:
  """What is slower than it may be.

  Args:
    found: rows of `rows`.
    bound: on the upper end of the interval of a kernel's mean over the shapes.

  Returns:
    A line for each miss.
  """
  return [
    f"{row['rival']}, {row['mode']}: {row['ratio']:.3f} of the other checkout's time, up to "
    f"{row['high']:.3f}; at most {bound:g}"
    for row in means(found)
    if row["high"] > bound and row["rival"] in KERNELS
  ]
