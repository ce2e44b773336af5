"""Files of results: written row by row, so that what was measured before an interruption stays."""

import json
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from experiments.common.environment import environment
from experiments.common.files import write_atomically

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "nmn")


class Results:
  """A JSON file that grows.

  Args:
    path: of the file; its folder is made. None keeps the results in memory alone.
    command: that makes it.
    **head: further entries.
  """

  def __init__(self, path: pathlib.Path | None, command: str, **head: Any):
    self.path = path
    self.content: dict[str, Any] = {"command": command, **environment(PACKAGES), **head}
    if path is not None:
      path.parent.mkdir(parents=True, exist_ok=True)

  def set(self, **entries: Any) -> None:
    """Sets entries and writes the file."""
    self.content |= entries
    if self.path is None:
      return
    lines = [f"  {json.dumps(key)}: {_entry(value)}" for key, value in self.content.items()]
    write_atomically(self.path, "{\n" + ",\n".join(lines) + "\n}\n")


def collect(
  rows: Iterable[dict[str, Any]],
  results: Results,
  label: Callable[[dict[str, Any]], str],
  *,
  entry: str = "rows",
  done: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
  """Prints and writes rows one by one, as they come.

  Args:
    rows: as they come.
    results: to write.
    label: from a row to a line about it.
    entry: of the results, for the rows.
    done: rows to begin with.

  Returns:
    All rows.
  """
  found = [*done]
  results.set(**{entry: found})
  start = time.perf_counter()
  for row in rows:
    found.append(row)
    results.set(**{entry: found})
    print(f"{time.perf_counter() - start:6.1f} s  {label(row)}", flush=True)
  return found


def _entry(value: Any) -> str:
  """JSON with one line for each row of a table."""
  if isinstance(value, list) and value and isinstance(value[0], dict):
    return "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in value) + "\n  ]"
  return json.dumps(value)


def load(paths: Iterable[pathlib.Path]) -> dict[str, dict[str, Any]]:
  """The files that are there, by their name without ending."""
  return {path.stem: json.loads(path.read_text()) for path in paths if path.is_file()}
