"""Runnable experiments with kervolution: `python -m experiments --help`."""

import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
  from kerv_jax.models import Trained


class UsageError(ValueError):
  """Something that the user gave and can mend: its message is shown, and no traceback."""


def load(
  folder: str | os.PathLike[str], checkpoint: Literal["newest", "best"] | int = "newest"
) -> "Trained":
  """Returns the network that a run has trained, ready to predict; no data set is needed.

  A newer checkpoint that is damaged, and was passed over, is told by a warning.

  Args:
    folder: folder of the run.
    checkpoint: the newest; the best, by the validation examples or, in a run without them, by the
      test set; or that of a step.

  Returns:
    The network: `predict(images)`, `model`, `variables`, `preprocess(images)` and `description`.

  Raises:
    UsageError: if there is no such run or checkpoint, it is damaged, or it was saved with another
      configuration.
  """
  from experiments.runs.trained import load as load_run  # not before it is called: it needs JAX

  return load_run(os.fspath(folder), checkpoint)
