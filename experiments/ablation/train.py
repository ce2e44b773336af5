"""One training run, and its row."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.ablation.arms import arm
from experiments.ablation.protocol import HELD_OUT, MILESTONES, TARGET, Protocol, Training
from experiments.data import Dataset, Examples, split_by_class, training_order
from experiments.digests import digest
from experiments.fit import Curve, fit
from experiments.step import Learner, TrainState
from experiments.training import Trainer, to_device
from kerv_jax.nn import hyperparameters

MOMENTUM = 0.9
FIRST, FINE, FINE_EPOCHS = 24, 6, 3
"""There are `FIRST` evaluations in the first epoch of a run, whose time to the target is taken;
`FINE` in an epoch up to `FINE_EPOCHS` and until the target is reached; then one."""


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
      optax.trace(MOMENTUM), optax.scale_by_schedule(lambda step: -learning_rate * scale(step))
    )

  return optax.inject_hyperparams(make)(learning_rate=0.0)


def train(
  spec: Training,
  protocol: Protocol,
  dataset: Dataset,
  on_progress: Callable[[int], None] = lambda steps: None,
) -> tuple[dict[str, Any], Any]:
  """Trains a network.

  Args:
    spec: of the run.
    protocol: of the run.
    dataset: as much of it as the protocol asks for.
    on_progress: called with the number of steps just taken.

  Returns:
    The results of its row, and the final parameters.
  """
  train_set, test_set, epochs = dataset.train, dataset.test, protocol.epochs
  if spec.search:
    rest, held_out = split_by_class(train_set.labels, HELD_OUT, spec.seed)
    train_set, test_set = train_set[rest], train_set[held_out]
    epochs = protocol.search_epochs
  per_epoch = len(train_set) // protocol.batch_size
  order = training_order(
    len(train_set), protocol.batch_size, seed=spec.seed, steps=epochs * per_epoch
  )
  network = arm(spec.arm)
  image_shape = train_set.images.shape[1:]
  trainer = Trainer(network.network(dataset.num_classes), make_optimizer(len(order)))
  images = to_device(train_set)
  rate, result = spec.rate, {}
  if network.matches is not None:
    other = Learner(arm(network.matches).network(dataset.num_classes), trainer.optimizer)
    rate, norms = matched_rate(spec, {"own": trainer, network.matches: other}, train_set[order[0]])
    result["first_gradient"] = norms
  start = time.process_time()
  state, curve = fit(
    trainer,
    trainer.init(spec.seed, image_shape, rate),
    images,
    to_device(test_set),
    order,
    eval_every=lambda curve: next_evaluation(
      curve, per_epoch, TARGET, FINE if spec.search else FIRST
    ),
    on_progress=on_progress,
  )
  spent = time.process_time() - start
  params = jax.tree.map(np.asarray, state.params)
  result |= _result(curve, per_epoch)
  result |= {
    "learning_rate": rate,
    "final_loss": _final_loss(trainer, state, curve, to_device(test_set)),
    "hyperparameters": _hyperparameters(trainer, params, image_shape),
    "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
    "weights": digest(params),
    "cpu_seconds": round(spent, 1),
    "compile_seconds": round(trainer.compile_seconds, 1),
  }
  return result, params


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


def _result(curve: Curve, per_epoch: int) -> dict[str, Any]:
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


def _final_loss(trainer: Trainer, state: TrainState, curve: Curve, test: Any) -> float | None:
  """Of the set that is evaluated on; None if the run diverged."""
  if curve.diverged_at is not None:
    return None
  loss = trainer.evaluate(state, test).loss
  return loss if math.isfinite(loss) else None


def _hyperparameters(
  trainer: Trainer, params: Any, image_shape: tuple[int, ...]
) -> dict[str, float]:
  """Learnt hyperparameters by "layer/name"."""
  image = np.zeros((1, *image_shape), np.float32)
  values = hyperparameters(trainer.model, {"params": params}, image)
  leaves = jax.tree_util.tree_leaves_with_path(values)
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): float(np.asarray(value))
    for path, value in leaves
  }
