"""Examples in an order that they alone decide, known by their digest."""

import dataclasses
import hashlib

import numpy as np

from experiments import UsageError
from experiments.data.examples import Dataset, Examples
from experiments.data.sources import load


def load_ordered(name: str, data_dir: str | None = None) -> tuple[Dataset, str]:
  """Reads a data set that fits into memory, the same from whatever source.

  Args:
    name: Name of the set or a file, see `load`.
    data_dir: Folder of prepared TensorFlow Datasets; None is theirs.

  Returns:
    The data set, each part in an order that its examples alone decide, and its digest, 64
    hexadecimal digits, which are the same for the same examples in any order.

  Raises:
    UsageError: If there is no such set, or its images are not of one size.
  """
  dataset = load(name, data_dir)
  if not isinstance(dataset, Dataset):
    raise UsageError(f"`--data` must be a set of images of one size, got {name!r}")
  train, train_digest = _in_order(dataset.train)
  test, test_digest = _in_order(dataset.test)
  digest = hashlib.sha256(train_digest + test_digest).hexdigest()
  return dataclasses.replace(dataset, train=train, test=test), digest


def _in_order(examples: Examples) -> tuple[Examples, bytes]:
  """Examples by the digest of each, and the digest of all."""
  shape = str(examples.images.shape[1:]).encode()
  digests = [
    hashlib.sha256(image.tobytes() + label.tobytes()).digest()
    for image, label in zip(examples.images, examples.labels, strict=True)
  ]
  order = np.asarray(sorted(range(len(digests)), key=digests.__getitem__))
  return examples[order], hashlib.sha256(shape + b"".join(sorted(digests))).digest()
