"""The data of a study: the same examples in the same order, wherever they are read from."""

import dataclasses
import hashlib

import numpy as np

from experiments import UsageError, data
from experiments.ablation.protocol import Protocol
from experiments.data import Dataset, Examples


def load(name: str, data_dir: str | None = None) -> tuple[Dataset, str]:
  """A data set, each part in an order that its examples alone decide.

  Args:
    name: see `experiments.data.load`; it must fit into memory.
    data_dir: folder of prepared TensorFlow Datasets; None is theirs.

  Returns:
    The data set and its digest, 64 hexadecimal digits, which are the same for the same examples in
    any order.

  Raises:
    UsageError: if there is no such set, or it will not do.
  """
  dataset = data.load(name, data_dir)
  if not isinstance(dataset, Dataset):
    raise UsageError(f"`--data` must be a set of images of one size, got {name!r}")
  train, train_digest = _in_order(dataset.train)
  test, test_digest = _in_order(dataset.test)
  digest = hashlib.sha256(train_digest + test_digest).hexdigest()
  return dataclasses.replace(dataset, train=train, test=test), digest


def cut(dataset: Dataset, protocol: Protocol) -> Dataset:
  """The part of a data set that a protocol asks for.

  Args:
    dataset: as `load` gives it.
    protocol: of the runs.

  Raises:
    UsageError: if the data set does not have as many examples.
  """
  for name in ("train", "test"):
    examples: Examples = getattr(dataset, name)
    number = getattr(protocol, f"{name}_examples")
    if number is not None and number > len(examples):
      raise UsageError(f"`--{name}-examples` must be at most {len(examples)}, got {number}")
    if number is not None:
      dataset = dataclasses.replace(dataset, **{name: examples[np.arange(number)]})
  train = dataset.train
  if protocol.batch_size > round(0.8 * len(train)):  # what is left when part of it is held out
    raise UsageError(
      f"`--batch-size` must be at most {round(0.8 * len(train))} for {len(train)} examples to "
      f"train on, got {protocol.batch_size}"
    )
  return dataset


def _in_order(examples: Examples) -> tuple[Examples, bytes]:
  """Examples by the digest of each, and the digest of all."""
  shape = str(examples.images.shape[1:]).encode()
  digests = [
    hashlib.sha256(image.tobytes() + label.tobytes()).digest()
    for image, label in zip(examples.images, examples.labels, strict=True)
  ]
  order = np.asarray(sorted(range(len(digests)), key=digests.__getitem__))
  return examples[order], hashlib.sha256(shape + b"".join(sorted(digests))).digest()
