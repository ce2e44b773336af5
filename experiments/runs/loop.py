"""The training loop of a run: steps, evaluations and checkpoints, from the first to the last."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from experiments import UsageError
from experiments.configs.build import Parts
from experiments.configs.config import TrainConfig
from experiments.configs.identity import identifying
from experiments.engine.agreement import in_any_process
from experiments.engine.layout import Layout
from experiments.engine.processes import is_main
from experiments.engine.step import TrainState
from experiments.runs.checkpoints import Checkpoints, Restored
from experiments.runs.continuation import UNSEALED, Continuation, Row, Timing
from experiments.runs.ends import Diverged, Outcome, Status, diverged
from experiments.runs.metrics import Metrics
from experiments.runs.progress import Monitor

CHUNK = 32
"""Steps between looks at losses and signals; on CPU, signals are seen after every step."""


class Run:
  """A run's state, in memory and in its folder: it goes on where it was.

  Args:
    config: the configuration.
    folder: the folder of the run.
    parts: parts that the configuration builds.
    layout: the devices.
    console: console to print to, in the main process.

  Raises:
    UsageError: if the folder's checkpoints are of another network or of other data.
    DamagedError: if the folder has checkpoints and none is undamaged.
  """

  def __init__(
    self, config: TrainConfig, folder: Path, parts: Parts, layout: Layout, console: Console
  ):
    self.config, self.folder, self.parts, self.layout = config, folder, parts, layout
    self.steps_per_epoch = parts.feed.steps_per_epoch
    self.checkpoints = Checkpoints(
      folder, layout, keep=config.run.keep, asynchronous=not config.run.sync
    )
    self.options = identifying(dataclasses.asdict(config))
    shapes = parts.trainer.shapes(parts.image_shape)
    restored, before = self._restore(shapes)
    if restored is None:
      self.state = parts.trainer.init(config.seed, parts.image_shape)
      self.step = 0
    else:
      self.state = layout.put_tree(restored.state, layout.state(shapes))
      self.step = restored.step
    self.batches = parts.feed.train_batches(self.step)
    self.saved = self.restored = self.step if restored else -1
    self.seconds = before.train_seconds
    self.loss_sum, self.loss_steps = before.loss_sum, before.loss_steps
    self.metrics = Metrics(
      folder if is_main() else None,
      [row.written() for row in before.rows],
      [dataclasses.asdict(row) for row in before.timing],
      tensorboard=config.run.tensorboard,
    )
    self.monitor = Monitor(
      console if is_main() else None,
      total=parts.total_steps,
      done=self.step,
      batch_size=config.data.batch_size,
    )
    self.say = self.monitor.say
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes.params))
    self.say(f"{parts.description}. {config.model.name}: {parameters:,} parameters")
    for fault in restored.faults if restored else ():
      self.say(f"damaged checkpoint: {fault}; what there is of it is in {folder / 'damaged'}")
    if (lost := self.checkpoints.lost_best) is not None:
      self.say(
        f"there is no checkpoint of step {lost:,}, which was the best; of the others, the best "
        "takes its place"
      )
    if before.config is None:
      self.say(UNSEALED)
    self.say(f"{'goes on from' if restored else 'starts at'} step {self.step:,}, in {folder}")

  def _restore(self, shapes: TrainState) -> tuple[Restored | None, Continuation]:
    """Returns the checkpoint to go on from, if there is one, and what it says of the run."""
    nothing = Continuation(self.parts.fingerprint, [], [], 0.0, 0.0, 0, self.options)
    try:
      restored = self.checkpoints.restore(shapes)
      if restored is None:
        return None, nothing
      before = Continuation.read(restored.record, restored.step)
      if not self.config.run.accept_changes:
        try:
          before.check(self.options, self.parts.fingerprint)
        except UsageError as error:
          raise UsageError(
            f"{self.folder}: {error}; bring those back, or give `--run.accept-changes` to go on "
            "with these"
          ) from None
      return restored, before
    except BaseException:
      self.checkpoints.close()
      raise

  def loop(self, stop: Callable[[], bool]) -> Outcome:
    """Takes steps, evaluates and saves, until the end or a request to stop.

    Args:
      stop: function that is asked on the way; True ends the run after a checkpoint.

    Raises:
      Diverged: if a loss or a parameter is not finite.
      SaveError: if a checkpoint cannot be written.
    """
    config, total = self.config, self.parts.total_steps
    save_every = config.run.save_every or self.steps_per_epoch
    eval_every = config.eval.every * self.steps_per_epoch
    pause = (config.run.stop_after or config.epochs) * self.steps_per_epoch
    while True:
      if self.step and (self.step % eval_every == 0 or self.step >= total):
        self._evaluate()
      end = self._end(stop, pause)
      if end or (self.step and self.step % save_every == 0):
        self._save()
      if end:
        return self._finish(end)
      self.advance(min(save_every - self.step % save_every, total - self.step), stop)

  def advance(self, steps: int, stop: Callable[[], bool] = lambda: False) -> None:
    """Takes at least one step, all of them finite and within a chunk of an epoch.

    Args:
      steps: steps to take, at most.
      stop: function that is asked after each step of a loop in Python; True ends it early.

    Raises:
      Diverged: if a loss is not finite.
    """
    position = self.step % self.steps_per_epoch
    steps = min(steps, CHUNK - position % CHUNK, self.steps_per_epoch - position)
    stop = stop if self.layout.processes == 1 else lambda: False
    batches = itertools.islice(self.batches, steps)
    self.state, losses, seconds = self.parts.trainer.run(self.state, batches, stop=stop)
    finite = np.isfinite(losses)
    if not finite.all():
      raise self._diverged(self.step + int(np.argmin(finite)), "the loss is not finite")
    self.step += len(losses)
    self.seconds += seconds
    for loss in losses.tolist():  # one by one: their sum must not depend on where a run was cut
      self.loss_sum += loss
    self.loss_steps += len(losses)
    self.monitor.advance(len(losses), self.step / self.steps_per_epoch, float(losses.mean()))
    self.checkpoints.poll()

  def _evaluate(self) -> None:
    """Adds a row to the metrics, unless it is there."""
    if self.metrics.last_step >= self.step:
      return
    feed, size = self.parts.feed, self.config.eval.batch_size
    score = self.parts.trainer.evaluate(self.state, feed.test_batches(size))
    held_out = feed.validation_batches(size)
    validation = None
    if held_out is not None:
      validation = self.parts.trainer.evaluate(self.state, held_out).accuracy
    epoch = self.step / self.steps_per_epoch
    row = {
      "step": self.step,
      "epoch": epoch,
      "learning_rate": self.parts.schedule(self.step - 1),
      "train_loss": self.loss_sum / self.loss_steps if self.loss_steps else None,
      "test_loss": score.loss,
      "test_accuracy": score.accuracy,
      "test_top5": score.top5,
    }
    if validation is not None:
      row["validation_accuracy"] = validation
    self.metrics.add(row, {"step": self.step, "train_seconds": self.seconds})
    self.loss_sum, self.loss_steps = 0.0, 0
    train_loss = "-" if row["train_loss"] is None else f"{row['train_loss']:.4f}"
    on_validation = "" if validation is None else f"validation accuracy {validation:.4f}, "
    self.say(
      f"epoch {epoch:g}: train loss {train_loss}, test loss {score.loss:.4f}, test accuracy "
      f"{score.accuracy:.4f}, {on_validation}lr {row['learning_rate']:g}, {self.seconds:.1f} s of "
      "training"
    )

  def _save(self) -> None:
    """Saves a checkpoint of this step, unless there is one."""
    if self.saved >= self.step:
      return
    if not self.parts.trainer.finite(self.state):
      raise self._diverged(self.step - 1, "the parameters after it are not finite")
    rows = self.metrics.rows
    record = Continuation(
      self.parts.fingerprint,
      [Row(**row) for row in rows],
      [Timing(**row) for row in self.metrics.timing],
      self.seconds,
      self.loss_sum,
      self.loss_steps,
      self.options,
      self.parts.network.to_json(),
    )
    evaluated = self.metrics.last_step == self.step
    self.checkpoints.save(
      self.step,
      self.state,
      dataclasses.asdict(record),
      rows[-1][self._chosen_by] if evaluated else None,
    )
    self.saved = self.step

  @property
  def _chosen_by(self) -> str:
    """What the best checkpoint is chosen by."""
    return "test_accuracy" if self.config.data.validation is None else "validation_accuracy"

  def _end(self, stop: Callable[[], bool], pause: int) -> Status | None:
    """Returns how the run ends here, the same in every process; None if it goes on."""
    if self.step >= self.parts.total_steps:
      return "finished"
    if in_any_process(stop()):
      return "stopped"
    return "paused" if self.step >= pause else None

  def _finish(self, status: Status) -> Outcome:
    """Waits for the last checkpoint and says how the run ended."""
    self.checkpoints.wait()
    self.monitor.close()
    if status == "finished":
      best = self.checkpoints.best_step
      *lines, last = self.metrics.summarise(self.config.eval.targets, best)
      if best is not None:
        honest = self.config.data.validation is not None
        by = "validation examples" if honest else "the test set: its accuracy is no honest estimate"
        lines.append(f"best checkpoint: step {best:,}, chosen by {by}")
      for line in (*lines, f"{last}; saved in {self.folder}"):
        self.say(line)
    else:
      drop = ["--run.fresh"] if self.config.run.fresh else []
      drop += ["--run.stop-after"] if status == "paused" else []
      without = f", without {' and '.join(drop)}," if drop else ""
      self.say(
        f"{status} after step {self.step:,}, epoch {self.step / self.steps_per_epoch:g}; saved in "
        f"{self.folder}: the same command{without} goes on from there"
      )
    return Outcome(status, self.step, self.metrics.rows, self.state)

  def _diverged(self, step: int, what: str) -> Diverged:
    """Returns the error for a step that went wrong, after its own checkpoint is set aside."""
    foreign = self.saved == self.restored and self.config.run.accept_changes
    aside = step == self.saved and not foreign  # its loss is the one that is not finite
    if aside:
      self.checkpoints.wait()
      self.checkpoints.set_aside([step])
    return diverged(
      self.config.model,
      what,
      step=step,
      learning_rate=self.parts.schedule(step),
      newest=max(self.checkpoints.steps, default=None),
      set_aside=aside,
    )

  def close(self) -> None:
    """Ends what runs in the background."""
    with contextlib.ExitStack() as stack:  # each of them, whatever the others meet
      stack.callback(self.checkpoints.close)
      stack.callback(self.metrics.close)
      stack.callback(self.monitor.close)
