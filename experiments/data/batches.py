"""Batches: the rows themselves, or picks from images that the devices hold."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from experiments.data.order import eval_batches

Images = tuple[jax.Array, jax.Array]
"""Images (uint8) and labels of a whole set, on the devices."""


class Batch(NamedTuple):
  """One process's rows of a batch.

  Attributes:
    images: images, uint8, (rows, height, width, channels) to train on, and (rows, crops, height,
      width, channels) to evaluate on.
    labels: classes, int32, (rows,).
    ids: places of the examples in their set, int32, (rows,).
    mask: bool, (rows,), False where a row is padding and does not count; None if all rows count.
  """

  images: np.ndarray
  labels: np.ndarray
  ids: np.ndarray
  mask: np.ndarray | None = None


class Picks(NamedTuple):
  """A batch as places in a set that every device holds whole.

  Attributes:
    images: images of the whole set, uint8, (number, height, width, channels).
    labels: classes of the whole set, int32, (number,).
    ids: places of the examples that are picked, int32, (rows,), the same in every process.
    mask: bool, (rows,), False where a row is padding and does not count; None if all rows count.
  """

  images: jax.Array
  labels: jax.Array
  ids: np.ndarray
  mask: np.ndarray | None = None


def picks(images: Images, order: Iterable[np.ndarray]) -> Iterator[Picks]:
  """Yields a batch to train on for each row of an order of examples.

  Args:
    images: the set.
    order: places in the set, int32, (steps, batch size).
  """
  for ids in order:
    yield Picks(*images, ids)


def each_once(images: Images, batch_size: int = 500, devices: int = 1) -> Iterator[Picks]:
  """Yields batches in which every example of a set counts exactly once.

  Args:
    images: the set.
    batch_size: examples in a batch, at most.
    devices: number of devices that share a batch; the size of a batch is a multiple of it.
  """
  number = len(images[1])
  size = max(min(batch_size, number) // devices, 1) * devices
  for ids, mask in zip(*eval_batches(number, size), strict=True):
    yield Picks(*images, ids, mask)
