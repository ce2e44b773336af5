"""What the attacks say: accuracy by epsilon, and whether gradients only look harmless."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.ablation.arms import ARMS
from experiments.ablation.evidence import FEWEST
from experiments.ablation.rows import Row
from experiments.ablation.study import ATTACKED
from experiments.ablation.summary import Summary, difference
from experiments.ablation.verdicts import Answer, Finding

PAPER_CLEAN = {"cnn": 0.9917, "l1": 0.9912, "l2": 0.9911}
PAPER_ATTACKED = {"cnn": 0.7192, "l1": 0.7408, "l2": 0.7636}
"""Table 1."""
PGD_EPSILON = 0.1
"""At which networks are compared under PGD."""
NO_MORE_ROBUST = 0.01
"""Difference of accuracies under attack that is none."""
SLACK = 0.005
"""Part of the examples by which an attack may beat a stronger one by chance."""

Attacks = Mapping[str, Mapping[int, Row]]
"""Rows of attacks by arm and seed."""


def curve(row: Row, kind: str = "fgsm", target: str | None = None) -> tuple[np.ndarray, np.ndarray]:
  """Accuracy by epsilon.

  Args:
    row: of attacks.
    kind: "fgsm" or "pgd".
    target: the network that is shown the images; None is the one that they were made for.

  Returns:
    Epsilons, ascending, and accuracies; of PGD too, the first epsilon is 0.
  """
  kinds = row["white_box"] if target is None else row["transfer"][target]
  values = {"0.0": kinds["fgsm"]["0.0"]} | kinds[kind]
  pairs = sorted((float(epsilon), accuracy) for epsilon, accuracy in values.items())
  return np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])


def mean_curve(
  rows: Mapping[int, Row], kind: str = "fgsm", target: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Accuracy by epsilon, as `curve`, the mean over seeds.

  Args:
    rows: of attacks by seed, at least one.
    kind: "fgsm" or "pgd".
    target: the network that is shown the images.
  """
  curves = [curve(row, kind, target) for row in rows.values()]
  return curves[0][0], np.mean([accuracy for _, accuracy in curves], axis=0)


def paper_epsilon(rows: Mapping[int, Row]) -> float | None:
  """The epsilon at which the convolution's mean accuracy under FGSM is that of table 1.

  Args:
    rows: of the attacks on the CNN, by seed.

  Returns:
    It, between two epsilons by a straight line; None if the accuracy does not get there.
  """
  if not rows:
    return None
  epsilons, accuracy = mean_curve(rows)
  below = np.flatnonzero(accuracy <= PAPER_ATTACKED["cnn"])
  if not len(below) or below[0] == 0:
    return None
  after = below[0]
  left, right = accuracy[after - 1], accuracy[after]
  part = (left - PAPER_ATTACKED["cnn"]) / (left - right)
  return float(epsilons[after - 1] + part * (epsilons[after] - epsilons[after - 1]))


def accuracy_at(row: Row, epsilon: float) -> float:
  """Accuracy under FGSM, between two epsilons by a straight line.

  Args:
    row: of attacks.
    epsilon: how far each pixel may go.
  """
  return float(np.interp(epsilon, *curve(row)))


def more_robust(attacks: Attacks, arm: str) -> Finding:
  """Whether a network is more accurate than the CNN under FGSM, at the epsilon of table 1.

  Yes if the 95 % interval of the difference, seed by seed, lies above 0; no if below one point.

  Args:
    attacks: by arm and seed.
    arm: name of the network.
  """
  epsilon = paper_epsilon(attacks["cnn"])
  seeds = sorted(attacks[arm].keys() & attacks["cnn"].keys())
  if len(seeds) < FEWEST:
    return Finding(Answer.MISSING, f"{len(seeds)} of at least {FEWEST} seeds")
  if epsilon is None:
    return Finding(Answer.UNDECIDED, "the CNN's accuracy is the paper's at no epsilon")
  ours, theirs = ([accuracy_at(attacks[n][seed], epsilon) for seed in seeds] for n in (arm, "cnn"))
  gap = difference(ours, theirs)
  return Finding(
    _answer(gap),
    f"at epsilon {epsilon:.3f}: {100 * np.mean(ours):.2f} % against {100 * np.mean(theirs):.2f} %, "
    f"{100 * gap.mean:+.2f} points [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"
    + _crossing(attacks, arm, epsilon),
  )


def _crossing(attacks: Attacks, arm: str, epsilon: float) -> str:
  """Beyond which epsilon the mean accuracies under FGSM stand the other way round, if they do."""
  epsilons, ours = mean_curve(attacks[arm])
  gap = ours - mean_curve(attacks["cnn"])[1]
  here = np.interp(epsilon, epsilons, gap)
  other = epsilons[(epsilons > epsilon) & (gap * here < 0)]
  return f"; the other way round at epsilon {other[0]:g}" if len(other) else ""


