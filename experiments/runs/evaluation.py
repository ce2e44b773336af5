"""Evaluation of what a run has learned."""

import dataclasses
from pathlib import Path
from typing import Any

from experiments import UsageError
from experiments.configs.build import build
from experiments.configs.config import from_dict
from experiments.configs.identity import identifying
from experiments.configs.ranges import LARGEST
from experiments.engine.layout import Layout
from experiments.engine.processes import ParallelConfig, connect
from experiments.runs.continuation import Continuation
from experiments.runs.folder import read_config
from experiments.runs.reading import Checkpoint, check_scoring, restore


def evaluate(
  folder: str | Path,
  *,
  checkpoint: Checkpoint = "newest",
  crops: int = 1,
  batch_size: int | None = None,
  data_dir: str | None = None,
  parallel: ParallelConfig | None = None,
) -> dict[str, Any]:
  """Scores a checkpoint of a run on its test set; nothing is written.

  Args:
    folder: folder of the run.
    checkpoint: checkpoint to score: the newest, the best, or that of a step.
    crops: pieces of each image, 1 or 10.
    batch_size: examples at a time, at most; None is the run's.
    data_dir: folder of prepared TensorFlow Datasets; None is the run's.
    parallel: devices and processes; None is all devices of this process.

  Returns:
    "step", "crops", "views", "loss", "accuracy", "top5", "sealed": whether the checkpoint tells the
    configuration it was trained with, which it does not if version 0.1 saved it, and "damaged": a
    line for each newer checkpoint that is damaged, and was passed over.

  Raises:
    UsageError: if there is no such run or checkpoint, it is damaged, it was saved with another
      configuration or other data, or an option will not do.
  """
  parallel = parallel or ParallelConfig()
  parallel.check()
  if batch_size is not None and not 1 <= batch_size <= LARGEST:
    raise UsageError(f"`--batch-size` must be from 1 to {LARGEST}, got {batch_size}")
  folder = Path(folder)
  values = read_config(folder)
  config = from_dict(values)
  if data_dir is not None:
    data = dataclasses.replace(config.data, data_dir=data_dir)
    config = dataclasses.replace(config, data=data)
  connect(parallel)
  layout = Layout.of(parallel)
  parts = build(config, layout)
  shapes = parts.trainer.shapes(parts.image_shape)
  restored = restore(folder, layout, lambda _: shapes, checkpoint)
  trained = Continuation.read(restored.record, restored.step)
  check_scoring(trained, identifying(values), parts.fingerprint, folder)
  state = layout.put_tree(restored.state, layout.state(restored.state))
  batches = parts.feed.test_batches(batch_size or config.eval.batch_size, crops)
  score = parts.trainer.evaluate(state, batches)
  found = {
    "step": restored.step,
    "crops": crops,
    "views": config.eval.views,
    "sealed": trained.config is not None,
    "damaged": list(restored.faults),
  }
  return found | score._asdict()
