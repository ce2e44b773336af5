"""Files of results: written row by row, so that what was measured before an interruption stays."""

import json
import pathlib
from collections.abc import Iterable
from typing import Any

from benchmarks.environment import environment


class Results:
  """A JSON file that grows.

  Args:
    path: of the file; its folder is made. None keeps the results in memory alone.
    command: that makes it.
    **head: further entries.
  """

  def __init__(self, path: pathlib.Path | None, command: str, **head: Any):
    self.path = path
    self.content: dict[str, Any] = {"command": command, **environment(), **head}
    if path is not None:
      path.parent.mkdir(parents=True, exist_ok=True)

  def set(self, **entries: Any) -> None:
    """Sets entries and writes the file."""
    self.content |= entries
    if self.path is None:
      return
    lines = [f"  {json.dumps(key)}: {_entry(value)}" for key, value in self.content.items()]
    temporary = self.path.with_suffix(".tmp")
    temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    temporary.replace(self.path)


def _entry(value: Any) -> str:
  """JSON with one line for each row of a table."""
  if isinstance(value, list) and value and isinstance(value[0], dict):
    return "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in value) + "\n  ]"
  return json.dumps(value)


def load(paths: Iterable[pathlib.Path]) -> dict[str, dict[str, Any]]:
  """The files that are there, by their name without ending."""
  return {path.stem: json.loads(path.read_text()) for path in paths if path.is_file()}
