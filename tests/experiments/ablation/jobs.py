"""A tiny study and its jobs."""

import errno
import os

import numpy as np

from experiments.ablation import perform as module
from experiments.ablation.perform import Job, perform
from experiments.ablation.protocol import Protocol
from experiments.common import files
from tests.experiments.ablation.rows import training

TINY = Protocol(epochs=4, search_epochs=2, batch_size=8)
OPTIONS = ["--epochs", "4", "--search-epochs", "2", "--batch-size", "8"]


def job(tiny, folder, spec):
  file, digest = tiny
  protocol = Protocol(**vars(TINY) | {"data": digest})
  return Job((spec,), protocol, file, None, str(folder / "rows"), str(folder / "weights"))


def perform_one(job):
  ((_, row, state),) = perform(job)
  return row, state


def perform_while_the_disk_fills(job):
  """As `perform`, of made-up runs, in a process of its own.

  The disk is full before the run of seed 0, and fills during that of seed 1.
  """
  (seed,) = (spec.seed for spec in job.specs)

  def full(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  def train(specs, *_):
    assert seed != 0, "which nobody has room for"
    if seed == 1:
      files.os.fsync = full
    return [(training(spec=spec), {"conv1": np.zeros(3)}) for spec in specs]

  module.train = train
  if seed == 0:
    files.os.fsync = full
  return perform(job)
