"""Tables of a page, in Markdown."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from experiments.ablation import robustness
from experiments.ablation.arms import ARMS
from experiments.ablation.evidence import Evidence, column
from experiments.ablation.rows import Row
from experiments.ablation.speed import early_error, epochs_to_target, steps_to_target
from experiments.ablation.study import ATTACKED, STUDIES, TUNED, label
from experiments.ablation.summary import Summary


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
  """A table.

  Args:
    head: of the columns.
    body: cells, row by row.
  """
  rule = ["---"] * len(head)
  return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *body))


def accuracy(runs: Mapping[int, Row]) -> str:
  """Mean, standard deviation and interval of the final accuracy; a run that diverged is counted.

  Args:
    runs: by seed.
  """
  values = [100 * value for value in column(runs, "accuracy") if value is not None]
  lost = len(runs) - len(values)
  text = spread(values, 2, most=100) if values else ""
  return text + (f" ({lost} diverged)" if lost else "")


def steps(
  runs: Mapping[int, Row],
  read: Callable[[Row], float | None] = steps_to_target,
  digits: int = 0,
  *,
  interval: bool = True,
) -> str:
  """Mean, standard deviation and interval of a time to the target.

  Args:
    runs: by seed.
    read: the time of a row, None if it does not get there.
    digits: after the point.
    interval: whether that is told too.
  """
  times = [read(row) for row in runs.values()]
  values = [time for time in times if time is not None]
  never = len(times) - len(values)
  text = spread(values, digits, interval=interval) if values else ""
  return f"{text} (never in {never})".lstrip() if never else text


def early(runs: Mapping[int, Row]) -> str:
  """Mean, standard deviation and interval of the error of the first epochs, in percent.

  Args:
    runs: by seed.
  """
  values = [error for row in runs.values() if (error := early_error(row)) is not None]
  return spread([100 * value for value in values], 2) if values else ""


def spread(
  values: Sequence[float], digits: int, *, interval: bool = True, most: float = math.inf
) -> str:
  """Mean, standard deviation and 95 % interval, as far as it is possible.

  Args:
    values: one for each run, at least one, not negative.
    digits: after the point.
    interval: whether that is told too.
    most: what a value can be.
  """
  summary = Summary.of(values)
  if summary.number == 1:
    return f"{summary.mean:,.{digits}f}"
  text = f"{summary.mean:,.{digits}f} ± {summary.sd:,.{digits}f}"
  low, high = max(summary.low, 0.0), min(summary.high, most)
  return text + (f" [{low:,.{digits}f}, {high:,.{digits}f}]" if interval else "")


def trainings(evidence: Evidence, study: str) -> str:
  """The table of a study of training runs.

  Args:
    evidence: of the page.
    study: its name.
  """
  told = STUDIES[study]
  arms = (*told.beside, *told.arms)
  head = ["network", "seeds"] + ([told.column] if told.column else [])
  head += ["test accuracy, %"] + (["paper"] if told.paper else [])
  head += ["at 0.003, %"] if told.tuned else []
  head += ["error of epochs 1 to 3, %"]
  head += ["steps to 98 %", "epochs to 98 %", "seconds to 98 %"]
  body = []
  for arm in arms:
    runs = evidence.runs(study, arm)
    if not runs:
      continue
    cells = [label(study, arm), str(len(runs))]
    if told.column == "learnt value":
      learnt = [list(value.values()) for value in column(runs, "hyperparameters")]
      cells.append(", ".join(f"{values[0]:.3f}" for values in learnt if values))
    elif told.column:
      used = column(runs, "learning_rate")
      cells.append(f"{used[0]:g}" if len(set(used)) == 1 else spread(used, 4))
    cells += [accuracy(runs)]
    if told.paper:
      cells.append(f"{100 * told.paper[arm]:.2f}" if arm in told.paper else "")
    if told.tuned:
      same = {seed: row for seed, row in evidence.at_paper_rate(arm).items() if seed in runs}
      cells.append(accuracy(same) if same else "")
    cells.append(early(runs))
    cells += [steps(runs), steps(runs, epochs_to_target, 2), _seconds(runs, evidence.pace(arm))]
    body.append(cells)
  return table(head, body) if body else ""


def _seconds(runs: Mapping[int, Row], pace: float | None) -> str:
  """Seconds to the target, at the network's pace in seconds a step."""
  if pace is None or not any(steps_to_target(row) for row in runs.values()):
    return ""

  def seconds(row: Row) -> float | None:
    count = steps_to_target(row)
    return None if count is None else count * pace

  return steps(runs, seconds, interval=False)


