"""What the paper leaves open about MNIST, each question with what decides it."""

import itertools

from experiments.ablation.accuracies import more_accurate, not_worse
from experiments.ablation.arms import DEGREES, polynomial_name
from experiments.ablation.claims import Claim, begin, label, named
from experiments.ablation.decisions import (
  at_paper_rate,
  has_fewer_errors,
  is_masked,
  is_more_accurate,
  is_more_robust_to_pgd,
  loses_its_lead,
  some_network,
)
from experiments.ablation.speeds import alike, faster, fewer_errors
from experiments.ablation.study import ATTACKED, TUNED, study_of

KNNS = tuple(arm for arm in TUNED if arm != "cnn")


QUESTIONS: tuple[Claim, ...] = (
  *(
    Claim(
      "",
      f"{begin(named(arm))} makes fewer errors than the CNN in the first three epochs.",
      has_fewer_errors(study_of(arm), arm, "cnn"),
      main=arm == "polynomial",
    )
    for arm in KNNS
  ),
  *(
    Claim(
      "",
      f"The lead that {named(arm)} has over the CNN in the first three epochs shrinks once both "
      "have their own learning rate.",
      loses_its_lead(study_of(arm), arm, "cnn"),
      main=arm == "polynomial",
    )
    for arm in KNNS
  ),
  *(
    Claim(
      "",
      f"More than a bigger step: the {label(arm)} KNN {words} than a CNN whose first step is as "
      "long as its own.",
      at_paper_rate(rule, "controls", (arm, f"cnn-step-{arm}"), *numbers),
      main=arm == "polynomial" and rule is fewer_errors,
    )
    for arm in ("polynomial", "gaussian")
    for rule, words, numbers in (
      (faster, "reaches 98 % sooner", (1.0,)),
      (fewer_errors, "makes fewer errors in the first three epochs", ()),
    )
  ),
  *(
    Claim(
      "",
      f"With its own learning rate, some KNN {words} than the CNN with its own.",
      some_network(rule, KNNS),
      main=True,
    )
    for rule, words in (
      (lambda ours, cnn, level: faster(ours, cnn, 1.0, level), "reaches 98 % sooner"),
      (fewer_errors, "makes fewer errors in the first three epochs"),
      (more_accurate, "is more accurate in the end"),
    )
  ),
  *(
    Claim(
      "",
      f"{begin(named(arm))} is more accurate in the end than the CNN.",
      is_more_accurate(study_of(arm), arm, "cnn"),
    )
    for arm in KNNS
    if arm != "polynomial"
  ),
  Claim(
    "",
    "A second kervolution adds accuracy: kerv-kerv is more accurate than kerv-conv.",
    is_more_accurate("arrangement", "kerv-kerv", "polynomial"),
  ),
  Claim(
    "",
    "A learnt balance is more accurate than the fixed one that it starts from.",
    at_paper_rate(more_accurate, "hyperparameters", ("learnable", "polynomial")),
  ),
  *(
    Claim(
      "",
      f"Degree {more} makes fewer errors than degree {less} in the first three epochs, balance 1.",
      at_paper_rate(
        fewer_errors,
        "hyperparameters",
        (polynomial_name(more, 1.0), polynomial_name(less, 1.0)),
      ),
    )
    for less, more in itertools.pairwise(DEGREES)
  ),
  *(
    Claim(
      "",
      f"{begin(named(arm))} is a convolution and a {word} by another name: they learn alike.",
      at_paper_rate(alike, "controls", (arm, f"{function}-outside")),
    )
    for arm, function, word in (("polynomial", "power", "cube"), ("sigmoid", "tanh", "tanh"))
  ),
  *(
    Claim(
      "",
      f"With the bias inside of the {word}, the network learns alike.",
      at_paper_rate(alike, "controls", (f"{function}-inside", f"{function}-outside")),
    )
    for function, word in (("power", "cube"), ("tanh", "tanh"))
  ),
  *(
    Claim(
      "",
      f"The {name} {words} than the CNN of 11 features.",
      at_paper_rate(rule, "controls", (arm, "cnn-wide")),
    )
    for arm, name in (("polynomial", "polynomial KNN"), ("volterra", "Volterra network"))
    for rule, words in (
      (fewer_errors, "makes fewer errors in the first three epochs"),
      (more_accurate, "is more accurate in the end"),
    )
  ),
  Claim(
    "",
    "The polynomial KNN is, with fewer weights, as accurate in the end as the Volterra network, "
    "but for 0.1 points.",
    at_paper_rate(not_worse, "controls", ("polynomial", "volterra")),
  ),
  *(
    Claim(
      "",
      f"The {label(arm)} KNN is more robust to PGD (20 steps, restarts) than the CNN.",
      is_more_robust_to_pgd(arm),
    )
    for arm in ("l1", "l2")
  ),
  *(Claim("", f"The gradients of {named(arm)} are masked.", is_masked(arm)) for arm in ATTACKED),
)
"""In the order of the page."""
