"""Checkpoints that can be trusted; the only module that knows Orbax.

A checkpoint is the whole state as plain arrays, whatever the devices, and a record: what else the
run needs to go on. Orbax writes it in the background, into a temporary folder that gets its name
when it is complete, so that a checkpoint exists entirely or not at all. It keeps no checksum of
array data: the record holds a SHA-256 over all of it, and beside the checkpoint lies one for each
file, to say which of them is damaged.
"""

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import absl.logging
import jax
import numpy as np
import orbax.checkpoint as ocp

from experiments import UsageError
from experiments.common.digests import digest, leaf_name
from experiments.engine.parallel import Layout, LostError, is_main
from experiments.runs.seals import Seals

CHECKPOINTS = "checkpoints"
DIGESTS = "digests"
DAMAGED = "damaged"
"""Folders in that of a run."""

_PATIENCE = 10.0  # seconds for what is being written by a save that has failed


class SaveError(OSError):
  """A checkpoint could not be written; those before it are as they were."""


class DamagedError(ValueError):
  """There are checkpoints, and none of them can be used."""


class Restored(NamedTuple):
  """A checkpoint that has been read and checked.

  Attributes:
    step: steps taken before it.
    state: of NumPy arrays.
    record: what was saved with it.
    faults: of each newer checkpoint, the file that is damaged and how.
  """

  step: int
  state: Any
  record: dict[str, Any]
  faults: tuple[str, ...]


class Checkpoints:
  """The checkpoints of one run; every process of it makes one, on a file system that all share.

  Args:
    folder: of the run.
    layout: of the run.
    keep: how many of the newest to keep, at least 2: one may be damaged; and the best one.
    asynchronous: whether training goes on while a checkpoint is written.
    read_only: whether nothing may be written or moved.
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
    _hush()
    self.folder = Path(folder).resolve()
    self.root = self.folder / CHECKPOINTS
    self.layout = layout
    self.keep = keep
    self.asynchronous = asynchronous
    self.read_only = read_only
    self._seals = Seals(self.root, self.folder / DIGESTS)
    self._unsealed: int | None = None
    self._scores: dict[int, float] = {}
    if not read_only and is_main():
      for name in (CHECKPOINTS, DIGESTS):
        (self.folder / name).mkdir(parents=True, exist_ok=True)
      self._discard_unfinished()
    layout.barrier("checkpoint folders")
    self._manager = self._open()

  def _open(self) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
      preservation_policy=_Keep(self),
      enable_async_checkpointing=self.asynchronous and not self.read_only,
      read_only=self.read_only,
      create=False,
    )
    return ocp.CheckpointManager(self.root, options=options)

  @property
  def steps(self) -> list[int]:
    """Steps that have a complete checkpoint, ascending."""
    return sorted(self._manager.all_steps())

  @property
  def best_step(self) -> int | None:
    """Step of the checkpoint with the highest score, the newest of equals; None if none has one.

    The scores are known after `restore`, and those of this object's own `save`.
    """
    return self.best_of(self.steps)

  def best_of(self, steps: Sequence[int]) -> int | None:
    """The step with the highest score of these, the newest of equals; None if none has one."""
    scored = [step for step in steps if step in self._scores]
    return max(scored, key=lambda step: (self._scores[step], step), default=None)

  def save(self, step: int, state: Any, record: dict[str, Any], score: float | None) -> None:
    """Writes a checkpoint, in the background; waits for the one before it.

    Args:
      step: steps taken.
      state: arrays on the devices, copied before this returns.
      record: what else is needed to go on, of JSON's types.
      score: how good it is, higher is better; None if that is not known.

    Raises:
      SaveError: if this one, or the one before, cannot be written.
      LostError: if another process is gone.
    """
    self.wait()
    if score is not None:
      self._scores[step] = score
    arrays = self.layout.get_tree(state)
    text = json.dumps(
      {"run": record, "scores": sorted(self._scores.items()), "leaves": _leaves(arrays)}
    )
    item = {"record": text, "record_sha256": digest({}, text), "state_sha256": digest(arrays)}
    self._seals.remove(str(step))
    args = ocp.args.Composite(state=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(item))

    def write() -> None:
      if not self._manager.save(step, args=args, force=True):
        raise ValueError(f"a checkpoint must be newer than those of {self.steps}")

    self._try(write, step)
    self._unsealed = step
    if not self.asynchronous:
      self.wait()

  def poll(self) -> None:
    """Completes a save that has come to its end, without waiting for one.

    Raises:
      SaveError: if it failed.
    """
    if self._unsealed is not None and not self._manager.is_saving_in_progress():
      self.wait()

  def wait(self) -> None:
    """Waits for the save in progress.

    Raises:
      SaveError: if it failed.
    """
    step = self._unsealed
    if step is None:
      return
    self._unsealed = None
    self._try(self._manager.wait_until_finished, step)
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
      self._manager.close()

  def restore(self, shapes: Any, step: int | None = None) -> Restored | None:
    """Reads the newest checkpoint that is undamaged.

    Newer ones that are damaged are moved to the folder "damaged", unless this is read-only.

    Args:
      shapes: of the state: a tree of `jax.ShapeDtypeStruct`.
      step: of the checkpoint to read; None is the newest.

    Returns:
      The checkpoint, or None if there never was one.

    Raises:
      DamagedError: if there are, or were, checkpoints and none is undamaged, or the one asked for
        is not.
      UsageError: if it is of another network.
    """
    target = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    faults: list[str] = []
    steps = [step] if step is not None else self.steps[::-1]
    for candidate in steps:
      try:
        fault = self._seals.fault(str(candidate))
        if fault is not None:
          raise DamagedError(fault)
        state, record = self._read(candidate, target)
      except UsageError:
        raise
      except Exception as error:  # of many types, as Orbax meets the damage
        faults.append(f"{self.root / str(candidate)}: {_one_line(error)}")
        continue
      self.set_aside(steps[: len(faults)])
      self._scores = {int(step): score for step, score in record["scores"]}
      return Restored(candidate, state, record["run"], tuple(faults))
    if not faults and self._seals.names:
      steps = ", ".join(self._seals.names)
      faults.append(f"{self.root}: there is no checkpoint, though there was one of step {steps}")
    if faults:
      raise DamagedError("\n".join(faults))
    return None

  def _read(self, step: int, target: Any) -> tuple[Any, dict[str, Any]]:
    """The arrays and the record, checked against their digest."""
    item = self._manager.restore(step, args=ocp.args.Composite(record=ocp.args.JsonRestore()))
    text, item = item["record"]["record"], item["record"]
    if digest({}, text) != item["record_sha256"]:
      raise DamagedError(f"{step}/record/ does not have the SHA-256 it was saved with")
    record = json.loads(text)
    saved, wanted = record["leaves"], _leaves(target)
    if saved != wanted:
      names = sorted(saved.keys() | wanted.keys(), key=lambda name: (name not in wanted, name))
      name = next(name for name in names if saved.get(name) != wanted.get(name))
      raise UsageError(
        f"the checkpoint {self.root / str(step)} is of another network: {name} was "
        f"{saved.get(name)}, now {wanted.get(name)}"
      )
    args = ocp.args.Composite(state=ocp.args.StandardRestore(target))
    state = self._manager.restore(step, args=args)["state"]
    if digest(state) != item["state_sha256"]:
      raise DamagedError(f"{step}/state/ does not have the SHA-256 it was saved with")
    return state, record

  def set_aside(self, steps: Sequence[int]) -> None:
    """Moves checkpoints to the folder "damaged": Orbax saves nothing before its newest step.

    Args:
      steps: of the checkpoints.
    """
    if not steps or self.read_only:
      return
    self.layout.barrier("damaged checkpoints are known")
    if is_main():
      for step in steps:
        place = self.folder / DAMAGED / str(step)
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        (self.root / str(step)).rename(place)
        self._seals.remove(str(step))
    self.layout.barrier("damaged checkpoints are away")
    self._manager.close()
    self._manager = self._open()

  def _try(self, action: Callable[[], Any], step: int) -> None:
    """Runs an action of saving; its failure is a SaveError."""
    try:
      action()
    except Exception as error:  # of many types, as Orbax meets the failure
      self._unsealed = None
      if self.layout.processes > 1 and _system_error(error) is None:
        raise LostError(" ".join(str(error).split())) from error
      self._discard_unfinished()
      complete = [path.name for path in self.root.iterdir() if path.name.isdecimal()]
      kept = ", ".join(sorted(complete, key=int)) or "none"
      cause = _system_error(error) or _one_line(error)
      raise SaveError(
        f"cannot write the checkpoint of step {step} to {self.root}: {cause}; "
        f"complete checkpoints, as they were: {kept}"
      ) from error

  def _discard_unfinished(self) -> None:
    """Removes what a save has left that was killed, or failed."""
    deadline = time.monotonic() + _PATIENCE
    while is_main() and (left := list(self.root.glob("*.orbax-checkpoint-tmp*"))):
      for path in left:
        shutil.rmtree(path, ignore_errors=True)
      if time.monotonic() > deadline:
        break
      time.sleep(0.2)  # of a save that failed, arrays may be on their way still, with their folders


def _leaves(tree: Any) -> dict[str, str]:
  """Types and shapes by the names of arrays."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {leaf_name(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


