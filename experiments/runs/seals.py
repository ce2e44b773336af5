"""Seals: a SHA-256 beside each file of a checkpoint, to say which of them is damaged."""

import os
from pathlib import Path

from experiments.common.digests import file_digest
from experiments.common.files import write_atomically


class Seals:
  """A SHA-256 for each file of a folder, in the format of `sha256sum`, to find the damaged one.

  Args:
    root: folder that has the folders to seal.
    folder: folder for the seals.
  """

  def __init__(self, root: Path, folder: Path):
    self.root, self.folder = root, folder

  def write(self, name: str) -> None:
    """Seals a folder, and drops the seals of those that are no longer there.

    Args:
      name: name of the folder.
    """
    files = sorted(path for path in (self.root / name).rglob("*") if path.is_file())
    lines = [f"{file_digest(path)}  {path.relative_to(self.root)}\n" for path in files]
    write_atomically(self._file(name), "".join(lines))
    for seal in self.folder.glob("*.sha256"):
      if not (self.root / seal.stem).is_dir():
        seal.unlink()

  def fault(self, name: str) -> str | None:
    """Returns the first file of a folder that is not as it was, and how; None if all are.

    Args:
      name: name of the folder; one without a seal has no fault that is known.
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

  def missing(self, newest: int) -> list[str]:
    """Returns a line for each folder that was sealed, and is gone, though it was newer than all.

    Args:
      newest: the step of the newest folder there is; -1 if there is none.
    """
    steps = sorted((int(name) for name in self.names if name.isdecimal()), reverse=True)
    return [
      f"{self.root}: there is no checkpoint of step {step}, though there was one"
      for step in steps
      if step > newest
    ]

  def irregular(self) -> str | None:
    """Returns what is neither a file nor a folder, which to read might wait for ever, and how."""
    for folder, folders, files in os.walk(self.root):  # a live run may remove what it has listed
      for path in (Path(folder, name) for name in (*folders, *files)):
        if not (path.is_file() or path.is_dir()) and os.path.lexists(path):
          return f"{path} is not a regular file"
    return None

  @property
  def names(self) -> list[str]:
    """Names of the folders that have a seal, whether they are there or not."""
    return sorted(path.stem for path in self.folder.glob("*.sha256"))

  def remove(self, name: str) -> None:
    """Forgets the seal of a folder, if there is one.

    Args:
      name: name of the folder.
    """
    self._file(name).unlink(missing_ok=True)

  def sweep(self) -> None:
    """Removes what processes have left that were killed while they wrote a seal."""
    for path in self.folder.glob(".*.sha256.*"):
      path.unlink(missing_ok=True)

  def _file(self, name: str) -> Path:
    return self.folder / f"{name}.sha256"
