"""The rows of a folder of results: one line of JSON for each run, whoever adds it and when."""

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments import UsageError
from experiments.ablation.form import check_results
from experiments.ablation.protocol import Protocol, Spec, command, identity, kind, spec_from, values
from experiments.ablation.reading import Row
from experiments.common.files import check_room, write_atomically
from experiments.common.forms import FormError, conform, parse_json, read_json
from experiments.common.locks import FolderLock

ROWS, PROTOCOL = "rows.jsonl", "protocol.json"
ROOM = 2**18  # bytes that rows of a run may take


class Rows:
  """The rows of a folder, read and added to by any number of processes.

  The folder is made when the first row is added. All rows share a protocol; None is the folder's.
  `source` are options that say where the data are, for the commands of new rows.

  Raises:
    UsageError: if the folder's rows have another protocol, there is none, or a file is damaged.
  """

  def __init__(
    self, folder: str | Path, protocol: Protocol | None = None, source: Sequence[str] = ()
  ):
    self.folder, self.source = Path(folder), source
    found = self._read_protocol()
    if protocol is None and found is None:
      what = f"rows but no {PROTOCOL}" if (self.folder / ROWS).exists() else "no rows"
      raise UsageError(f"there are {what} in {str(folder)!r}: `python -m experiments ablation all`")
    if protocol is not None and found is not None and protocol != found:
      old, new = vars(found), vars(protocol)
      words = [f"`--{n}` was {old[n]}, now {new[n]}" for n in new if old[n] != new[n]]
      differ = "; ".join(words).replace("_", "-")
      raise UsageError(
        f"the rows in {str(folder)!r} have another protocol ({differ}); give `--out` another folder"
      )
    self.protocol: Protocol = protocol or found  # pyright: ignore[reportAttributeAccessIssue]

  def all(self) -> dict[str, Row]:
    """Returns all rows, by identity; a UsageError if the file is damaged."""
    file = self.folder / ROWS
    try:
      lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
      return {}
    except (OSError, UnicodeDecodeError) as error:
      raise UsageError(f"cannot read {str(file)!r}: {error}") from error
    rows = {}
    for number, line in enumerate(lines, 1):
      try:
        row = parse_json(line)
        spec = spec_from(row["kind"], row["spec"])
        check_results(row)
      except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
          f"{str(file)!r}, line {number}, is no row: {error!r}; take the line out, and the run is "
          "made again"
        ) from error
      if row.get("id") != identity(spec):
        raise UsageError(f"{str(file)!r}, line {number}: the row is not of its `id`")
      if rows.setdefault(row["id"], row) != row:
        raise UsageError(
          f"{str(file)!r}, line {number}: another row of the same run has other results; take one "
          "of them out"
        )
    return rows

  def get(self, spec: Spec) -> Row | None:
    """Returns the row of a run, if there is one."""
    return self.all().get(identity(spec))

  def row(self, spec: Spec, result: Row, together: Sequence[Spec] = ()) -> Row:
    """Returns the row of a run and its results; `together` are runs that were trained at once."""
    words = command(together or [spec], self.protocol, *self.source)
    about = {"id": identity(spec), "kind": kind(spec), "spec": values(spec), "command": words}
    return about | result

  def add(self, added: Iterable[Row]) -> None:
    """Adds rows, as `row` makes them, in the place of those that are there."""
    self.folder.mkdir(parents=True, exist_ok=True)
    with self._locked():
      if self._read_protocol() is None:
        text = json.dumps(dataclasses.asdict(self.protocol), indent=2)
        write_atomically(self.folder / PROTOCOL, text + "\n")
      rows = self.all() | {row["id"]: row for row in added}
      ordered = sorted(rows.values(), key=_place)
      lines = [json.dumps(each, allow_nan=False) + "\n" for each in ordered]
      write_atomically(self.folder / ROWS, "".join(lines))

  def name(self) -> str:
    """Returns what the data set is called in the commands of the rows."""
    for row in self.all().values():
      words = shlex.split(row["command"])
      if "--data" in words:
        return Path(words[words.index("--data") + 1].split(":")[0]).stem
    return "mnist"

  def check_room(self) -> None:
    """Raises an OSError if a row could not be added, before a run is made for it."""
    file = self.folder / ROWS
    check_room(file, ROOM + (file.stat().st_size if file.exists() else 0))

  @contextlib.contextmanager
  def _locked(self) -> Iterator[None]:
    """While no other process adds a row; the lock goes with the process that holds it."""
    lock = FolderLock(self.folder, ".lock", wait=True)
    try:
      yield
    finally:
      lock.close()

  def _read_protocol(self) -> Protocol | None:
    file = self.folder / PROTOCOL
    try:
      protocol = conform({"definitions": 1} | read_json(file), Protocol, "protocol")
      protocol.check()
      return protocol
    except FileNotFoundError:
      return None
    except (UsageError, FormError, TypeError) as error:
      raise UsageError(f"{str(file)!r} is damaged: {error}") from error


def _place(row: Row) -> tuple[Any, ...]:
  """Where a row stands in the file."""
  spec = row["spec"]
  first = row["kind"] != "training", spec.get("search", False), spec["arm"]
  return (*first, spec.get("rate", 0.0), spec.get("stop_after") or 0, spec["seed"])
