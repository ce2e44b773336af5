"""The paper's claims about MNIST, and the questions they leave, each with what decides it."""

import dataclasses

from experiments.ablation.arms import ARMS
from experiments.ablation.decisions import (
  Decision,
  at_paper_rate,
  is_faster,
  is_masked,
  is_more_accurate,
  is_more_robust,
  is_more_robust_to_pgd,
  some_network,
)
from experiments.ablation.rules import faster, has, more_accurate, reaches, same_accuracy
from experiments.ablation.studies import ATTACKED, TUNED

MARGIN = 0.002
"""Two accuracies are the same if they differ by less: 20 of the 10,000 test images."""
OURS = "ours"
"""The source of what the paper does not say."""
KNNS = tuple(arm for arm in TUNED if arm != "cnn")


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
  decide: Decision
  main: bool = False


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
      is_faster("kernels", arm, "cnn", 2.0),
      main=True,
    )
    for arm in ("polynomial", "gaussian")
  ),
  Claim(
    "kernels",
    "section 4, figure 2 a, b",
    "The sigmoid KNN takes twice as long as the CNN.",
    is_faster("kernels", "cnn", "sigmoid", 2.0),
    main=True,
  ),
  *(
    Claim(
      "kernels",
      "section 4",
      f"The {_label(arm)} KNN reaches an accuracy of {100 * value:.2f} %.",
      at_paper_rate(reaches, "kernels", (arm,), value),
      main=True,
    )
    for arm, value in (("l1", 0.9905), ("l2", 0.9919))
  ),
  Claim(
    "hyperparameters",
    "section 4, figure 2 c, d",
    "A learnt balance reaches an accuracy of 99.20 %.",
    at_paper_rate(reaches, "hyperparameters", ("learnable",), 0.9920),
  ),
  Claim(
    "hyperparameters",
    OURS,
    "A learnt balance is more accurate than the fixed one that it starts from.",
    at_paper_rate(more_accurate, "hyperparameters", ("learnable", "polynomial")),
  ),
  *(
    Claim(
      "arrangement",
      "section 4, figure 2 e, f",
      f"{_label(arm) if arm != 'polynomial' else 'kerv-conv'} reaches 98 % sooner than conv-conv.",
      is_faster("arrangement", arm, "cnn", 1.0),
    )
    for arm in ("polynomial", "conv-kerv", "kerv-kerv")
  ),
  Claim(
    "arrangement",
    OURS,
    "A second kervolution adds accuracy: kerv-kerv is more accurate than kerv-conv.",
    is_more_accurate("arrangement", "kerv-kerv", "polynomial"),
  ),
  Claim(
    "no-relu",
    "section 4",
    "Without activations the CNN falls to 92.22 %.",
    at_paper_rate(has, "no-relu", ("linear-cnn",), 0.9222),
  ),
  *(
    Claim(
      "no-relu",
      "section 4",
      f"Without activations the {name} network reaches 99.11 %.",
      at_paper_rate(reaches, "no-relu", (f"linear-{name.lower()}",), 0.9911),
    )
    for name in ("Gaussian-polynomial", "polynomial-polynomial")
  ),
  *(
    Claim(
      "fgsm",
      "table 1",
      f"The {_label(arm)} KNN is more robust to FGSM than the CNN.",
      is_more_robust(arm),
    )
    for arm in ("l1", "l2")
  ),
  *(
    Claim(
      "fgsm",
      OURS,
      f"The {_label(arm)} KNN is more robust to PGD (20 steps, restarts) than the CNN.",
      is_more_robust_to_pgd(arm),
    )
    for arm in ("l1", "l2")
  ),
  *(
    Claim("fgsm", OURS, f"The gradients of {_named(arm)} are masked.", is_masked(arm))
    for arm in ATTACKED
  ),
  Claim(
    "tuned",
    OURS,
    "With its own learning rate, some KNN reaches 98 % sooner than the CNN with its own.",
    some_network(lambda ours, cnn, level: faster(ours, cnn, 1.0, level), KNNS),
    main=True,
  ),
  Claim(
    "tuned",
    OURS,
    "With its own learning rate, some KNN is more accurate in the end than the CNN with its own.",
    some_network(more_accurate, KNNS),
    main=True,
  ),
  *(
    Claim(
      "tuned",
      OURS,
      f"{_label(arm) if 'kerv' in arm else f'The {_label(arm)} KNN'} is more accurate in the end "
      "than the CNN.",
      is_more_accurate("arrangement" if "kerv" in arm else "kernels", arm, "cnn"),
    )
    for arm in KNNS
  ),
  Claim(
    "controls",
    OURS,
    "The polynomial KNN is a convolution and a cube: the same accuracy, within 0.2 points.",
    at_paper_rate(same_accuracy, "controls", ("polynomial", "power-outside"), MARGIN),
  ),
  Claim(
    "controls",
    OURS,
    "So is the sigmoid KNN a convolution and a tanh.",
    at_paper_rate(same_accuracy, "controls", ("sigmoid", "tanh-outside"), MARGIN),
  ),
  *(
    Claim(
      "controls",
      OURS,
      f"It makes no difference to the accuracy if the bias is inside: {function}, within 0.2 "
      "points.",
      at_paper_rate(
        same_accuracy, "controls", (f"{function}-inside", f"{function}-outside"), MARGIN
      ),
    )
    for function in ("power", "tanh")
  ),
  *(
    Claim(
      "controls",
      OURS,
      f"The {_label(arm)} KNN still reaches 98 % sooner than a CNN whose first step is as long.",
      at_paper_rate(faster, "controls", (arm, f"cnn-step-{arm}"), 1.0),
      main=arm == "polynomial",
    )
    for arm in ("polynomial", "gaussian")
  ),
  Claim(
    "controls",
    OURS,
    "The polynomial KNN is more accurate than the CNN of 11 features.",
    at_paper_rate(more_accurate, "controls", ("polynomial", "cnn-wide")),
  ),
  Claim(
    "controls",
    "equation 6",
    "The polynomial KNN is as accurate as the Volterra network, with fewer weights, within 0.2 "
    "points.",
    at_paper_rate(same_accuracy, "controls", ("polynomial", "volterra"), MARGIN),
  ),
)
"""In the order of the page."""
