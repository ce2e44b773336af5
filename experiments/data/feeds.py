"""From a data set to the steps of a run: the same for sets in memory and streamed ones."""

import itertools
from collections.abc import Callable, Iterator
from typing import Protocol

import jax
import numpy as np

from experiments import UsageError
from experiments.configs.config import DataConfig
from experiments.data import Batch, Dataset, StreamedDataset, epoch_order
from experiments.engine.step import Score, TrainState
from experiments.engine.trainer import Trainer, to_device


class Feed(Protocol):
  """What a run needs of its data."""

  steps_per_epoch: int

  def run(
    self, state: TrainState, start: int, steps: int, stop: Callable[[], bool]
  ) -> tuple[TrainState, np.ndarray, float]:
    """Takes steps, all of one epoch; see `Trainer.run`.

    Args:
      state: where to start; it cannot be used again.
      start: steps taken before.
      steps: to take.
      stop: asked after each step of a loop in Python; True ends it early.
    """
    ...

  def evaluate(self, state: TrainState, batch_size: int, crops: int = 1) -> Score:
    """Scores a state on the test set.

    Args:
      state: that has the parameters.
      batch_size: examples at a time, at most.
      crops: pieces of each image, 1 or 10.
    """
    ...


class MemoryFeed:
  """A data set whose images are on the devices.

  Args:
    dataset: to train and test on.
    trainer: of the run.
    config: of the data.
    seed: of the order.

  Raises:
    UsageError: if the batch size does not fit.
  """

  def __init__(self, dataset: Dataset, trainer: Trainer, config: DataConfig, seed: int):
    self.number, self.batch_size, self.seed = len(dataset.train), config.batch_size, seed
    _check_batch(self.batch_size, self.number, trainer)
    self.trainer = trainer
    self.steps_per_epoch = self.number // self.batch_size
    self.train_set = to_device(dataset.train, trainer.layout)
    self.test_set = to_device(dataset.test, trainer.layout)
    self._order: tuple[int, np.ndarray] | None = None

  def run(
    self, state: TrainState, start: int, steps: int, stop: Callable[[], bool]
  ) -> tuple[TrainState, np.ndarray, float]:
    """See `Feed.run`."""
    epoch, first = divmod(start, self.steps_per_epoch)
    if self._order is None or self._order[0] != epoch:
      order = epoch_order(self.number, self.batch_size, seed=self.seed, epoch=epoch)
      self._order = epoch, order
    return self.trainer.run(state, self.train_set, self._order[1][first : first + steps], stop=stop)

  def evaluate(self, state: TrainState, batch_size: int, crops: int = 1) -> Score:
    """See `Feed.evaluate`."""
    if crops != 1:
      raise UsageError(f"`--crops` must be 1 for images that are held in memory, got {crops}")
    return self.trainer.evaluate(state, self.test_set, batch_size)


class StreamFeed:
  """A data set whose images are read when they are needed.

  Args:
    dataset: to train and test on.
    trainer: of the run.
    config: of the data.
    seed: of order and augmentation.

  Raises:
    UsageError: if the batch size does not fit.
  """

  def __init__(self, dataset: StreamedDataset, trainer: Trainer, config: DataConfig, seed: int):
    self.dataset, self.trainer = dataset, trainer
    self.batch_size, self.seed = config.batch_size, seed
    _check_batch(self.batch_size, len(dataset.train), trainer)
    self.steps_per_epoch = len(dataset.train) // self.batch_size
    self._batches: Iterator[Batch] = iter(())
    self._position: int | None = None

  def run(
    self, state: TrainState, start: int, steps: int, stop: Callable[[], bool]
  ) -> tuple[TrainState, np.ndarray, float]:
    """See `Feed.run`."""
    if self._position != start:
      self._batches = self.dataset.train_batches(
        seed=self.seed,
        batch_size=self.batch_size,
        start_step=start,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
      )
    batches = itertools.islice(self._batches, steps)
    state, losses, seconds = self.trainer.run_stream(state, batches, stop=stop)
    self._position = start + len(losses)
    return state, losses, seconds

  def evaluate(self, state: TrainState, batch_size: int, crops: int = 1) -> Score:
    """See `Feed.evaluate`."""
    size = self.trainer.layout.size
    batches = self.dataset.eval_batches(
      batch_size=max(batch_size // crops // size, 1) * size,
      crops=crops,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
    )
    return self.trainer.evaluate_stream(state, batches, len(self.dataset.test))


def _check_batch(batch_size: int, number: int, trainer: Trainer) -> None:
  """Raises a UsageError if the batch size does not fit the data or the devices."""
  if batch_size > number:
    raise UsageError(
      f"`--data.batch-size` must be at most {number}, the number of examples to train on, got "
      f"{batch_size}"
    )
  trainer.layout.check_batch(batch_size, "--data.batch-size")
