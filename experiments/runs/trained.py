"""A run's network, to be used without the data that it was trained on."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.configs.build import build
from experiments.configs.config import TrainConfig, from_dict
from experiments.configs.identity import identifying
from experiments.engine import optim
from experiments.engine.layout import Layout
from experiments.engine.step import Learner
from experiments.engine.trainer import Trainer
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.continuation import Continuation
from experiments.runs.folder import read_config
from experiments.runs.reading import Checkpoint, check_scoring, restore
from experiments.runs.record import DamagedError
from kerv_jax.models import Description, Trained

_ANY = 1000
"""Steps in an epoch, of which no shape depends."""


def load(folder: str | Path, checkpoint: Checkpoint = "newest") -> Trained:
  """Returns the network that a run has trained; the data set is not touched.

  (That of a run of version 0.1, whose checkpoints do not tell what the network sees, is read.)

  Args:
    folder: folder of the run.
    checkpoint: the newest, the best, or that of a step.

  Raises:
    UsageError: if there is no such run or checkpoint, it is damaged, or it was saved with another
      configuration.
  """
  folder = Path(folder)
  values = read_config(folder)
  config, options = from_dict(values), identifying(values)
  layout = Layout()
  known: list[Description] = []

  def shapes(checkpoints: Checkpoints) -> Any:
    record = checkpoints.newest_record()
    assert record is not None
    trained = Continuation.read(record.run, record.step or 0)
    known[:] = [_description(config, options, layout, trained, folder)]
    return _shapes(config, known[0])

  state = restore(folder, layout, shapes, checkpoint).state
  variables = {"params": state.params}
  if state.batch_stats:
    variables["batch_stats"] = state.batch_stats
  return Trained(known[0], jax.tree.map(jnp.asarray, variables))


def _description(
  config: TrainConfig,
  options: dict[str, Any],
  layout: Layout,
  trained: Continuation,
  folder: Path,
) -> Description:
  """Returns what the network is and sees, checked against the configuration of the run."""
  parts = build(config, layout) if trained.network is None else None
  check_scoring(trained, options, parts.fingerprint if parts else trained.data, folder)
  if parts:
    return parts.network
  try:
    return Description.from_json(trained.network or "")
  except ValueError as error:
    raise DamagedError(f"the record of the run cannot be: {error}") from error


def _shapes(config: TrainConfig, description: Description) -> Any:
  """Returns the shapes of the state of training; how long a run is does not change them."""
  lengths = {"steps_per_epoch": _ANY, "total_steps": _ANY * config.epochs}
  optimizer = optim.make_optimizer(config.optim, **lengths)
  dtype = jnp.dtype("float64" if description.dtype == "float64" else "float32")
  learner = Learner(description.network(), optimizer, dtype=dtype)
  return Trainer(learner).shapes(description.image_shape)
