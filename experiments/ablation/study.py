"""The studies: which networks each has, and how commands, tables, plots and claims tell it."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from experiments.ablation.arms import ARMS, BALANCES, DEGREES, polynomial_name
from experiments.ablation.protocol import FINE_EPOCHS

Rates = Literal["paper", "tuned", "early"]
"""The paper's learning rate, the best for accuracy, or the best for the error of first epochs."""


@dataclasses.dataclass(frozen=True)
class Study:
  """A question, as the networks that answer it. Its prose is in page.md, under its name."""

  arms: tuple[str, ...]
  rates: Rates = "paper"
  stop_after: int | None = None  # epochs, see `Training`
  looks: Literal["attacks", "filters"] | None = None  # what is looked for in trained networks
  beside: tuple[str, ...] = ()  # networks of other studies in its table and its layout
  labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  # other than the network's
  panels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # of its plot
  paper: Mapping[str, float] = dataclasses.field(default_factory=dict)  # accuracies in its text

  @property
  def all_arms(self) -> tuple[str, ...]:
    """Names of its networks, and of those beside them."""
    return (*self.beside, *self.arms)

  def label(self, arm: str) -> str:
    """What a network is called here."""
    return self.labels.get(arm, ARMS[arm].label)


_KERNELS = ("cnn", "polynomial", "gaussian", "sigmoid", "l1", "l2")
_ARRANGED = ("cnn", "polynomial", "conv-kerv", "kerv-kerv")
_NO_RELU = ("linear-cnn", "linear-gaussian-polynomial", "linear-polynomial-polynomial")
_INSIDE = ("power-inside", "tanh-inside")
_DEGREES = {
  degree: tuple(polynomial_name(degree, balance) for balance in BALANCES) for degree in DEGREES
}
POLYNOMIALS = tuple(arm for arms in _DEGREES.values() for arm in arms)
MAIN = (*_KERNELS, "conv-kerv", "kerv-kerv")
"""The networks that are compared at both learning rates."""
KNNS = MAIN[1:]
ATTACKED = ("cnn", "l1", "l2")
FEW = (*MAIN, "gaussian-2018", *_INSIDE)

STUDIES: dict[str, Study] = {
  "kernels": Study(_KERNELS, paper={"l1": 0.9905, "l2": 0.9919}),
  "arrangement": Study(_ARRANGED, labels={"cnn": "conv-conv", "polynomial": "kerv-conv"}),
  "tuned": Study(
    MAIN, rates="tuned", panels={"kernel functions": _KERNELS, "arrangements": _ARRANGED}
  ),
  "no-relu": Study(
    _NO_RELU,
    beside=("cnn", "kerv-kerv"),
    panels={"without and with activations": (*_NO_RELU, "cnn", "kerv-kerv")},
    paper=dict(zip(_NO_RELU, (0.9222, 0.9911, 0.9911), strict=True)),
  ),
  "hyperparameters": Study(
    (*POLYNOMIALS, "learnable"),
    beside=("cnn",),
    labels={"polynomial": "(3, 1)"},
    panels={f"degree {degree}": ("cnn", *arms) for degree, arms in _DEGREES.items()}
    | {"degree 3": ("cnn", *_DEGREES[3], "learnable")},
    paper={"learnable": 0.9920},
  ),
  "controls": Study(
    (
      *("power-outside", "power-inside", "tanh-outside", "tanh-inside"),
      *("cnn-step-polynomial", "cnn-step-gaussian", "cnn-wide", "volterra"),
    ),
    beside=("cnn", "polynomial", "gaussian", "sigmoid"),
    panels={
      "pointwise functions": ("cnn", "polynomial", "sigmoid", *_INSIDE),
      "as long a first step": (*_KERNELS[:3], "cnn-step-polynomial", "cnn-step-gaussian"),
      "width and the quadratic form": ("cnn", "polynomial", "cnn-wide", "volterra"),
    },
  ),
  "authors": Study(
    ("gaussian-2018", *_INSIDE),
    beside=("cnn", "gaussian", "polynomial"),
    panels={"the authors' code of 2018": ("cnn", "gaussian", "gaussian-2018", *_INSIDE)},
  ),
  "fgsm": Study(ATTACKED, looks="attacks"),
  "filters": Study(("cnn", polynomial_name(2, 0.5)), looks="filters"),
  "early": Study((*FEW, "both-gaussian", "both-sigmoid"), stop_after=FINE_EPOCHS),
  "early-tuned": Study(FEW, rates="early", stop_after=FINE_EPOCHS),
}
"""By name, in the order in which all are run."""
ANSWER = ("kernels", "arrangement", "tuned")
"""The studies of the main question, which are run of any data set if none is named."""

FRESH = 3
"""The first seed that no rule has seen."""
_MORE, _MANY = tuple(range(FRESH, 10)), tuple(range(23))
CONFIRM: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...] = (
  ("early", STUDIES["early"].arms, _MANY),
  ("early-tuned", FEW, _MANY),
  ("kernels", ("cnn", "polynomial"), _MORE),
  ("tuned", ("cnn", "polynomial"), _MORE),
  ("kernels", _KERNELS, _MORE),
  ("arrangement", _ARRANGED, _MORE),
  ("tuned", MAIN, _MORE),
  ("authors", ("gaussian-2018", *_INSIDE), tuple(range(10))),
  ("no-relu", _NO_RELU, _MORE),
  ("controls", STUDIES["controls"].arms, _MORE),
  ("hyperparameters", STUDIES["hyperparameters"].arms, _MORE),
  ("fgsm", ATTACKED, _MORE),
  ("filters", STUDIES["filters"].arms, _MORE),
)
"""What confirms the verdicts, the most important first: study, networks, seeds."""
