"""The paper's claims about MNIST, each with what decides it."""

import dataclasses

from experiments.ablation.accuracies import has, reaches
from experiments.ablation.arms import ARMS
from experiments.ablation.decisions import (
  Decision,
  at_paper_rate,
  is_faster,
  is_more_accurate,
  is_more_robust,
)
from experiments.ablation.robustness import PAPER_CLEAN
from experiments.ablation.study import ATTACKED


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement that rows can decide.

  Attributes:
    source: where in the paper it is from; "" is a question that it leaves.
    text: what is said.
    decide: from the rows to the verdict.
    main: whether the README repeats it.
  """

  source: str
  text: str
  decide: Decision
  main: bool = False


def label(arm: str) -> str:
  """What a network is called.

  Args:
    arm: its name.
  """
  return ARMS[arm].label


def named(arm: str) -> str:
  """What a network is called in a sentence.

  Args:
    arm: its name.
  """
  if arm == "cnn":
    return "the CNN"
  return label(arm) if "kerv" in arm else f"the {label(arm)} KNN"


def begin(text: str) -> str:
  """A sentence that begins with what `named` says.

  Args:
    text: of the sentence.
  """
  return text[0].upper() + text[1:] if text.startswith("the ") else text


PAPER: tuple[Claim, ...] = (
  *(
    Claim(
      "section 4, figure 2 a, b",
      f"The {label(arm)} KNN reaches 98 % {words} the CNN.",
      is_faster("kernels", arm, "cnn", factor),
      main=arm == "polynomial" or factor == 2.0,
    )
    for arm in ("polynomial", "gaussian")
    for factor, words in ((1.0, "sooner than"), (2.0, "twice as fast as"))
  ),
  *(
    Claim(
      "section 4, figure 2 a, b",
      f"The sigmoid KNN takes {words} the CNN.",
      is_faster("kernels", "cnn", "sigmoid", factor),
      main=factor == 2.0,
    )
    for factor, words in ((1.0, "longer to 98 % than"), (2.0, "twice as long as"))
  ),
  *(
    Claim(
      "section 4",
      f"The {label(arm)} KNN reaches an accuracy of {100 * value:.2f} %, but for 0.2 points.",
      at_paper_rate(reaches, "kernels", (arm,), value),
      main=True,
    )
    for arm, value in (("l1", 0.9905), ("l2", 0.9919))
  ),
  Claim(
    "abstract",
    "The polynomial KNN is more accurate in the end than the CNN.",
    is_more_accurate("kernels", "polynomial", "cnn"),
    main=True,
  ),
  Claim(
    "section 4, figure 2 c, d",
    "A learnt balance reaches an accuracy of 99.20 %, but for 0.2 points.",
    at_paper_rate(reaches, "hyperparameters", ("learnable",), 0.9920),
  ),
  *(
    Claim(
      "section 4, figure 2 e, f",
      f"{label(arm)} reaches 98 % sooner than conv-conv.",
      is_faster("arrangement", arm, "cnn", 1.0),
    )
    for arm in ("conv-kerv", "kerv-kerv")
  ),
  Claim(
    "section 4",
    "Without activations the CNN falls to 92.22 %, but for 0.2 points.",
    at_paper_rate(has, "no-relu", ("linear-cnn",), 0.9222),
  ),
  *(
    Claim(
      "section 4",
      f"Without activations the {name} network reaches 99.11 %, but for 0.2 points.",
      at_paper_rate(reaches, "no-relu", (f"linear-{name.lower()}",), 0.9911),
    )
    for name in ("Gaussian-polynomial", "polynomial-polynomial")
  ),
  *(
    Claim(
      "table 1",
      f"{begin(named(arm))} reaches a clean accuracy of {100 * PAPER_CLEAN[arm]:.2f} %, but for "
      "0.2 points.",
      at_paper_rate(reaches, "kernels", (arm,), PAPER_CLEAN[arm]),
    )
    for arm in ATTACKED
  ),
  *(
    Claim(
      "table 1",
      f"The {label(arm)} KNN is more robust to FGSM than the CNN.",
      is_more_robust(arm),
    )
    for arm in ("l1", "l2")
  ),
)
"""In the order of the page."""
