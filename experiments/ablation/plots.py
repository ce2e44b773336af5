"""Plots of a page: curves with bands, attacks, learning rates."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from experiments.ablation.rows import Row
from experiments.ablation.speed import common
from experiments.common.figures import STYLES

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
  """Test error by epoch, where runs are evaluated equally often; without those that diverged.

  Args:
    runs: by seed.
  """
  curves = [common(row) for row in runs.values() if row["accuracy"] is not None]
  if not curves:
    return Band(np.zeros(0), np.zeros((0, 0)))
  steps = sorted(set.intersection(*(set(curve) for curve in curves)))
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
  figure, axes = _panels(len(panels))
  for axis, (title, bands) in zip(axes, panels.items(), strict=True):
    styles = _styles(bands)
    for label, band in bands.items():
      if len(band.x):
        _line(axis, styles[label], label, band.x, np.maximum(band.values, 1e-4), logarithmic=True)
    axis.axhline(1 - target, color="0.6", linewidth=0.9, zorder=0)
    place = {"xycoords": ("axes fraction", "data"), "va": "bottom", "color": "0.35"}
    axis.annotate(f"{100 * target:g} % right", (0.01, 1 - target), fontsize=_FONT - 2, **place)
    axis.set_title(title, fontsize=_FONT + 1)
    axis.set_xlabel("epochs (logarithmic)", fontsize=_FONT)
    axis.set(xscale="log", yscale="log")
    _finish(axis, "upper right")
  low, high = (end(axis.get_xlim()[place] for axis in axes) for place, end in enumerate((min, max)))
  ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if low <= tick <= high]
  for axis in axes:  # the same for all, so that panels compare
    axis.set_xlim(low, high)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.xaxis.set_minor_formatter(NullFormatter())
  _error_axes(axes, "test error (logarithmic)", [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9])
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
    epsilon: near which those are drawn; None draws none.
  """
  figure, axes = _panels(len(panels))
  for place, (axis, (title, bands)) in enumerate(zip(axes, panels.items(), strict=True)):
    styles = _styles(bands)
    for number, (label, band) in enumerate(bands.items()):
      _line(axis, styles[label], label, band.x, band.values)
      if place == 0 and epsilon is not None and label in points:
        style = {name: styles[label][name] for name in ("color", "marker")}
        beside = epsilon + 0.011 * (0, -1, 1)[number % 3]  # they would hide each other
        axis.plot([beside], [points[label]], label=f"{label}, paper", **style, **_HOLLOW)
    axis.set_title(title, fontsize=_FONT + 1)
    axis.set_xlabel("epsilon, of pixels in [0, 1]", fontsize=_FONT)
    axis.set(xlim=(-0.01, 0.31), ylim=(0, 1.02))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    _finish(axis, "lower left" if place == 0 else "upper right")
  for axis in axes[::2]:
    axis.set_ylabel("test accuracy", fontsize=_FONT)
  figure.savefig(path, dpi=_DPI)


def rates(path: Path, panels: Mapping[str, Mapping[str, Mapping[float, float | None]]]) -> None:
  """Draws the error on the held-out part against the learning rate.

  Args:
    path: of the PNG.
    panels: for each panel's title, the accuracy of each network, by its label, at each rate; None
      is a run that diverged.
  """
  figure, axes = _panels(len(panels))
  for axis, (title, networks) in zip(axes, panels.items(), strict=True):
    styles = _styles(networks)
    for label, accuracy in networks.items():
      known = {rate: value for rate, value in sorted(accuracy.items()) if value is not None}
      if known:
        errors = np.maximum(1 - np.array(list(known.values())), 1e-4)
        _line(axis, styles[label], label, np.array(list(known)), errors[None])
      if lost := [rate for rate, value in accuracy.items() if value is None]:
        # On the upper edge, each network a little to the side of the others.
        shifted = np.array(lost) * 1.06 ** (list(networks).index(label) - len(networks) / 2)
        mark = {"color": styles[label]["color"], "marker": "x", "linestyle": "none"}
        name = f"{label}: diverged"
        axis.plot(shifted, np.full(len(lost), 0.98), label=name, clip_on=False, **mark)
    axis.axvline(0.003, color="0.6", linewidth=0.9, zorder=0)
    axis.set(xscale="log", yscale="log")
    axis.set_title(title, fontsize=_FONT + 1)
    axis.set_xlabel("learning rate (grey line: the paper's)", fontsize=_FONT)
    _finish(axis, "best")
  _error_axes(axes, "error on held-out images", [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9])
  figure.savefig(path, dpi=_DPI)


_HOLLOW: dict[str, Any] = {
  "markerfacecolor": "white",
  "markersize": 9,
  "linestyle": "none",
  "zorder": 5,
}


_FIRST = ("CNN", "polynomial", "Gaussian", "sigmoid", "L1", "L2")
"""Labels that look the same in every figure."""


def _panels(number: int) -> tuple[Figure, list[Axes]]:
  """A figure of at most two panels side by side, legible at the width of a page."""
  columns, rows = min(number, 2), -(-number // 2)
  figure = Figure(figsize=(4.9 * columns + 0.5, 4.5 * rows), layout="constrained")
  axes = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel().tolist()
  for axis in axes[number:]:
    axis.remove()
  return figure, axes[:number]


def _styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
  """Colour, line and marker of each label."""
  labels = list(labels)
  taken = {label: _FIRST.index(label) for label in labels if label in _FIRST}
  free = iter([n for n in range(len(STYLES)) if n not in taken.values()] + [*range(len(labels))])
  numbers = {label: taken[label] if label in taken else next(free) for label in labels}
  return {label: dict(STYLES[number % len(STYLES)]) for label, number in numbers.items()}


def _line(
  axis: Axes,
  style: Mapping[str, Any],
  label: str,
  x: np.ndarray,
  values: np.ndarray,
  *,
  logarithmic: bool = False,
) -> None:
  """The mean of runs, and a band from the lowest to the highest."""
  marked = list(range(len(x)))
  if logarithmic and len(x) > 10:
    marks = np.geomspace(x[0], x[-1], 10)
    marked = sorted({int(np.argmin(np.abs(np.log(x / mark)))) for mark in marks})
  axis.plot(
    x, values.mean(axis=0), label=label, markevery=marked, markersize=5.5, linewidth=1.7, **style
  )
  if len(values) > 1:
    low, high = values.min(axis=0), values.max(axis=0)
    axis.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)


def _error_axes(axes: Sequence[Axes], label: str, levels: Sequence[float]) -> None:
  """Percent at these levels of the logarithmic axes that panels of two columns share."""
  for axis in axes:
    axis.set_yticks(levels, [f"{100 * level:g} %" for level in levels])
    axis.yaxis.set_minor_formatter(NullFormatter())
  for axis in axes[::2]:
    axis.set_ylabel(label, fontsize=_FONT)


def _finish(axis: Axes, legend: Literal["upper right", "lower left", "best"]) -> None:
  axis.spines[["top", "right"]].set_visible(False)
  axis.tick_params(labelsize=_FONT - 1)
  if axis.get_legend_handles_labels()[0]:
    axis.legend(loc=legend, fontsize=_FONT - 1.5, frameon=False, handlelength=3.2)
