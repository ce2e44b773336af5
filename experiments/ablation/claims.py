"""The paper's claims about MNIST, and the questions they leave, each with what decides it."""

import dataclasses
from collections.abc import Callable

from experiments.ablation import robustness
from experiments.ablation.arms import ARMS
from experiments.ablation.evidence import Evidence
from experiments.ablation.studies import ATTACKED, TUNED
from experiments.ablation.verdicts import (
  Answer,
  Finding,
  Runs,
  Verdict,
  alone,
  at_both_rates,
  faster,
  has,
  more_accurate,
  reaches,
  same_accuracy,
  shared_level,
  some,
)

MARGIN = 0.002
"""Two accuracies are the same if they differ by less: 20 of the 10,000 test images."""
PGD_EPSILON = 0.1


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement that rows can decide.

  Attributes:
    study: whose rows.
    source: where in the paper it is from; "ours" is a question of this page.
    text: what is said.
    decide: from the rows to the verdict.
    main: whether the README repeats it.
  """

  study: str
  source: str
  text: str
  decide: Callable[[Evidence], Verdict]
  main: bool = False


def _faster(study: str, fast: str, slow: str, factor: float) -> Callable[[Evidence], Verdict]:
  """By the paper's protocol and with tuned rates."""

  def rule(fast: Runs, slow: Runs) -> Finding:
    return faster(fast, slow, factor)

  return _at_both_rates(rule, study, fast, slow)


def _more_accurate(study: str, ours: str, theirs: str) -> Callable[[Evidence], Verdict]:
  """By the paper's protocol and with tuned rates."""
  return _at_both_rates(more_accurate, study, ours, theirs)


def _at_both_rates(
  rule: Callable[[Runs, Runs], Finding], study: str, ours: str, theirs: str
) -> Callable[[Evidence], Verdict]:
  def decide(evidence: Evidence) -> Verdict:
    paper = rule(evidence.runs(study, ours), evidence.runs(study, theirs))
    return at_both_rates(
      paper, _tuned(evidence, ours, lambda runs: rule(runs, evidence.runs("tuned", theirs)))
    )

  return decide


def _tuned(evidence: Evidence, arm: str, rule: Callable[[Runs], Finding]) -> Finding:
  """Of a network at its own learning rate, if it has any."""
  if evidence.diverges(arm):
    return Finding(Answer.NO, "it diverges at every learning rate")
  return rule(evidence.runs("tuned", arm))


def _at_paper_rate(
  rule: Callable[..., Finding], study: str, arms: tuple[str, ...], *numbers: float
) -> Callable[[Evidence], Verdict]:
  """By the paper's protocol alone."""
  return lambda evidence: alone(rule(*(evidence.runs(study, arm) for arm in arms), *numbers))


def _some(rule: Callable[..., Finding]) -> Callable[[Evidence], Verdict]:
  """Of one of the networks, with tuned rates, with the CNN as the other one."""
  arms = [arm for arm in TUNED if arm != "cnn"]

  def decide(evidence: Evidence) -> Verdict:
    cnn, level = evidence.runs("tuned", "cnn"), shared_level(len(arms))
    return alone(
      some(
        {_label(arm): _tuned(evidence, arm, lambda runs: rule(runs, cnn, level)) for arm in arms}
      )
    )

  return decide


def _attacks(evidence: Evidence) -> robustness.Attacks:
  return {arm: evidence.attacks(arm) for arm in ATTACKED}


def _robust(arm: str) -> Callable[[Evidence], Verdict]:
  return lambda evidence: alone(robustness.more_robust(_attacks(evidence), arm))


def _robust_to_pgd(arm: str) -> Callable[[Evidence], Verdict]:
  return lambda evidence: alone(robustness.more_robust_to_pgd(_attacks(evidence), arm, PGD_EPSILON))


def _masked(arm: str) -> Callable[[Evidence], Verdict]:
  return lambda evidence: alone(robustness.masked(_attacks(evidence), arm))


def _label(arm: str) -> str:
  return ARMS[arm].label


def _named(arm: str) -> str:
  return "the CNN" if arm == "cnn" else f"the {_label(arm)} KNN"


