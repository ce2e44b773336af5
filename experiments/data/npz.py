"""Data sets in Keras-style `.npz` files."""

import math
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format

from experiments import UsageError
from experiments.data.examples import Dataset, Examples

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
"""Arrays of a Keras-style `.npz` data set."""


MAX_CLASSES = 2**20
"""More than any data set has: a label above is a mistake, and would make a layer as wide."""


def load_npz(path: str | Path, option: str = "--data-dir") -> Dataset:
  """Reads a data set in a Keras-style `.npz` file.

  Args:
    path: the file, or a folder that holds it as `mnist.npz`. It has the arrays `x_train`,
      `x_test`, uint8 of shape (number, height, width) or (number, height, width, channels), and
      `y_train`, `y_test`, integers of shape (number,) or (number, 1).
    option: name that the errors give the path.

  Returns:
    The data set, split as in the file.

  Raises:
    UsageError: if the file is missing, unreadable or not as above.
  """
  path = Path(path)
  file = path / "mnist.npz" if path.is_dir() else path
  if not file.is_file():
    raise UsageError(
      f"`{option}` must be an .npz file or a folder that holds mnist.npz, got {str(path)!r}: "
      f"there is no file {str(file)!r}"
    )
  allowed = f"an .npz file of arrays {', '.join(NPZ_KEYS)}"
  try:
    with zipfile.ZipFile(file) as archive:
      missing = [key for key in NPZ_KEYS if f"{key}.npy" not in archive.namelist()]
      arrays = {key: read_array(archive, f"{key}.npy") for key in NPZ_KEYS if not missing}
  except Exception as error:  # of many types, by what is damaged
    text = str(error) or type(error).__name__
    raise UsageError(f"`{option}` must be {allowed}, got {str(file)!r}: {text}") from error
  if missing:
    raise UsageError(
      f"`{option}` must be {allowed}, got {str(file)!r} without {', '.join(missing)}"
    )
  train = _examples(arrays["x_train"], arrays["y_train"], "train", file, option)
  test = _examples(arrays["x_test"], arrays["y_test"], "test", file, option)
  if train.images.shape[1:] != test.images.shape[1:]:
    raise UsageError(
      f"`{option}` must have training and test images of one shape, got {str(file)!r} with "
      f"{train.images.shape[1:]} and {test.images.shape[1:]}"
    )
  if test.labels.max() > train.labels.max():
    raise UsageError(
      f"`{option}` must have test labels that occur in training, got {str(file)!r} with "
      f"{test.labels.max()} above {train.labels.max()}"
    )
  return Dataset(train, test, str(file), int(train.labels.max()) + 1)


def read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
  """Returns an array of an archive, whose header must say what the archive says of its size.

  Args:
    archive: the archive.
    name: name of the array in it.

  Raises:
    Exception: of many types, by what is damaged.
  """
  with archive.open(name) as stream:
    version = format.read_magic(stream)
    read_header = {(1, 0): format.read_array_header_1_0, (2, 0): format.read_array_header_2_0}
    if version not in read_header:
      raise ValueError(f"{name} has an array of an unknown version, {version}")
    shape, _, dtype = read_header[version](stream)
    said, there = math.prod(shape) * dtype.itemsize, archive.getinfo(name).file_size - stream.tell()
    if said != there and not dtype.hasobject:
      raise ValueError(f"{name} says that it has {said} bytes of {dtype}{shape}, and has {there}")
  with archive.open(name) as stream:
    array = format.read_array(stream, allow_pickle=False)
    if stream.read(1):  # up to the end, where the checksum is compared
      raise ValueError(f"{name} has more than an array")
    return array


def _examples(
  images: np.ndarray, labels: np.ndarray, part: str, file: Path, option: str
) -> Examples:
  """Checked arrays of one part of an `.npz` file."""
  shape = images.shape
  images = images[..., None] if images.ndim == 3 else images
  labels = labels[:, 0] if labels.shape == (*shape[:1], 1) else labels
  if images.dtype != np.uint8 or images.ndim != 4 or 0 in shape:
    raise UsageError(
      f"`{option}` must hold uint8 images of shape (number, height, width) or (number, height, "
      f"width, channels), got {str(file)!r} with x_{part} of {images.dtype}{shape}"
    )
  if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1]:
    raise UsageError(
      f"`{option}` must hold one integer label per image, got {str(file)!r} with y_{part} of "
      f"{labels.dtype}{labels.shape} for {len(images)} images"
    )
  if labels.min() < 0 or labels.max() >= MAX_CLASSES:
    wrong = labels.min() if labels.min() < 0 else labels.max()
    raise UsageError(
      f"`{option}` must hold labels from 0 to {MAX_CLASSES - 1}, got {str(file)!r} with {wrong} in "
      f"y_{part}"
    )
  return Examples(images, labels.astype(np.int32))
