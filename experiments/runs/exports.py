"""A run's network in one file, for places where this repository is not."""

from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
from jax import export as jax_export

from experiments import UsageError
from experiments.common.files import write_atomically
from kerv_jax.models import Trained, save

FormatName = Literal["safetensors", "jax"]
PLATFORMS = "cpu", "cuda", "rocm", "tpu"
"""On which a program of `jax.export` runs."""


def export(network: Trained, file: str | Path, form: FormatName = "safetensors") -> None:
  """Writes a network to a new file.

  Args:
    network: the network.
    file: the file; its folder must exist.
    form: "safetensors" is read by `kerv_jax.models.load`; "jax" by `jax.export.deserialize`, whose
      `call` takes images, uint8, (number, height, width, channels), of any number, and gives the
      probabilities of the classes, (number, classes).

  Raises:
    UsageError: if the file is there, or its folder is not.
    OSError: if it cannot be written.
  """
  file = Path(file)
  if file.exists() or not file.parent.is_dir():
    wrong = "there is one" if file.exists() else "its folder is not there"
    raise UsageError(f"`--out` must be a new file, got {str(file)!r}: {wrong}")
  if form == "safetensors":
    try:
      save(file, network)
    except ImportError as error:
      raise UsageError(str(error)) from error
  else:
    write_atomically(file, _program(network))


def _program(network: Trained) -> bytes:
  """Returns the network as a program for any number of images, with its parameters in it."""
  (number,) = jax_export.symbolic_shape("number")
  images = jax.ShapeDtypeStruct((number, *network.description.image_shape), jnp.uint8)
  program = jax_export.export(jax.jit(network.probabilities), platforms=PLATFORMS)(images)
  return bytes(program.serialize())
