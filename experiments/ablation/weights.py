"""Final parameters, kept outside the repository for the studies that look at them."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np

from experiments.common.digests import digest


def save(file: Path, params: Any) -> None:
  """Writes parameters, so that the file is there whole or not at all.

  Args:
    file: to write, an .npz.
    params: nested dictionaries of arrays.
  """
  buffer = io.BytesIO()
  arrays: dict[str, Any] = dict(flax.traverse_util.flatten_dict(params, sep="/"))
  np.savez(buffer, **arrays)
  file.parent.mkdir(parents=True, exist_ok=True)
  temporary = file.with_name(f".{file.name}.{os.getpid()}")
  try:
    temporary.write_bytes(buffer.getvalue())
    temporary.replace(file)
  finally:
    temporary.unlink(missing_ok=True)


def load(file: Path, wanted: str) -> Any:
  """Reads parameters.

  Args:
    file: that `save` wrote.
    wanted: their digest.

  Returns:
    The parameters; None if the file is not there, is damaged or has others.
  """
  try:
    with np.load(file, allow_pickle=False) as archive:
      params = flax.traverse_util.unflatten_dict({name: archive[name] for name in archive}, sep="/")
  except (OSError, ValueError, EOFError, zipfile.BadZipFile):
    return None
  return params if digest(params) == wanted else None
