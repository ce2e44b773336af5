"""Tables of a page, in Markdown."""

import math
from collections.abc import Sequence

import numpy as np

from experiments.ablation import attacked
from experiments.ablation.arms import ARMS
from experiments.ablation.claims import ends, told
from experiments.ablation.evidence import MEASURES, Evidence
from experiments.ablation.rules import FEWEST
from experiments.ablation.study import ATTACKED, MAIN, STUDIES, Rates
from experiments.common.markdown import filled
from experiments.common.statistics import match, mean


def level(evidence: Evidence, study: str, arm: str, name: str, rates: Rates = "paper") -> str:
  """Returns the mean of a measurement with its interval; runs that have none are counted."""
  values = evidence.measured(arm, name, rates)
  found = [value for value in values.values() if value is not None]
  quotient, layout = MEASURES[name].quotient, evidence.layout(study, name, rates)
  text = ""
  if found:
    estimate = mean([math.log(value) for value in found] if quotient else found)
    if layout is not None and layout.of(arm) and len(found) > 1:
      estimate = layout.level(arm)
    form, scale = {"steps": (",.0f", 1), "loss": (".3f", 1)}.get(name, (".2f", 100))
    low, high = ends(estimate, quotient)
    most = 1.0 if scale == 100 else math.inf
    numbers = math.exp(estimate.value) if quotient else estimate.value, low, min(high, most)
    middle, *brackets = (format(scale * number, form) for number in numbers)
    text = middle if math.isnan(low) else f"{middle} [{', '.join(brackets)}]"
  if lost := len(values) - len(found):
    text += f" ({'never' if name == 'steps' else 'diverged'} in {lost})"
  return text.strip()


def trainings(evidence: Evidence, study: str) -> str:
  """Returns the table of a study of training runs; of stopped ones, with their errors alone."""
  told_by = STUDIES[study]
  rates, early = told_by.rates, told_by.stop_after is not None
  target = f"steps to {100 * evidence.target:.4g} %"
  head = ["network", "seeds", "learning rate", "learnt value", "test accuracy, %", "paper"]
  head += ["error of epochs 1 to 3, %", "CNN's over it", target, "test loss", "ms a step"]
  body = []
  for arm in told_by.all_arms:
    runs, errors = evidence.runs(arm, rates), evidence.measured(arm, "errors", rates)
    used = [row["learning_rate"] for row in runs.values()] or [evidence.rate(arm, rates) or 0]
    learnt = [list(row["hyperparameters"].values()) for row in runs.values()]
    paper = told_by.paper.get(arm) if evidence.protocol.is_papers() else None
    layout, over = evidence.layout(study, "errors", rates), ""
    if layout and arm != "cnn" and len(layout.of("cnn").keys() & layout.of(arm).keys()) >= FEWEST:
      over = told(layout.contrast("cnn", arm), quotient=True)
    pace = evidence.pace(arm) if runs else None
    cells = [
      ", ".join(f"{values[0]:.3f}" for values in learnt if values),
      level(evidence, study, arm, "accuracy", rates),
      "" if paper is None else f"{100 * paper:.2f}",
      level(evidence, study, arm, "errors", rates),
      over,
      level(evidence, study, arm, "steps", rates),
      level(evidence, study, arm, "loss", rates),
      "" if pace is None else f"{pace:.1f}",
    ]
    kept = ["", "", "", *cells[3:5], "", "", ""] if early else cells
    seeds = str(len(errors) or "")
    if not early and len(runs) < len(errors):  # the others stopped after the first epochs
      seeds = f"{len(runs)}, errors {len(errors)}"
    tuned = errors and (rates != "paper" or study == "controls")
    body.append([told_by.label(arm), seeds, _rates(used) if tuned else "", *kept])
  return filled(head, body)


def _rates(used: Sequence[float]) -> str:
  """The learning rate, or how far it reaches where it is each seed's own."""
  low, high = min(used, default=0), max(used, default=0)
  return f"{low:.4g} to {high:.4g}" if low < high else f"{low:g}" if used else ""


def searches(evidence: Evidence, rates: Rates = "tuned") -> str:
  """What a learning rate is chosen by, on the held-out part, by that rate; the best is bold."""
  found = {arm: evidence.searched(arm, rates) for arm in MAIN}
  columns = sorted({rate for rows in found.values() for rate in rows})
  body = []
  for arm, rows in found.items():
    cells = [ARMS[arm].label]
    for rate in columns:
      values = [row["accuracy"] for row in rows.get(rate, [])]
      text = "" if not values else "diverged" if None in values else f"{100 * np.mean(values):.2f}"
      cells.append(f"**{text}**" if rate == evidence.rate(arm, rates) else text)
    body.append(cells)
  return filled(["accuracy, % at", *(f"{rate:g}" for rate in columns)], body)


