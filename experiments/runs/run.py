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
from experiments.configs.build import build
from experiments.configs.config import UNIDENTIFYING, TrainConfig
from experiments.engine.layout import Layout
from experiments.engine.processes import (
  LostError,
  connect,
  in_all_processes_the_same,
  in_any_process,
  is_main,
)
from experiments.runs.checkpoints import SaveError
from experiments.runs.ends import Outcome
from experiments.runs.folder import Folder
from experiments.runs.loop import Run
from experiments.runs.signals import StopSignals


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
    How it ended; what it has learnt is saved then.

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
  values = json.loads(json.dumps(dataclasses.asdict(config)))
  with StopSignals() as signals, contextlib.ExitStack() as stack:
    connect(config.parallel)
    signals.renew()
    with _together(values):
      layout = Layout.of(config.parallel)
      parts = build(config, layout)
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
          run.close()
          raise
        raise LostError(" ".join(str(error).split())) from error
      except BaseException:
        run.close()
        raise
      run.close()
    return outcome


@contextlib.contextmanager
def _together(config: Mapping[str, Any]) -> Iterator[None]:
  """Within it, what goes wrong in one process ends all of them, in order."""
  error: Exception | None = None
  try:
    yield
  except Exception as caught:
    error = caught
  failed = in_any_process(error is not None)
  if error is not None:
    raise error
  if failed:
    raise UsageError("another process cannot start; it says why")
  shared = {name: value for name, value in config.items() if name != "parallel"}
  shared["data"] = config["data"] | {"data_dir": None}  # each process may have its own copy
  if not in_all_processes_the_same(json.dumps(shared)):
    raise UsageError("the processes must be given the same options, and were given different ones")


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
    if config.run.fresh:
      lock.clear()
    lock.check(values, ignored=UNIDENTIFYING, accept=config.run.accept_changes)
  return lock
