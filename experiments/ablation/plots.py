"""Plots of a page: curves with bands, attacks, learning rates, filters."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from experiments.ablation import attacked
from experiments.ablation.arms import ARMS
from experiments.ablation.evidence import Evidence
from experiments.ablation.reading import common
from experiments.ablation.study import ATTACKED, STUDIES, Rates
from experiments.common.bands import (
  FONT,
  Band,
  convergence,
  draw_band,
  error_axes,
  finish,
  panels_of,
)
from experiments.common.figures import STYLES
from experiments.common.statistics import match

_DPI = 130
COLLAPSED = 0.5  # error of a run that has learnt next to nothing

_LOOKS = (
  ("cnn",),
  ("polynomial", "linear-polynomial-polynomial"),
  ("gaussian", "linear-gaussian-polynomial"),
  ("sigmoid",),
  ("l1", "gaussian-2018", "cnn-step-polynomial"),
  ("l2", "power-inside", "cnn-step-gaussian"),
  ("conv-kerv", "tanh-inside", "cnn-wide"),
  ("kerv-kerv", "volterra", "learnable"),
  ("polynomial-2-0.5", "polynomial-3-0.5", "polynomial-5-0.5"),
  ("polynomial-2-1", "polynomial-5-1"),
  ("linear-cnn",),
  ("polynomial-2-2", "polynomial-3-2", "polynomial-5-2"),
)
"""Networks by their style, the same in every plot."""


def style(arm: str) -> dict[str, Any]:
  """The color, line and marker of a network."""
  return STYLES[next(place for place, arms in enumerate(_LOOKS) if arm in arms)]


def draw(evidence: Evidence, folder: Path) -> list[str]:
  """Draws what the rows allow into a folder, and returns the names of the files."""
  made: list[str] = []

  def save(figure: Figure | None, name: str) -> None:
    if figure is not None:
      figure.savefig(folder / f"{name}.png", dpi=_DPI)
      made.append(f"{name}.png")

  for name, study in STUDIES.items():
    if name in ("kernels", "arrangement"):
      at: dict[str, Rates] = {"learning rate 0.003": "paper", "its own learning rate": "tuned"}
      panels = {title: _learning(evidence, name, study.arms, rates) for title, rates in at.items()}
      save(convergence(panels, evidence.target), "convergence" if name == "kernels" else name)
    elif name == "tuned":
      save(_rates(evidence), name)
    elif name == "fgsm":
      save(_attacks(evidence), name)
    elif name == "filters":
      save(_filters(evidence), name)
    elif any(evidence.runs(arm) for arm in study.arms):
      panels = {title: _learning(evidence, name, arms) for title, arms in study.panels.items()}
      save(convergence(panels, evidence.target), name)
  return made


def _learning(
  evidence: Evidence, study: str, arms: Sequence[str], rates: Rates = "paper"
) -> list[Band]:
  """Test error by epoch, where runs are evaluated equally often; without those that diverged."""
  bands = []
  for arm in arms:
    runs = [row for row in evidence.runs(arm, rates).values() if row["accuracy"] is not None]
    curves = [common(row) for row in runs]
    if steps := sorted(set.intersection(*map(set, curves))) if curves else []:
      label = STUDIES[study].label(arm)
      label += f", {evidence.rate(arm, rates):g}" if rates == "tuned" else ""
      errors = np.array([[max(1 - curve[step], 1e-4) for step in steps] for curve in curves])
      bands.append(Band(np.array(steps) / runs[0]["steps_per_epoch"], errors, label, style(arm)))
  return bands


def _rates(evidence: Evidence) -> Figure | None:
  """The error on held-out images by learning rate; runs that learnt nothing are marked."""
  panels = STUDIES["tuned"].panels
  if not any(evidence.searched(arm) for arms in panels.values() for arm in arms):
    return None
  figure, axes = panels_of(len(panels))
  for axis, (title, arms) in zip(axes, panels.items(), strict=True):
    for number, arm in enumerate(arms):
      found = {rate: rows[0]["accuracy"] or 0.0 for rate, rows in evidence.searched(arm).items()}
      kept = sorted(rate for rate, accuracy in found.items() if 1 - accuracy < COLLAPSED)
      if kept:
        errors = np.array([[1 - found[rate] for rate in kept]])
        draw_band(axis, Band(np.array(kept), errors, ARMS[arm].label, style(arm)))
      lost = np.array([rate for rate in found if rate not in kept])
      beside = lost * 1.07 ** (number - len(arms) / 2)  # they would hide each other
      axis.plot(beside, 0.8 + 0 * lost, "x", color=style(arm)["color"], markersize=8)
    axis.plot([], [], "x", color="0.3", label="collapsed or diverged")
    axis.axvline(0.003, color="0.6", linewidth=0.9, zorder=0)
    axis.set(xscale="log", yscale="log")
    finish(axis, title, "learning rate (gray line: the paper's)", "upper right", below=0.1)
  error_axes(axes, "error on held-out images")
  return figure


def _attacks(evidence: Evidence) -> Figure | None:
  """Accuracy under FGSM with the paper's points, under PGD, and of images made for another CNN."""
  attacks = {arm: evidence.runs(arm, kind="attack") for arm in ATTACKED}
  attacks = {arm: rows for arm, rows in attacks.items() if rows}
  if "cnn" not in attacks:
    return None

  def bands(kind: str, source: str | None = None) -> dict[str, Band]:
    found = {}
    for arm, own in attacks.items():
      rows, target = (own, None) if source is None else (attacks[source], arm)
      curves = [attacked.curve(row, kind, target) for row in rows.values()]
      values = np.array([accuracy for _, accuracy in curves])
      found[arm] = Band(curves[0][0], values, ARMS[arm].label, style(arm))
    return found

  panels = {"FGSM": bands("fgsm"), "PGD, 20 steps": bands("pgd")}
  panels["FGSM made for another CNN"] = bands("fgsm", "cnn")
  figure, axes = panels_of(len(panels))
  for axis, (title, shown) in zip(axes, panels.items(), strict=True):
    for number, (arm, band) in enumerate(shown.items()):
      draw_band(axis, band)
      if axis is axes[0] and not np.isnan(evidence.epsilon):
        beside = evidence.epsilon + 0.011 * (0, -1, 1)[number]  # they would hide each other
        look = style(arm) | {"linestyle": "none", "markerfacecolor": "white", "markersize": 9}
        point = [attacked.PAPER_ATTACKED[arm]]
        axis.plot([beside], point, label=f"{band.label}, paper", zorder=5, **look)
    axis.set(xlim=(-0.01, 0.31), ylim=(0, 1.02))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    legend = "lower left" if axis is axes[0] else "upper right"
    finish(axis, title, "epsilon, of pixels in [0, 1]", legend)
  for axis in axes[::2]:
    axis.set_ylabel("test accuracy", fontsize=FONT)
  return figure


def _filters(evidence: Evidence) -> Figure | None:
  """Filters of one seed, paired, each pair under its correlation."""
  seed, arms = 0, STUDIES["filters"].arms
  rows = [evidence.runs(arm, kind="filters") for arm in arms]
  if not all(seed in each for each in rows):
    return None
  first, second = (np.array(each[seed]["filters"]) for each in rows)
  order, correlations = match(first, second)
  shown = {"CNN": first, f"KNN {ARMS[arms[1]].label}": second[..., order]}
  figure = Figure(figsize=(1.1 * len(order) + 1.2, 2.6), layout="constrained")
  axes = figure.subplots(len(shown), len(order))
  for row, (label, weights) in enumerate(shown.items()):
    axes[row][0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=FONT)
    for number, axis in enumerate(axes[row]):
      bound = max(float(np.abs(each[..., number]).max()) for each in shown.values())
      axis.imshow(weights[..., 0, number], cmap="gray", vmin=-bound, vmax=bound)
      axis.set(xticks=[], yticks=[])
      if row == 0:
        axis.set_title(f"{correlations[number]:+.2f}", fontsize=FONT)
  return figure