def attacks(evidence: Evidence) -> str:
  """The paper's table 1, at the epsilon at which the CNN's accuracy is the paper's, with PGD."""
  body = []
  for arm in ATTACKED:
    rows = evidence.runs(arm, kind="attack")
    lengths = [1e4 * row["gradients"]["median_length"] for row in rows.values()]
    signs = attacked.signs_of_masking(
      {name: evidence.runs(name, kind="attack") for name in ATTACKED}, arm
    )
    body.append(
      [
        ARMS[arm].label,
        str(len(rows) or ""),
        level(evidence, "kernels", arm, "accuracy") if rows else "",
        f"{100 * attacked.PAPER_CLEAN[arm]:.2f}",
        level(evidence, "fgsm", arm, "fgsm"),
        f"{100 * attacked.PAPER_ATTACKED[arm]:.2f}",
        level(evidence, "fgsm", arm, "pgd"),
        f"{np.mean(lengths):.2f}" if lengths else "",
        "" if signs is None else "; ".join(signs) or "no sign found",
      ]
    )
  head = ["network", "seeds", "clean, %", "paper", f"FGSM at {evidence.epsilon:.3f}, %", "paper"]
  head += [f"PGD at {attacked.PGD_EPSILON:g}, %", "gradient length, 1e-4", "masked gradients"]
  return filled(head, body) if any(row[1] for row in body) else ""


def under_attack(evidence: Evidence) -> str:
  """Mean accuracies under attack, and of images that were made for other networks."""
  body, steps = [], [0.05, 0.1, 0.2, 0.3]
  for kind in ("fgsm", "pgd"):
    for source in ATTACKED:
      if not (rows := evidence.runs(source, kind="attack")):
        continue
      for target in (None, *ATTACKED):
        values = np.interp(steps, *attacked.mean_curve(rows, kind, target))
        shown = "itself" if target is None else f"another {ARMS[target].label}"
        name = f"{kind.upper()} made for {ARMS[source].label}"
        body.append([name, shown, *(f"{100 * value:.1f}" for value in values)])
  return filled(["accuracy, %", "shown to", *(f"at {epsilon:g}" for epsilon in steps)], body)


def scatter(evidence: Evidence) -> str:
  """Residuals of the layouts, and Bartlett's tests."""
  body = []
  for study in ("kernels", "tuned", "hyperparameters", "no-relu", "controls", "authors"):
    rates = STUDIES[study].rates
    for name in ("errors", "steps", "accuracy", "loss"):
      layout = evidence.layout(study, name, rates)
      if layout and layout.df and not math.isnan(layout.bartlett):
        unit = "%" if MEASURES[name].quotient else "points"
        named = {"kernels": "main, at 0.003", "tuned": "main, tuned"}.get(study, study)
        cells = [named, name, f"{100 * layout.sd:.2g} {unit}", str(layout.df)]
        body.append([*cells, f"{layout.bartlett:.3f}", "yes" if layout.pooled else "no"])
  head = ["table", "measurement", "residual", "degrees of freedom", "Bartlett's p", "pooled"]
  return filled(head, body)


def same(evidence: Evidence) -> str:
  """Returns in how many runs a function after a convolution is a kervolution bit for bit."""
  pairs = [
    row["weights"] == evidence.runs(conv)[seed]["weights"]
    for kerv, conv in (("polynomial", "power-outside"), ("sigmoid", "tanh-outside"))
    for seed, row in evidence.runs(kerv).items()
    if seed in evidence.runs(conv)
  ]
  return f"(with the same weights in the end, bit for bit, in {sum(pairs)} of {len(pairs)} runs)"


def alike(evidence: Evidence) -> str:
  """Returns how like the filters of both networks are, of one seed and of two."""
  cnn, knn = (
    {seed: np.array(row["filters"]) for seed, row in evidence.runs(arm, kind="filters").items()}
    for arm in STUDIES["filters"].arms
  )
  pairs = {(one, other): match(cnn[one], knn[other])[1] for one in cnn for other in knn}
  own = [np.mean(values) for (one, other), values in pairs.items() if one == other]
  others = [np.mean(values) for (one, other), values in pairs.items() if one != other]
  if not own or not others:
    return ""
  return (
    f"The mean correlation of pairs, paired the same way, is {np.mean(own):.2f} of a CNN and a "
    f"kervolutional network that start from the same weights ({len(own)} seeds), and "
    f"{np.mean(others):.2f} of those that start from different ones ({len(others)} pairs of seeds)."
  )
