"""Sets of TensorFlow Datasets that are prepared: read without TensorFlow and without a network."""

import difflib
import io
import json
import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from experiments import UsageError
from experiments.data.examples import Dataset, Examples
from experiments.data.prepared_checks import check_features, number_of_records, same_file
from experiments.data.stream import StreamedDataset

NAME = re.compile(r"(\w+)(?:/([\w.-]+))?(?::(\d+\.\d+\.\d+))?")
"""Name of a set, with configuration and version if need be."""
TEST_SPLITS = ("test", "validation")
"""What is tested on: the first of these that a set has."""
SECRET = ("imagenet2012",)
"""Sets that are tested on "validation" because "test" has no labels."""
BY_HAND = {"imagenet2012": ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")}
"""Files that TensorFlow Datasets does not fetch by itself."""
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's name of a number of channels."""
CHUNK = 4096
"""Records that are read at a time."""


def load_prepared(
  name: str, data_dir: str | Path | None = None, *, option: str = "--data"
) -> Dataset | StreamedDataset:
  """Reads an image set that TensorFlow Datasets prepared as `array_record` files.

  Args:
    name: name of the set: "cifar10", "imagenet_resized/32x32", "mnist:3.0.1".
    data_dir: folder of prepared sets; None is the environment's TFDS_DATA_DIR or
      ~/tensorflow_datasets.
    option: name that the errors give the option.

  Returns:
    The split "train" and, to test on, "test", or "validation" where that is absent or has no
    labels; in memory if the images are of one size, and otherwise streamed.

  Raises:
    UsageError: if the set is unknown, not prepared (the message says how to do that), not about
      image classification, or damaged.
  """
  try:
    import tensorflow_datasets as tfds
  except ModuleNotFoundError as error:
    raise UsageError(
      f"`{option}` {name!r} is read with TensorFlow Datasets: pip install '.[experiments]' "
      f"({error})"
    ) from error

  folder = find_prepared(name, data_dir, tfds.list_builders(with_community_datasets=False), option)
  what = f"data set {name!r} in {str(folder)!r}"
  try:
    check_features(folder)
    builder = tfds.builder_from_directory(folder)
    image, label = _image_and_label(builder.info, what)
    train, test = (_Split(builder, split, what) for split in _splits(builder.info, what))
  except UsageError:
    raise
  except NotImplementedError as error:  # no random access
    raise UsageError(
      f"{what} is prepared in another format than array_record; prepare it again, in another "
      f"folder: {how_to_prepare(name, 'FOLDER')}"
    ) from error
  except Exception as error:  # of many types, by what is damaged
    raise UsageError(_unreadable(what, error)) from error
  if twice := same_file(train.files, test.files):
    raise UsageError(f"{test.what} has examples to train on in {str(twice)!r}; prepare it again")
  *size, channels = image.shape
  if None not in size:
    shape = *size, channels
    return Dataset(train.decode(shape), test.decode(shape), what, label.num_classes)
  if channels not in (1, 3):
    raise UsageError(f"{what} must have images of 1 or 3 channels, got {channels}")
  return StreamedDataset(train, test, what, label.num_classes, channels)


def find_prepared(
  name: str, data_dir: str | Path | None, known: Sequence[str], option: str = "--data"
) -> Path:
  """Returns the folder of a prepared set.

  Args:
    name: name of the set, see `load_prepared`.
    data_dir: folder of prepared sets, see `load_prepared`.
    known: sets that TensorFlow Datasets can prepare.
    option: name that the errors give the option.

  Returns:
    The folder; of several versions, the newest if the name has none.

  Raises:
    UsageError: if there is none.
  """
  place = data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
  try:
    root = Path(place).expanduser()
  except RuntimeError as error:  # there is no such user, or none at all
    raise UsageError(f"prepared data sets cannot be looked for in {place!r}: {error}") from None
  match = NAME.fullmatch(name)
  base, config, version = match.groups() if match else (name, None, None)
  folder = root / base / (config or "")
  if match:
    versions = [path.parent for path in folder.glob("*/dataset_info.json")]
    versions = [path for path in versions if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
    versions.sort(key=lambda path: [int(number) for number in path.name.split(".")])
    found = [path for path in versions if version in (None, path.name)]
    if found:
      return found[-1]
    if versions:
      names = ", ".join(path.name for path in versions)
      raise UsageError(f"`{option}` {name!r} has no such version in {str(root)!r}, but {names}")
    configs = sorted({path.parent.parent.name for path in folder.glob("*/*/dataset_info.json")})
    if configs and not config:
      names = ", ".join(f"{base}/{config}" for config in configs)
      raise UsageError(f"`{option}` {name!r} must name its configuration; prepared are {names}")
    if base in known:
      raise UsageError(
        f"data set {name!r} is not prepared in {str(root)!r}, and is not fetched by itself. Once, "
        f"with a network and TensorFlow: {how_to_prepare(name, str(root))}"
      )
  close = difflib.get_close_matches(base, known)
  raise UsageError(
    f"`{option}` must be 'sample', an .npz file, or a set of TensorFlow Datasets that is prepared "
    f"in {str(root)!r}, got {name!r}, which is none of them"
    + (f"; did you mean {' or '.join(close)}?" if close else "")
  )


def how_to_prepare(name: str, data_dir: str) -> str:
  """Returns the commands that prepare a set.

  Args:
    name: name of the set.
    data_dir: folder of prepared sets.

  Returns:
    Shell commands on one line and, where files are to be fetched by hand, which and where to.
  """
  files = " and ".join(BY_HAND.get(re.split("[/:]", name)[0], ()))
  by_hand = f"put {files} into {data_dir}/downloads/manual; " if files else ""
  quoted = json.dumps(name), json.dumps(data_dir)
  code = (
    "import tensorflow_datasets as tfds; tfds.builder({}, data_dir={}, "
    'file_format="array_record").download_and_prepare()'
  ).format(*quoted)
  return f"{by_hand}pip install '.[prepare]'; python -c {shlex.quote(code)}"


class _Split:
  """The labelled images of one split, as files."""

  def __init__(self, builder: Any, split: str, what: str):
    import tensorflow_datasets as tfds

    self.image, self.label = builder.info.supervised_keys
    self.num_classes = builder.info.features[self.label].num_classes
    self.what = f"{what}, split {split!r},"
    about = builder.info.splits[split]
    self.files = [Path(path) for path in about.filepaths]
    self.source = builder.as_data_source(split, decoders={self.image: tfds.decode.SkipDecoding()})
    for path, length in zip(self.files, about.shard_lengths, strict=True):
      if not path.is_file():
        raise UsageError(f"{self.what} is incomplete: there is no file {str(path)!r}")
      try:
        number = number_of_records(path)
      except Exception as error:  # of many types, by what is damaged
        raise UsageError(_unreadable(self.what, error)) from error
      if number != length:
        raise UsageError(
          f"{self.what} must have as many records in each file as dataset_info.json says, got "
          f"{number} instead of {length} in {str(path)!r}; prepare it again"
        )

  def __len__(self) -> int:
    return len(self.source)

  def __getitem__(self, index: int) -> tuple[bytes, int]:
    return self._read(lambda: [self.source[index]])[0]

  def _read(self, read: Callable[[], list[dict[str, Any]]]) -> list[tuple[bytes, int]]:
    """Examples from the records that a function reads."""
    try:
      records = [(record[self.image], record[self.label]) for record in read()]
      if any(None in record for record in records):
        raise EOFError("a record is empty")  # so it is read where a file was cut off
    except Exception as error:  # of many types, by what is damaged
      raise UsageError(_unreadable(self.what, error)) from error
    for _, label in records:
      if not 0 <= label < self.num_classes:
        raise UsageError(
          f"{self.what} must have a label from 0 to {self.num_classes - 1} for every image, got "
          f"{label}"
        )
    return records

  def decode(self, shape: tuple[int, int, int]) -> Examples:
    """Returns all examples; every image is of this shape."""
    number = len(self)
    images = np.empty((number, *shape), np.uint8)
    labels = np.empty(number, np.int32)
    mode = MODES[shape[-1]]
    for start in range(0, number, CHUNK):
      indices = list(range(start, min(start + CHUNK, number)))
      chunk = self._read(lambda indices=indices: self.source.__getitems__(indices))
      for index, (content, label) in zip(indices, chunk, strict=True):
        try:
          pixels = np.asarray(Image.open(io.BytesIO(content)).convert(mode))
          images[index] = pixels.reshape(shape)
        except Exception as error:  # of many types, by what is damaged
          raise UsageError(f"{self.what} has a damaged image, {index}: {error}") from error
        labels[index] = label
    return Examples(images, labels)


def _unreadable(what: str, error: Exception) -> str:
  """The message for a set whose files are damaged."""
  return f"{what} cannot be read, prepare it again: {type(error).__name__}: {error}".rstrip(": ")


def _image_and_label(info: Any, what: str) -> tuple[Any, Any]:
  """The features of an image classification set."""
  import tensorflow_datasets as tfds

  keys = info.supervised_keys
  pair = [info.features[key] for key in keys] if keys and len(keys) == 2 else []
  kinds = tfds.features.Image, tfds.features.ClassLabel
  if not pair or not all(map(isinstance, pair, kinds)):
    raise UsageError(f"{what} must be about images and their classes, got features {info.features}")
  image, label = pair
  if image.np_dtype != np.uint8 or image.shape[-1] not in MODES:
    raise UsageError(
      f"{what} must have uint8 images of 1, 3 or 4 channels, got {image.np_dtype}{image.shape}"
    )
  return image, label


def _splits(info: Any, what: str) -> tuple[str, str]:
  """The names of the splits to train and to test on."""
  choice = TEST_SPLITS[1:] if info.name in SECRET else TEST_SPLITS
  test = next((split for split in choice if split in info.splits), None)
  if "train" not in info.splits or test is None:
    raise UsageError(
      f"{what} must have the splits train and {' or '.join(choice)}, got "
      f"{', '.join(sorted(info.splits)) or 'none'}"
    )
  return "train", test
