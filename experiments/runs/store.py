"""A folder of checkpoints on disk; the only module that knows Orbax.

Orbax writes a checkpoint in the background, into a temporary folder that gets its name when it is
complete, so that a checkpoint exists entirely or not at all. It keeps no checksum of array data.
"""

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import absl.logging
import orbax.checkpoint as ocp

from experiments import UsageError

MISREAD = ("[", "]", "*", "?", "\\", ":/")
"""What makes Orbax and TensorStore take a path for a pattern, or for an address on a network."""

_PATIENCE = 10.0  # seconds for what is being written by a save that has failed


class Store:
  """Arrays and a record for each step.

  Args:
    root: the folder of the checkpoints; it must exist, unless nothing may be written.
    preserve: a function from the steps there are, ascending, to those that are kept.
    asynchronous: whether `save` returns before everything is written.
    read_only: whether nothing may be written.
  """

  def __init__(
    self,
    root: Path,
    preserve: Callable[[Sequence[int]], Collection[int | None]],
    *,
    asynchronous: bool,
    read_only: bool,
  ):
    _hush()
    self.root = root
    self._options = ocp.CheckpointManagerOptions(
      preservation_policy=_Keep(preserve),
      enable_async_checkpointing=asynchronous and not read_only,
      read_only=read_only,
      create=False,
    )
    self._manager = ocp.CheckpointManager(root, options=self._options)

  @property
  def steps(self) -> list[int]:
    """Steps that have a complete checkpoint, ascending."""
    return sorted(self._manager.all_steps())

  @property
  def busy(self) -> bool:
    """Whether a checkpoint is being written."""
    return self._manager.is_saving_in_progress()

  def save(self, step: int, arrays: Any, record: dict[str, Any]) -> None:
    """Writes a checkpoint, or begins to.

    Args:
      step: the step, above those there are.
      arrays: a tree of NumPy arrays.
      record: what is saved with them, of JSON's types.

    Raises:
      ValueError: if there is a checkpoint of this step or a later one.
      Exception: of many types, as Orbax meets the failure.
    """
    args = ocp.args.Composite(state=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(record))
    if not self._manager.save(step, args=args, force=True):
      raise ValueError(f"a checkpoint must be newer than those of {self.steps}")

  def wait(self) -> None:
    """Waits for what is being written.

    Raises:
      Exception: of many types, as Orbax meets the failure.
    """
    self._manager.wait_until_finished()

  def record(self, step: int) -> Any:
    """Reads the record of a checkpoint.

    Args:
      step: the step.

    Raises:
      Exception: of many types, as Orbax meets damage.
    """
    args = ocp.args.Composite(record=ocp.args.JsonRestore())
    return self._manager.restore(step, args=args)["record"]

  def arrays(self, step: int, target: Any) -> Any:
    """Reads the arrays of a checkpoint.

    Args:
      step: the step.
      target: numPy arrays of the shapes and types that are there.

    Raises:
      Exception: of many types, as Orbax meets damage.
    """
    args = ocp.args.Composite(state=ocp.args.StandardRestore(target))
    return self._manager.restore(step, args=args)["state"]

  def reopen(self) -> None:
    """Looks at the folder again, after checkpoints were moved away."""
    self._manager.close()
    self._manager = ocp.CheckpointManager(self.root, options=self._options)

  def close(self) -> None:
    """Ends the background threads."""
    self._manager.close()


def check_path(path: Path, option: str) -> None:
  """Checks that Orbax cannot misread a path: it takes one for a pattern, and for an address.

  Args:
    path: the path of a folder, there or not.
    option: what errors call it.

  Raises:
    UsageError: if it can.
  """
  try:
    whole = path.resolve().as_posix()
    whole.encode()
  except (ValueError, OSError, RuntimeError) as error:  # NUL, no UTF-8, links in a circle
    raise UsageError(f"`{option}` must be a path in UTF-8, got {str(path)!r}: {error}") from None
  wrong = [part for part in MISREAD if part in f"{whole}/"]
  if wrong:
    raise UsageError(
      f"`{option}` must be a path without {' '.join(MISREAD)}, in its parents too, since "
      f"checkpoints would be lost in it; got {whole!r}"
    )


def discard_unfinished(root: Path) -> None:
  """Removes what a save has left that was killed, or failed.

  Args:
    root: the folder of the checkpoints.
  """
  deadline = time.monotonic() + _PATIENCE
  while left := list(root.glob("*.orbax-checkpoint-tmp*")):
    for path in left:
      shutil.rmtree(path, ignore_errors=True)
    if time.monotonic() > deadline:
      break
    time.sleep(0.2)  # of a save that failed, arrays may be on their way still, with their folders


def system_error(error: BaseException) -> str | None:
  """Returns what the operating system said; None if the error does not tell.

  Args:
    error: the error, as Orbax raised it.
  """
  cause: BaseException | None = error
  while cause is not None:
    if isinstance(cause, OSError) and cause.errno is not None:
      return os.strerror(cause.errno)
    cause = cause.__cause__ or cause.__context__
  numbers = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EIO
  return next((os.strerror(n) for n in numbers if os.strerror(n) in str(error)), None)


def one_line(error: Exception) -> str:
  """Returns an error's type and message in a line, shortened; of damage, the message alone.

  Args:
    error: the error.
  """
  text = " ".join(f"{type(error).__name__}: {error}".split())
  text = text.removeprefix("DamagedError: ")
  return text if len(text) <= 300 else text[:297] + "..."


class _Keep(ocp.checkpoint_managers.PreservationPolicy):
  """Keeps the checkpoints that a function names."""

  def __init__(self, preserve: Callable[[Sequence[int]], Collection[int | None]]):
    self.preserve = preserve

  def should_preserve(
    self,
    checkpoints: Sequence[ocp.checkpoint_managers.PolicyCheckpointInfo],
    *,
    context: ocp.checkpoint_managers.PreservationContext,
  ) -> Sequence[bool]:
    """Returns whether each of them is kept, oldest first."""
    steps = [checkpoint.step for checkpoint in checkpoints]
    kept = self.preserve(steps)
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
