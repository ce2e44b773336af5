"""Images that a user names: files, folders of them, and arrays of NumPy."""

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from experiments import UsageError
from experiments.data.crops import evaluation_crops
from experiments.data.npz import read_array
from kerv_jax.models import Description

ARRAYS = ".npy", ".npz"
SUFFIXES = ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"
"""Of the files that are taken of a folder; one that is named may have any."""
_OPTION = "IMAGES"
_MODES = {1: ("L", "1"), 3: ("RGB", "P")}
"""What Pillow calls images of so many channels."""

Picture = tuple[str, np.ndarray]
"""A name, and an image, uint8, (height, width, channels)."""


def pictures(paths: Sequence[str | Path], network: Description) -> Iterator[Picture]:
  """Yields the images of files, each as a network sees it but for the normalisation.

  Args:
    paths: image files; folders, of which files with one of `SUFFIXES` are taken, by name; `.npy`
      files of one array, and `.npz` files of one array or with `x_test`: uint8 images, (number,
      height, width, channels), or (number, height, width) of one channel.
    network: description of the network.

  Raises:
    UsageError: if there is nothing to read, or an image cannot be read, or is of another size or
      number of channels than the network's.
  """
  if not paths:
    raise UsageError(f"`{_OPTION}` must be one file or folder at least, got none")
  if "" in paths:  # which to pathlib is the folder of the process
    raise UsageError(f"`{_OPTION}` must be files or folders, got ''")
  for path in map(Path, paths):
    if path.is_dir():
      for file in _of_folder(path):
        yield str(file), _picture(file, network)
    elif not path.is_file():
      raise UsageError(f"`{_OPTION}` must be files or folders, got {str(path)!r}: there is no file")
    elif path.suffix.lower() in ARRAYS:
      yield from ((f"{path}[{i}]", image) for i, image in enumerate(_array(path, network)))
    else:
      yield str(path), _picture(path, network)


def _of_folder(folder: Path) -> list[Path]:
  """Returns the image files in a folder, by name."""
  found = sorted(folder.iterdir())
  files = [path for path in found if path.suffix.lower() in SUFFIXES and path.is_file()]
  if not files:
    raise UsageError(f"`{_OPTION}` must be images, got the folder {str(folder)!r}, which has none")
  return files


def _picture(file: Path, network: Description) -> np.ndarray:
  """Returns the image in a file; where the network takes any size, its centre."""
  height, width, channels = network.image_shape
  try:
    with Image.open(file) as image:
      image.load()
      mode, size = image.mode, image.size
      image = image.convert("RGB" if channels == 3 else "L")
  except Exception as error:  # of many types, by what is damaged
    raise UsageError(f"`{_OPTION}`: {str(file)!r} is no image that can be read: {error}") from error
  if network.resize is not None:
    (image,) = evaluation_crops(image, height, network.resize, 1)
  elif size != (width, height) or mode not in _MODES.get(channels, ()):
    raise UsageError(
      f"`{_OPTION}` must be images of {height}x{width} with {_told(channels)}, as the network was "
      f"trained on; {str(file)!r} is {size[1]}x{size[0]}, {mode}"
    )
  return np.asarray(image).reshape(height, width, channels)


def _told(channels: int) -> str:
  known = {1: "1 channel (Pillow's mode L)", 3: "3 channels (Pillow's mode RGB)"}
  return known.get(channels, f"{channels} channels, which only arrays have")


def _array(file: Path, network: Description) -> np.ndarray:
  """Returns the images in an array file."""
  try:
    if file.suffix.lower() == ".npy":
      array = np.load(file, mmap_mode="r", allow_pickle=False)
    else:
      with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        chosen = [name for name in names if name == "x_test.npy"] or names
        if len(chosen) != 1:
          raise ValueError(f"it has {', '.join(names[:5]) or 'nothing'}, not one array or x_test")
        array = read_array(archive, chosen[0])
  except Exception as error:  # of many types, by what is damaged
    raise UsageError(f"`{_OPTION}`: {str(file)!r} cannot be read: {error}") from error
  shape = network.image_shape
  images = array[..., None] if shape[2] == 1 and array.shape[1:] == shape[:2] else array
  if images.shape[1:] != shape or images.dtype != np.uint8 or len(images) == 0:
    raise UsageError(
      f"`{_OPTION}` must be uint8 images of shape (number, {', '.join(map(str, shape))}), got "
      f"{str(file)!r} with {array.dtype}{array.shape}"
    )
  return images
