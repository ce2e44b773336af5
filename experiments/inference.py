"""The commands `predict` and `export`."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
import tyro

from experiments import UsageError
from experiments.data.pictures import Picture, pictures
from experiments.runs.exports import FormatName, export
from experiments.runs.trained import read

AT_ONCE = 256
"""Images that are predicted at a time."""


@dataclasses.dataclass(frozen=True)
class PredictCommand:
  """Tell the classes of images by what a run has learned: a line of JSON for each image."""

  run: Annotated[str, tyro.conf.Positional]
  """Folder of the run."""
  images: Annotated[tuple[str, ...], tyro.conf.Positional]
  """Image files; folders of them; .npy files, or .npz files of one array or with x_test: uint8,
  (number, height, width, channels)."""
  checkpoint: Literal["newest", "best"] | int = "newest"
  """The newest; the best, see `eval`; or that of a step."""


@dataclasses.dataclass(frozen=True)
class ExportCommand:
  """Write what a run has learned to a file that is read without this repository."""

  run: Annotated[str, tyro.conf.Positional]
  """Folder of the run."""
  out: str
  """The file to write, which must be new."""
  format: FormatName = "safetensors"
  """safetensors: weights, and what the network is, for `kerv_jax.models.load`; jax: a program for
  `jax.export.deserialize`, which needs neither kerv_jax nor Flax."""
  checkpoint: Literal["newest", "best"] | int = "newest"
  """The newest; the best, see `eval`; or that of a step."""


def predict_command(command: PredictCommand) -> int:
  """Does `python -m experiments predict RUN IMAGES...`.

  Args:
    command: options that were given.

  Returns:
    The exit code.

  Raises:
    UsageError: if there is no such run, or an image will not do.
  """
  step, network = read(command.run, command.checkpoint, _say)
  for number, part in enumerate(_parts(pictures(command.images, network.description))):
    if number == 0:  # where nothing is predicted, the error is the only line
      _say(f"checkpoint: step {step} of {command.run}")
    names, images = zip(*part, strict=True)
    for name, row in zip(names, network.predict(np.stack(images)), strict=True):
      best = int(np.argmax(row))
      print(json.dumps({"image": name, "class": best, "probability": round(float(row[best]), 6)}))
  return 0


def export_command(command: ExportCommand) -> int:
  """Does `python -m experiments export RUN --out FILE`.

  Args:
    command: options that were given.

  Returns:
    The exit code.

  Raises:
    UsageError: if there is no such run, or the file will not do.
  """
  step, network = read(command.run, command.checkpoint, _say)
  export(network, command.out, command.format)
  _say(f"checkpoint: step {step} of {command.run}")
  print(f"written: {command.out}")
  return 0


def _parts(found: Iterator[Picture]) -> Iterator[list[Picture]]:
  """Yields images, so many at a time; an error is raised after those before it."""
  part, fault = [], None
  try:
    for picture in found:
      part.append(picture)
      if len(part) == AT_ONCE:
        yield part
        part = []
  except UsageError as error:
    fault = error
  if part:
    yield part
  if fault is not None:
    raise fault


def _say(line: str) -> None:
  print(line, file=sys.stderr)
