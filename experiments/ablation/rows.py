"""The rows of a folder of results: one line of JSON for each run, whoever adds it and when."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments import UsageError
from experiments.ablation.form import check_results
from experiments.ablation.protocol import Protocol, Spec, Training, command, identity, spec_from
from experiments.common.files import write_atomically
from experiments.common.forms import FormError, conform, parse_json, read_json
from experiments.common.locks import FolderLock

ROWS = "rows.jsonl"
PROTOCOL = "protocol.json"
ROOM = 2**18
"""Bytes that rows of a run may take."""

Row = dict[str, Any]
"""What came of a run: "id", "kind", "spec", "command" and results."""


class Rows:
  """The rows of a folder, read and added to by any number of processes.

  Args:
    folder: of the results; it is made when the first row is added.
    protocol: that all rows share; None is the one of the folder.
    source: options that say where the data are, for the commands of new rows.

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
      names = [field.name for field in dataclasses.fields(Protocol)]
      differ = [
        f"`--{name.replace('_', '-')}` was {getattr(found, name)}, now {getattr(protocol, name)}"
        for name in names
        if getattr(found, name) != getattr(protocol, name)
      ]
      raise UsageError(
        f"the rows in {str(folder)!r} have another protocol ({'; '.join(differ)}); give `--out` "
        "another folder"
      )
    self.protocol: Protocol = protocol or found  # pyright: ignore[reportAttributeAccessIssue]

  def all(self) -> dict[str, Row]:
    """All rows, by identity.

    Raises:
      UsageError: if the file is damaged.
    """
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
    """The row of a run, if there is one.

    Args:
      spec: of the run.
    """
    return self.all().get(identity(spec))

  def add(self, spec: Spec, result: Row) -> Row:
    """Adds a row, in the place of one that is there.

    Args:
      spec: of the run.
      result: what came of it.

    Returns:
      The row.
    """
    row = self.row(spec, result)
    self.add_all([row])
    return row

  def row(self, spec: Spec, result: Row, together: Sequence[Training] = ()) -> Row:
    """What a row is.

    Args:
      spec: of the run.
      result: what came of it.
      together: the runs that were trained at once, if there are others.
    """
    runs = together or [spec]
    return {
      "id": identity(spec),
      "kind": type(spec).__name__.lower(),
      "spec": dataclasses.asdict(spec),
      "command": command(runs, self.protocol, *self.source),
    } | result

  def add_all(self, added: Iterable[Row]) -> None:
    """Adds rows, in the place of those that are there.

    Args:
      added: as `row` makes them.
    """
    self.folder.mkdir(parents=True, exist_ok=True)
    with self._locked():
      if self._read_protocol() is None:
        text = json.dumps(dataclasses.asdict(self.protocol), indent=2)
        write_atomically(self.folder / PROTOCOL, text + "\n")
      rows = self.all() | {row["id"]: row for row in added}
      ordered = sorted(rows.values(), key=_place)
      lines = [json.dumps(each, allow_nan=False) + "\n" for each in ordered]
      write_atomically(self.folder / ROWS, "".join(lines))

  def check_room(self) -> None:
    """Raises an OSError if a row could not be added, before a run is made for it."""
    self.folder.mkdir(parents=True, exist_ok=True)
    file = self.folder / ROWS
    size = file.stat().st_size if file.exists() else 0
    trial = self.folder / f"{ROWS}.trial.{os.getpid()}"
    write_atomically(trial, bytes(size + ROOM))
    trial.unlink()

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
      values = read_json(file)
      protocol = conform({"definitions": 1} | values, Protocol, "protocol")
      protocol.check()
      return protocol
    except FileNotFoundError:
      return None
    except (UsageError, FormError, TypeError) as error:
      raise UsageError(f"{str(file)!r} is damaged: {error}") from error


def _place(row: Row) -> tuple[Any, ...]:
  """Where a row stands in the file."""
  spec = row["spec"]
  return (
    row["kind"] != "training",
    spec.get("search", False),
    spec["arm"],
    spec.get("rate", 0.0),
    (spec["seed"]),
  )
