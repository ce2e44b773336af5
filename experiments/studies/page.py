"""The page of a study: the answer, its table, the rules, what is still to be run, and plots."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments import UsageError
from experiments.common.bands import Band, draw_band, error_axes, finish, panels_of
from experiments.common.figures import STYLES
from experiments.common.files import write_atomically
from experiments.common.markdown import filled, table
from experiments.common.statistics import CONFIDENCE, Estimate
from experiments.studies.measures import (
  Finding,
  Rates,
  Rows,
  find,
  layout,
  of_arm,
  pilot,
  rates_of,
  verdicts,
)
from experiments.studies.plan import Stage, Study

PAGE = "README.md"
_RATES: dict[Rates, str] = {"reference": "at the {}'s rate", "own": "each at its own rate"}
_UNITS = {"accuracy": "points of accuracy over the {}'s", "steps": "times the {}'s speed"}
_WORDS = ("better", "undecided", "not better")


def check(folder: Path, study: Study) -> None:
  """Checks that the page would be written over nothing but an earlier one.

  Args:
    folder: folder of the page.
    study: the study.

  Raises:
    UsageError: if there is another text under its name.
  """
  file = folder / PAGE
  if file.exists() and not file.read_text(errors="replace").startswith(f"# {study.title}\n"):
    raise UsageError(
      f"`--out` must be a folder for a study, got {str(folder)!r}, whose {PAGE} is no page of this "
      "one and would be lost"
    )


def write(name: str, study: Study, rows: Rows, folder: Path) -> None:
  """Writes the page and its plots.

  Args:
    name: what the command calls the study.
    study: the study.
    rows: its rows.
    folder: the folder, which is made if need be.
  """
  check(folder, study)
  folder.mkdir(parents=True, exist_ok=True)
  parts = [f"# {study.title}", _answer(study, rows), _command(name), study.about.strip()]
  for setting in study.settings:
    parts += _setting(study, rows, setting, folder)
  parts += ["## Rules", study.rules.strip(), _searched(study, rows), *_plan(name, study, rows)]
  write_atomically(folder / PAGE, "\n\n".join(part for part in parts if part) + "\n")


def _command(name: str) -> str:
  command = f"python -m experiments study {name}"
  return (
    f"Made by `{command} --minutes 0` from [rows.jsonl](rows.jsonl), each of which has the command "
    f"and the commit that made it; `{command}` makes the runs that are missing."
  )


def _told(finding: Finding, measure: str) -> str:
  """A difference with its interval, or why there is none."""
  if finding.estimate is None:
    return finding.why
  value, (low, high) = finding.estimate.value, finding.estimate.interval
  if measure == "steps":
    return f"{math.exp(value):.2f} [{math.exp(low):.2f}, {math.exp(high):.2f}]"
  return f"{100 * value:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"


def _answer(study: Study, rows: Rows) -> str:
  """How many runs diverged, and the verdicts: a sentence for a setting, a measure and a rate."""
  reference, groups = study.arms[study.reference].label, {}
  for (setting, arm, measure, rates), word in verdicts(study, rows).items():
    told = _told(find(study, rows, setting, arm, measure, rates), measure)
    words = groups.setdefault((setting, measure, rates), {})
    words.setdefault(word, []).append(f"{study.arms[arm].label} ({told})")
  if not groups:
    return "**No answer yet**: the runs that decide it are still to be made."
  lost = [study.arms[key.arm].label for key, row in rows.items() if row["accuracy"] is None]
  told = ", ".join(f"{lost.count(label)} of {label}" for label in dict.fromkeys(lost))
  sentences = [f"{len(lost) or 'None'} of {len(rows)} runs diverged{told and f' ({told})'}."]
  for (setting, measure, rates), words in groups.items():
    parts = [
      f"**{word}** {'is' if len(words[word]) == 1 else 'are'} {', '.join(words[word])}"
      for word in _WORDS
      if word in words
    ]
    where = _RATES[rates].format(reference)
    about, unit = study.settings[setting].label, _UNITS[measure].format(reference)
    sentences.append(f"On {about}, {where}, in {unit}, {'; '.join(parts)}.")
  return " ".join(sentences)


def _setting(study: Study, rows: Rows, setting: str, folder: Path) -> list[str]:
  """The table and the plot of a setting; nothing without runs."""
  about, reference = study.settings[setting], study.arms[study.reference].label
  decided, asked = verdicts(study, rows), _rates(study, setting)
  timed = any(layout(study, rows, setting, "steps", rates) for rates in asked)
  head, body = ["network"], []
  for rates in asked:
    where = _RATES[rates].format(reference)
    head += [f"accuracy, {where}", "points more"] + ["times as fast"] * timed
  for name, arm in study.arms.items():
    cells = [arm.label]
    for rates in asked:
      found = of_arm(study, rows, setting, name, rates)
      rate = study.rate(setting, study.reference if rates == "reference" else name, rows)
      made = layout(study, rows, setting, "accuracy", rates)
      level = "diverged" if found else ""
      if made is not None and made.of(name):
        level = f"{100 * made.level(name).value:.2f} % ({len(found)} runs at {rate:g})"
      cells.append(level)
      for measure in ("accuracy", "steps") if timed else ("accuracy",):
        against = found and name != study.reference
        finding = find(study, rows, setting, name, measure, rates) if against else Finding(None)
        word = decided.get((setting, name, measure, rates), "")
        cells.append(_told(finding, measure) + (word and f" ({word})"))
    body.append(cells)
  made = filled(head, body)
  if not made:
    return []
  steps = f"; and the {reference}'s steps to {100 * about.target:g} % over the network's" * timed
  text = (
    f"Mean test accuracy after the last epoch; the difference from the {reference}'s in points"
    f"{steps}. In brackets intervals of {100 * CONFIDENCE:g} %, each one's own."
  )
  return [f"## {about.label}", text, made, _plot(study, rows, setting, folder)]


def _rates(study: Study, setting: str) -> list[Rates]:
  """The learning rates that arms are compared at in a setting."""
  stages = [stage for stage in study.stages if stage.setting == setting]
  return [rates for rates in _RATES if any(rates in rates_of(stage) for stage in stages)]


def _plot(study: Study, rows: Rows, setting: str, folder: Path) -> str:
  """Draws test error against steps and against time, at own rates, and returns what shows it.

  There is nothing to draw if runs were evaluated only once.
  """
  made = [_finished(study, rows, setting, name) for name in study.arms]
  if max((len(row["steps"]) for found in made for row in found), default=0) < 2:
    return ""
  figure, axes = panels_of(2)
  pace = {}
  for name, found in zip(study.arms, made, strict=True):
    times = [row["train_seconds"] / row["steps"][-1] for row in found]
    pace[name] = min(times, default=math.nan)
  for number, ((name, arm), found) in enumerate(zip(study.arms.items(), made, strict=True)):
    if not found:
      continue
    look = STYLES[number % len(STYLES)]
    steps = np.array(found[0]["steps"])
    keep = steps > 0
    errors = np.array([[1 - a for a in row["test_accuracy"]] for row in found])[:, keep]
    times = steps * pace[name] / (steps[-1] * pace[study.reference])
    for axis, x in zip(axes, (steps, times), strict=True):
      draw_band(axis, Band(x[keep], np.maximum(errors, 1e-4), arm.label, look))
  label = study.arms[study.reference].label
  for axis, title, x in zip(
    axes,
    ("by steps", "by time"),
    ("steps", f"time of training (all of the {label}'s: 1)"),
    strict=True,
  ):
    axis.set_yscale("log")
    finish(axis, title, x, "upper right")
  error_axes(axes, "test error (logarithmic)")
  name = f"{setting}.png"
  figure.savefig(folder / name, dpi=130)
  return f"![Test error]({name})"


def _finished(study: Study, rows: Rows, setting: str, arm: str) -> list[Mapping[str, Any]]:
  """The runs of an arm at its own rate that did not diverge."""
  found = of_arm(study, rows, setting, arm, "own").values()
  return [row for row in found if row["accuracy"] is not None]


def _searched(study: Study, rows: Rows) -> str:
  """The searches for learning rates, of which the best is bold."""
  body = []
  for setting, about in study.settings.items():
    for arm, told in study.arms.items():
      keys = study.searches(setting, arm)
      best, cells = study.rate(setting, arm, rows), []
      for rate in about.rates:
        found = [rows[key]["accuracy"] for key in keys if key.rate == rate and key in rows]
        known = [value for value in found if value is not None]
        text = "diverged" if found else ""
        if found and len(known) == len(found):
          text = f"{rate:g}: {100 * sum(known) / len(known):.2f} %"
        cells.append(f"**{text}**" if rate == best else text)
      if any(cells):
        body.append([about.label, told.label, *cells])
  if not body:
    return ""
  columns = max(len(row) for row in body)
  rest = [""] * (columns - 2)
  return "## Learning rates\n\n" + table(
    ["data", "network", "accuracy on held-out images by learning rate", *rest[1:]],
    [row + [""] * (columns - len(row)) for row in body],
  )


def _plan(name: str, study: Study, rows: Rows) -> list[str]:
  """What the pilot says, and the runs of each stage."""
  known = pilot(study, rows)
  body = []
  for stage in study.stages:
    wanted = set(study.wanted(stage, rows))
    cells = [
      stage.name,
      study.settings[stage.setting].label,
      "verdicts" if stage.confirms else "pilot" if stage.pilot else "intervals alone",
      f"{len(wanted & rows.keys())} of {len(wanted)}" + _more(study, stage, rows),
      "" if known is None or stage.pilot else f"{100 * half_width(known[0], stage):.2f} points",
      f"`python -m experiments study {name} --stages {stage.name}`",
    ]
    body.append(cells)
  head = ["stage", "data", "for", "runs", "half an interval, by the pilot", "command"]
  parts = ["## Plan", table(head, body)]
  if known is not None:
    spread = 100 * known[0].error * math.sqrt(known[0].df + 1)
    parts.append(
      f"The pilot, {known[0].df + 1:g} runs of the {study.arms[study.reference].label} at the "
      f"middle rate: accuracy {100 * known[0].value:.2f} %, standard deviation {spread:.2f} "
      f"points; a run took {known[1] / 60:.0f} minutes at least, on a machine that was shared."
    )
  return parts


def _more(study: Study, stage: Stage, rows: Rows) -> str:
  """Says that a stage has more runs once its learning rates are chosen."""
  chosen = all(study.rate(stage.setting, arm, rows) is not None for arm in stage.arms)
  return "" if chosen or stage.pilot else ", and more once rates are chosen"


def half_width(accuracy: Estimate, stage: Stage) -> float:
  """Returns half of the interval to expect of a difference of two arms of a stage.

  Args:
    accuracy: estimate of the pilot.
    stage: the stage.
  """
  number = len(stage.seeds)
  spread = accuracy.error * math.sqrt(accuracy.df + 1)
  quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, max((len(stage.arms) - 1) * (number - 1), 1)))
  return quantile * spread * math.sqrt(2 / number)
