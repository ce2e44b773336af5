"""What rows of attacks say."""

import math
from collections.abc import Mapping

import numpy as np

from experiments.ablation.arms import ARMS
from experiments.ablation.reading import Row
from experiments.ablation.rules import FEWEST, RULES
from experiments.ablation.study import ATTACKED

PAPER_CLEAN = {"cnn": 0.9917, "l1": 0.9912, "l2": 0.9911}
PAPER_ATTACKED = {"cnn": 0.7192, "l1": 0.7408, "l2": 0.7636}
"""Table 1."""
PGD_EPSILON = 0.1  # at which networks are compared under PGD
Attacks = Mapping[str, Mapping[int, Row]]  # rows of attacks, by arm and seed


def curve(row: Row, kind: str = "fgsm", target: str | None = None) -> tuple[np.ndarray, np.ndarray]:
  """Returns epsilons, from 0 on, and accuracies under "fgsm" or "pgd".

  They are of the network that the images were made for or, with `target`, of one that sees them.
  """
  kinds = row["white_box"] if target is None else row["transfer"][target]
  values = {"0.0": kinds["fgsm"]["0.0"]} | kinds[kind]
  pairs = sorted((float(epsilon), accuracy) for epsilon, accuracy in values.items())
  return np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])


def mean_curve(
  rows: Mapping[int, Row], kind: str = "fgsm", target: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the mean over seeds, of at least one row, of what `curve` gives."""
  found = [curve(row, kind, target) for row in rows.values()]
  return found[0][0], np.mean([accuracy for _, accuracy in found], axis=0)


def paper_epsilon(rows: Mapping[int, Row]) -> float:
  """Returns the epsilon at which the CNN's mean accuracy is that of table 1; NaN if at none."""
  if not rows:
    return math.nan
  epsilons, accuracy = mean_curve(rows)
  below = np.flatnonzero(accuracy <= PAPER_ATTACKED["cnn"])
  if not len(below) or below[0] == 0:
    return math.nan
  after = below[0]
  left, right = accuracy[after - 1], accuracy[after]
  part = (left - PAPER_ATTACKED["cnn"]) / (left - right)
  return float(epsilons[after - 1] + part * (epsilons[after] - epsilons[after - 1]))


def accuracy_at(row: Row, epsilon: float) -> float | None:
  """Returns accuracy under FGSM, between two epsilons by a straight line; None at no epsilon."""
  return None if math.isnan(epsilon) else float(np.interp(epsilon, *curve(row)))


def signs_of_masking(attacks: Attacks, arm: str) -> list[str] | None:
  """Returns signs that a network's gradients hide what they should; None if rows are missing.

  References:
    Athalye, Carlini, Wagner, "Obfuscated Gradients Give a False Sense of Security", ICML 2018.
  """
  others = [source for source in ATTACKED if source != arm]
  shown = [{row["spec"]["target_seed"] for row in attacks[source].values()} for source in others]
  if min(len(attacks[arm].keys() & seeds) for seeds in shown) < FEWEST:
    return None
  slack = RULES["masked"]["slack"]
  epsilons, by_fgsm = mean_curve(attacks[arm])
  steps, by_pgd = mean_curve(attacks[arm], "pgd")
  signs = [sign for source in others if (sign := _beaten(attacks, source, arm, slack))]
  by_one = np.interp(steps, epsilons, by_fgsm)
  worst = int(np.argmax(by_pgd - by_one))
  if by_pgd[worst] - by_one[worst] > slack:
    both = f"PGD leaves {100 * by_pgd[worst]:.1f} %, FGSM {100 * by_one[worst]:.1f} %"
    signs.append(f"{both} at epsilon {steps[worst]:g}")
  if by_pgd[-1] >= 0.1:
    signs.append(f"PGD at epsilon {steps[-1]:g} leaves {100 * by_pgd[-1]:.1f} %")
  without = float(np.mean([row["gradients"]["images_without"] for row in attacks[arm].values()]))
  if without >= 0.01:
    signs.append(f"the gradient of {100 * without:.1f} % of the images is 0")
  return signs


def _beaten(attacks: Attacks, source: str, arm: str, slack: float) -> str:
  """Where images made for another network fool this one more than the strongest of its own.

  They are compared on the same networks: a row has what its images do to those of another seed.
  """
  pairs = [
    (row, attacks[arm][row["spec"]["target_seed"]])
    for row in attacks[source].values()
    if row["spec"]["target_seed"] in attacks[arm]
  ]

  def strongest(row: Row, epsilon: float) -> float:
    return min(np.interp(epsilon, *curve(row, kind)) for kind in ("fgsm", "pgd"))

  gaps = {
    (kind, float(epsilon)): (
      float(np.mean([np.interp(epsilon, *curve(row, kind, arm)) for row, _ in pairs])),
      float(np.mean([strongest(target, epsilon) for _, target in pairs])),
    )
    for kind in ("fgsm", "pgd")
    for epsilon in curve(pairs[0][1], "pgd")[0][1:]
  }
  (kind, epsilon), (shown, own) = max(gaps.items(), key=lambda item: item[1][1] - item[1][0])
  if own - shown <= slack:
    return ""
  return (
    f"{kind.upper()} made for {ARMS[source].label} leaves {100 * shown:.1f} %, the strongest of "
    f"its own {100 * own:.1f} % at epsilon {epsilon:g}"
  )
