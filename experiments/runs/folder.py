"""The folder of a run: one live run at a time, its configuration, and what it ran on.

What lies in it, and which module writes it:

* ``config.json``, the configuration, an object of its options; ``manifest.json``, commit, versions,
  devices, data and command; here;
* ``metrics.jsonl`` and ``timing.jsonl``, a JSON object a line for each evaluation, and
  ``summary.json``, best and last score and times: ``metrics``;
* ``checkpoints/STEP``, arrays and record of a step: ``store`` (their files) and ``record`` (what is
  recorded); ``digests/STEP.sha256``, its seal: ``seals``; ``damaged/``, what was moved away:
  ``checkpoints``.
"""

import datetime
import json
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import UsageError
from experiments.common.environment import environment
from experiments.common.files import sweep, write_atomically
from experiments.common.forms import read_json
from experiments.common.locks import FolderLock, LockedError
from experiments.configs.identity import differences, identifying
from experiments.runs.checkpoints import CHECKPOINTS, DAMAGED, DIGESTS

CONFIG, MANIFEST = "config.json", "manifest.json"
FILES = CONFIG, MANIFEST, "metrics.jsonl", "timing.jsonl", "summary.json"
"""Files of a run that are written whole or not at all."""
FOLDERS = CHECKPOINTS, DIGESTS, DAMAGED, "tensorboard"


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
      self._lock = FolderLock(self.path)
    except LockedError as error:
      raise UsageError(
        f"another run is live in {self.path}: process {error}; wait for it, stop it, or give "
        "another `--run.out`"
      ) from None
    except OSError as error:
      raise UsageError(
        f"`--run.out` must be a folder to write to, got {str(path)!r}: {error}"
      ) from None

  def close(self) -> None:
    """Lets another run have the folder."""
    self._lock.close()

  def check_place(self) -> None:
    """Checks that a new run would write over nothing here, nor among other folders.

    Raises:
      UsageError: if no run is here, but files of a run's names, or folders of other names.
    """
    if (
      (self.path / CONFIG).exists()
      or any((self.path / CHECKPOINTS).glob("[0-9]*"))
      or _launches(self.path / MANIFEST) is not None
    ):
      return
    found = sorted(
      path.name
      for path in self.path.iterdir()
      if path.name in FILES or (path.is_dir() and path.name not in FOLDERS)
    )
    if found:
      shown = ", ".join(found[:5]) + ", ..." * (len(found) > 5)
      raise UsageError(
        f"`--run.out` must be the folder of a run, or one for it alone, got {str(self.path)!r}, "
        f"which is of no run and has {shown}"
      )

  def clear(self) -> None:
    """Removes what an earlier run has written here, and nothing else.

    A link to a folder, as to that of another disk, stays, and what a run has written there goes.

    Raises:
      UsageError: if there are such files and folders, but not of a run.
      OSError: if something cannot be removed.
    """
    found = [
      name for name in (CHECKPOINTS, DIGESTS, DAMAGED, CONFIG) if (self.path / name).exists()
    ]
    if found and _launches(self.path / MANIFEST) is None and not self._has_config():
      raise UsageError(
        f"`--run.fresh` deletes runs only: {self.path} has {', '.join(found)}, but no {MANIFEST} "
        f"or {CONFIG} of a run; give another `--run.out`, or delete them yourself"
      )
    for folder in (self.path / name for name in FOLDERS):
      if not folder.is_symlink():
        _remove(folder)
      elif folder.is_dir():
        for path in folder.iterdir():
          if path.name[:1].isdigit():  # steps, their seals, and saves that were cut off
            _remove(path)
    for name in FILES:
      _remove(self.path / name)

  def check(self, config: Mapping[str, Any], *, accept: bool) -> None:
    """Checks a configuration against that of the run that is here; nothing is written.

    Args:
      config: configuration, nested, of JSON's types.
      accept: whether a difference is accepted.

    Raises:
      UsageError: if they differ, or that of the run cannot be read.
    """
    file = self.path / CONFIG
    if file.is_file() and not accept:
      changed = differences(identifying(read_config(self.path)), identifying(config))
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

  def claim(self) -> None:
    """Takes the folder for this process: says so in it, and sweeps up after those that died."""
    self._lock.tell(f"{os.getpid()} on {socket.gethostname()}")
    for name in FILES:
      sweep(self.path / name)

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
    content = read_json(manifest)
  except (OSError, UsageError):
    return None
  launches = content.get("launches") if isinstance(content, dict) else None
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
    config = read_json(file, "the configuration")
  except FileNotFoundError:
    raise UsageError(f"there is no run in {str(path)!r}: no file {str(file)!r}") from None
  if not isinstance(config, dict):
    raise UsageError(f"the configuration {file} is damaged: not an object")
  return config


def _remove(path: Path) -> None:
  """Removes a file or a folder, if there is one."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)
