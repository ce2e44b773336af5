"""A training run in a folder: it goes on where it was, and ends in order whatever happens."""

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from rich.console import Console

from experiments import UsageError
from experiments.common.files import write_atomically
from experiments.configs.build import Parts, build
from experiments.configs.config import UNIDENTIFYING, TrainConfig
from experiments.engine.parallel import (
  Layout,
  LostError,
  connect,
  in_all_processes_the_same,
  in_any_process,
  is_main,
)
from experiments.engine.step import TrainState
from experiments.runs.checkpoints import Checkpoints, Restored, SaveError
from experiments.runs.folder import Folder
from experiments.runs.metrics import SUMMARY, Metrics
from experiments.runs.progress import Monitor
from experiments.runs.signals import StopSignals

CHUNK = 32
"""Steps between looks at losses and signals; on CPU, signals are seen after every step."""


class Diverged(ArithmeticError):
  """A loss or parameter is no longer finite; the last checkpoint is from before."""


class Outcome(NamedTuple):
  """How a run ended.

  Attributes:
    status: "finished"; "paused", after the epochs of `--run.stop-after`; or "stopped", by a signal.
    step: steps taken.
    rows: of metrics.jsonl.
    state: at the end.
  """

  status: Literal["finished", "paused", "stopped"]
  step: int
  rows: list[dict[str, Any]]
  state: TrainState


def train(
  config: TrainConfig, command: str = "", console: Console | None = None, *, out: str | None = None
) -> Outcome:
  """Trains, or goes on training, in the run's folder.

  Args:
    config: of the run.
    command: that started it, for the record.
    console: where to print; None is standard output.
    out: folder where the configuration names none.

  Returns:
    How it ended; what it has learnt is saved then.

  Raises:
    UsageError: if an option, the data or the folder will not do.
    DamagedError: if the folder has checkpoints and none is undamaged.
    SaveError: if a checkpoint, or another file of the run, cannot be written.
    Diverged: if a loss is not finite.
    LostError: if another process is gone; this one had better end without waiting for it.
  """
  config.check()
  folder = config.run.out or out
  if folder is None:
    raise UsageError("`--run.out` must be the folder of the run, got none")
  values = json.loads(json.dumps(dataclasses.asdict(config)))
  with StopSignals() as signals, contextlib.ExitStack() as stack:
    connect(config.parallel)
    signals.renew()
    with _together(values):
      layout = Layout.of(config.parallel)
      parts = build(config, layout)
      lock = _claim(config, values, folder, stack) if is_main() else None
    with _saving(folder):
      run = Run(config, Path(folder), parts, layout, console or Console())
      try:
        if lock is not None:
          lock.write_config(values)
          lock.record_launch(command, step=run.step)
        outcome = run.loop(signals)
      except LostError:  # the background threads would wait for the process that is gone
        raise
      except jax.errors.JaxRuntimeError as error:
        if layout.processes == 1 or "RESOURCE_EXHAUSTED" in str(error):
          run.close()
          raise
        raise LostError(" ".join(str(error).split())) from error
      except BaseException:
        run.close()
        raise
      run.close()
    return outcome


@contextlib.contextmanager
def _together(config: Mapping[str, Any]) -> Iterator[None]:
  """Within it, what goes wrong in one process ends all of them, in order."""
  error: Exception | None = None
  try:
    yield
  except Exception as caught:
    error = caught
  failed = in_any_process(error is not None)
  if error is not None:
    raise error
  if failed:
    raise UsageError("another process cannot start; it says why")
  shared = {name: value for name, value in config.items() if name != "parallel"}
  shared["data"] = config["data"] | {"data_dir": None}  # each process may have its own copy
  if not in_all_processes_the_same(json.dumps(shared)):
    raise UsageError("the processes must be given the same options, and were given different ones")