def searches(evidence: Evidence) -> str:
  """Accuracies on the held-out part by learning rate.

  Args:
    evidence: of the page.
  """
  arms = TUNED
  rates = sorted({rate for arm in arms for rate in evidence.searched(arm)})
  body = []
  for arm in arms:
    rows, best = evidence.searched(arm), evidence.rate("tuned", arm)
    if not rows:
      continue
    cells = [ARMS[arm].label]
    for rate in rates:
      value = "" if rate not in rows else _percent(rows[rate]["accuracy"])
      cells.append(f"**{value}**" if rate == best else value)
    body.append(cells)
  return table(["network", *(f"{rate:g}" for rate in rates)], body) if body else ""


def table_1(evidence: Evidence) -> str:
  """The paper's table 1, at the epsilon at which the CNN's accuracy is the paper's.

  Args:
    evidence: of the page.
  """
  epsilon = robustness.paper_epsilon(evidence.attacks("cnn"))
  body = []
  for arm in ATTACKED:
    rows = evidence.attacks(arm)
    if not rows:
      continue
    clean = spread([100 * value for value in column(rows, "accuracy")], 2, most=100)
    under = ""
    if epsilon is not None:
      values = [100 * robustness.accuracy_at(row, epsilon) for row in rows.values()]
      under = spread(values, 2, most=100)
    paper = (
      f"{100 * robustness.PAPER_CLEAN[arm]:.2f}",
      f"{100 * robustness.PAPER_ATTACKED[arm]:.2f}",
    )
    lengths = spread([1e4 * length for length in robustness.gradient_lengths(rows)], 2)
    body.append([ARMS[arm].label, str(len(rows)), clean, paper[0], under, paper[1], lengths])
  at = "" if epsilon is None else f" at {epsilon:.3f}"
  head = ["network", "seeds", "clean, %", "paper", f"FGSM{at}, %", "paper"]
  head.append("gradient length, 1e-4")
  return table(head, body) if body else ""


def attacked(evidence: Evidence, kind: str) -> str:
  """Accuracies under attack, at the epsilons of PGD.

  Args:
    evidence: of the page.
    kind: "fgsm" or "pgd".
  """
  body, epsilons = [], []
  for arm in ATTACKED:
    if rows := evidence.attacks(arm):
      epsilons = robustness.curve(next(iter(rows.values())), "pgd")[0][1:]
      values = [np.interp(epsilons, *robustness.curve(row, kind)) for row in rows.values()]
      cells = [spread(each.tolist(), 2, most=100) for each in 100 * np.transpose(values)]
      body.append([ARMS[arm].label, str(len(rows)), *cells])
  head = ["network", "seeds", *(f"{kind.upper()} at {epsilon:g}, %" for epsilon in epsilons)]
  return table(head, body) if body else ""


def transfer(evidence: Evidence, kind: str, epsilon: float) -> str:
  """Accuracies on images that were made for other networks, of another seed.

  Args:
    evidence: of the page.
    kind: "fgsm" or "pgd".
    epsilon: of the attack.
  """
  body = []
  for source in ATTACKED:
    rows = evidence.attacks(source)
    if not rows:
      continue
    cells = [f"made for {ARMS[source].label}"]
    own = [row["white_box"][kind][str(epsilon)] for row in rows.values()]
    cells.append(_percent(float(np.mean(own))))
    for target in ATTACKED:
      values = [row["transfer"][target][kind][str(epsilon)] for row in rows.values()]
      cells.append(_percent(float(np.mean(values))))
    body.append(cells)
  head = [f"{kind.upper()} at {epsilon:g}, %", "shown to itself"]
  head += [f"another {ARMS[name].label}" for name in ATTACKED]
  return table(head, body) if body else ""


def _percent(value: float | None) -> str:
  return "diverged" if value is None else f"{100 * value:.2f}"
