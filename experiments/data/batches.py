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
    images: Images, uint8, (rows, height, width, channels) to train on, and (rows, crops, height,
      width, channels) to evaluate on.
    labels: Classes, int32, (rows,).
    ids: Places of the examples in their set, int32, (rows,).
    mask: Bool, (rows,), False where a row is padding and does not count; None if all rows count.
  """

  images: np.ndarray
  labels: np.ndarray
  ids: np.ndarray
  mask: np.ndarray | None = None


class Picks(NamedTuple):
  """A batch as places in a set that every device holds whole.

  Attributes:
    images: Images of the whole set, uint8, (number, height, width, channels).
    labels: Classes of the whole set, int32, (number,).
    ids: Places of the examples that are picked, int32, (rows,), the same in every process.
    mask: Bool, (rows,), False where a row is padding and does not count; None if all rows count.
  """

  images: jax.Array
  labels: jax.Array
  ids: np.ndarray
  mask: np.ndarray | None = None


def picks(images: Images, order: Iterable[np.ndarray]) -> Iterator[Picks]:
  """Yields a batch to train on for each row of an order of examples.

  Args:
    images: The set.
    order: Places in the set, int32, (steps, batch size).
  """
  for ids in order:
    yield Picks(*images, ids)


def each_once(images: Images, batch_size: int = 500, devices: int = 1) -> Iterator[Picks]:
  """Yields batches in which every example of a set counts exactly once.

  Args:
    images: The set.
    batch_size: Examples in a batch, at most.
    devices: Number of devices that share a batch; the size of a batch is a multiple of it.
  """
  number = len(images[1])
  size = max(min(batch_size, number) // devices, 1) * devices
  for ids, mask in zip(*eval_batches(number, size), strict=True):
    yield Picks(*images, ids, mask)
