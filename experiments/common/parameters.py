"""Parameters of trained networks, in files that are known by their digest."""

import io
import zipfile
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np

from experiments.common.digests import digest
from experiments.common.files import write_atomically


def save(file: Path, params: Any) -> None:
  """Writes parameters to a file, so that it is there whole or not at all.

  Args:
    file: The file, an .npz; its folder is made if need be.
    params: Nested dictionaries of arrays.
  """
  buffer = io.BytesIO()
  arrays: dict[str, Any] = dict(flax.traverse_util.flatten_dict(params, sep="/"))
  np.savez(buffer, **arrays)
  file.parent.mkdir(parents=True, exist_ok=True)
  write_atomically(file, buffer.getvalue())


def load(file: Path, wanted: str) -> Any:
  """Returns the parameters that `save` wrote.

  Args:
    file: The file.
    wanted: Digest that the parameters must have, see `experiments.common.digests`.

  Returns:
    The parameters; None if the file is not there, is damaged or has others.
  """
  try:
    with np.load(file, allow_pickle=False) as archive:
      params = flax.traverse_util.unflatten_dict({name: archive[name] for name in archive}, sep="/")
  except (OSError, ValueError, EOFError, zipfile.BadZipFile):
    return None
  return params if digest(params) == wanted else None
