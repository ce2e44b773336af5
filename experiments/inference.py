"""The commands `predict` and `export`."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import tyro

from experiments import UsageError
from experiments.data.pictures import Picture, pictures
from experiments.runs.exports import FormatName, export
from experiments.runs.trained import read
from kerv_jax.models import Trained

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
  network = _read(command)
  part: list[Picture] = []
  try:
    for picture in pictures(command.images, network.description):
      part.append(picture)
      if len(part) == AT_ONCE:
        _predict(network, part)
        part = []
  except UsageError:  # after the images before the one that will not do
    _predict(network, part)
    raise
  _predict(network, part)
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
  export(_read(command), command.out, command.format)
  print(f"written: {command.out}")
  return 0


def _read(command: PredictCommand | ExportCommand) -> Trained:
  """The network of a run; which checkpoint it is of goes to standard error."""
  step, network = read(command.run, command.checkpoint, _say)
  _say(f"checkpoint: step {step} of {command.run}")
  return network


def _predict(network: Trained, part: Sequence[Picture]) -> None:
  """Prints a line for each image."""
  if not part:
    return
  names, images = zip(*part, strict=True)
  for name, row in zip(names, network.predict(np.stack(images)), strict=True):
    best = int(np.argmax(row))
    print(json.dumps({"image": name, "class": best, "probability": round(float(row[best]), 6)}))


def _say(line: str) -> None:
  print(line, file=sys.stderr)
