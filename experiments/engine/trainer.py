"""Training and evaluation of one model, on one device or many."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data import Batch, Examples, Images, Picks
from experiments.engine.layout import Layout
from experiments.engine.loop import Batches, Loop, LoopName
from experiments.engine.programs import Programs
from experiments.engine.step import Learner, Score, TrainState


def to_device(examples: Examples, layout: Layout | None = None) -> Images:
  """Puts examples on the devices, whole on each, where the steps pick their batches.

  Args:
    examples: the examples, the same in every process.
    layout: the devices; None is one.
  """
  if layout is None or layout.size == 1:
    return jax.device_put((examples.images, examples.labels))
  images, labels = (
    layout.put(part, layout.replicated) for part in (examples.images, examples.labels)
  )
  return jnp.asarray(images), jnp.asarray(labels)


class Trainer:
  """Trains and evaluates one model; runs that differ in seed or learning rate share its programs.

  Args:
    learner: the pure functions of the model.
    layout: the devices; None is one.
    loop: way in which several steps are run, see `Loop`.
  """

  def __init__(
    self, learner: Learner, *, layout: Layout | None = None, loop: LoopName | None = None
  ):
    self.learner = learner
    self.layout = layout or Layout()
    self.programs = Programs()
    self.loop = Loop(self.step, self.score, self.layout, self.programs, loop)

  @property
  def compile_seconds(self) -> float:
    """Seconds that compiling the programs took so far."""
    return self.programs.compile_seconds

  def init(
    self, seed: int, image_shape: tuple[int, ...], learning_rate: float | None = None
  ) -> TrainState:
    """Returns the state before the first step, on the devices.

    Args:
      seed: seed of the run, from 0.
      image_shape: height, width and channels of an image.
      learning_rate: learning rate of the run, see `Learner.initial_state`.
    """
    rate = None if learning_rate is None else np.float32(learning_rate)
    arguments = np.uint32(seed), np.zeros((1, *image_shape), self.learner.dtype), rate
    options: dict[str, Any] = {}
    if jax.default_backend() == "cpu":  # optimising a program that runs once takes most of its time
      options["compiler_options"] = {"xla_backend_optimization_level": 1}
    # By one device, whatever the layout: another program might round otherwise.
    program = self.programs.compiled(self.learner.initial_state, *arguments, **options)
    state = program(*arguments)
    if self.layout.size > 1:
      state = self.layout.put_tree(jax.tree.map(np.asarray, state), self.layout.state(state))
    return state

  def shapes(self, image_shape: tuple[int, ...], learning_rate: float | None = None) -> TrainState:
    """Returns shapes and types of the state, without any computation.

    Args:
      image_shape: height, width and channels of an image.
      learning_rate: learning rate of the run, see `Learner.initial_state`.
    """
    rate = None if learning_rate is None else np.float32(learning_rate)
    image = jax.ShapeDtypeStruct((1, *image_shape), self.learner.dtype)
    return jax.eval_shape(self.learner.initial_state, np.uint32(0), image, rate)

  def check(self, image_shape: tuple[int, ...], batch_size: int) -> None:
    """Goes through the model once as in training, by shapes alone.

    Args:
      image_shape: height, width and channels of an image.
      batch_size: examples in a step.

    Raises:
      ValueError: if the model cannot be trained on such images.
    """
    state = self.shapes(image_shape)
    images = jax.ShapeDtypeStruct((batch_size, *image_shape), jnp.uint8)
    forward = functools.partial(self.learner.apply, train=True)
    jax.eval_shape(forward, state.params, state.batch_stats, images)

  def run(
    self, state: TrainState, batches: Batches, *, stop: Callable[[], bool] = lambda: False
  ) -> tuple[TrainState, np.ndarray, float]:
    """Takes one step for each batch, see `Loop.steps`.

    Args:
      state: state to start from; its buffers are reused, so it cannot be used again.
      batches: the batches, as a feed yields them.
      stop: function that is asked after each step of a loop in Python; True ends the loop.

    Returns:
      The state after the steps, the loss before each of them, and the seconds they took.
    """
    return self.loop.steps(state, batches, stop)

  def evaluate(self, state: TrainState, batches: Batches) -> Score:
    """Scores parameters on batches in which every example counts once.

    Args:
      state: the state that has the parameters.
      batches: the batches, each with a mask.
    """
    *sums, number = self.loop.sums(state, batches)
    return Score(*(float(total / number) for total in sums))

  def finite(self, state: TrainState) -> bool:
    """Returns whether parameters and batch statistics are all finite.

    Args:
      state: the state that has them.
    """

    def finite(state: TrainState) -> jax.Array:
      leaves = jax.tree.leaves((state.params, state.batch_stats))
      return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    return bool(self.programs.compiled(finite, state)(state))

  def step(self, state: TrainState, batch: Batch | Picks) -> tuple[TrainState, jax.Array]:
    """Takes a step on a batch, see `Learner.step`; a pure function.

    Args:
      state: the state before the step.
      batch: the batch, on the devices.
    """
    return self.learner.step(state, *self._rows(batch), jnp.asarray(batch.ids))

  def score(self, state: TrainState, batch: Batch | Picks) -> tuple[jax.Array, ...]:
    """Sums up scores over a batch, see `Learner.score`; a pure function.

    Args:
      state: the state that has the parameters.
      batch: the batch, on the devices, with its mask.

    Returns:
      The sums, and the number of examples that count.
    """
    mask = jnp.asarray(batch.mask)
    return *self.learner.score(state, *self._rows(batch), mask), jnp.sum(mask)

  def _rows(self, batch: Batch | Picks) -> tuple[jax.Array, jax.Array]:
    """Returns images and labels of the batch, divided over the devices."""
    if isinstance(batch, Batch):
      return jnp.asarray(batch.images), jnp.asarray(batch.labels)
    rows = batch.images[batch.ids], batch.labels[batch.ids]
    if self.layout.size > 1:
      rows = jax.lax.with_sharding_constraint(rows, self.layout.batch)
    return rows
