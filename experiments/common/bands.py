"""Plots of measurements over several runs: panels side by side, lines with bands."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

FONT = 11
Corner = Literal["upper right", "lower left"]
_LEVELS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)


class Band(NamedTuple):
  """A measurement along something, over several runs.

  Attributes:
    x: Places where the measurement was made, (points,).
    values: What came out, (runs, points).
    label: Name in the legend.
    look: Color, line style and marker.
  """

  x: np.ndarray
  values: np.ndarray
  label: str
  look: Mapping[str, Any]


def panels_of(number: int) -> tuple[Figure, list[Axes]]:
  """Returns a figure of so many panels, two side by side, legible at the width of a page."""
  columns, rows = min(number, 2), -(-number // 2)
  figure = Figure(figsize=(4.9 * columns + 0.5, 4.5 * rows), layout="constrained")
  axes = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel().tolist()
  for axis in axes[number:]:
    axis.remove()
  return figure, axes[:number]


def draw_band(axis: Axes, band: Band, *, logarithmic: bool = False) -> None:
  """Draws the mean of runs, and a band from the lowest to the highest."""
  marked = list(range(len(band.x)))
  if logarithmic and len(band.x) > 10:
    marks = np.geomspace(band.x[0], band.x[-1], 10)
    marked = sorted({int(np.argmin(np.abs(np.log(band.x / mark)))) for mark in marks})
  look = dict(band.look) | {"markevery": marked, "markersize": 5.5, "linewidth": 1.7}
  axis.plot(band.x, band.values.mean(axis=0), label=band.label, **look)
  if len(band.values) > 1:
    ends = band.values.min(axis=0), band.values.max(axis=0)
    axis.fill_between(band.x, *ends, color=look["color"], alpha=0.18, linewidth=0)


def convergence(panels: Mapping[str, Sequence[Band]], target: float) -> Figure | None:
  """Returns a figure of errors against epochs, both logarithmic.

  Args:
    panels: Bands by the title of their panel; panels without any are left out.
    target: Accuracy that a line marks.

  Returns:
    The figure; None without bands.
  """
  panels = {title: bands for title, bands in panels.items() if bands}
  if not panels:
    return None
  figure, axes = panels_of(len(panels))
  for axis, (title, bands) in zip(axes, panels.items(), strict=True):
    for band in bands:
      draw_band(axis, band, logarithmic=True)
    if target < 1:  # no error has no place on the axis
      axis.axhline(1 - target, color="0.6", linewidth=0.9, zorder=0)
      place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "bottom"}
      text = f"{100 * target:.4g} % right"
      axis.annotate(text, (0.01, 1 - target), fontsize=FONT - 2, color="0.35", **place)
    axis.set(xscale="log", yscale="log")
    finish(axis, title, "epochs (logarithmic)", "upper right")
  low, high = (end(axis.get_xlim()[place] for axis in axes) for place, end in enumerate((min, max)))
  ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if low <= tick <= high]
  for axis in axes:  # the same for all, so that panels compare
    axis.set_xlim(low, high)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.xaxis.set_minor_formatter(NullFormatter())
  error_axes(axes, "test error (logarithmic)")
  return figure


def error_axes(axes: Sequence[Axes], label: str) -> None:
  """Labels the logarithmic axis of errors that panels of two columns share, in percent."""
  for axis in axes:
    axis.set_yticks(_LEVELS, [f"{100 * level:g} %" for level in _LEVELS])
    axis.yaxis.set_minor_formatter(NullFormatter())
  for axis in axes[::2]:
    axis.set_ylabel(label, fontsize=FONT)


def finish(axis: Axes, title: str, x: str, legend: Corner, below: float = 0.0) -> None:
  """Gives a panel its title, the label of its x axis, and its legend near a corner."""
  axis.set_title(title, fontsize=FONT + 1)
  axis.set_xlabel(x, fontsize=FONT)
  axis.spines[["top", "right"]].set_visible(False)
  axis.tick_params(labelsize=FONT - 1)
  place: dict[str, Any] = {"loc": legend, "bbox_to_anchor": (0, 0, 1, 1 - below)}
  axis.legend(**place, fontsize=FONT - 1.5, frameon=False, handlelength=3.2)
