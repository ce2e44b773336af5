"""What a prepared set is not trusted with: code, numbers of records, and what is in which split."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import UsageError
from experiments.common.digests import file_digest
from experiments.common.forms import parse_json, read_json

OWN_FEATURES = re.compile(r"tensorflow_datasets\.core\.features(\.[a-z_0-9]+)*\.[A-Za-z_0-9]+")
"""Names of the classes that a set may be made of."""


def check_features(folder: Path) -> None:
  """Checks that the features of a prepared set are of classes of TensorFlow Datasets.

  The file names classes, whose modules TensorFlow Datasets imports: those of anybody are code that
  would be run.

  Args:
    folder: folder of the set.

  Raises:
    UsageError: if a class is another, or the file cannot be read.
  """
  try:
    content = read_json(folder / "features.json")
  except FileNotFoundError:
    return  # told by TensorFlow Datasets
  for name in _class_names(content):
    if not (isinstance(name, str) and OWN_FEATURES.fullmatch(name)):
      raise UsageError(
        f"{str(folder / 'features.json')!r} must name features of TensorFlow Datasets alone, got "
        f"{name!r}, which would be imported and run"
      )


def _class_names(content: Any) -> Iterator[Any]:
  """Yields what stands where TensorFlow Datasets takes the name of a class, however it is spelt."""
  if isinstance(content, Mapping):
    for key, value in content.items():
      if key.replace("_", "").lower() in ("pythonclassname", "type"):
        yield value
      elif key == "json" and isinstance(value, str):  # features in features, as a text
        yield from _class_names(parse_json(value))
      yield from _class_names(value)
  elif isinstance(content, list):
    for value in content:
      yield from _class_names(value)


def number_of_records(path: Path) -> int:
  """Returns how many records a file has.

  Args:
    path: the file, an `array_record`.
  """
  from array_record.python.array_record_module import ArrayRecordReader

  reader = ArrayRecordReader(str(path))
  try:
    return reader.num_records()
  finally:
    reader.close()


def same_file(train: Sequence[Path], test: Sequence[Path]) -> Path | None:
  """Returns a file to test on that has the content of one to train on; None if none has.

  Args:
    train: files of the one split.
    test: files of the other.
  """
  by_size: dict[int, list[Path]] = {}
  for path in train:
    by_size.setdefault(path.stat().st_size, []).append(path)
  for path in test:
    for other in by_size.get(path.stat().st_size, ()):
      if file_digest(other) == file_digest(path):
        return path
  return None
