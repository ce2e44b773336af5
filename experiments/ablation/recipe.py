"""What a training run is made of, and what is read off it."""

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
  TARGET,
  Protocol,
  Training,
)
from experiments.common.curve import Curve
from experiments.common.digests import digest
from experiments.data import Dataset, Examples, split_by_class, training_order
from experiments.engine.step import Learner, Score
from kerv_jax.nn import hyperparameters

MOMENTUM = 0.9


class Recipe:
  """What a run is made of.

  Args:
    spec: of the run.
    protocol: of the run.
    dataset: as much of it as the protocol asks for.

  Attributes:
    train: indices of its examples in the training set.
    evaluated: the set that it is evaluated on: the training set in a search, else the test set.
    subset: indices of the examples in that.
    order: indices into `train`, (steps, batch size).
    per_epoch: steps in an epoch.
    image_shape: (height, width, channels).
    learner: of the network.
    learning_rate: before the milestones.
    first_gradient: its length, by network, where the rate depends on it.
  """

  def __init__(self, spec: Training, protocol: Protocol, dataset: Dataset):
    self.spec = spec
    if spec.search:
      self.evaluated, epochs = dataset.train, protocol.search_epochs
      self.train, self.subset = split_by_class(dataset.train.labels, HELD_OUT, spec.seed)
    else:
      self.evaluated, epochs = dataset.test, protocol.epochs
      self.train, self.subset = np.arange(len(dataset.train)), np.arange(len(dataset.test))
    number, size = len(self.train), protocol.batch_size
    self.per_epoch = number // size
    self.order = training_order(number, size, seed=spec.seed, steps=epochs * self.per_epoch)
    self.image_shape = dataset.train.images.shape[1:]
    network = arm(spec.arm)
    optimizer = make_optimizer(len(self.order))
    self.learner = Learner(network.network(dataset.num_classes), optimizer)
    self.learning_rate, self.first_gradient = spec.rate, None
    if network.matches is not None:
      other = Learner(arm(network.matches).network(dataset.num_classes), optimizer)
      self.learning_rate, self.first_gradient = matched_rate(
        spec,
        {"own": self.learner, network.matches: other},
        dataset.train[self.train[self.order[0]]],
      )

  def next_evaluation(self, curve: Curve) -> int:
    """Steps to the next evaluation.

    Args:
      curve: so far.
    """
    return next_evaluation(curve, self.per_epoch, TARGET, FINE if self.spec.search else FIRST)

  def result(self, curve: Curve, last: Score, params: Any) -> dict[str, Any]:
    """What a row says of the run itself.

    Args:
      curve: of the run.
      last: the score after it.
      params: the final parameters.
    """
    finite = curve.diverged_at is None and np.isfinite(last.loss)
    result = {} if self.first_gradient is None else {"first_gradient": self.first_gradient}
    return (
      result
      | _read(curve, self.per_epoch)
      | {
        "learning_rate": self.learning_rate,
        "final_loss": last.loss if finite else None,
        "hyperparameters": _hyperparameters(self.learner, params, self.image_shape)
        if finite
        else {},
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "weights": digest(params),
      }
    )


def make_optimizer(total_steps: int) -> optax.GradientTransformation:
  """SGD with momentum as PyTorch's, whose learning rate is part of the state.

  Args:
    total_steps: of the run; the milestones are parts of it.

  Returns:
    The optimizer, to be given its rate by `optax.tree.set(state, learning_rate=...)`.
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
  """The learning rate at which the first step of one network is as long as another's at the run's.

  Args:
    spec: of the run.
    learners: of both networks, by name; the one that the rate is for is first.
    batch: of the first step.

  Returns:
    The rate, and the length of each network's first gradient.
  """
  norms = {
    name: first_gradient(learner, spec.seed, batch.images, batch.labels)
    for name, learner in learners.items()
  }
  own, other = norms.values()
  return spec.rate * other / own, norms


def next_evaluation(curve: Curve, per_epoch: int, target: float, first: int = FIRST) -> int:
  """Steps to the next evaluation.

  Args:
    curve: so far.
    per_epoch: steps in an epoch.
    target: accuracy to look for.
    first: evaluations in the first epoch.
  """
  epoch, step = divmod(curve.steps[-1], per_epoch)
  if epoch >= FINE_EPOCHS and curve.reaches(target):
    return per_epoch - step
  parts = FINE if epoch else first
  marks = [per_epoch * part // parts for part in range(1, parts + 1)]
  return next(mark for mark in marks if mark > step) - step


def first_gradient(learner: Learner, seed: int, images: np.ndarray, labels: np.ndarray) -> float:
  """Length of the gradient of the first step, over all parameters.

  Args:
    learner: of the network.
    seed: of the run.
    images: of the first batch, uint8, (batch, height, width, channels).
    labels: integers, (batch,).
  """

  def norm(seed: jax.Array) -> jax.Array:
    state = learner.initial_state(seed, jnp.zeros((1, *images.shape[1:])), jnp.float32(1.0))
    after, _ = learner.step(
      state, jnp.asarray(images), jnp.asarray(labels), jnp.arange(len(labels))
    )
    moved = jax.tree.map(jnp.subtract, after.params, state.params)
    return optax.tree.norm(moved)

  return float(jax.jit(norm)(np.uint32(seed)))


def _read(curve: Curve, per_epoch: int) -> dict[str, Any]:
  """What is read off a curve."""
  by_step = dict(zip(curve.steps, curve.accuracy, strict=True))
  reached = curve.reaches(TARGET)
  return {
    "accuracy": None if curve.diverged_at is not None else curve.accuracy[-1],
    "diverged_at": curve.diverged_at,
    "epoch_accuracy": [by_step[step] for step in sorted(by_step) if step and step % per_epoch == 0],
    "steps_to_target": None if reached is None else reached[0],
    "epochs_to_target": None if reached is None else round(reached[0] / per_epoch, 4),
    "seconds_to_target": None if reached is None else round(reached[1], 2),
    "steps_per_epoch": per_epoch,
    "seconds": round(curve.seconds[-1], 1),
    "curve": {"steps": curve.steps, "accuracy": curve.accuracy},
  }


def _hyperparameters(
  learner: Learner, params: Any, image_shape: tuple[int, ...]
) -> dict[str, float]:
  """Learnt hyperparameters by "layer/name"."""
  image = np.zeros((1, *image_shape), np.float32)
  values = hyperparameters(learner.model, {"params": params}, image)
  leaves = jax.tree_util.tree_leaves_with_path(values)
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): float(np.asarray(value))
    for path, value in leaves
  }
