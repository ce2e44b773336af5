"""How far a run is: a bar on a terminal, plain lines elsewhere."""

import datetime
import time

from rich.console import Console
from rich.progress import (
  BarColumn,
  MofNCompleteColumn,
  Progress,
  ProgressColumn,
  Task,
  TextColumn,
  TimeRemainingColumn,
)
from rich.text import Text

LINE_SECONDS = 60.0
"""Between lines that say how far a run is."""


class _Throughput(ProgressColumn):
  """Images a second."""

  def __init__(self, batch_size: int):
    super().__init__()
    self.batch_size = batch_size

  def render(self, task: Task) -> Text:
    speed = task.finished_speed or task.speed
    return Text("" if speed is None else f"{speed * self.batch_size:,.0f} images/s")


class Monitor:
  """Tells how far a run is.

  Args:
    console: console to print to; None says nothing, as in all processes but the first.
    total: number of steps of the run.
    done: number of steps taken before.
    batch_size: number of examples in a step.
  """

  def __init__(self, console: Console | None, *, total: int, done: int, batch_size: int):
    self.console, self.total, self.batch_size = console, total, batch_size
    self._bar: Progress | None = None
    self._last = self._begin = time.monotonic()
    self._first, self._done = done, done
    if console is not None and console.is_terminal:
      self._bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Throughput(batch_size),
        TimeRemainingColumn(),
        console=console,
        transient=True,
      )
      self._task = self._bar.add_task("", total=total, completed=done)
      self._bar.start()

  def advance(self, steps: int, epoch: float, loss: float) -> None:
    """Counts steps.

    Args:
      steps: number of steps just taken.
      epoch: passes over the training set so far.
      loss: mean loss of these steps.
    """
    self._done += steps
    if self._bar is not None:
      description = f"epoch {epoch:.1f}, loss {loss:.3f}"
      self._bar.update(self._task, advance=steps, description=description)
      return
    now = time.monotonic()
    if self.console is None or now - self._last < LINE_SECONDS:
      return
    self._last = now
    rate = (self._done - self._first) / (now - self._begin)
    left = datetime.timedelta(seconds=round((self.total - self._done) / rate))
    self.say(
      f"step {self._done:,} of {self.total:,}, epoch {epoch:.1f}: loss {loss:.3f}, "
      f"{rate * self.batch_size:,.0f} images/s, {left} left"
    )

  def say(self, text: str) -> None:
    """Prints a line."""
    if self.console is not None:
      self.console.print(text, highlight=False, soft_wrap=True, markup=False)

  def close(self) -> None:
    """Takes the bar away."""
    if self._bar is not None:
      self._bar.stop()
