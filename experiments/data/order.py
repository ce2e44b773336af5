"""Which examples are seen when, and by which process: pure functions."""

import math

import numpy as np

from experiments import UsageError


def split_by_class(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Splits examples so that every class is divided in the same proportion.

  Args:
    labels: labels of the examples.
    fraction: part of each class that goes to the second set, in (0, 1); it is rounded, and a class
      of two or more has at least one example on either side.
    seed: seed, at least 0; the split is a pure function of it.

  Returns:
    Indices of the remaining and of the held-out examples, each in ascending order.
  """
  rng = np.random.default_rng(seed)
  held_out = np.zeros(len(labels), bool)
  for label in np.unique(labels):
    members = np.flatnonzero(labels == label)
    count = min(max(round(fraction * len(members)), 1), len(members) - 1)
    held_out[rng.permutation(members)[:count]] = True
  return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def epoch_order(number: int, batch_size: int, *, seed: int, epoch: int) -> np.ndarray:
  """Returns the order of examples in one epoch, a pure function of (seed, epoch).

  Args:
    number: number of examples.
    batch_size: examples in a batch, at most `number`. Those that do not fill a last batch wait for
      another epoch, whose order differs.
    seed: seed of the run, at least 0.
    epoch: number of the epoch, from 0.

  Returns:
    Indices, int32, (number // batch_size, batch_size).
  """
  permutation = np.random.default_rng([seed, epoch]).permutation(number)
  steps = number // batch_size
  return permutation[: steps * batch_size].reshape(steps, batch_size).astype(np.int32)


def training_order(number: int, batch_size: int, *, seed: int, steps: int) -> np.ndarray:
  """Returns the order of examples in the first steps: of one epoch after another.

  Args:
    number: number of examples.
    batch_size: examples in a batch, at most `number`.
    seed: seed of the run, at least 0.
    steps: number of steps, at least 1.

  Returns:
    Indices, int32, (steps, batch_size).
  """
  epochs = math.ceil(steps / (number // batch_size))
  orders = [epoch_order(number, batch_size, seed=seed, epoch=epoch) for epoch in range(epochs)]
  return np.concatenate(orders)[:steps]


def eval_batches(number: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns batches of one size in which every example counts exactly once.

  Args:
    number: number of examples, at least 1.
    batch_size: size of every batch, at least 1; it may exceed `number`.

  Returns:
    Indices, int32, and masks, bool, both (batches, batch_size): where the mask is False, the last
    example stands in for padding.
  """
  padded = np.arange(-(-number // batch_size) * batch_size, dtype=np.int32)
  indices = np.minimum(padded, number - 1)
  return indices.reshape(-1, batch_size), (padded < number).reshape(-1, batch_size)


def process_rows(batch_size: int, process_index: int, process_count: int) -> slice:
  """Returns the rows of every batch that are one process's own, in process order.

  Args:
    batch_size: size of a batch of all processes together.
    process_index: number of this process, from 0.
    process_count: number of processes; it divides `batch_size`.

  Returns:
    The rows.

  Raises:
    UsageError: if the batch cannot be shared out equally.
  """
  if batch_size % process_count:
    raise UsageError(
      f"the batch size must be a multiple of the number of processes, {process_count}, "
      f"got {batch_size}"
    )
  rows = batch_size // process_count
  return slice(process_index * rows, (process_index + 1) * rows)
