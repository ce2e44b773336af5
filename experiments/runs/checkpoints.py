"""Checkpoints that can be trusted.

A checkpoint is the whole state as plain arrays, whatever the devices, and a record: what else the
run needs to go on. The record holds a SHA-256 over all of it, and beside the checkpoint lies one
for each file, to say which of them is damaged.
"""

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import UsageError
from experiments.engine.layout import Layout
from experiments.engine.processes import LostError, is_main
from experiments.failures import EXIT_UNSAVED, Failure
from experiments.runs.record import (
  DamagedError,
  Record,
  check_state,
  check_target,
  pack,
  unpack,
)
from experiments.runs.seals import Seals
from experiments.runs.store import Store, discard_unfinished, one_line, system_error

CHECKPOINTS = "checkpoints"
DIGESTS = "digests"
DAMAGED = "damaged"
"""Folders in that of a run."""


class SaveError(Failure, OSError):
  """A checkpoint could not be written; those before it are as they were."""

  exit_code = EXIT_UNSAVED


class Restored(NamedTuple):
  """A checkpoint that has been read and checked.

  Attributes:
    step: number of steps taken before it.
    state: tree of NumPy arrays.
    record: record that was saved with it.
    faults: for each newer checkpoint, the file that is damaged and how.
  """

  step: int
  state: Any
  record: dict[str, Any]
  faults: tuple[str, ...]


