"""Several runs of one network at once, under `jax.vmap`."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data import Images, Picks, eval_batches
from experiments.engine.loop import Batches, Loop, LoopName
from experiments.engine.step import Learner, Score, TrainState
from experiments.engine.trainer import Trainer


class VmappedTrainer:
  """Trains and evaluates several runs of one model at once, on one device.

  The runs differ in seed, learning rate, and the examples they see, and take the same number of
  steps. Each is what a `Trainer` makes of it alone, up to the order in which sums are rounded. A
  state has an axis of runs in front of every leaf, and so have the places that a batch picks.

  Args:
    learner: the pure functions of the model.
    loop: way in which several steps are run, see `Loop`.
  """

  def __init__(self, learner: Learner, *, loop: LoopName | None = None):
    self.one = Trainer(learner, loop=loop)

    def steps(states: TrainState, batch: Picks) -> tuple[TrainState, jax.Array]:
      return jax.vmap(self.one.step, in_axes=(0, Picks(None, None, 0)))(states, batch)  # pyright: ignore

    def scores(states: TrainState, batch: Picks) -> tuple[jax.Array, ...]:
      return jax.vmap(self.one.score, in_axes=(0, Picks(None, None, 0, None)))(states, batch)  # pyright: ignore

    self.loop = Loop(steps, scores, self.one.layout, self.one.programs, loop)

  @property
  def compile_seconds(self) -> float:
    """Seconds that compiling the programs took so far."""
    return self.one.compile_seconds

  def init(
    self, seeds: Sequence[int], image_shape: tuple[int, ...], learning_rates: Sequence[float]
  ) -> TrainState:
    """Returns the states before the first step, on the device.

    Args:
      seeds: seeds of the runs, each from 0.
      image_shape: height, width and channels of an image.
      learning_rates: learning rates of the runs, see `Learner.initial_state`.
    """
    states = [  # one by one, since another program might round otherwise
      self.one.init(seed, image_shape, rate)
      for seed, rate in zip(seeds, learning_rates, strict=True)
    ]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

  def run(self, states: TrainState, batches: Batches) -> tuple[TrainState, np.ndarray, float]:
    """Takes one step of every run for each batch, see `Loop.steps`.

    Args:
      states: states to start from; their buffers are reused, so they cannot be used again.
      batches: picks of each run, with places of shape (runs, batch size).

    Returns:
      The states after the steps, the losses before each of them, (steps, runs), and the seconds
      they took.
    """
    return self.loop.steps(states, batches)

  def evaluate(
    self, states: TrainState, images: Images, subsets: np.ndarray, batch_size: int = 500
  ) -> list[Score]:
    """Scores each run on examples of its own.

    Args:
      states: the states that have the parameters.
      images: the set that the examples are in.
      subsets: places in the set, (runs, examples).
      batch_size: examples of each run at a time, at most.
    """
    number = subsets.shape[1]
    batches = (
      Picks(*images, subsets[:, rows], mask)
      for rows, mask in zip(*eval_batches(number, min(batch_size, number)), strict=True)
    )
    *sums, counts = self.loop.sums(states, batches)
    return [Score(*map(float, run)) for run in (np.stack(sums) / counts).T]
