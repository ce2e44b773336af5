"""Data sets in Keras-style `.npz` files."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

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
    with file.open("rb") as stream:  # opened here: a damaged file makes np.load forget to close it
      archive = np.load(stream, allow_pickle=False)
      found = archive.files if isinstance(archive, np.lib.npyio.NpzFile) else []
      missing = [key for key in NPZ_KEYS if key not in found]
      arrays = {key: archive[key] for key in NPZ_KEYS if not missing}
  except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise UsageError(f"`{option}` must be {allowed}, got {str(file)!r}: {error}") from error
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


def _examples(
  images: np.ndarray, labels: np.ndarray, part: str, file: Path, option: str
) -> Examples:
  """Checked arrays of one part of an `.npz` file."""
  shape = images.shape
  images = images[..., None] if images.ndim == 3 else images
  labels = labels[:, 0] if labels.shape == (len(images), 1) else labels
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
