"""How long a layer takes to compile, forward and backward, and to run, over a convolution.

What the compiler is given to unroll makes loops faster and compiling slower: checkouts that differ
in that can be compared here, all of them in turns.
"""

import contextlib
import pathlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.measure import paired
from benchmarks.rivals import BASELINE, KERNELS
from benchmarks.shapes import SHAPES
from benchmarks.worker import HERE, Worker

SHAPE = "CIFAR middle"


def rows(
  libraries: Sequence[pathlib.Path] = (HERE,),
  *,
  kernels: Sequence[str] = tuple(KERNELS),
  shape: str = SHAPE,
  rounds: int = 3,
  seconds: float = 1.0,
) -> Iterator[dict[str, Any]]:
  """Measures one row for each kernel and checkout.

  Args:
    libraries: folders of the checkouts.
    kernels: by name.
    shape: of the layer, by name.
    rounds: of compilations, of each checkout and of the convolution in turns; 8 times as many of
      runs, at most.
    seconds: after which the runs stop early.

  Yields:
    A row: "seconds" to compile, "baseline_seconds" and their "ratio"; "time_ratio" of the runs.
  """
  for kernel in kernels:
    with contextlib.ExitStack() as stack:
      start = [(BASELINE, libraries[0]), *((kernel, library) for library in libraries)]
      workers = [
        stack.enter_context(Worker(rival, SHAPES[shape], backward=True, library=library))
        for rival, library in start
      ]
      found = [[worker.compile() for worker in workers] for _ in range(rounds + 1)]
      compiled = [
        (statistics.median(seconds for seconds, _ in each[1:]), each[0][1])  # the first is slower
        for each in zip(*found, strict=True)
      ]
      (baseline, baseline_loops), *mine = compiled
      for library, worker, (own, loops) in zip(libraries, workers[1:], mine, strict=True):
        pairs = paired(worker, workers[0], rounds=8 * rounds, seconds=seconds)
        yield {
          "kernel": kernel,
          "library": library.name,
          "seconds": round(own, 4),
          "baseline_seconds": round(baseline, 4),
          "ratio": float(f"{own / baseline:.3g}"),
          "time_ratio": float(f"{statistics.median(a / b for a, b in pairs):.3g}"),
          "loops": loops,
          "baseline_loops": baseline_loops,
        }


def label(row: dict[str, Any]) -> str:
  """A line about a row."""
  return (
    f"{row['kernel']}, {row['library']}: compiles in {row['ratio']:.1f} and runs in "
    f"{row['time_ratio']:.2f} of a convolution's time"
  )
