"""Attacks on a trained network, and what the images do to others: the results of a row."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.ablation.arms import arm
from experiments.ablation.protocol import Attack
from experiments.data import UNIT, Dataset
from experiments.engine.attacks import Attacker, fgsm

EPSILONS = tuple(round(0.025 * number, 3) for number in range(13))
"""Of FGSM: how far each pixel may go, in [0, 1]."""
PGD_EPSILONS = (0.05, 0.1, 0.2, 0.3)


def attack(
  spec: Attack, dataset: Dataset, params: Any, target_params: Mapping[str, Any]
) -> dict[str, Any]:
  """Attacks a network on a test set, and shows the images to others, whose parameters are by arm.

  Returns:
    The results of its row: accuracies by epsilon, "white_box" and "transfer", and sizes of the
    gradients of the images' losses.
  """
  test = dataset.test[np.arange(spec.examples or len(dataset.test))]
  images = np.asarray(jax.jit(UNIT)(test.images))

  def attacker(name: str, params: Any) -> Attacker:
    network = arm(name).network(dataset.num_classes)

    def apply(params: Any, images: jax.Array) -> jax.Array:
      return jnp.asarray(network.apply({"params": params}, images))

    return Attacker(apply, params, images, test.labels)

  own = attacker(spec.arm, params)
  others = {name: attacker(name, target_params[name]) for name in spec.targets}
  gradients = own.gradients()
  flat = gradients.reshape(len(gradients), -1).astype(np.float64)
  lengths = np.linalg.norm(flat, axis=1)
  result: dict[str, Any] = {
    "accuracy": float(own.right(images).mean()),
    "white_box": {"fgsm": {}, "pgd": {}},
    "transfer": {name: {"fgsm": {}, "pgd": {}} for name in others},
    "gradients": {
      "median_length": float(np.median(lengths)),
      "images_without": float(np.mean(lengths == 0)),
      "pixels_without": float(np.mean(flat == 0)),
    },
  }

  def show(kind: str, epsilon: float, moved: np.ndarray) -> None:
    result["white_box"][kind][str(epsilon)] = float(own.right(moved).mean())
    for name, other in others.items():
      result["transfer"][name][kind][str(epsilon)] = float(other.right(moved).mean())

  for epsilon in EPSILONS:
    moved = fgsm(jnp.asarray(gradients), jnp.asarray(images), epsilon)
    show("fgsm", epsilon, np.asarray(moved))
  for epsilon in PGD_EPSILONS:
    show("pgd", epsilon, own.pgd(epsilon, spec.seed))
  return result
