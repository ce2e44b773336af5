"""Rows of a made-up study, for the tests of verdicts and page."""

import dataclasses

import numpy as np

from experiments.ablation.plan import todo
from experiments.ablation.protocol import Attack, Training, identity
from experiments.ablation.study import STUDIES

ENVIRONMENT = {
  "commit": "0123456789abcdef",
  "device": "cpu",
  "threads": "1",
  "python": "3.11.7",
} | dict.fromkeys(("jax", "jaxlib", "flax", "optax", "numpy"), "1.0")
MOST = tuple(name for name in STUDIES if not name.startswith("early"))
STEPS = [0, *range(200, 4001, 200)]


def training(accuracy=0.99, steps=2000, spec=None, error=1.0, **more):
  """Results of a run that reaches 98 % after these steps (None: never).

  Before, it has this part of the error of a common curve.
  """
  curve = [1 - error * 0.9 if step < (steps or 10**9) else 0.98 for step in STEPS[:-1]]
  return {
    "accuracy": accuracy,
    "diverged_at": None if accuracy is not None else 5,
    "epoch_accuracy": [curve[6], curve[12], curve[18]],
    "steps_to_target": steps,
    "epochs_to_target": steps and steps / 1200,
    "seconds_to_target": steps and steps / 100,
    "steps_per_epoch": 1200,
    "seconds": 20.0,
    "cpu_seconds": 90.0,
    "curve": {"steps": STEPS, "accuracy": [*curve, (accuracy or 0.1) if steps else 0.97]},
    "learning_rate": spec.rate if spec else 0.003,
    "final_loss": 0.05,
    "hyperparameters": {"conv1/balance": 1.25} if spec and spec.arm == "learnable" else {},
    "weights": f"{accuracy} {steps}",
    "environment": ENVIRONMENT,
  } | more


def attack(spec, factor=1.0):
  """Results of attacks that a network of a larger factor suffers from more."""

  def curve(epsilons, factor):
    return {str(e): max(0.99 - 10 * factor * e**2, 0.0) for e in epsilons}

  fgsm, pgd = [round(0.025 * n, 3) for n in range(13)], [0.05, 0.1, 0.2, 0.3]
  return {
    "accuracy": 0.99,
    "white_box": {"fgsm": curve(fgsm, factor), "pgd": curve(pgd, 3 * factor)},
    "transfer": {
      name: {"fgsm": curve(fgsm, factor / 2), "pgd": curve(pgd, factor / 2)}
      for name in spec.targets
    },
    "spec": dataclasses.asdict(spec),
    "gradients": {"median_length": 0.1, "images_without": 0.0, "pixels_without": 0.0},
    "environment": ENVIRONMENT,
  }


def fill(rows, seeds=(0, 1, 2), studies=MOST, change=lambda spec: {}):
  """Adds all rows of some studies, with what else training runs are to have."""
  rng = np.random.default_rng(0)
  made = {}

  def result(spec):
    if isinstance(spec, Training):
      far = abs(np.log10(spec.rate / 0.03)) * 0.01 if spec.search else 0.0
      scattered = 0.99 - far + 1e-4 * rng.integers(3)
      return training(**{"accuracy": scattered, "spec": spec} | change(spec))
    if isinstance(spec, Attack):
      return attack(spec, {"cnn": 1.0, "l1": 0.9, "l2": 0.8}[spec.arm])
    return {"filters": rng.normal(size=(5, 5, 1, 6)).tolist(), "environment": ENVIRONMENT}

  for study in studies:
    while missing := [
      spec for spec in todo(study, STUDIES[study].arms, seeds, made) if identity(spec) not in made
    ]:
      made |= {identity(spec): rows.row(spec, result(spec)) for spec in missing}
  rows.add(made.values())
  return rows
