"""Several runs of one network at once, under `jax.vmap`."""

from collections.abc import Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.data import eval_batches
from experiments.engine.step import Score, TrainState
from experiments.engine.trainer import Images, Trainer


class VmappedTrainer(Trainer):
  """Trains and evaluates several runs of one model at once, on one device.

  They differ in seed, learning rate, and the examples they see, and take the same number of steps.
  Each is what `Trainer` makes of it alone, up to the order in which sums are rounded. A state has
  an axis of runs in front of every leaf, and `run`, with indices (steps, runs, batch size), gives
  losses (steps, runs). Of the other methods, `init_all` and `evaluate_all` are for such states.

  Args:
    model: see `Learner`.
    optimizer: of the parameters.
    loop: see `Trainer`.
    dtype: see `Learner`.
  """

  def __init__(
    self,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    loop: Literal["python", "scan"] | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
  ):
    super().__init__(model, optimizer, loop=loop, dtype=dtype)

  def init_all(
    self, seeds: Sequence[int], image_shape: tuple[int, ...], learning_rates: Sequence[float]
  ) -> TrainState:
    """The states before the first step, on the device.

    Args:
      seeds: of the runs, each from 0.
      image_shape: (height, width, channels).
      learning_rates: of the runs, see `Learner.initial_state`.
    """
    states = [
      self.init(seed, image_shape, rate)  # one by one, since another program might round otherwise
      for seed, rate in zip(seeds, learning_rates, strict=True)
    ]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

  def evaluate_all(
    self, states: TrainState, data: Images, subsets: np.ndarray, batch_size: int = 500
  ) -> list[Score]:
    """Scores each run on examples of its own; the padding of a last batch is masked.

    Args:
      states: that have the parameters.
      data: a set, see `to_device`.
      subsets: indices into it, (runs, examples).
      batch_size: examples of each run at a time, at most.
    """
    number = subsets.shape[1]
    batches = (
      (jnp.asarray(subsets[:, rows]), jnp.asarray(mask))
      for rows, mask in zip(*eval_batches(number, min(batch_size, number)), strict=True)
    )
    sums = self._sums(self._score, states, batches, data)
    return [Score(*map(float, run)) for run in sums.T / number]

  def _step(self, state: TrainState, indices: jax.Array, images: jax.Array, labels: jax.Array):
    """One step of each run on the examples picked for it."""
    return jax.vmap(super()._step, in_axes=(0, 0, None, None))(state, indices, images, labels)

  def _score(
    self,
    state: TrainState,
    indices: jax.Array,
    mask: jax.Array,
    images: jax.Array,
    labels: jax.Array,
  ):
    """Sums over the examples picked for each run."""
    score = jax.vmap(super()._score, in_axes=(0, 0, None, None, None))
    return score(state, indices, mask, images, labels)
