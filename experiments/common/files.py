"""Files that are written whole or not at all."""

import os
from pathlib import Path


def write_atomically(file: Path, content: str | bytes) -> None:
  """Writes a file so that it is there with this content, or as it was.

  Args:
    file: the file to write or to replace; its folder must exist.
    content: content of the file; text is written in UTF-8.

  Raises:
    OSError: if the content cannot be written; the file is then as it was.
  """
  temporary = file.with_name(f".{file.name}.{os.getpid()}")
  try:
    with temporary.open("wb") as stream:
      stream.write(content.encode() if isinstance(content, str) else content)
      stream.flush()
      os.fsync(stream.fileno())
    temporary.replace(file)
  finally:
    temporary.unlink(missing_ok=True)


def check_room(file: Path, size: int) -> None:
  """Writes so many bytes beside a file, and takes them away, to see that there is room for it.

  Args:
    file: The file; its folder is made if need be.
    size: The number of bytes.

  Raises:
    OSError: If they cannot be written.
  """
  file.parent.mkdir(parents=True, exist_ok=True)
  trial = file.with_name(f"{file.name}.trial.{os.getpid()}")
  write_atomically(trial, bytes(size))
  trial.unlink()


def sweep(file: Path) -> None:
  """Removes what processes have left that were killed while they wrote a file.

  Args:
    file: The file; no other process writes it now.
  """
  for path in file.parent.iterdir():
    before, _, process = path.name.rpartition(".")
    if before == f".{file.name}" and process.isdecimal():
      path.unlink(missing_ok=True)