class Checkpoints:
  """The checkpoints of one run; every process of it makes one, on a file system that all share.

  Args:
    folder: folder of the run.
    layout: devices of the run.
    keep: number of the newest checkpoints to keep beside the best one, at least 2, since one may be
      damaged.
    asynchronous: whether training goes on while a checkpoint is written.
    read_only: whether nothing may be written or moved.

  Raises:
    DamagedError: if something in the folder is neither a file nor a folder.
  """

  def __init__(
    self,
    folder: Path,
    layout: Layout,
    *,
    keep: int = 2,
    asynchronous: bool = True,
    read_only: bool = False,
  ):
    self.folder = Path(folder).resolve()
    self.root = self.folder / CHECKPOINTS
    self.layout = layout
    self.asynchronous = asynchronous
    self.read_only = read_only
    self._seals = Seals(self.root, self.folder / DIGESTS)
    self._unsealed: int | None = None
    self._unproven: tuple[int, Any] | None = None  # the first save, with its shapes
    self._proven = False
    self._scores: dict[int, float] = {}
    if not read_only and is_main():
      for name in (CHECKPOINTS, DIGESTS):
        (self.folder / name).mkdir(parents=True, exist_ok=True)
      discard_unfinished(self.root)
      self._seals.sweep()
    layout.barrier("checkpoint folders")
    if irregular := self._seals.irregular():
      raise DamagedError(irregular)
    self._store = Store(
      self.root,
      lambda steps: {*steps[-keep:], self.best_of(steps)},
      asynchronous=asynchronous,
      read_only=read_only,
    )

  @property
  def steps(self) -> list[int]:
    """Steps that have a complete checkpoint, ascending."""
    return self._store.steps

  @property
  def best_step(self) -> int | None:
    """Step of the checkpoint with the highest score, the newest of equals; None if none has one."""
    if not self._scores and (newest := self.newest_record()) is not None:
      self._scores = _scores(newest)
    return self.best_of(self.steps)

  @property
  def lost_best(self) -> int | None:
    """Step of the best when what was restored was saved, if there is no checkpoint of it now."""
    best = _best(self._scores)
    return None if best in self.steps else best

  def best_of(self, steps: Sequence[int]) -> int | None:
    """Returns the step with the highest score of these, the newest of equals, or None."""
    return _best({step: self._scores[step] for step in steps if step in self._scores})

  def find_best(self) -> tuple[int | None, list[str]]:
    """Returns the step that `best_step` was when the newest record was written, there or not.

    Returns:
      The step, or None if none has a score; and for each newer checkpoint that could be better, but
      is gone or has a damaged record, how.

    Raises:
      DamagedError: if the best is gone, or there are checkpoints and none has an undamaged record.
    """
    record, faults = self._newest_record()
    step = None if record is None else _best(_scores(record))
    if step is not None and step not in self.steps:
      raise DamagedError(f"{self.root}: there is no checkpoint of step {step}, which was the best")
    return step, self._seals.missing(max(self.steps, default=-1)) + faults

  def save(self, step: int, state: Any, record: dict[str, Any], score: float | None) -> None:
    """Writes a checkpoint, in the background; waits for the one before it.

    Args:
      step: number of steps taken.
      state: arrays on the devices, copied before this returns.
      record: facts beside the state that are needed to go on, of JSON's types.
      score: measure of how good it is, higher is better; None if that is not known.

    Raises:
      SaveError: if this one, or the one before, cannot be written.
      LostError: if another process is gone.
    """
    self.wait()
    there = self.steps
    self._scores = {each: self._scores[each] for each in there if each in self._scores}
    if score is not None:
      self._scores[step] = score
    arrays = self.layout.get_tree(state)
    item = pack(step, arrays, record, self._scores)
    if not self._proven and self._unproven is None:
      self._unproven = step, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
    self._seals.remove(str(step))
    self._try(lambda: self._store.save(step, arrays, item), step)
    self._unsealed = step
    if not self.asynchronous:
      self.wait()

  def poll(self) -> None:
    """Completes a save that has come to its end, without waiting for one.

    Raises:
      SaveError: if it failed.
    """
    if self._unsealed is not None and not self._store.busy:
      self._complete()

  def wait(self) -> None:
    """Waits for the save in progress; the first of all is then read, before others are trusted.

    Raises:
      SaveError: if it failed, or cannot be read.
    """
    self._complete()
    if self._unproven is not None:  # here, where all processes are at the same time
      (step, shapes), self._unproven, self._proven = self._unproven, None, True
      self._try(lambda: self._read(step, _zeros(shapes)), step, "read back")

  def _complete(self) -> None:
    """Waits for the save in progress, and seals it."""
    step = self._unsealed
    if step is None:
      return
    self._unsealed = None
    self._try(self._store.wait, step)
    if is_main():
      self._try(lambda: self._seals.write(str(step)), step)

  def close(self) -> None:
    """Waits for the save in progress and ends the background threads.

    Raises:
      SaveError: if it failed.
    """
    try:
      self.wait()
    finally:
      self._store.close()

  def restore(self, shapes: Any, step: int | None = None) -> Restored | None:
    """Reads the newest checkpoint that is undamaged.

    Newer ones that are damaged are moved to the folder "damaged", unless this is read-only.

    Args:
      shapes: shapes of the state, a tree of `jax.ShapeDtypeStruct`.
      step: step of the checkpoint to read; None is the newest.

    Returns:
      The checkpoint, or None if there never was one.

    Raises:
      DamagedError: if there are, or were, checkpoints and none is undamaged, or the one asked for
        is not.
      UsageError: if it is of another network.
    """
    target = _zeros(shapes)
    steps = [step] if step is not None else self.steps[::-1]
    faults = [] if step is not None else self._seals.missing(max(steps, default=-1))
    damaged: list[int] = []
    for candidate in steps:
      try:
        fault = self._seals.fault(str(candidate))
        if fault is not None:
          raise DamagedError(fault)
        state, record = self._read(candidate, target)
      except UsageError:
        raise
      except Exception as error:  # of many types, as Orbax meets the damage
        faults.append(f"{self.root / str(candidate)}: {one_line(error)}")
        damaged.append(candidate)
        continue
      self.set_aside(damaged)
      self._scores = _scores(record)
      return Restored(candidate, state, record.run, tuple(faults))
    if faults:
      raise DamagedError("\n".join(faults))
    return None

  def newest_record(self) -> Record | None:
    """Returns the newest record that is undamaged, without its arrays; None if there never was one.

    Raises:
      DamagedError: if there are checkpoints and none has an undamaged record.
    """
    return self._newest_record()[0]

  def _newest_record(self) -> tuple[Record | None, list[str]]:
    """The newest record that is undamaged, and what is wrong with each newer one."""
    faults: list[str] = []
    for step in self.steps[::-1]:
      folder = self.root / str(step)
      try:
        record, _ = unpack(self._store.record(step), folder)
        return dataclasses.replace(record, step=step), faults  # version 0.1 tells no step
      except Exception as error:  # of many types, as Orbax meets the damage
        faults.append(f"{folder}: {one_line(error)}")
    if faults:
      raise DamagedError("\n".join(faults))
    return None, []

  def _read(self, step: int, target: Any) -> tuple[Any, Record]:
    """The arrays and the record, checked against their digest."""
    folder = self.root / str(step)
    record, item = unpack(self._store.record(step), folder)
    check_target(record, target, folder)
    state = self._store.arrays(step, target)
    check_state(item, state, folder)
    return state, record

  def set_aside(self, steps: Sequence[int]) -> None:
    """Moves checkpoints to the folder "damaged": Orbax saves nothing before its newest step.

    Args:
      steps: steps of the checkpoints.
    """
    if not steps or self.read_only:
      return
    self.layout.barrier("damaged checkpoints are known")
    if is_main():
      for step in steps:
        place = self.folder / DAMAGED / str(step)
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        shutil.move(self.root / str(step), place)  # which may be on another disk
        self._seals.remove(str(step))
    self.layout.barrier("damaged checkpoints are away")
    self._store.reopen()

  def _try(self, action: Callable[[], Any], step: int, failed: str = "write") -> None:
    """Runs an action of saving; its failure is a SaveError."""
    try:
      action()
    except Exception as error:  # of many types, as Orbax meets the failure
      self._unsealed = self._unproven = None
      if self.layout.processes > 1 and system_error(error) is None:
        raise LostError(" ".join(str(error).split())) from error
      if is_main():
        discard_unfinished(self.root)
      complete = [path.name for path in self.root.iterdir() if path.name.isdecimal()]
      kept = ", ".join(sorted(complete, key=int)) or "none"
      cause = system_error(error) or one_line(error)
      raise SaveError(
        f"cannot {failed} the checkpoint of step {step} to {self.root}: {cause}; "
        f"complete checkpoints, as they were: {kept}"
      ) from error


def _scores(record: Record) -> dict[int, float]:
  """Returns the scores of the checkpoints there were, by step."""
  return {int(step): score for step, score in record.scores}


def _best(scores: Mapping[int, float]) -> int | None:
  """Returns the step with the highest score, the newest of equals, or None."""
  return max(scores, key=lambda step: (scores[step], step), default=None)


def _zeros(shapes: Any) -> Any:
  """Returns NumPy arrays of these shapes."""
  return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
