"""Training runs, one by one or several at once, and the results of their rows."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.ablation.arms import arm
from experiments.ablation.protocol import (
  FINE,
  FINE_EPOCHS,
  FIRST,
  HELD_OUT,
  MILESTONES,
  Protocol,
  Training,
)
from experiments.common.curve import Curve
from experiments.common.digests import digest
from experiments.data import Dataset, Examples, each_once, split_by_class, training_order
from experiments.engine.fit import fit, fit_together
from experiments.engine.step import Learner, Score
from experiments.engine.trainer import Trainer, to_device
from experiments.engine.vmapped import VmappedTrainer
from kerv_jax.nn import hyperparameters

MOMENTUM = 0.9
Trained = tuple[dict[str, Any], Any]  # the results of a row, and the final parameters


class Recipe:
  """What a run is made of: network, optimizer, the examples that it sees and is evaluated on."""

  def __init__(self, spec: Training, protocol: Protocol, dataset: Dataset):
    self.spec, self.target = spec, protocol.target
    if spec.search:
      self.evaluated = dataset.train
      self.train, self.subset = split_by_class(dataset.train.labels, HELD_OUT, spec.seed)
    else:
      self.evaluated = dataset.test
      self.train, self.subset = np.arange(len(dataset.train)), np.arange(len(dataset.test))
    number, size = len(self.train), protocol.batch_size
    self.per_epoch = number // size
    short = spec.search and spec.stop_after is None
    steps = self.per_epoch * (protocol.search_epochs if short else protocol.epochs)
    taken = steps if spec.stop_after is None else min(self.per_epoch * spec.stop_after, steps)
    self.order = training_order(number, size, seed=spec.seed, steps=taken)  # indices into `train`
    self.image_shape = dataset.train.images.shape[1:]
    network, optimizer = arm(spec.arm), make_optimizer(steps)
    self.learner = Learner(network.network(dataset.num_classes), optimizer)
    self.learning_rate, self.first_gradient = spec.rate, None
    if network.matches is not None:
      other = Learner(arm(network.matches).network(dataset.num_classes), optimizer)
      learners = {"own": self.learner, network.matches: other}
      batch = dataset.train[self.train[self.order[0]]]
      self.learning_rate, self.first_gradient = matched_rate(spec, learners, batch)

  def next_evaluation(self, curve: Curve) -> int:
    """Returns the steps to the next evaluation."""
    first = FINE if self.spec.search else FIRST
    return next_evaluation(curve, self.per_epoch, self.target, first)

  def result(self, curve: Curve, last: Score, params: Any) -> dict[str, Any]:
    """Returns what a row says of the run itself: of its curve, last score and final parameters."""
    finite = curve.diverged_at is None and np.isfinite(last.loss)
    image = np.zeros((1, *self.image_shape), np.float32)
    learnt = hyperparameters(self.learner.model, {"params": params}, image) if finite else {}
    reached = None if self.target is None else curve.reaches(self.target)
    by_step = dict(zip(curve.steps, curve.accuracy, strict=True))
    size = self.per_epoch
    return ({} if self.first_gradient is None else {"first_gradient": self.first_gradient}) | {
      "accuracy": None if curve.diverged_at is not None else curve.accuracy[-1],
      "diverged_at": curve.diverged_at,
      "epoch_accuracy": [by_step[step] for step in sorted(by_step) if step and step % size == 0],
      "steps_to_target": None if reached is None else reached[0],
      "epochs_to_target": None if reached is None else round(reached[0] / size, 4),
      "seconds_to_target": None if reached is None else round(reached[1], 2),
      "steps_per_epoch": size,
      "seconds": round(curve.seconds[-1], 1),
      "curve": {"steps": curve.steps, "accuracy": curve.accuracy},
      "learning_rate": self.learning_rate,
      "final_loss": last.loss if finite else None,
      "hyperparameters": {
        jax.tree_util.keystr(path, simple=True, separator="/"): float(np.asarray(value))
        for path, value in jax.tree_util.tree_leaves_with_path(learnt)
      },
      "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
      "weights": digest(params),
    }


def make_optimizer(total_steps: int) -> optax.GradientTransformation:
  """Returns SGD with momentum as PyTorch's, with milestones at parts of the steps.

  Its learning rate is part of the state, for `optax.tree.set(state, learning_rate=...)`.
  """
  drops = {round(part * total_steps): 0.1 for part in MILESTONES}
  scale = optax.piecewise_constant_schedule(1.0, drops)

  def make(learning_rate: jax.Array) -> optax.GradientTransformation:
    return optax.chain(
      optax.trace(MOMENTUM),
      optax.scale_by_schedule(lambda step: -learning_rate * scale(jnp.asarray(step, float))),
    )

  return optax.inject_hyperparams(make)(learning_rate=0.0)


def matched_rate(
  spec: Training, learners: dict[str, Learner], batch: Examples
) -> tuple[float, dict[str, float]]:
  """Returns the rate at which a network's first step is as long as another's at the run's rate.

  The network that the rate is for is first. The length of both first gradients is returned too.
  """
  norms = {
    name: first_gradient(learner, spec.seed, batch.images, batch.labels)
    for name, learner in learners.items()
  }
  own, other = norms.values()
  return spec.rate * other / own, norms


def next_evaluation(curve: Curve, per_epoch: int, target: float | None, first: int = FIRST) -> int:
  """Returns the steps to the next evaluation after a curve, of so many in the first epoch.

  A target of None is one that is only known afterwards.
  """
  epoch, step = divmod(curve.steps[-1], per_epoch)
  if epoch >= FINE_EPOCHS and target is not None and curve.reaches(target):
    return per_epoch - step
  parts = FINE if epoch else first
  marks = [per_epoch * part // parts for part in range(1, parts + 1)]
  return next(mark for mark in marks if mark > step) - step


def first_gradient(learner: Learner, seed: int, images: np.ndarray, labels: np.ndarray) -> float:
  """Returns the length of the gradient of the first step, on these images, over all parameters."""

  def norm(seed: jax.Array) -> jax.Array:
    state = learner.initial_state(seed, jnp.zeros((1, *images.shape[1:])), jnp.float32(1.0))
    batch = jnp.asarray(images), jnp.asarray(labels), jnp.arange(len(labels))
    after, _ = learner.step(state, *batch)
    return optax.tree.norm(jax.tree.map(jnp.subtract, after.params, state.params))

  return float(jax.jit(norm)(np.uint32(seed)))


def train(specs: Sequence[Training], protocol: Protocol, dataset: Dataset) -> list[Trained]:
  """Trains a network once, or several times at once, with other seeds and learning rates.

  Seconds are those of all at once, costs an equal part of theirs.
  """
  recipes = [Recipe(spec, protocol, dataset) for spec in specs]
  recipe, start = recipes[0], time.process_time()
  if len(specs) == 1:
    trainer = Trainer(recipe.learner)
    images = to_device(dataset.train[recipe.train])
    evaluated = to_device(recipe.evaluated[recipe.subset])
    begin = trainer.init(recipe.spec.seed, recipe.image_shape, recipe.learning_rate)
    state, curve = fit(
      trainer, begin, images, evaluated, recipe.order, eval_every=recipe.next_evaluation
    )
    curves, scores, params = (
      [curve],
      [trainer.evaluate(state, each_once(evaluated))],
      [state.params],
    )
  else:
    trainer = VmappedTrainer(recipe.learner)
    images, evaluated = to_device(dataset.train), to_device(recipe.evaluated)
    subsets = np.stack([each.subset for each in recipes])
    orders = np.stack([each.train[each.order] for each in recipes], axis=1)
    rates = [each.learning_rate for each in recipes]
    begin = trainer.init([spec.seed for spec in specs], recipe.image_shape, rates)
    pause = recipe.next_evaluation  # all runs have as many steps in an epoch
    state, curves = fit_together(
      trainer, begin, images, evaluated, orders, subsets, eval_every=pause
    )
    scores = trainer.evaluate(state, evaluated, subsets)
    params = [jax.tree.map(lambda leaf, n=n: leaf[n], state.params) for n in range(len(specs))]
  cost = {
    "cpu_seconds": round((time.process_time() - start) / len(specs), 1),
    "compile_seconds": round(trainer.compile_seconds / len(specs), 1),
  }
  trained = []
  for each, curve, last, leaves in zip(recipes, curves, scores, params, strict=True):
    leaves = jax.tree.map(np.asarray, leaves)
    trained.append((each.result(curve, last, leaves) | cost, leaves))
  return trained
