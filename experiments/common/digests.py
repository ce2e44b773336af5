"""Digests of arrays and of files."""

import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np


def digest(tree: Any, text: str = "") -> str:
  """Returns the SHA-256 over names, types, shapes and bytes of arrays, and a text.

  Args:
    tree: tree of NumPy arrays.
    text: text to include.

  Returns:
    64 hexadecimal digits.
  """
  total = hashlib.sha256(text.encode())
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    total.update(f"\0{leaf_name(path)}\0{leaf.dtype}\0{leaf.shape}\0".encode())
    total.update(np.ascontiguousarray(leaf).tobytes())
  return total.hexdigest()


def leaf_name(path: tuple[Any, ...]) -> str:
  """Returns the name of an array in a tree.

  Args:
    path: path to the array, as JAX has it.
  """
  return jax.tree_util.keystr(path, simple=True, separator="/")


def file_digest(file: Path) -> str:
  """Returns the SHA-256 of a file's content.

  Args:
    file: file to read.

  Returns:
    64 hexadecimal digits.
  """
  with file.open("rb") as stream:
    return hashlib.file_digest(stream, "sha256").hexdigest()
