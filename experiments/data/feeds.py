"""From a data set to the batches of a run: the same for sets in memory and streamed ones."""

import itertools
from collections.abc import Iterator
from typing import Protocol

import jax

from experiments import UsageError
from experiments.data.batches import Batch, Images, Picks, each_once, picks
from experiments.data.order import epoch_order
from experiments.data.stream import StreamedDataset


class Feed(Protocol):
  """The batches of a run."""

  @property
  def steps_per_epoch(self) -> int:
    """Number of steps that see every example once, but for those that fill no batch."""
    ...

  def train_batches(self, start: int) -> Iterator[Batch | Picks]:
    """Yields the batches to train on, without end.

    Args:
      start: the step of the first of them; a batch depends on its step alone.
    """
    ...

  def test_batches(self, batch_size: int, crops: int = 1) -> Iterator[Batch | Picks]:
    """Yields batches of the test set in which every example counts once.

    Args:
      batch_size: examples in a batch, at most.
      crops: pieces of each image, 1 or 10.

    Raises:
      UsageError: if the data have no such pieces.
    """
    ...

  def validation_batches(self, batch_size: int) -> Iterator[Batch | Picks] | None:
    """Yields the same of the training examples that are held out; None if none are.

    Args:
      batch_size: examples in a batch, at most.
    """
    ...


class MemoryFeed:
  """The batches of a data set whose images are on the devices.

  Args:
    train: the images and labels to train on.
    test: the images and labels to test on.
    batch_size: examples in a step, at most as many as there are to train on.
    seed: seed of the order of examples.
    devices: number of devices that share a batch.
    validation: the images and labels that are held out of training, if any are.
  """

  def __init__(
    self,
    train: Images,
    test: Images,
    *,
    batch_size: int,
    seed: int,
    devices: int = 1,
    validation: Images | None = None,
  ):
    self.train, self.test, self.validation = train, test, validation
    self.batch_size, self.seed, self.devices = batch_size, seed, devices
    self.steps_per_epoch = len(train[1]) // batch_size

  def train_batches(self, start: int) -> Iterator[Picks]:
    """See `Feed.train_batches`."""
    first, skipped = divmod(start, self.steps_per_epoch)
    for epoch in itertools.count(first):
      order = epoch_order(len(self.train[1]), self.batch_size, seed=self.seed, epoch=epoch)
      yield from picks(self.train, order[skipped if epoch == first else 0 :])

  def test_batches(self, batch_size: int, crops: int = 1) -> Iterator[Picks]:
    """See `Feed.test_batches`."""
    if crops != 1:
      raise UsageError(f"`--crops` must be 1 for images that are held in memory, got {crops}")
    return each_once(self.test, batch_size, self.devices)

  def validation_batches(self, batch_size: int) -> Iterator[Picks] | None:
    """See `Feed.validation_batches`."""
    if self.validation is None:
      return None
    return each_once(self.validation, batch_size, self.devices)


class StreamFeed:
  """The batches of a data set whose images are read when they are needed.

  Args:
    dataset: the data set.
    batch_size: examples in a step, at most as many as there are to train on.
    seed: seed of the order of examples and of the pieces of images.
    devices: number of devices that share a batch.
  """

  def __init__(self, dataset: StreamedDataset, *, batch_size: int, seed: int, devices: int = 1):
    self.dataset = dataset
    self.batch_size, self.seed, self.devices = batch_size, seed, devices
    self.steps_per_epoch = len(dataset.train) // batch_size

  def train_batches(self, start: int) -> Iterator[Batch]:
    """See `Feed.train_batches`."""
    batches = self.dataset.train_batches(
      seed=self.seed,
      batch_size=self.batch_size,
      start_step=start,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
    )
    return (batch._replace(mask=None) for batch in batches)

  def test_batches(self, batch_size: int, crops: int = 1) -> Iterator[Batch]:
    """See `Feed.test_batches`."""
    return self.dataset.eval_batches(
      batch_size=max(batch_size // crops // self.devices, 1) * self.devices,
      crops=crops,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
    )

  def validation_batches(self, batch_size: int) -> None:
    """See `Feed.validation_batches`: none is held out."""