class _Keep(ocp.checkpoint_managers.PreservationPolicy):
  """Keeps the newest checkpoints and the best one."""

  def __init__(self, checkpoints: Checkpoints):
    self.checkpoints = checkpoints

  def should_preserve(
    self,
    checkpoints: Sequence[ocp.checkpoint_managers.PolicyCheckpointInfo],
    *,
    context: ocp.checkpoint_managers.PreservationContext,
  ) -> Sequence[bool]:
    """Whether each of them is kept, oldest first."""
    steps = [checkpoint.step for checkpoint in checkpoints]
    kept = {*steps[-self.checkpoints.keep :], self.checkpoints.best_of(steps)}
    return [step in kept for step in steps]


def _hush() -> None:
  """Keeps Orbax from writing to standard error what is raised, and told, here."""
  absl.logging.set_verbosity(absl.logging.FATAL)
  if not isinstance(sys.unraisablehook, _Unraisable):
    sys.unraisablehook = _Unraisable(sys.unraisablehook)


class _Unraisable:
  """A hook that leaves out what a failing save says on the side.

  It closes its event loop before its other writes have ended, which cannot raise anything then.
  """

  def __init__(self, before: Callable[[Any], object]):
    self.before = before

  def __call__(self, args: Any) -> None:
    if str(args.exc_value) != "Event loop is closed":
      self.before(args)


def _one_line(error: Exception) -> str:
  """The message in a line, shortened."""
  text = " ".join(f"{type(error).__name__}: {error}".split())
  text = text.removeprefix("DamagedError: ")
  return text if len(text) <= 300 else text[:297] + "..."


def _system_error(error: BaseException) -> str | None:
  """What the operating system said; None if the error does not tell."""
  cause: BaseException | None = error
  while cause is not None:
    if isinstance(cause, OSError) and cause.errno is not None:
      return os.strerror(cause.errno)
    cause = cause.__cause__ or cause.__context__
  numbers = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EIO
  return next((os.strerror(n) for n in numbers if os.strerror(n) in str(error)), None)