CLAIMS: tuple[Claim, ...] = (
  *(
    Claim(
      "kernels",
      "section 4, figure 2 a, b",
      f"The {_label(arm)} KNN reaches 98 % twice as fast as the CNN.",
      _faster("kernels", arm, "cnn", 2.0),
      main=True,
    )
    for arm in ("polynomial", "gaussian")
  ),
  Claim(
    "kernels",
    "section 4, figure 2 a, b",
    "The sigmoid KNN takes twice as long as the CNN.",
    _faster("kernels", "cnn", "sigmoid", 2.0),
    main=True,
  ),
  *(
    Claim(
      "kernels",
      "section 4",
      f"The {_label(arm)} KNN reaches an accuracy of {100 * value:.2f} %.",
      _at_paper_rate(reaches, "kernels", (arm,), value),
      main=True,
    )
    for arm, value in (("l1", 0.9905), ("l2", 0.9919))
  ),
  Claim(
    "hyperparameters",
    "section 4, figure 2 c, d",
    "A learnt balance reaches an accuracy of 99.20 %.",
    _at_paper_rate(reaches, "hyperparameters", ("learnable",), 0.9920),
  ),
  Claim(
    "hyperparameters",
    "ours",
    "A learnt balance is more accurate than the fixed one that it starts from.",
    _at_paper_rate(more_accurate, "hyperparameters", ("learnable", "polynomial")),
  ),
  *(
    Claim(
      "arrangement",
      "section 4, figure 2 e, f",
      f"{_label(arm) if arm != 'polynomial' else 'kerv-conv'} reaches 98 % sooner than conv-conv.",
      _faster("arrangement", arm, "cnn", 1.0),
    )
    for arm in ("polynomial", "conv-kerv", "kerv-kerv")
  ),
  Claim(
    "arrangement",
    "ours",
    "A second kervolution adds accuracy: kerv-kerv is more accurate than kerv-conv.",
    _more_accurate("arrangement", "kerv-kerv", "polynomial"),
  ),
  Claim(
    "no-relu",
    "section 4",
    "Without activations the CNN falls to 92.22 %.",
    _at_paper_rate(has, "no-relu", ("linear-cnn",), 0.9222),
  ),
  *(
    Claim(
      "no-relu",
      "section 4",
      f"Without activations the {name} network reaches 99.11 %.",
      _at_paper_rate(reaches, "no-relu", (f"linear-{name.lower()}",), 0.9911),
    )
    for name in ("Gaussian-polynomial", "polynomial-polynomial")
  ),
  *(
    Claim(
      "fgsm",
      "table 1",
      f"The {_label(arm)} KNN is more robust to FGSM than the CNN.",
      _robust(arm),
    )
    for arm in ("l1", "l2")
  ),
  *(
    Claim(
      "fgsm",
      "ours",
      f"The {_label(arm)} KNN is more robust to PGD (20 steps, restarts) than the CNN.",
      _robust_to_pgd(arm),
    )
    for arm in ("l1", "l2")
  ),
  *(
    Claim("fgsm", "ours", f"The gradients of {_named(arm)} are masked.", _masked(arm))
    for arm in ATTACKED
  ),
  Claim(
    "tuned",
    "ours",
    "With its own learning rate, some KNN reaches 98 % sooner than the CNN with its own.",
    _some(lambda ours, cnn, level: faster(ours, cnn, 1.0, level)),
    main=True,
  ),
  Claim(
    "tuned",
    "ours",
    "With its own learning rate, some KNN is more accurate in the end than the CNN with its own.",
    _some(more_accurate),
    main=True,
  ),
  *(
    Claim(
      "tuned",
      "ours",
      f"{_label(arm) if 'kerv' in arm else f'The {_label(arm)} KNN'} is more accurate in the end "
      "than the CNN.",
      _more_accurate("arrangement" if "kerv" in arm else "kernels", arm, "cnn"),
    )
    for arm in TUNED
    if arm != "cnn"
  ),
  Claim(
    "controls",
    "ours",
    "The polynomial KNN is a convolution and a cube: the same accuracy, within 0.2 points.",
    _at_paper_rate(same_accuracy, "controls", ("polynomial", "power-outside"), MARGIN),
  ),
  Claim(
    "controls",
    "ours",
    "So is the sigmoid KNN a convolution and a tanh.",
    _at_paper_rate(same_accuracy, "controls", ("sigmoid", "tanh-outside"), MARGIN),
  ),
  *(
    Claim(
      "controls",
      "ours",
      f"It makes no difference to the accuracy if the bias is inside: {function}, within 0.2 "
      "points.",
      _at_paper_rate(
        same_accuracy, "controls", (f"{function}-inside", f"{function}-outside"), MARGIN
      ),
    )
    for function in ("power", "tanh")
  ),
  *(
    Claim(
      "controls",
      "ours",
      f"The {_label(arm)} KNN still reaches 98 % sooner than a CNN whose first step is as long.",
      _at_paper_rate(faster, "controls", (arm, f"cnn-step-{arm}"), 1.0),
    )
    for arm in ("polynomial", "gaussian")
  ),
  Claim(
    "controls",
    "ours",
    "The polynomial KNN is more accurate than the CNN of 11 features.",
    _at_paper_rate(more_accurate, "controls", ("polynomial", "cnn-wide")),
  ),
  Claim(
    "controls",
    "equation 6",
    "The polynomial KNN is as accurate as the Volterra network, with fewer weights, within 0.2 "
    "points.",
    _at_paper_rate(same_accuracy, "controls", ("polynomial", "volterra"), MARGIN),
  ),
)
"""In the order of the page."""
