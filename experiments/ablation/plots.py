"""Plots of a page: curves with bands, attacks, learning rates."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from scipy.optimize import linear_sum_assignment

from experiments.ablation.rows import Row
from experiments.figures import STYLES

_FONT = 11
_DPI = 130


@dataclasses.dataclass(frozen=True)
class Band:
  """A measurement along something, over several runs.

  Attributes:
    x: where it was made, (points,).
    values: what came out, (runs, points).
  """

  x: np.ndarray
  values: np.ndarray


def learning_band(runs: Mapping[int, Row]) -> Band:
  """Test error by epoch, where all runs of an arm were evaluated; without those that diverged.

  Args:
    runs: by seed.
  """
  curves = [
    dict(zip(row["curve"]["steps"], row["curve"]["accuracy"], strict=True))
    for row in runs.values()
    if row["accuracy"] is not None
  ]
  if not curves:
    return Band(np.zeros(0), np.zeros((0, 0)))
  steps = sorted(set.intersection(*(set(curve) for curve in curves)) - {0})
  per_epoch = next(iter(runs.values()))["steps_per_epoch"]
  errors = [[1 - curve[step] for step in steps] for curve in curves]
  return Band(np.array(steps) / per_epoch, np.array(errors))


def convergence(path: Path, panels: Mapping[str, Mapping[str, Band]], target: float) -> None:
  """Draws test error against epochs: the mean, and a band from the lowest to the highest run.

  Args:
    path: of the PNG.
    panels: for each panel's title, the band of each network by its label.
    target: accuracy to mark.
  """
  figure = Figure(figsize=(4.9 * len(panels) + 0.5, 4.6), layout="constrained")
  axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for axis, (title, bands) in zip(axes, panels.items(), strict=True):
    for number, (label, band) in enumerate(bands.items()):
      if not len(band.x):
        continue
      _line(axis, number, label, band.x, np.maximum(band.values, 1e-4))
    axis.axhline(1 - target, color="0.6", linewidth=0.9, zorder=0)
    axis.set_title(title, fontsize=_FONT + 1)
    axis.set_xlabel("epochs (logarithmic)", fontsize=_FONT)
    axis.set(xscale="log", yscale="log")
    ticks = [tick for tick in (0.2, 0.5, 1, 2, 5, 10, 20) if tick <= axis.get_xlim()[1]]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.xaxis.set_minor_formatter(NullFormatter())
    _finish(axis, "upper right")
  levels = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9]
  axes[0].set_yticks(levels, [f"{100 * level:g} %" for level in levels])
  for axis in axes:
    axis.yaxis.set_minor_formatter(NullFormatter())
  axes[0].set_ylabel("test error (logarithmic)", fontsize=_FONT)
  figure.savefig(path, dpi=_DPI)


def robustness(
  path: Path,
  panels: Mapping[str, Mapping[str, Band]],
  points: Mapping[str, float],
  epsilon: float | None,
) -> None:
  """Draws accuracy against the size of the attack.

  Args:
    path: of the PNG.
    panels: for each panel's title, the band of each network by its label; the networks are the same
      in every panel.
    points: the paper's accuracy by label, drawn in the first panel.
    epsilon: where those are drawn; None draws none.
  """
  figure = Figure(figsize=(4.9 * len(panels) + 0.5, 4.4), layout="constrained")
  axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for place, (axis, (title, bands)) in enumerate(zip(axes, panels.items(), strict=True)):
    for number, (label, band) in enumerate(bands.items()):
      _line(axis, number, label, band.x, band.values)
      if place == 0 and epsilon is not None and label in points:
        style = {"color": STYLES[number]["color"], "marker": STYLES[number]["marker"]}
        axis.plot([epsilon], [points[label]], label=f"{label}, paper", **style, **_HOLLOW)
    axis.set_title(title, fontsize=_FONT + 1)
    axis.set_xlabel("epsilon, of pixels in [0, 1]", fontsize=_FONT)
    axis.set(xlim=(-0.01, 0.31), ylim=(0, 1.02))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    _finish(axis, "lower left" if place == 0 else "upper right")
  axes[0].set_ylabel("test accuracy", fontsize=_FONT)
  figure.savefig(path, dpi=_DPI)


def rates(path: Path, panels: Mapping[str, Mapping[str, Mapping[float, float | None]]]) -> None:
  """Draws the error on the held-out part against the learning rate.

  Args:
    path: of the PNG.
    panels: for each panel's title, the accuracy of each network, by its label, at each rate; None
      is a run that diverged.
  """
  figure = Figure(figsize=(4.9 * len(panels) + 0.5, 4.4), layout="constrained")
  axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for axis, (title, networks) in zip(axes, panels.items(), strict=True):
    for number, (label, accuracy) in enumerate(networks.items()):
      known = {rate: value for rate, value in sorted(accuracy.items()) if value is not None}
      if known:
        errors = np.maximum(1 - np.array(list(known.values())), 1e-4)
        _line(axis, number, label, np.array(list(known)), errors[None], every=1)
    axis.axvline(0.003, color="0.6", linewidth=0.9, zorder=0)
    axis.set(xscale="log", yscale="log")
    axis.set_title(title, fontsize=_FONT + 1)
    axis.set_xlabel("learning rate (grey line: the paper's)", fontsize=_FONT)
    _finish(axis, "best")
  levels = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9]
  axes[0].set_yticks(levels, [f"{100 * level:g} %" for level in levels])
  for axis in axes:
    axis.yaxis.set_minor_formatter(NullFormatter())
  axes[0].set_ylabel("error on held-out images", fontsize=_FONT)
  figure.savefig(path, dpi=_DPI)


def match(filters: np.ndarray, others: np.ndarray) -> tuple[list[int], list[float]]:
  """Sets filters beside those they are like.

  Args:
    filters: (height, width, channels, number).
    others: of the same shape.

  Returns:
    For each of the filters the index of its partner among the others, and their correlation; the
    pairing has the largest sum of correlations.
  """

  def unit(weights: np.ndarray) -> np.ndarray:
    flat = weights.reshape(-1, weights.shape[-1]).astype(np.float64)
    flat = flat - flat.mean(axis=0)
    return flat / np.maximum(np.linalg.norm(flat, axis=0), 1e-12)

  correlation = unit(filters).T @ unit(others)
  rows, columns = linear_sum_assignment(-correlation)
  return columns.tolist(), correlation[rows, columns].tolist()


_HOLLOW: dict[str, Any] = {
  "markerfacecolor": "white",
  "markersize": 9,
  "linestyle": "none",
  "zorder": 5,
}


def _line(
  axis: Axes, number: int, label: str, x: np.ndarray, values: np.ndarray, every: int | None = None
) -> None:
  """The mean of runs, and a band from the lowest to the highest."""
  style = dict(STYLES[number % len(STYLES)])
  every = max(1, len(x) // 8) if every is None else every
  style |= {"markevery": every, "markersize": 5.5, "linewidth": 1.7}
  axis.plot(x, values.mean(axis=0), label=label, **style)
  if len(values) > 1:
    low, high = values.min(axis=0), values.max(axis=0)
    axis.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)


def _finish(axis: Axes, legend: Literal["upper right", "lower left", "best"]) -> None:
  axis.spines[["top", "right"]].set_visible(False)
  axis.tick_params(labelsize=_FONT - 1)
  if axis.get_legend_handles_labels()[0]:
    axis.legend(loc=legend, fontsize=_FONT - 1.5, frameon=False, handlelength=3.2)
