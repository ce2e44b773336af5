"""The folder of a run: one live run at a time, its configuration, and what it ran on."""

import contextlib
import datetime
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import UsageError
from experiments.common.environment import environment
from experiments.common.files import write_atomically
from experiments.runs.checkpoints import CHECKPOINTS, DAMAGED, DIGESTS

CONFIG, MANIFEST, LOCK = "config.json", "manifest.json", "lock"


class Folder:
  """A run's folder, locked for as long as this object is open.

  The lock ends with the process, however that ends; it holds on one machine, and on others as far
  as the file system has locks.

  Args:
    path: path of the folder, which is made if it is not there.

  Raises:
    UsageError: if it cannot be written to, or another run is live in it.
  """

  def __init__(self, path: str | Path):
    self.path = Path(path)
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      self._lock = (self.path / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
      raise UsageError(
        f"`--run.out` must be a folder to write to, got {str(path)!r}: {error}"
      ) from None
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      self._lock.seek(0)
      holder = self._lock.read().strip() or "unknown"
      self._lock.close()
      raise UsageError(
        f"another run is live in {self.path}: process {holder}; wait for it, stop it, or give "
        "another `--run.out`"
      ) from None
    with contextlib.suppress(OSError):  # who it is, for the message above: a full disk does no harm
      os.ftruncate(self._lock.fileno(), 0)
      os.write(self._lock.fileno(), f"{os.getpid()} on {socket.gethostname()}".encode())

  def close(self) -> None:
    """Lets another run have the folder."""
    self._lock.close()

  def clear(self) -> None:
    """Removes what an earlier run has written here, and nothing else.

    Raises:
      UsageError: if there are such files and folders, but not of a run.
    """
    names = CHECKPOINTS, DIGESTS, DAMAGED, CONFIG
    found = [name for name in names if (self.path / name).exists()]
    if found and _launches(self.path / MANIFEST) is None and not self._has_config():
      raise UsageError(
        f"`--run.fresh` deletes runs only: {self.path} has {', '.join(found)}, but no {MANIFEST} "
        f"or {CONFIG} of a run; give another `--run.out`, or delete them yourself"
      )
    for name in (CHECKPOINTS, DIGESTS, DAMAGED, "tensorboard"):
      shutil.rmtree(self.path / name, ignore_errors=True)
    for name in (CONFIG, MANIFEST, "metrics.jsonl", "timing.jsonl", "summary.json"):
      (self.path / name).unlink(missing_ok=True)

  def check(self, config: Mapping[str, Any], *, ignored: frozenset[str], accept: bool) -> None:
    """Checks a configuration against that of the run that is here; nothing is written.

    Args:
      config: configuration, nested, of JSON's types.
      ignored: parts, and names with dots, that decide no result.
      accept: whether a difference is accepted.

    Raises:
      UsageError: if they differ, or that of the run cannot be read.
    """
    file = self.path / CONFIG
    if file.is_file() and not accept:
      changed = _differences(read_config(self.path), config, ignored)
      if changed:
        raise UsageError(
          f"{self.path} holds a run with another configuration: {'; '.join(changed)}. Give these "
          "options as they were, another `--run.out`, `--run.accept-changes` to go on with the new "
          "ones, or `--run.fresh` to start again"
        )
    elif not file.is_file() and any((self.path / CHECKPOINTS).glob("[0-9]*")) and not accept:
      raise UsageError(
        f"{self.path} has checkpoints but no {CONFIG} to tell of which configuration; "
        "`--run.accept-changes` goes on from them all the same, `--run.fresh` starts again"
      )

  def write_config(self, config: Mapping[str, Any]) -> None:
    """Makes a configuration that of the run.

    Args:
      config: configuration, nested, of JSON's types.
    """
    write_atomically(self.path / CONFIG, json.dumps(config, indent=2) + "\n")

  def record_launch(self, command: str, **facts: Any) -> None:
    """Adds to the manifest what is run now, with what, and on what.

    Args:
      command: command that was given.
      **facts: more facts, of JSON's types.
    """
    file = self.path / MANIFEST
    launches = _launches(file) or []
    launch = {
      "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
      "command": command,
      "host": socket.gethostname(),
    }
    launches.append(launch | environment() | facts)
    write_atomically(file, json.dumps({"launches": launches}, indent=2) + "\n")

  def _has_config(self) -> bool:
    """Whether there is a configuration of a run."""
    try:
      return {"model", "data", "optim"} <= read_config(self.path).keys()
    except UsageError:
      return False


def _launches(manifest: Path) -> list[Any] | None:
  """What a manifest lists; None if there is none, or it is damaged."""
  try:
    launches = json.loads(manifest.read_text(encoding="utf-8"))["launches"]
  except (OSError, ValueError, KeyError, TypeError):
    return None
  return launches if isinstance(launches, list) else None


def read_config(path: str | Path) -> dict[str, Any]:
  """Returns the configuration of the run in a folder.

  Args:
    path: path of the folder.

  Raises:
    UsageError: if there is none, or it cannot be read.
  """
  file = Path(path) / CONFIG
  try:
    config = json.loads(file.read_text(encoding="utf-8"))
  except FileNotFoundError:
    raise UsageError(f"there is no run in {str(path)!r}: no file {str(file)!r}") from None
  except (OSError, ValueError) as error:
    raise UsageError(f"the configuration {file} is damaged: {error}") from error
  if not isinstance(config, dict):
    raise UsageError(f"the configuration {file} is damaged: not an object")
  return config


def _differences(
  before: Mapping[str, Any], after: Mapping[str, Any], ignored: frozenset[str]
) -> list[str]:
  """What differs, by the option's name."""
  old, new = _flat(before, ignored), _flat(after, ignored)
  return [
    f"`--{name}` was {json.dumps(old.get(name))}, now {json.dumps(new.get(name))}"
    for name in sorted(old.keys() | new.keys())
    if old.get(name) != new.get(name)
  ]


def _flat(config: Mapping[str, Any], ignored: frozenset[str], prefix: str = "") -> dict[str, Any]:
  """Values by the names of their options."""
  values: dict[str, Any] = {}
  for name, value in config.items():
    option = prefix + name.replace("_", "-")
    if option in ignored:
      continue
    if isinstance(value, Mapping):
      values |= _flat(value, ignored, f"{option}.")
    else:
      values[option] = list(value) if isinstance(value, tuple) else value
  return values
