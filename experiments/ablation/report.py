"""The page and its plots, from the rows to the files."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments import UsageError
from experiments.ablation import alikeness, page, plots, robustness
from experiments.ablation.command import ReportCommand
from experiments.ablation.evidence import Evidence
from experiments.ablation.protocol import TARGET
from experiments.ablation.rows import Row, Rows
from experiments.ablation.study import ATTACKED, STUDIES, label
from experiments.common import figures
from experiments.common.files import write_atomically


def run(command: ReportCommand) -> int:
  """Makes the page.

  Args:
    command: its options.

  Returns:
    The exit code, 0.

  Raises:
    UsageError: if there are no rows, or the README has no place for its part.
  """
  folder = Path(command.out)
  rows = Rows(folder)
  evidence = Evidence(rows.all())
  if not evidence.rows:
    raise UsageError(f"there are no rows in {command.out!r}: `python -m experiments ablation all`")
  readme = None if command.readme is None else Path(command.readme)
  text = None if readme is None else _readable(readme)
  drawn = draw(evidence, folder)
  write_atomically(folder / "README.md", page.page(evidence, rows.protocol, drawn))
  if readme is not None and text is not None:
    before, rest = text.split(page.BEGIN)
    after = rest.split(page.END)[1]
    place = os.path.relpath(folder, readme.parent)
    section = page.readme_section(evidence, rows.protocol, place, drawn)
    write_atomically(readme, f"{before}{page.BEGIN}\n\n{section}\n\n{page.END}{after}")
  print(f"{len(evidence.rows)} rows: wrote README.md, {', '.join(drawn) or 'no plots'} in {folder}")
  if readme is not None:
    print(f'the part between the comments "mnist" of {readme} is new too')
  return 0


def draw(evidence: Evidence, folder: Path) -> list[str]:
  """Draws what the rows allow.

  Args:
    evidence: of the rows.
    folder: for the files.

  Returns:
    Their names.
  """
  made = []
  for name, study in STUDIES.items():
    file = f"{study.plot or name}.png"
    if study.tuned:
      searched = {
        title: {label(_told(name, title), arm): _searched(evidence, arm) for arm in arms}
        for title, arms in study.panels.items()
      }
      if any(values for networks in searched.values() for values in networks.values()):
        plots.rates(folder / file, searched)
        made.append(file)
    elif filled := {title: bands for title, bands in _panels(evidence, name).items() if bands}:
      plots.convergence(folder / file, filled, TARGET)
      made.append(file)
  if any(evidence.attacks(arm) for arm in ATTACKED):
    _draw_attacks(evidence, folder / "fgsm.png")
    made.append("fgsm.png")
  if _draw_filters(evidence, folder / "filters.png"):
    made.append("filters.png")
  return made


def _told(study: str, panel: str) -> str:
  """The study whose labels a panel has."""
  return "arrangement" if panel == "arrangements" else study


def _panels(evidence: Evidence, study: str) -> dict[str, dict[str, plots.Band]]:
  """Bands by panel and label."""

  def bands(arms: Sequence[str], rows_of: str) -> dict[str, plots.Band]:
    found = {}
    for arm in arms:
      if runs := evidence.runs(rows_of, arm):
        rate = evidence.rate(rows_of, arm)
        text = label(study, arm) + (f", lr {rate:g}" if STUDIES[rows_of].tuned else "")
        found[text] = plots.learning_band(runs)
    return found

  told = STUDIES[study]
  if told.at_both_rates:
    return {
      "the paper's protocol, lr 0.003": bands(told.arms, study),
      "each network's own learning rate": bands(told.arms, "tuned"),
    }
  return {title: bands(arms, study) for title, arms in told.panels.items()}


def _searched(evidence: Evidence, arm: str) -> dict[float, float | None]:
  return {rate: row["accuracy"] for rate, row in evidence.searched(arm).items()}


def _draw_attacks(evidence: Evidence, path: Path) -> None:
  """FGSM with the paper's points, PGD, and the transfer from the CNN."""

  def band(rows: Mapping[int, Row], kind: str, target: str | None = None) -> plots.Band:
    curves = [robustness.curve(row, kind, target) for row in rows.values()]
    return plots.Band(curves[0][0], np.array([accuracy for _, accuracy in curves]))

  arms = [arm for arm in ATTACKED if evidence.attacks(arm)]
  labels = {arm: label("fgsm", arm) for arm in arms}
  panels = {
    "FGSM": {labels[arm]: band(evidence.attacks(arm), "fgsm") for arm in arms},
    "PGD, 20 steps": {labels[arm]: band(evidence.attacks(arm), "pgd") for arm in arms},
  }
  if "cnn" in arms:
    cnn = evidence.attacks("cnn")
    panels["FGSM made for another CNN"] = {labels[a]: band(cnn, "fgsm", a) for a in arms}
  points = {labels[arm]: robustness.PAPER_ATTACKED[arm] for arm in arms}
  epsilon = robustness.paper_epsilon(evidence.attacks("cnn"))
  plots.robustness(path, panels, points, epsilon)


def _draw_filters(evidence: Evidence, path: Path) -> bool:
  """Filters of one seed, paired; False if rows are missing."""
  seed, arms = 0, STUDIES["filters"].arms
  rows = [evidence.filters(arm) for arm in arms]
  if not all(seed in each for each in rows):
    return False
  first, second = (np.array(each[seed]["filters"]) for each in rows)
  order, correlations = alikeness.match(first, second)
  title = "correlations " + ", ".join(f"{value:+.2f}" for value in correlations)
  knn = f"KNN {label('hyperparameters', arms[1])}"
  figures.filters(path, {title: {"CNN": first, knn: second[..., order]}}, one_scale=False)
  return True


def _readable(readme: Path) -> str:
  """The README, which must have a place for its part."""
  try:
    text = readme.read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise UsageError(f"`--readme` must be a file to read, got {str(readme)!r}: {error}") from None
  if text.count(page.BEGIN) != 1 or text.count(page.END) != 1:
    raise UsageError(
      f"`--readme` must have one line {page.BEGIN!r} and one {page.END!r}, got {str(readme)!r}"
    )
  return text
