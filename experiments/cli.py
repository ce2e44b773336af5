"""The commands `train`, `list` and `eval`."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from experiments import UsageError
from experiments.configs import presets
from experiments.configs.config import TrainConfig
from experiments.engine.processes import ParallelConfig, is_main
from experiments.failures import EXIT_CODES, EXIT_STOPPED, EXIT_USAGE
from experiments.runs.continuation import UNSEALED
from experiments.runs.evaluation import evaluate
from experiments.runs.run import train


@dataclasses.dataclass(frozen=True)
class TrainCommand:
  """Train a network of the paper: `train PRESET [options]`, `train PRESET --help` for the options.

  A run that is in the folder already goes on where it was.
  """


@dataclasses.dataclass(frozen=True)
class ListCommand:
  """List the presets, or show one."""

  preset: Annotated[str | None, tyro.conf.Positional] = None
  """The one to show."""


@dataclasses.dataclass(frozen=True)
class EvalCommand:
  """Evaluate what a run has learned on its test set."""

  folder: Annotated[str, tyro.conf.Positional]
  """Of the run."""
  checkpoint: Literal["newest", "best"] | int = "newest"
  """The newest; the best, by the accuracy on `--data.validation` examples or, in a run without
  them, on the test set (which is then no honest estimate); or that of a step."""
  crops: Literal[1, 10] = 1
  """Pieces of each image, for ImageNet."""
  batch_size: int | None = None
  """Examples at a time, at most; if not given, the run's."""
  data_dir: str | None = None
  """Folder of prepared TensorFlow Datasets, if it is not the run's."""
  parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)


def train_command(argv: Sequence[str]) -> int:
  """Does `python -m experiments train PRESET [options]`.

  Args:
    argv: arguments after "train".

  Returns:
    The exit code.

  Raises:
    UsageError: if the preset or an option will not do.
  """
  if not argv or argv[0] in ("-h", "--help"):
    print(f"usage: python -m experiments train PRESET [options]\n\n{TrainCommand.__doc__}\n")
    print(EXIT_CODES)
    list_command(ListCommand())
    return 0 if argv else EXIT_USAGE
  name = argv[0]
  if name.startswith("-"):
    raise UsageError(f"the name of a preset must come first, got {name!r}")
  preset = presets.get(name)
  config = tyro.cli(
    TrainConfig,
    prog=f"python -m experiments train {name}",
    description=f"{describe(name)}\n\n{EXIT_CODES}",
    args=list(argv[1:]),
    default=preset.config,
  )
  command = shlex.join(["python", "-m", "experiments", "train", *argv])
  outcome = train(presets.fitting(config, preset), command, out=f"runs/{name}")
  return EXIT_STOPPED if outcome.status == "stopped" else 0


def list_command(command: ListCommand) -> int:
  """Does `python -m experiments list`.

  Args:
    command: options that were given.

  Returns:
    The exit code.

  Raises:
    UsageError: if there is no such preset.
  """
  console = Console()
  if command.preset is not None:
    config = dataclasses.asdict(presets.get(command.preset).config)
    console.print(describe(command.preset), highlight=False, markup=False)
    console.print_json(json.dumps(config))
    return 0
  table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
  table.add_column("preset", no_wrap=True)
  table.add_column("in the paper")
  table.add_column("published error")
  for name, preset in presets.PRESETS.items():
    table.add_row(name, preset.source, preset.published)
  console.print(table, highlight=False)
  return 0


def eval_command(command: EvalCommand) -> int:
  """Does `python -m experiments eval FOLDER`.

  Args:
    command: options that were given.

  Returns:
    The exit code.

  Raises:
    UsageError: if there is no such run, or an option will not do.
  """
  result = evaluate(
    command.folder,
    checkpoint=command.checkpoint,
    crops=command.crops,
    batch_size=command.batch_size,
    data_dir=command.data_dir,
    parallel=command.parallel,
  )
  if is_main():
    for fault in result.pop("damaged"):
      print(f"damaged checkpoint: {fault}", file=sys.stderr)
    if not result["sealed"]:
      print(UNSEALED, file=sys.stderr)
    print(json.dumps(result))
  return 0


def describe(name: str) -> str:
  """Returns what a preset is, in a few lines.

  Args:
    name: name of the preset.
  """
  preset = presets.get(name)
  twin = f" Its CNN: {preset.twin}." if preset.twin else ""
  published = f" Published error: {preset.published}." if preset.published else ""
  left_open = f"The paper leaves open, and chosen here: {preset.left_open}."
  return f"{name}: {preset.source}.{twin}{published}\n{left_open}"
