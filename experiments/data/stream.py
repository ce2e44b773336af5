"""Data sets that do not fit in memory: decoded and cropped by threads, batch by batch."""

import dataclasses
import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from PIL import Image

from experiments import UsageError
from experiments.data.batches import Batch
from experiments.data.crops import evaluation_crops, random_crop
from experiments.data.order import epoch_order, eval_batches, process_rows

CROPS = (1, 10)
"""Pieces that an image can be evaluated on."""


class EncodedExamples(Protocol):
  """Labelled images as files, at random access."""

  def __len__(self) -> int: ...

  def __getitem__(self, index: int, /) -> tuple[bytes, int]: ...


@dataclasses.dataclass(frozen=True)
class StreamedDataset:
  """A data set whose images have many sizes, and are read when they are needed.

  Attributes:
    train: the training set.
    test: the test set.
    description: a line that says what it is.
    num_classes: number of classes; labels are below it.
    channels: number of channels of an image, 1 or 3.
    size: sides of the images that a network sees, in pixels.
    resize: the shorter side of an image in pixels before it is cut for evaluation.
    threads: number of threads that decode; None is one for each core.
  """

  train: EncodedExamples
  test: EncodedExamples
  description: str
  num_classes: int
  channels: int = 3
  size: int = 224
  resize: int = 256
  threads: int | None = None

  def __post_init__(self):
    if self.size > self.resize:
      raise ValueError(f"`size` must be at most `resize`, {self.resize}, got {self.size}")
    if self.channels not in (1, 3):
      raise ValueError(f"`channels` must be 1 or 3, got {self.channels}")

  def train_batches(
    self,
    *,
    seed: int,
    batch_size: int,
    start_step: int = 0,
    process_index: int = 0,
    process_count: int = 1,
  ) -> Iterator[Batch]:
    """Returns batches to train on, without end: random pieces, mirrored every other time.

    The order of examples is that of `epoch_order`, and the piece of an image a function of (seed,
    step, example): a batch depends on nothing but its step and these arguments.

    Args:
      seed: seed of order and pieces, at least 0.
      batch_size: size of a batch of all processes together, at most the number of examples.
      start_step: the step of the first batch, from 0.
      process_index: number of this process.
      process_count: number of processes, each of which reads its own rows of every batch.

    Returns:
      The batches of step `start_step` and those that follow.

    Raises:
      UsageError: if the batch size does not fit.
    """
    number = len(self.train)
    if not 1 <= batch_size <= number:
      raise UsageError(
        f"the batch size must be from 1 to {number}, the number of examples to train on, got "
        f"{batch_size}"
      )
    rows = process_rows(batch_size, process_index, process_count)
    local = rows.stop - rows.start
    steps_per_epoch = number // batch_size

    @functools.lru_cache(maxsize=2)  # threads are at the end of one epoch and the start of another
    def order(epoch: int) -> np.ndarray:
      return epoch_order(number, batch_size, seed=seed, epoch=epoch)

    def read(position: int) -> Batch:
      step, row = divmod(position, local)
      epoch, step_of_epoch = divmod(step, steps_per_epoch)
      index = int(order(epoch)[step_of_epoch, rows.start + row])
      image, label = self._decode(self.train, index)
      piece = random_crop(image, self.size, np.random.default_rng([seed, step, index]))
      return self._row(self._pixels(piece), label, index)

    return self._batches(read, start_step * local, sys.maxsize // local * local, local)

  def eval_batches(
    self, *, batch_size: int, crops: int = 1, process_index: int = 0, process_count: int = 1
  ) -> Iterator[Batch]:
    """Returns batches of the test set, in its order; the last one is padded and masked.

    Args:
      batch_size: size of a batch of all processes together.
      crops: number of pieces of every image, see `evaluation_crops`.
      process_index: number of this process.
      process_count: number of processes, each of which reads its own rows of every batch.

    Returns:
      As many batches for every process, in which each example counts once.

    Raises:
      UsageError: if the batch size or the crops do not fit.
    """
    if crops not in CROPS:
      raise UsageError(f"the number of crops must be 1 or 10, got {crops}")
    if batch_size < 1:
      raise UsageError(f"the batch size must be at least 1, got {batch_size}")
    rows = process_rows(batch_size, process_index, process_count)
    local = rows.stop - rows.start
    indices, masks = (part[:, rows].ravel() for part in eval_batches(len(self.test), batch_size))

    def read(position: int) -> Batch:
      index = int(indices[position])
      image, label = self._decode(self.test, index)
      pieces = evaluation_crops(image, self.size, self.resize, crops)
      pixels = np.stack([self._pixels(piece) for piece in pieces])
      return self._row(pixels, label, index, bool(masks[position]))

    return self._batches(read, 0, len(indices), local)

  def _batches(
    self, read: Callable[[int], Batch], start: int, stop: int, size: int
  ) -> Iterator[Batch]:
    """Batches of what `read` gives for every number in a range, in order."""
    import grain  # takes a third of a second

    ahead = 2 * size  # examples that are read before they are needed
    threads = min(self.threads or os.cpu_count() or 1, ahead)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    examples = grain.MapDataset.range(start, stop).map(read).to_iter_dataset(options)
    return iter(examples.batch(size, drop_remainder=True))

  def _decode(self, examples: EncodedExamples, index: int) -> tuple[Image.Image, int]:
    """An example's pixels and label."""
    content, label = examples[index]
    try:
      return Image.open(io.BytesIO(content)).convert("RGB" if self.channels == 3 else "L"), label
    except Exception as error:  # of many types, by what is damaged
      part = "training" if examples is self.train else "test"
      raise UsageError(
        f"{self.description}: {part} image {index} cannot be decoded: {error}"
      ) from error

  def _pixels(self, image: Image.Image) -> np.ndarray:
    """As an array with channels."""
    return np.asarray(image).reshape(self.size, self.size, self.channels)

  def _row(self, images: np.ndarray, label: int, index: int, mask: bool = True) -> Batch:
    """One row of a batch."""
    return Batch(images, np.array(label, np.int32), np.array(index, np.int32), np.array(mask))
