"""A tiny study and its jobs."""

from experiments.ablation.perform import Job, perform
from experiments.ablation.protocol import Protocol

TINY = Protocol(epochs=4, search_epochs=2, batch_size=8)
OPTIONS = ["--epochs", "4", "--search-epochs", "2", "--batch-size", "8"]


def job(tiny, folder, spec):
  file, digest = tiny
  protocol = Protocol(**vars(TINY) | {"data": digest})
  return Job((spec,), protocol, file, None, str(folder / "rows"), str(folder / "weights"))


def perform_one(job):
  ((_, row, state),) = perform(job)
  return row, state
