"""Digests of arrays and of files, and files that are written whole."""

import hashlib
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np


class Seals:
  """A SHA-256 for each file of a folder, in the format of `sha256sum`, to find the damaged one.

  Args:
    root: that has the folders.
    folder: for the seals.
  """

  def __init__(self, root: Path, folder: Path):
    self.root, self.folder = root, folder

  def write(self, name: str) -> None:
    """Seals a folder, and drops the seals of those that are no longer there.

    Args:
      name: of the folder.
    """
    files = sorted(path for path in (self.root / name).rglob("*") if path.is_file())
    lines = [f"{file_digest(path)}  {path.relative_to(self.root)}\n" for path in files]
    write_atomically(self._file(name), "".join(lines))
    for seal in self.folder.glob("*.sha256"):
      if not (self.root / seal.stem).is_dir():
        seal.unlink()

  def fault(self, name: str) -> str | None:
    """The first file of a folder that is not as it was, and how; None if none is.

    Args:
      name: of the folder; one without a seal has no fault that is known.
    """
    seal = self._file(name)
    if not seal.is_file():
      return None
    for line in seal.read_text(encoding="utf-8").splitlines():
      wanted, _, path = line.partition("  ")
      if not (self.root / path).is_file():
        return f"{path} is missing"
      if file_digest(self.root / path) != wanted:
        return f"{path} does not have the SHA-256 it was written with"
    return None

  @property
  def names(self) -> list[str]:
    """Names of the folders that have a seal, whether they are there or not."""
    return sorted(path.stem for path in self.folder.glob("*.sha256"))

  def remove(self, name: str) -> None:
    """Forgets the seal of a folder, if there is one.

    Args:
      name: of the folder.
    """
    self._file(name).unlink(missing_ok=True)

  def _file(self, name: str) -> Path:
    return self.folder / f"{name}.sha256"


def digest(tree: Any, text: str = "") -> str:
  """SHA-256 over names, types, shapes and bytes of arrays, and a text.

  Args:
    tree: of NumPy arrays.
    text: to include.

  Returns:
    64 hexadecimal digits.
  """
  total = hashlib.sha256(text.encode())
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    total.update(f"\0{leaf_name(path)}\0{leaf.dtype}\0{leaf.shape}\0".encode())
    total.update(np.ascontiguousarray(leaf).tobytes())
  return total.hexdigest()


def leaf_name(path: tuple[Any, ...]) -> str:
  """The name of an array in a tree.

  Args:
    path: to it, as JAX has it.
  """
  return jax.tree_util.keystr(path, simple=True, separator="/")


def file_digest(file: Path) -> str:
  """SHA-256 of a file's content.

  Args:
    file: to read.

  Returns:
    64 hexadecimal digits.
  """
  with file.open("rb") as stream:
    return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomically(file: Path, text: str) -> None:
  """Writes a file so that it is there with this content, or as it was.

  Args:
    file: to write or replace.
    text: its content.
  """
  temporary = file.with_name(f".{file.name}.{os.getpid()}")
  try:
    with temporary.open("w", encoding="utf-8") as stream:
      stream.write(text)
      stream.flush()
      os.fsync(stream.fileno())
    temporary.replace(file)
  finally:
    temporary.unlink(missing_ok=True)
