"""The command `cifar`: presets over seeds, a row for each run, and their mean and spread."""

import dataclasses
import itertools
import json
import shlex
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments import UsageError
from experiments.common.environment import environment
from experiments.common.files import check_room, write_atomically
from experiments.configs import presets
from experiments.configs.build import Parts, build
from experiments.configs.config import TrainConfig
from experiments.configs.identity import identifying, words
from experiments.configs.ranges import check_ranges
from experiments.data.feeds import MemoryFeed
from experiments.engine.layout import Layout

ROOM = 1 << 20
"""Bytes that there must be for rows before a run."""


@dataclasses.dataclass(frozen=True)
class CifarCommand:
  """Train presets over seeds, without folders of their own: a row of JSON for each run.

  Rows that are there are skipped, so that the command can be killed and given again. All presets
  have a seed before any has the next. Each row has the `train` command that makes it again.
  """

  presets: tuple[str, ...] = ("fast-cifar10-cnn", "fast-cifar10-polynomial")
  """The presets, of images that are held in memory."""
  seeds: int = 3
  """Number of seeds, from 0."""
  out: str = "runs/cifar.jsonl"
  """File of the rows."""
  data: str | None = None
  """Data in place of the presets', such as an .npz file."""
  data_dir: str | None = None
  """Folder of prepared TensorFlow Datasets; if not given, theirs."""
  epochs: int | None = None
  """Passes over the training set; if not given, the preset's."""
  batch_size: int | None = None
  """Examples in a step; if not given, the preset's."""
  learning_rate: float | None = None
  """Of every preset; if not given, its own."""
  validation: int | None = None
  """Score so many held-out training examples in place of the test set, to choose options by."""
  widths: tuple[int, ...] | None = None
  """Of the network; if not given, the preset's."""
  minutes: float | None = None
  """Begin no run after so many."""

  def config(self, preset: str, seed: int) -> TrainConfig:
    """Returns the configuration of a run.

    Args:
      preset: name of the preset.
      seed: seed of the run.

    Raises:
      UsageError: if there is no such preset, or an option will not do.
    """
    config = presets.get(preset).config
    given: dict[str, dict[str, Any]] = {
      "data": {
        "name": self.data,
        "data_dir": self.data_dir,
        "batch_size": self.batch_size,
        "validation": self.validation,
      },
      "optim": {"learning_rate": self.learning_rate},
      "model": {"widths": self.widths},
    }
    parts = {
      part: dataclasses.replace(
        getattr(config, part),
        **{name: value for name, value in values.items() if value is not None},
      )
      for part, values in given.items()
    }
    epochs = config.epochs if self.epochs is None else self.epochs
    config = dataclasses.replace(config, epochs=epochs, seed=seed, **parts)
    config.check()
    return config


def run(command: CifarCommand) -> int:
  """Does `python -m experiments cifar`.

  Args:
    command: options that were given.

  Returns:
    The exit code.

  Raises:
    UsageError: if an option, the data or the file of the rows will not do.
    OSError: if the rows cannot be written, before a run is made for them.
  """
  check_ranges(command)
  if command.seeds < 1 or not command.presets:
    raise UsageError(
      f"`--seeds` must be at least 1, and `--presets` not empty, got {command.seeds} and "
      f"{list(command.presets)}"
    )
  file = Path(command.out)
  wanted = [
    command.config(preset, seed) for seed in range(command.seeds) for preset in command.presets
  ]
  names = list(command.presets) * command.seeds
  rows = read(file)
  built: dict[str, Parts] = {}
  began = time.monotonic()
  for name, config in zip(names, wanted, strict=True):
    options = _options(config)
    if any(row["config"] == options for row in rows):
      continue
    if command.minutes is not None and time.monotonic() - began > 60 * command.minutes:
      break
    if name not in built:
      check_room(file, ROOM)
      built[name] = build(config, Layout())
    changes = words(_options(presets.get(name).config), options)
    again = shlex.join(["python", "-m", "experiments", "train", name, *changes])
    row = {"preset": name, "command": again, **_train(config, built[name]), "config": options}
    row["environment"] = environment()
    rows = [*read(file), row]
    write_atomically(file, "".join(json.dumps(each) + "\n" for each in rows))
    print(
      f"{name}, seed {config.seed}: accuracy {row['accuracy']:.4f}, {row['train_seconds']:.1f} s",
      flush=True,
    )
  asked = [_options(config) for config in wanted]
  for line in summary([row for row in rows if row["config"] in asked]):
    print(line)
  return 0


def read(file: Path) -> list[dict[str, Any]]:
  """Returns the rows of a file; none if there is no such file.

  Args:
    file: the file.

  Raises:
    UsageError: if a line is not a row.
  """
  lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
  rows = []
  for number, line in enumerate(lines, start=1):
    try:
      row = json.loads(line)
      rows.append({**row, "config": row["config"], "accuracy": float(row["accuracy"])})
    except (ValueError, TypeError, KeyError) as error:
      raise UsageError(f"`--out` {str(file)!r}, line {number}, is no row: {error}") from error
  return rows


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
  """Yields a line for each preset: runs, mean accuracy and its spread, seconds of training.

  Args:
    rows: the rows, of one set of options.
  """
  for name in dict.fromkeys(row["preset"] for row in rows):
    own = [row for row in rows if row["preset"] == name]
    accuracies = [row["accuracy"] for row in own]
    spread = f" (standard deviation {statistics.stdev(accuracies):.4f})" if len(own) > 1 else ""
    seconds = statistics.mean(row["train_seconds"] for row in own)
    on = f"{own[0]['scored']} set, images {own[0]['views'] or 'as they are'}"
    yield (
      f"{name}: {statistics.mean(accuracies):.4f}{spread} of {len(own)} runs on the {on}; "
      f"{seconds:.1f} s of training"
    )


def _options(config: TrainConfig) -> Mapping[str, Any]:
  """Returns what decides the result of a run, as JSON has it."""
  return json.loads(json.dumps(identifying(dataclasses.asdict(config))))


def _train(config: TrainConfig, parts: Parts) -> dict[str, Any]:
  """Trains once, with the programs and data that other seeds have too."""
  if not isinstance(parts.feed, MemoryFeed):
    raise UsageError(
      f"`--presets` must be of images that are held in memory, got one of {config.data.name}"
    )
  feed = MemoryFeed(
    parts.feed.train,
    parts.feed.test,
    batch_size=config.data.batch_size,
    seed=config.seed,
    validation=parts.feed.validation,
  )
  state = parts.trainer.init(config.seed, parts.image_shape)
  batches = itertools.islice(feed.train_batches(0), parts.total_steps)
  state, losses, seconds = parts.trainer.run(state, batches)
  size = config.eval.batch_size
  held_out = feed.validation_batches(size)
  scored = feed.test_batches(size) if held_out is None else held_out
  return {
    "seed": config.seed,
    "steps": len(losses),
    "accuracy": parts.trainer.evaluate(state, scored).accuracy,
    "scored": "test" if held_out is None else "validation",
    "views": config.eval.views,
    "train_seconds": round(seconds, 3),
    "compile_seconds": round(parts.trainer.compile_seconds, 1),
    "data": parts.fingerprint,
  }
