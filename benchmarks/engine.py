"""Steps a second of a training run, beside the same step jitted and called in a bare loop."""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from benchmarks.measure import spread
from experiments.configs import presets
from experiments.configs.build import build
from experiments.data import training_order
from experiments.engine.layout import Layout
from experiments.runs.loop import Run

PRESETS = (
  "lenet5-mnist-cnn",
  "lenet5-mnist-polynomial",
  "resnet32-cifar10+-cnn",
  "resnet32-cifar10+-degree3-learnable",
)
TARGET = 0.95
"""Of the ratio of steps a second, the run's to the bare loop's."""
QUICK: dict[str, Any] = {"names": PRESETS[:1], "rounds": 3, "seconds": 0.5}
_EXAMPLES = 4000


def rows(
  *, names: tuple[str, ...] = PRESETS, rounds: int = 15, seconds: float = 2.0
) -> Iterator[dict[str, Any]]:
  """Measures presets on random images, one row each.

  Args:
    names: of presets with images that are held in memory.
    rounds: of one sample of each of the two, in an order that alternates; at least 3.
    seconds: that a sample takes, about.

  Yields:
    A row.
  """
  for name in names:
    with tempfile.TemporaryDirectory() as folder:
      bare, through, close = _loops(name, Path(folder))
      steps = max(int(seconds * bare(10)), 10)
      rates: dict[Callable[[int], float], list[float]] = {bare: [], through: []}
      for index in range(rounds):
        for loop in (bare, through) if index % 2 else (through, bare):
          rates[loop].append(loop(steps))
      close()
    ratios = [mine / theirs for mine, theirs in zip(rates[through], rates[bare], strict=True)]
    tenths = statistics.quantiles(ratios, n=10, method="inclusive")
    medians = {"per_second": through, "baseline_per_second": bare}
    figures = {key: statistics.median(rates[loop]) for key, loop in medians.items()}
    figures |= {"ratio": statistics.median(ratios), "low": tenths[0], "high": tenths[-1]}
    rounded = {key: float(f"{value:.4g}") for key, value in figures.items()}
    yield {"preset": name, **rounded, "rounds": rounds, "steps": steps}


def _loops(
  name: str, folder: Path
) -> tuple[Callable[[int], float], Callable[[int], float], Callable[[], None]]:
  """The bare loop and the run, from steps to steps a second, compiled; and what ends the run."""
  config = presets.get(name).config
  sides = (28, 28, 1) if name.startswith("lenet5") else (32, 32, 3)
  images = np.random.default_rng(0).integers(0, 256, (_EXAMPLES, *sides)).astype(np.uint8)
  labels = np.arange(_EXAMPLES) % 10
  file = folder / "random.npz"
  np.savez(file, x_train=images, y_train=labels, x_test=images[:100], y_test=labels[:100])
  data = dataclasses.replace(config.data, name=str(file), data_dir=None)
  config = dataclasses.replace(config, data=data, epochs=10_000)
  parts = build(config, Layout())
  live = Run(config, folder / "run", parts, Layout(), Console(quiet=True))

  train_set = jax.device_put((images, labels.astype(np.int32)))
  order = training_order(_EXAMPLES, data.batch_size, seed=0, steps=10_000)

  def on_rows(state: Any, row: jax.Array, images: jax.Array, labels: jax.Array) -> Any:
    return parts.trainer.learner.step(state, images[row], labels[row], row)

  step = jax.jit(on_rows, donate_argnums=0)
  state = parts.trainer.init(0, sides)

  def bare(steps: int) -> float:
    nonlocal state
    start = time.perf_counter()
    for row in order[:steps]:
      state, _ = step(state, row, *train_set)
    jax.block_until_ready(state)
    return steps / (time.perf_counter() - start)

  def through(steps: int) -> float:
    start, end = time.perf_counter(), live.step + steps
    while live.step < end:
      live.advance(end - live.step)
    return steps / (time.perf_counter() - start)

  bare(5)  # compiles
  through(5)
  return bare, through, live.close


def label(row: dict[str, Any]) -> str:
  """A line about a row."""
  return f"{row['preset']}: {spread(row)}"


def failures(found: list[dict[str, Any]], noise: float) -> list[str]:
  """What misses the target.

  Args:
    found: rows.
    noise: factor by which rates may fall short of it.

  Returns:
    A line for each miss.
  """
  return [
    f"{row['preset']}: {row['ratio']:.3f} of a bare loop's steps a second; the target is {TARGET}"
    for row in found
    if noise * row["ratio"] < TARGET
  ]