@contextlib.contextmanager
def _saving(folder: str) -> Iterator[None]:
  """Within it, what the system refuses is a SaveError."""
  try:
    yield
  except SaveError:
    raise
  except OSError as error:
    raise SaveError(f"cannot go on in {folder}: {error}; checkpoints are as they were") from error


def _claim(
  config: TrainConfig, values: Mapping[str, Any], folder: str, stack: contextlib.ExitStack
) -> Folder:
  """The folder, locked, after a look at what is in it."""
  with _saving(folder):
    lock = Folder(folder)
    stack.callback(lock.close)
    if config.run.fresh:
      lock.clear()
    lock.check(values, ignored=UNIDENTIFYING, accept=config.run.accept_changes)
  return lock


class Run:
  """A run's state, in memory and in its folder."""

  def __init__(
    self, config: TrainConfig, folder: Path, parts: Parts, layout: Layout, console: Console
  ):
    self.config, self.folder, self.parts, self.layout = config, folder, parts, layout
    self.steps_per_epoch = parts.feed.steps_per_epoch
    self.checkpoints = Checkpoints(
      folder, layout, keep=config.run.keep, asynchronous=not config.run.sync
    )
    shapes = parts.trainer.shapes(parts.image_shape)
    restored = self._restore(shapes)
    if restored is None:
      self.state = parts.trainer.init(config.seed, parts.image_shape)
      record: dict[str, Any] = {}
      self.step = 0
    else:
      self.state = layout.put_tree(restored.state, layout.state(shapes))
      record, self.step = restored.record, restored.step
    self.batches = parts.feed.train_batches(self.step)
    self.saved = self.restored = self.step if restored else -1
    self.seconds = float(record.get("train_seconds", 0.0))
    self.loss_sum = float(record.get("loss_sum", 0.0))
    self.loss_steps = int(record.get("loss_steps", 0))
    self.metrics = Metrics(
      folder if is_main() else None,
      record.get("rows", ()),
      record.get("timing", ()),
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
      self.say(f"damaged checkpoint: {fault}; moved to {folder / 'damaged'}")
    self.say(f"{'goes on from' if restored else 'starts at'} step {self.step:,}, in {folder}")

  def _restore(self, shapes: TrainState) -> Restored | None:
    """The checkpoint to go on from, if there is one."""
    try:
      restored = self.checkpoints.restore(shapes)
      data = restored and restored.record.get("data")
      if data not in (None, self.parts.fingerprint) and not self.config.run.accept_changes:
        raise UsageError(
          f"`--data.name` {self.config.data.name} has other data now than when the run in "
          f"{self.folder} was trained on it; bring those back, or give `--run.accept-changes` to "
          "go on with these"
        )
    except BaseException:
      self.checkpoints.close()
      raise
    return restored

  def loop(self, stop: Callable[[], bool]) -> Outcome:
    """Steps, evaluations and checkpoints, until the end or a request to stop."""
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

  def _end(
    self, stop: Callable[[], bool], pause: int
  ) -> Literal["finished", "paused", "stopped"] | None:
    """Whether the run ends here, and how; the same in every process."""
    if self.step >= self.parts.total_steps:
      return "finished"
    if in_any_process(stop()):
      return "stopped"
    return "paused" if self.step >= pause else None

  def advance(self, steps: int, stop: Callable[[], bool] = lambda: False) -> None:
    """Takes at least one step, all of them finite and within a chunk of an epoch.

    Args:
      steps: to take at most.
      stop: asked after each step of a loop in Python; True ends it early.
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
    batches = self.parts.feed.test_batches(self.config.eval.batch_size)
    score = self.parts.trainer.evaluate(self.state, batches)
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
    self.metrics.add(row, {"step": self.step, "train_seconds": self.seconds})
    self.loss_sum, self.loss_steps = 0.0, 0
    train_loss = "-" if row["train_loss"] is None else f"{row['train_loss']:.4f}"
    self.say(
      f"epoch {epoch:g}: train loss {train_loss}, test loss {score.loss:.4f}, test accuracy "
      f"{score.accuracy:.4f}, lr {row['learning_rate']:g}, {self.seconds:.1f} s of training"
    )

  def _save(self) -> None:
    """Saves a checkpoint of this step, unless there is one."""
    if self.saved >= self.step:
      return
    if not self.parts.trainer.finite(self.state):
      raise self._diverged(self.step - 1, "the parameters after it are not finite")
    rows = self.metrics.rows
    record = {
      "data": self.parts.fingerprint,
      "rows": rows,
      "timing": self.metrics.timing,
      "train_seconds": self.seconds,
      "loss_sum": self.loss_sum,
      "loss_steps": self.loss_steps,
    }
    evaluated = self.metrics.last_step == self.step
    self.checkpoints.save(
      self.step, self.state, record, rows[-1]["test_accuracy"] if evaluated else None
    )
    self.saved = self.step

  def _finish(self, status: Literal["finished", "paused", "stopped"]) -> Outcome:
    """Waits for the last checkpoint and says how the run ended."""
    self.checkpoints.wait()
    self.monitor.close()
    if status == "finished":
      self._summarise()
    else:
      drop = ["--run.fresh"] if self.config.run.fresh else []
      drop += ["--run.stop-after"] if status == "paused" else []
      without = f", without {' and '.join(drop)}," if drop else ""
      self.say(
        f"{status} after step {self.step:,}, epoch {self.step / self.steps_per_epoch:g}; saved in "
        f"{self.folder}: the same command{without} goes on from there"
      )
    return Outcome(status, self.step, self.metrics.rows, self.state)

  def _summarise(self) -> None:
    """Prints and writes the last figures and the time to each accuracy asked for."""
    last = self.metrics.rows[-1]
    times: dict[str, Any] = {}
    for target in self.config.eval.targets:
      reached = self.metrics.reaches(target)
      steps, seconds = reached or (None, None)
      times[f"{target:g}"] = {"steps": steps, "train_seconds": seconds}
      when = "not reached" if reached is None else f"{reached[1]:.1f} s of training, step {steps:,}"
      self.say(f"test accuracy {target:g}: {when}")
    summary = last | {
      "train_seconds": self.seconds,
      "best_step": self.checkpoints.best_step,
      "time_to_accuracy": times,
    }
    if is_main():
      write_atomically(self.folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    self.say(f"finished: test accuracy {last['test_accuracy']:.4f}; saved in {self.folder}")

  def _diverged(self, step: int, what: str) -> Diverged:
    """The error for a step that went wrong."""
    rate = self.parts.schedule(step)
    aside = ""
    foreign = self.saved == self.restored and self.config.run.accept_changes
    if step == self.saved and not foreign:  # its loss is the one that is not finite
      self.checkpoints.wait()
      self.checkpoints.set_aside([step])
      aside = "; that of this step, whose loss it is, was set aside"
    newest = max(self.checkpoints.steps, default=None)
    kept = "no checkpoint" if newest is None else f"the checkpoint of step {newest}"
    helps = ["a lower `--optim.learning-rate`", "a warm-up by `--optim.warmup-epochs`"]
    if self.config.model.kernel != "none":
      helps += ["fewer kervolutions (`--model.layers first`)"]
    if self.config.model.kernel == "polynomial":
      helps += ["a smaller `--model.balance` or `--model.degree`"]
    helps += ["`--optim.clip-norm 1`"]
    go_on = "Starting" if newest is None else "Going on from the checkpoint"
    return Diverged(
      f"diverged at step {step}, learning rate {rate:g}: {what}; kept: {kept}{aside}. What helps: "
      f"{'; '.join(helps)}. {go_on} with them needs `--run.accept-changes`"
    )

  def close(self) -> None:
    """Ends what runs in the background; an error that is on its way goes before another here."""
    self.monitor.close()
    self.metrics.close()
    self.checkpoints.close()
