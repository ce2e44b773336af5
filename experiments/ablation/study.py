"""The studies: what each asks, and how commands, tables, plots and page tell it."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from experiments.ablation.arms import ARMS, BALANCES, DEGREES, polynomial_name

Looks = Literal["attacks", "filters"]
"""What a study looks for in its trained networks."""


@dataclasses.dataclass(frozen=True)
class Study:
  """A question, the networks that answer it, and how it is told.

  Attributes:
    title: of its part of the page.
    text: what its networks are, in Markdown.
    arms: names of its networks.
    tuned: whether each network has its own learning rate, and not the paper's.
    looks: what is looked for in the networks once they are trained.
    beside: names of networks of other studies that its table shows as well, to compare with.
    labels: what a network is called here, if it is not its label.
    panels: names of the networks of each panel of its plot, by the panel's title.
    at_both_rates: whether the plot's panels are two, one for each learning rate, of all networks.
    plot: name of its plot; "" if it is the study's.
    column: head of a column of its own in its table.
    paper: accuracies that the paper's text gives, by network.
  """

  title: str
  text: str
  arms: tuple[str, ...]
  tuned: bool = False
  looks: Looks | None = None
  beside: tuple[str, ...] = ()
  labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
  panels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  at_both_rates: bool = False
  plot: str = ""
  column: str = ""
  paper: Mapping[str, float] = dataclasses.field(default_factory=dict)


_KERNELS = ("cnn", "polynomial", "gaussian", "sigmoid", "l1", "l2")
_ARRANGED = ("cnn", "polynomial", "conv-kerv", "kerv-kerv")
_NO_RELU = ("linear-cnn", "linear-gaussian-polynomial", "linear-polynomial-polynomial")
_DEGREES = {
  f"degree {degree}": tuple(polynomial_name(degree, balance) for balance in BALANCES)
  for degree in DEGREES
}

STUDIES: dict[str, Study] = {
  "kernels": Study(
    title="Kernel functions (figure 2 a, b)",
    text="The first layer of LeNet-5 is a kervolution: polynomial (<x, w> + 1)^3, Gaussian with "
    "gamma 1, sigmoid tanh(<x, w>), L1 and L2 distance.",
    arms=_KERNELS,
    at_both_rates=True,
    plot="convergence",
    paper={"l1": 0.9905, "l2": 0.9919},
  ),
  "hyperparameters": Study(
    title="Hyperparameters (figure 2 c, d)",
    text="(degree, balance) of a polynomial first layer; the learnt balance belongs to degree 3 "
    "and starts at 1. Learnt values are seed by seed.",
    arms=(*(arm for arms in _DEGREES.values() for arm in arms), "learnable"),
    labels={"polynomial": "(3, 1)"},
    panels=_DEGREES | {"degree 3": (*_DEGREES["degree 3"], "learnable")},
    column="learnt value",
    paper={"learnable": 0.9920},
  ),
  "arrangement": Study(
    title="Arrangement (figure 2 e, f)",
    text="First and second layer, each a convolution or a kervolution, (<x, w> + 1)^3.",
    arms=_ARRANGED,
    labels={"cnn": "conv-conv", "polynomial": "kerv-conv"},
    at_both_rates=True,
  ),
  "no-relu": Study(
    title="Without activations",
    text="No activations, average pooling in place of max pooling. Names are those of the first "
    "and the second layer.",
    arms=_NO_RELU,
    panels={"no activations, average pooling": _NO_RELU},
    paper=dict(zip(_NO_RELU, (0.9222, 0.9911, 0.9911), strict=True)),
  ),
  "fgsm": Study(
    title="Attacks (table 1)",
    text="White-box FGSM on the test set, pixels kept in [0, 1]. The paper gives no epsilon: the "
    "table is at the one at which our CNN's mean accuracy is the paper's. The length is the median "
    "of the gradients of the images' losses. In the plot, the paper's figures for L1 and L2 are "
    "drawn to the left and to the right of it.",
    arms=("cnn", "l1", "l2"),
    looks="attacks",
  ),
  "filters": Study(
    title="Filters (figure 1)",
    text="First-layer filters of the CNN and of the polynomial (2, 0.5) KNN, seed 0, paired so "
    "that the sum of their correlations is largest. Both networks start from the same weights. "
    "Each pair has a scale of its own.",
    arms=("cnn", polynomial_name(2, 0.5)),
    looks="filters",
  ),
  "tuned": Study(
    title="Each network at its own learning rate",
    text="The learning rate with the highest accuracy on a tenth of the training set that is held "
    "out, seed 0, after a short run whose milestones are scaled (second table, the best in bold), "
    'then whole runs at it. The test set decides nothing. "At 0.003" are the runs of the same '
    "seeds by the paper's protocol: what is best for a short run need not be so for the whole one.",
    arms=(*_KERNELS, "conv-kerv", "kerv-kerv"),
    tuned=True,
    panels={"kernel functions": _KERNELS, "arrangements": _ARRANGED},
    column="learning rate",
  ),
  "controls": Study(
    title="Controls",
    text="Conv, then cube or tanh: a convolution followed by (z + 1)^3 or tanh(z), with the bias "
    "added after the function, mathematically the KNN and not in the plot, or inside it. First "
    "step of polynomial, Gaussian: the CNN with the paper's rate multiplied so that its first step "
    "is as long as that KNN's, seed by seed. 11 features: the CNN with a first layer so wide that "
    "it has about as many weights as the Volterra network. Volterra: the quadratic convolution of "
    "equation 6.",
    arms=(
      "power-outside",
      "power-inside",
      "tanh-outside",
      "tanh-inside",
      "cnn-step-polynomial",
      "cnn-step-gaussian",
      "cnn-wide",
      "volterra",
    ),
    beside=("cnn", "polynomial", "gaussian", "sigmoid"),
    panels={
      "pointwise functions": ("cnn", "polynomial", "sigmoid", "power-inside", "tanh-inside"),
      "as long a first step": (
        "cnn",
        "polynomial",
        "gaussian",
        "cnn-step-polynomial",
        "cnn-step-gaussian",
      ),
      "width and the quadratic form": ("cnn", "polynomial", "cnn-wide", "volterra"),
    },
    column="learning rate",
  ),
}
"""By name, in the order of the page."""

ORDER = (
  "kernels",
  "arrangement",
  "no-relu",
  "tuned",
  "controls",
  "hyperparameters",
  "fgsm",
  "filters",
)
"""In which all are run: what matters most comes first."""
TUNED = STUDIES["tuned"].arms
ATTACKED = STUDIES["fgsm"].arms


def study_of(arm: str) -> str:
  """The study that an arm with a tuned rate is in at the paper's.

  Args:
    arm: name of the network, one of `TUNED`.
  """
  return "kernels" if arm in STUDIES["kernels"].arms else "arrangement"


def label(study: str, arm: str) -> str:
  """What a network is called in a study.

  Args:
    study: its name.
    arm: name of the network.
  """
  return STUDIES[study].labels.get(arm, ARMS[arm].label)
