"""A training run in a folder: it goes on where it was, and ends in order whatever happens."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from experiments import UsageError
from experiments.common.environment import code_digest, environment
from experiments.configs.build import Parts, build
from experiments.configs.config import TrainConfig
from experiments.configs.identity import identifying
from experiments.engine.agreement import agree, together
from experiments.engine.layout import Layout
from experiments.engine.processes import LostError, connect, is_main
from experiments.runs.checkpoints import SaveError
from experiments.runs.ends import Outcome
from experiments.runs.folder import Folder
from experiments.runs.loop import Run
from experiments.runs.signals import StopSignals
from experiments.runs.store import check_path


def train(
  config: TrainConfig, command: str = "", console: Console | None = None, *, out: str | None = None
) -> Outcome:
  """Trains, or goes on training, in the run's folder.

  Args:
    config: configuration of the run.
    command: command that started it, for the record.
    console: console to print to; None is standard output.
    out: folder of the run where the configuration names none.

  Returns:
    How it ended; what it has learned is saved then.

  Raises:
    UsageError: if an option, the data or the folder will not do.
    DamagedError: if the folder has checkpoints and none is undamaged.
    SaveError: if a checkpoint, or another file of the run, cannot be written.
    Diverged: if a loss is not finite.
    LostError: if another process is gone; this one had better end without waiting for it.
  """
  config.check()
  folder = config.run.out or out
  if folder is None:
    raise UsageError("`--run.out` must be the folder of the run, got none")
  check_path(Path(folder), "--run.out")
  values = json.loads(json.dumps(dataclasses.asdict(config)))
  with StopSignals() as signals, contextlib.ExitStack() as stack:
    connect(config.parallel)
    signals.renew()
    with together():
      layout = Layout.of(config.parallel)
      parts = build(config, layout)
    agree(_facts(config, values, folder, parts))
    with together():
      lock = _claim(config, values, folder, stack) if is_main() else None
    with _saving(folder):
      run = Run(config, Path(folder), parts, layout, console or Console())
      try:
        if lock is not None:
          lock.write_config(values)
          lock.record_launch(command, step=run.step)
        outcome = run.loop(signals)
      except LostError:  # the background threads would wait for the process that is gone
        raise
      except jax.errors.JaxRuntimeError as error:
        if layout.processes == 1 or "RESOURCE_EXHAUSTED" in str(error):
          _end(run)
          raise
        raise LostError(" ".join(str(error).split())) from error
      except BaseException:
        _end(run)
        raise
      run.close()
    return outcome


def _end(run: Run) -> None:
  """Ends what runs in the background; what goes wrong with that is less than what went wrong."""
  with contextlib.suppress(Exception):
    run.close()


def _facts(
  config: TrainConfig, values: Mapping[str, Any], folder: str, parts: Parts
) -> dict[str, Any]:
  """Returns what all processes must have in common, by name."""
  facts = {f"`--{name}`": value for name, value in identifying(values).items()}
  for part, names in (
    ("run", values["run"]),
    ("parallel", ("processes", "devices", "shard_params")),
  ):
    for name in names:
      facts[f"`--{part}.{name.replace('_', '-')}`"] = values[part][name]
  about = environment()
  versions = {f"version of {name}": version for name, version in about["versions"].items()}
  return (
    facts
    | versions
    | about["settings"]
    | {
      "the folder of the run": str(Path(folder).resolve()),
      "the digest of the data": parts.fingerprint,
      "the commit": about["commit"],
      "the digest of the code": code_digest(),
    }
  )


@contextlib.contextmanager
def _saving(folder: str) -> Iterator[None]:
  """Within it, what the system refuses is a SaveError."""
  try:
    yield
  except SaveError:
    raise
  except OSError as error:
    raise SaveError(f"cannot go on in {folder}: {error}; checkpoints are as they were") from error


def _claim(
  config: TrainConfig, values: Mapping[str, Any], folder: str, stack: contextlib.ExitStack
) -> Folder:
  """The folder, locked, after a look at what is in it."""
  with _saving(folder):
    lock = Folder(folder)
    stack.callback(lock.close)
    lock.check_place()
    if config.run.fresh:
      lock.clear()
    lock.check(values, accept=config.run.accept_changes)
    lock.claim()
  return lock
