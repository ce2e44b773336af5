"""Training runs, one by one or several at once, and the results of their rows."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.ablation.protocol import Protocol, Training
from experiments.ablation.recipe import Recipe
from experiments.data import Dataset, each_once
from experiments.engine.fit import fit, fit_together
from experiments.engine.trainer import Trainer, to_device
from experiments.engine.vmapped import VmappedTrainer

Trained = tuple[dict[str, Any], Any]
"""The results of a row, and the final parameters."""


def train(
  spec: Training,
  protocol: Protocol,
  dataset: Dataset,
) -> Trained:
  """Trains a network.

  Args:
    spec: of the run.
    protocol: of the run.
    dataset: as much of it as the protocol asks for.
  """
  recipe = Recipe(spec, protocol, dataset)
  trainer = Trainer(recipe.learner)
  images = to_device(dataset.train[recipe.train])
  evaluated = to_device(recipe.evaluated[recipe.subset])
  start = time.process_time()
  state, curve = fit(
    trainer,
    trainer.init(spec.seed, recipe.image_shape, recipe.learning_rate),
    images,
    evaluated,
    recipe.order,
    eval_every=recipe.next_evaluation,
  )
  cost = _cost(start, trainer, 1)
  params = jax.tree.map(np.asarray, state.params)
  return recipe.result(curve, trainer.evaluate(state, each_once(evaluated)), params) | cost, params


def train_together(
  specs: Sequence[Training],
  protocol: Protocol,
  dataset: Dataset,
) -> list[Trained]:
  """Trains a network several times at once.

  Args:
    specs: of the runs, which differ in seed and learning rate alone.
    protocol: of the runs.
    dataset: as much of it as the protocol asks for.

  Returns:
    Run by run. Seconds are those of all at once, costs an equal part of theirs.
  """
  recipes = [Recipe(spec, protocol, dataset) for spec in specs]
  recipe = recipes[0]
  trainer = VmappedTrainer(recipe.learner)
  images, evaluated = to_device(dataset.train), to_device(recipe.evaluated)
  subsets = np.stack([each.subset for each in recipes])
  start = time.process_time()
  states, curves = fit_together(
    trainer,
    trainer.init(
      [spec.seed for spec in specs], recipe.image_shape, [each.learning_rate for each in recipes]
    ),
    images,
    evaluated,
    np.stack([each.train[each.order] for each in recipes], axis=1),
    subsets,
    eval_every=recipe.next_evaluation,  # all runs have as many steps in an epoch
  )
  cost = _cost(start, trainer, len(specs))
  scores = trainer.evaluate(states, evaluated, subsets)
  trained = []
  for number, (each, curve, last) in enumerate(zip(recipes, curves, scores, strict=True)):
    params = jax.tree.map(lambda leaf, number=number: np.asarray(leaf[number]), states.params)
    trained.append((each.result(curve, last, params) | cost, params))
  return trained


def _cost(start: float, trainer: Trainer | VmappedTrainer, runs: int) -> dict[str, float]:
  """What a row says of its cost.

  Args:
    start: of the process's time.
    trainer: whose programs were compiled.
    runs: that share it.
  """
  return {
    "cpu_seconds": round((time.process_time() - start) / runs, 1),
    "compile_seconds": round(trainer.compile_seconds / runs, 1),
  }
