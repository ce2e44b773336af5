"""A CNN and its kervolutional twins trained side by side: same data, same order, same start."""

import dataclasses
import math
from typing import Any, Literal

import jax
import numpy as np
import optax
from rich.console import Console
from rich.progress import Progress

from experiments import UsageError, data
from experiments.common.curve import Curve
from experiments.common.kernels import KERNELS
from experiments.configs.build import SMALLEST_LENET_IMAGE
from experiments.demo.config import ArmName, DemoConfig
from experiments.engine.fit import fit
from experiments.engine.step import Learner, Score
from experiments.engine.trainer import Trainer, to_device
from kerv_jax.models import lenet5

Protocol = Literal["paper", "tuned"]

PAPER_LEARNING_RATE = 0.003
TARGETS = (0.90, 0.95)
VALIDATION_FRACTION = 0.1


def label(arm: ArmName) -> str:
  """Returns what tables and figures call a network.

  Args:
    arm: name of the network.
  """
  return "CNN" if arm == "cnn" else f"{KERNELS[arm].label} KNN"


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
    """Returns its row in results.json."""
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


class Comparison:
  """Runs that share data, order of the examples and initial weights.

  Args:
    config: options with a number for every default, see `DemoConfig.resolved`.
    dataset: data set to train and test on.

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
    if min(height, width) < SMALLEST_LENET_IMAGE:
      raise UsageError(
        f"`--data-dir` must hold images of at least {SMALLEST_LENET_IMAGE}x{SMALLEST_LENET_IMAGE}, "
        f"got {height}x{width}"
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
    model = lenet5("conv-conv") if arm == "cnn" else lenet5("kerv-conv", KERNELS[arm].kernel)
    model = model.clone(num_classes=self.dataset.num_classes)
    trainer = Trainer(Learner(model, optax.inject_hyperparams(optax.sgd)(0.0, momentum=0.9)))
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
    monitor.begin(f"{label(arm)}, {protocol}, lr {rate:g}")
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
    monitor.say(f"{label(arm)}, {protocol}, lr {rate:g}: {end}")
    return run

  def _tune(self, trainer: Trainer, arm: ArmName, order: np.ndarray, monitor: Monitor) -> float:
    """The learning rate with the best validation accuracy after a short run (of equals, loss)."""
    scores: dict[float, Score] = {}
    for rate in self.config.lrs:
      monitor.begin(f"{label(arm)}, trying lr {rate:g}")
      state = trainer.init(self.config.seed, self.image_shape, rate)
      state, _, _ = trainer.run(state, data.picks(self.train_set, order))
      score = trainer.evaluate(state, data.each_once(self.validation_set))
      scores[rate] = score if math.isfinite(score.loss) else Score(math.inf, 0.0)
      monitor.advance(len(order))
    tried = ", ".join(
      f"{f'{score.accuracy:.3f}' if math.isfinite(score.loss) else 'NaN'} at {rate:g}"
      for rate, score in scores.items()
    )
    best = max(scores, key=lambda rate: (scores[rate].accuracy, -scores[rate].loss))
    monitor.say(f"{label(arm)}, validation accuracy by lr: {tried}")
    return best
