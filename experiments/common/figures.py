"""Figures: accuracy while training, and what the first layer learned."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from experiments.common.curve import Curve

_COLORS = (
  *("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00"),
  *("#56B4E9", "#8C564B", "#17A2A2", "#B8860B", "#7F7F7F", "#7F3FBF"),
)
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
STYLES: tuple[dict[str, Any], ...] = tuple(
  {"color": color, "linestyle": _LINES[place % len(_LINES)], "marker": "os^DvXP*<>dh"[place]}
  for place, color in enumerate(_COLORS)
)
"""Colors that color-blind readers tell apart, the first six those of Okabe and Ito; lines and
markers tell them apart in gray."""


def convergence(
  path: Path, panels: Mapping[str, Mapping[str, Curve]], targets: Sequence[float]
) -> None:
  """Draws test accuracy against training steps.

  Args:
    path: file for the PNG.
    panels: curves of the networks by label, for the title of each panel.
    targets: accuracies to mark.
  """
  figure = Figure(figsize=(5.5 * len(panels), 4.2), layout="constrained")
  axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for axis, (title, curves) in zip(axes, panels.items(), strict=True):
    for number, (label, curve) in enumerate(curves.items()):
      if curve.diverged_at is not None:
        label += f" (diverged at step {curve.diverged_at})"
      style = dict(STYLES[number % len(STYLES)])
      style |= {"markevery": max(1, len(curve.steps) // 8), "markersize": 5, "linewidth": 1.6}
      axis.plot(curve.steps, curve.accuracy, label=label, **style)
    for target in targets:
      axis.axhline(target, color="0.75", linewidth=0.8, zorder=0)
    axis.set_title(title, fontsize=11)
    axis.set_xlabel("training steps")
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.set(ylim=(0, 1.02), yticks=sorted({0, 0.2, 0.4, 0.6, 0.8, 1, *targets}))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="lower right", fontsize=9, frameon=False, handlelength=3.5)
  axes[0].set_ylabel("test accuracy")
  figure.savefig(path, dpi=150)


def histories(path: Path, runs: Mapping[str, Sequence[Any]]) -> None:
  """Draws loss and error of runs by epoch.

  Args:
    path: file for the figure.
    runs: evaluations of the runs by label, with the attributes `epoch`, `train_loss`, `test_loss`,
      `test_accuracy` and `validation_accuracy`, each a number or None.
  """
  figure = Figure(figsize=(10, 4.2), layout="constrained")
  losses, errors = figure.subplots(1, 2)
  for number, (label, rows) in enumerate(runs.items()):
    style = dict(STYLES[number % len(STYLES)])
    many = {"markersize": 4, "markevery": max(1, len(rows) // 12), "linewidth": 1.6}
    epochs = [row.epoch for row in rows]
    thin = {"color": style["color"], "linewidth": 0.9, "alpha": 0.6}

    def drawn(axis: Axes, values: Sequence[float | None], epochs=epochs, **options: Any) -> None:
      axis.plot(epochs, [np.nan if value is None else value for value in values], **options)

    drawn(losses, [row.test_loss for row in rows], label=f"{label}: test", **style, **many)
    drawn(losses, [row.train_loss for row in rows], label=f"{label}: training", **thin)
    drawn(errors, _errors([row.test_accuracy for row in rows]), label=label, **style, **many)
    held_out = [row.validation_accuracy for row in rows]
    if any(value is not None for value in held_out):
      drawn(errors, _errors(held_out), label=f"{label}: validation", **thin)
  errors.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=1))
  for axis, title in ((losses, "loss"), (errors, "test error")):
    axis.set_title(title, fontsize=11)
    axis.set_xlabel("epoch")
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)
    _legend(axis, fontsize=8, frameon=False, handlelength=3.5)
  figure.savefig(path, dpi=150)


def _legend(axis: Axes, **options: Any) -> None:
  """Adds a legend of all lines, whose labels are shown as they are: `$` and a `_` before too."""
  legend = axis.legend(axis.lines, [str(number) for number in range(len(axis.lines))], **options)
  for text, line in zip(legend.get_texts(), axis.lines, strict=True):
    text.set(text=str(line.get_label()), parse_math=False)


def _errors(accuracies: Sequence[float | None]) -> list[float | None]:
  return [None if value is None else 1 - value for value in accuracies]


def filters(path: Path, blocks: Mapping[str, Mapping[str, np.ndarray]]) -> None:
  """Draws the filters of the first layer, a row for each network.

  Each filter has a scale of gray of its own, from minus to plus its largest weight, since one large
  weight, or a network with large ones, would leave the others gray on gray.

  Args:
    path: file for the PNG.
    blocks: filters of the networks by label, for each title, (height, width, channels, number); of
      several channels the mean is drawn. The networks are the same in every block.
  """
  count = max(weights.shape[-1] for rows in blocks.values() for weights in rows.values())
  cell, tall, label_width, gap, heading = (
    0.83,
    1.0,
    1.6,
    0.25,
    0.35,
  )  # inches; with the gap after it
  number_of_rows = max(len(rows) for rows in blocks.values())
  block_width = cell * count + gap
  width = label_width + block_width * len(blocks)
  height = heading + tall * number_of_rows + 0.25
  figure = Figure(figsize=(width, height))

  def place(left: float, top: float, wide: float, high: float) -> Axes:
    bottom = height - top - high
    return figure.add_axes((left / width, bottom / height, wide / width, high / height))

  for block, (title, rows) in enumerate(blocks.items()):
    for row, (label, weights) in enumerate(rows.items()):
      drawn = np.where(np.isfinite(weights), weights, 0).mean(axis=2, dtype=np.float64)
      for number in range(drawn.shape[-1]):
        bound = float(np.abs(drawn[..., number]).max()) or 1.0
        left = label_width + block_width * block + cell * number
        axis = place(left, heading + tall * row, cell - 0.08, cell - 0.08)
        axis.imshow(drawn[..., number], cmap="gray", vmin=-bound, vmax=bound)
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel(f"±{bound:.2g}", fontsize=8, labelpad=2)
        if number == 0 and row == 0:
          axis.set_title(f"First-layer filters, {title}", loc="left", fontsize=10)
        if number == 0 and block == 0:
          axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=11)
  text = "Black and white are minus and plus the largest weight of a filter, the number below it."
  figure.text(label_width / width, 0.1 / height, text, fontsize=9)
  figure.savefig(path, dpi=150)
