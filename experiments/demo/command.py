"""The demo: a CNN and its kervolutional twins learn real digits, side by side."""

import dataclasses
import json
import math
from pathlib import Path

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from experiments import UsageError, data
from experiments.common.environment import environment
from experiments.common.files import write_atomically
from experiments.demo.config import DemoConfig
from experiments.demo.training import (
  PAPER_LEARNING_RATE,
  TARGETS,
  Comparison,
  Monitor,
  Protocol,
  Run,
  label,
)

FILES = ("convergence.png", "filters.png", "results.json")


def run(config: DemoConfig, command: str = "", console: Console | None = None) -> list[Run]:
  """Trains every arm, prints the table and writes the files.

  Args:
    config: options of the demo.
    command: command that started it, for the record.
    console: console to print to; None is standard output.

  Returns:
    The runs, in the order of the table.

  Raises:
    UsageError: if an option or the data will not do; nothing has been trained or written then.
  """
  config.check()
  config = config.resolved()
  if config.data_dir is None:
    dataset = data.load_embedded(config.seed)
  else:
    dataset = data.load_npz(config.data_dir)
  comparison = Comparison(config, dataset)
  out = Path(config.out)
  try:
    out.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UsageError(f"`--out` must be a folder to write to, got {config.out!r}: {error}") from None
  console = console or Console()
  monitor = Monitor(console, comparison.total_steps)
  monitor.say(
    f"{dataset.description}: {len(dataset.train):,} to train, {len(dataset.test):,} to test. "
    f"Epochs: {config.epochs}; steps in each run: {comparison.steps:,}; device: "
    f"{jax.devices()[0].device_kind}."
  )
  with monitor.progress:
    runs = [run for arm in config.arms for run in comparison.train(arm, monitor)]
  console.print(_table(runs), _explanation(config), sep="", highlight=False)
  console.print(_meaning(runs, len(dataset.test)), highlight=False, soft_wrap=True)
  _write(out, runs, config, command)
  console.print(f"Wrote {', '.join(FILES)} to {out.resolve()}", highlight=False, soft_wrap=True)
  return runs


def _table(runs: list[Run]) -> Table:
  """One row per run."""
  table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)  # 80 columns wide
  table.add_column("network", no_wrap=True)
  table.add_column("protocol", no_wrap=True)
  headings = ["learning\nrate", "test\naccuracy"]
  for target in TARGETS:
    headings += [f"steps\nto {target:.0%}", f"seconds\nto {target:.0%}"]
  for heading in (*headings, "para-\nmeters"):
    table.add_column(heading, justify="right", no_wrap=True)
  for run in runs:
    cells = [label(run.arm), run.protocol, f"{run.learning_rate:g}"]
    cells.append(f"{run.curve.accuracy[-1]:.3f}" if run.curve.diverged_at is None else "NaN")
    for target in TARGETS:
      reached = run.curve.reaches(target)
      cells += [f"{reached[0]:,}", f"{reached[1]:.1f}"] if reached else ["-", "-"]
    table.add_row(*cells, f"{run.parameters:,}", end_section=run.protocol == "tuned")
  return table


def _explanation(config: DemoConfig) -> str:
  """What the columns of the table mean."""
  text = (
    f"Steps and seconds to the first evaluation, one every {config.eval_every} steps, with this "
    "test accuracy (- if none); seconds of training alone, without compilation and evaluation. "
  )
  if config.tune:
    text += (
      f"Tuned: the learning rate, of {', '.join(f'{lr:g}' for lr in config.lrs)}, with the best "
      f"accuracy after {config.tune_steps} steps on a tenth of the training set kept aside. "
    )
  return text + "KNN: kervolution in the first layer. NaN: the run diverged."


def _meaning(runs: list[Run], tested: int) -> str:
  """What these runs can show, in a line."""
  finished = [run.curve.accuracy[-1] for run in runs if run.curve.diverged_at is None]
  best = min(max(finished, default=0.5), 1 - 1 / tested)
  error = 100 * math.sqrt(best * (1 - best) / tested)  # the standard error of a share
  return (
    f"One seed, {tested:,} test images: accuracies are uncertain by about {error:.1f} points. In "
    "three seeds on all of MNIST no tuned KNN was measurably better than the CNN (results/mnist)."
  )


def _write(out: Path, runs: list[Run], config: DemoConfig, command: str) -> None:
  """Writes the figures and the results."""
  from experiments.common import figures  # imports matplotlib

  titles: dict[Protocol, str] = {
    "paper": f"the paper's protocol, learning rate {PAPER_LEARNING_RATE}",
    "tuned": "each network at its own learning rate",
  }
  protocols: list[Protocol] = ["paper", "tuned"] if config.tune else ["paper"]
  panels = {titles[name]: [run for run in runs if run.protocol == name] for name in protocols}
  convergence, filters, results = (out / name for name in FILES)
  curves = {
    title: {f"{label(run.arm)}, lr {run.learning_rate:g}": run.curve for run in panel}
    for title, panel in panels.items()
  }
  figures.convergence(convergence, curves, TARGETS)
  weights = {
    title: {label(run.arm): run.filters for run in panel} for title, panel in panels.items()
  }
  figures.filters(filters, weights)
  record = {
    "command": command,
    "config": dataclasses.asdict(config),
    "seed": config.seed,
    **environment(),
    "rows": [run.row() for run in runs],
    "curves": [dataclasses.asdict(run.curve) for run in runs],
  }
  write_atomically(results, json.dumps(record, indent=2, allow_nan=False) + "\n")
