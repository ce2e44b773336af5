"""Reading a checkpoint of a run that may be live."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from experiments import UsageError
from experiments.engine.layout import Layout
from experiments.runs.checkpoints import Checkpoints, Restored
from experiments.runs.continuation import Continuation
from experiments.runs.folder import CONFIG
from experiments.runs.record import DamagedError

Checkpoint = Literal["newest", "best"] | int
"""Which checkpoint of a run: the newest, the best, or that of a step."""

_TRIES = 10
"""Times that the folder of a live run is opened, at most."""


def restore(
  folder: Path, layout: Layout, shapes: Callable[[Checkpoints], Any], checkpoint: Checkpoint
) -> Restored:
  """Reads a checkpoint; again, if a live run has meanwhile replaced those that were there.

  Args:
    folder: folder of the run.
    layout: devices that are used.
    shapes: function from the checkpoints to the shapes of the run's state.
    checkpoint: which one.

  Raises:
    UsageError: if there is no such checkpoint, or it is damaged or of another network.
  """
  if isinstance(checkpoint, bool) or not (
    checkpoint in ("newest", "best") or isinstance(checkpoint, int)
  ):
    raise UsageError(f"`checkpoint` must be newest, best or a step, got {checkpoint!r}")
  seen: list[int] = []
  while True:
    checkpoints = _open(folder, layout)
    before, seen = seen, checkpoints.steps
    try:
      restored = _restore(checkpoints, folder, shapes, checkpoint)
      if not restored.faults or seen == before:
        return restored
    except DamagedError as error:
      if seen == before or isinstance(checkpoint, int):
        raise UsageError(f"damaged: {error}") from error
    finally:
      checkpoints.close()


def check_scoring(
  trained: Continuation, options: Mapping[str, Any], data: str, folder: Path
) -> None:
  """Checks that a configuration gives the scores of the run that was trained.

  Args:
    trained: what the run's checkpoint tells.
    options: the configuration in its folder, by the names of options.
    data: fingerprint of the data.
    folder: folder of the run.

  Raises:
    UsageError: if it does not.
  """
  try:
    trained.check(options, data, scoring=True)
  except UsageError as error:
    raise UsageError(f"{folder / CONFIG} is not what was trained with: {error}") from None


def _open(folder: Path, layout: Layout) -> Checkpoints:
  """Opens the checkpoints; again, if a live run has removed a folder after it was listed."""
  for _ in range(_TRIES - 1):
    with contextlib.suppress(FileNotFoundError):
      return Checkpoints(folder, layout, read_only=True)
  return Checkpoints(folder, layout, read_only=True)


def _restore(
  checkpoints: Checkpoints,
  folder: Path,
  shapes: Callable[[Checkpoints], Any],
  checkpoint: Checkpoint,
) -> Restored:
  """Reads a checkpoint of those there are."""
  steps = checkpoints.steps
  if not steps:
    raise UsageError(f"the run in {str(folder)!r} has no complete checkpoint yet")
  if isinstance(checkpoint, int) and checkpoint not in steps:
    raise UsageError(f"`checkpoint` must be newest, best or one of {steps}, got {checkpoint}")
  step, unknown = (checkpoint, []) if isinstance(checkpoint, int) else (None, [])
  if checkpoint == "best":
    step, unknown = checkpoints.find_best()
    if step is None:
      raise UsageError(
        f"`checkpoint` best: none of the run in {str(folder)!r} has been evaluated yet"
      )
  restored = checkpoints.restore(shapes(checkpoints), step)
  assert restored is not None
  return restored._replace(faults=(*unknown, *restored.faults))
