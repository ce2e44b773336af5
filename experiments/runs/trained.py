"""A run's network, to be used without the data that it was trained on."""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments import UsageError
from experiments.configs.build import Parts, build
from experiments.configs.config import TrainConfig, from_dict
from experiments.configs.identity import identifying
from experiments.engine import optim
from experiments.engine.layout import Layout
from experiments.engine.step import Learner
from experiments.engine.trainer import Trainer
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.continuation import UNSEALED, Continuation
from experiments.runs.folder import read_config
from experiments.runs.reading import Checkpoint, check_scoring, restore
from experiments.runs.record import DamagedError
from kerv_jax.models import Description, Trained

_ANY = 1000
"""Steps in an epoch, of which no shape depends."""


def load(folder: str | Path, checkpoint: Checkpoint = "newest") -> Trained:
  """Returns the network that a run has trained; what is wrong on the way is warned of.

  Args:
    folder: folder of the run.
    checkpoint: the newest, the best, or that of a step.

  Raises:
    UsageError: as `read` does, and if the folder is a file.
  """
  if Path(folder).is_file():
    raise UsageError(
      f"`folder` must be that of a run, got the file {str(folder)!r}; what `export` wrote is read "
      "by kerv_jax.models.load"
    )
  return read(folder, checkpoint, warnings.warn)[1]


def read(
  folder: str | Path,
  checkpoint: Checkpoint,
  say: Callable[[str], object],
) -> tuple[int, Trained]:
  """Returns the step of a checkpoint, and its network; the data set is not touched.

  (That of a run of version 0.1, whose checkpoints do not tell what the network sees, is read.)

  Args:
    folder: folder of the run.
    checkpoint: the newest, the best, or that of a step.
    say: is called with a line for each newer checkpoint that is damaged and was passed over, and
      one if the run is not sealed.

  Raises:
    UsageError: if there is no such run or checkpoint, it is damaged, or it was saved with another
      configuration.
  """
  folder = Path(folder)
  values = read_config(folder)
  config, layout = from_dict(values), Layout()

  @functools.cache
  def parts() -> Parts:
    return build(config, layout)

  def description(trained: Continuation) -> Description:
    if trained.network is None:
      return parts().network
    try:
      return Description.from_json(trained.network)
    except ValueError as error:
      raise DamagedError(f"the record of the run cannot be: {error}") from error

  def shapes(checkpoints: Checkpoints) -> Any:
    record = checkpoints.newest_record()
    assert record is not None
    return _shapes(config, description(Continuation.read(record.run, record.step or 0)))

  restored = restore(folder, layout, shapes, checkpoint)
  trained = Continuation.read(restored.record, restored.step)
  data = trained.data if trained.network is not None else parts().fingerprint
  check_scoring(trained, identifying(values), data, folder)
  for fault in restored.faults:
    say(f"damaged checkpoint: {fault}; that of step {restored.step} is used")
  if trained.config is None:
    say(UNSEALED)
  variables = {"params": restored.state.params}
  if restored.state.batch_stats:
    variables["batch_stats"] = restored.state.batch_stats
  described = dataclasses.replace(description(trained), step=restored.step)
  return restored.step, Trained(described, jax.tree.map(jnp.asarray, variables))


def _shapes(config: TrainConfig, description: Description) -> Any:
  """Returns the shapes of the state of training; how long a run is does not change them."""
  lengths = {"steps_per_epoch": _ANY, "total_steps": _ANY * config.epochs}
  optimizer = optim.make_optimizer(config.optim, **lengths)
  dtype = jnp.dtype("float64" if description.dtype == "float64" else "float32")
  learner = Learner(description.network(), optimizer, dtype=dtype)
  return Trainer(learner).shapes(description.image_shape)