def more_robust_to_pgd(attacks: Attacks, arm: str, epsilon: float) -> Finding:
  """Whether a network is more accurate than the CNN under PGD, decided as for FGSM.

  Args:
    attacks: by arm and seed.
    arm: name of the network.
    epsilon: one that PGD was run with.
  """
  seeds = sorted(attacks[arm].keys() & attacks["cnn"].keys())
  if len(seeds) < FEWEST:
    return Finding(Answer.MISSING, f"{len(seeds)} of at least {FEWEST} seeds")
  name = str(epsilon)
  ours, theirs = (
    [attacks[each][seed]["white_box"]["pgd"][name] for seed in seeds] for each in (arm, "cnn")
  )
  gap = difference(ours, theirs)
  return Finding(
    _answer(gap),
    f"PGD at epsilon {epsilon:g}: {100 * np.mean(ours):.2f} % against {100 * np.mean(theirs):.2f} "
    f"%, {100 * gap.mean:+.2f} points [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]",
  )


def _answer(gap: Summary) -> Answer:
  """What a difference of accuracies under attack decides."""
  if gap.low > 0:
    return Answer.YES
  return Answer.NO if gap.high < NO_MORE_ROBUST else Answer.UNDECIDED


def masked(attacks: Attacks, arm: str) -> Finding:
  """Whether there are signs that a network's gradients hide what they should show.

  Signs are: images made for another network fool it more than any that were made for itself with
  the same epsilon; one step fools it more than twenty; twenty steps of epsilon 0.3 leave it right
  on a tenth of the images or more; one image in a hundred or more has a gradient of exactly 0.

  Args:
    attacks: by arm and seed.
    arm: name of the network.

  References:
    Athalye, Carlini, Wagner, "Obfuscated Gradients Give a False Sense of Security", ICML 2018.
  """
  others = [source for source in ATTACKED if source != arm]
  shown = [{row["spec"]["target_seed"] for row in attacks[source].values()} for source in others]
  if min(len(attacks[arm].keys() & seeds) for seeds in shown) < FEWEST:
    return Finding(Answer.MISSING, f"fewer than {FEWEST} seeds")
  epsilons, by_fgsm = mean_curve(attacks[arm])
  steps, by_pgd = mean_curve(attacks[arm], "pgd")
  signs = [sign for source in others if (sign := _beaten(attacks, source, arm))]
  by_one = np.interp(steps, epsilons, by_fgsm)
  worst = int(np.argmax(by_pgd - by_one))
  if by_pgd[worst] - by_one[worst] > SLACK:
    signs.append(
      f"PGD leaves {100 * by_pgd[worst]:.1f} %, FGSM {100 * by_one[worst]:.1f} % at epsilon "
      f"{steps[worst]:g}"
    )
  if by_pgd[-1] >= 0.1:
    signs.append(f"PGD at epsilon {steps[-1]:g} leaves {100 * by_pgd[-1]:.1f} %")
  without = float(np.mean([row["gradients"]["images_without"] for row in attacks[arm].values()]))
  if without >= 0.01:
    signs.append(f"the gradient of {100 * without:.1f} % of the images is 0")
  text = "; ".join(signs) or f"no sign of it; PGD at epsilon {steps[-1]:g} leaves " + (
    f"{100 * by_pgd[-1]:.1f} %"
  )
  if arm != "cnn":
    own, cnn = (np.mean(gradient_lengths(attacks[name])) for name in (arm, "cnn"))
    text += f"; gradients are {own / cnn:.2f} times as long as the CNN's"
  return Finding(Answer.YES if signs else Answer.NO, text)


def _beaten(attacks: Attacks, source: str, arm: str) -> str:
  """Where images made for another network fool this one more than the strongest of its own.

  They are compared on the same networks: a row has what its images do to those of another seed.
  """
  pairs = [
    (row, attacks[arm][row["spec"]["target_seed"]])
    for row in attacks[source].values()
    if row["spec"]["target_seed"] in attacks[arm]
  ]
  gaps = {}
  for kind in ("fgsm", "pgd"):
    for epsilon in curve(pairs[0][1], "pgd")[0][1:]:
      shown = [np.interp(epsilon, *curve(row, kind, arm)) for row, _ in pairs]
      own = [
        min(np.interp(epsilon, *curve(target, each)) for each in ("fgsm", "pgd"))
        for _, target in pairs
      ]
      gaps[kind, float(epsilon)] = float(np.mean(shown)), float(np.mean(own))
  (kind, epsilon), (shown, own) = max(gaps.items(), key=lambda item: item[1][1] - item[1][0])
  if own - shown <= SLACK:
    return ""
  return (
    f"{kind.upper()} made for {ARMS[source].label} leaves {100 * shown:.1f} %, the strongest of "
    f"its own {100 * own:.1f} % at epsilon {epsilon:g}"
  )


def gradient_lengths(rows: Mapping[int, Row]) -> Any:
  """Median lengths of the images' gradients, one for each seed.

  Args:
    rows: of attacks by seed.
  """
  return [row["gradients"]["median_length"] for row in rows.values()]
