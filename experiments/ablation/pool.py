"""Makes the rows that are missing, several processes side by side."""

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import jax

from experiments import UsageError
from experiments.ablation.perform import Job, Outcome, perform
from experiments.ablation.plan import Plan
from experiments.ablation.protocol import Spec, Training, identity, kind
from experiments.ablation.rows import Rows
from experiments.common.process import alone, end_all
from experiments.failures import EXIT_UNSAVED, EXIT_USAGE, Failure, told


class FailedRunsError(Failure):
  """Runs failed; the others have their rows."""


@dataclasses.dataclass
class Pool:
  """Makes rows until a plan has nothing left to do.

  A run that fails does not stop the others; those that are interrupted leave no row.
  """

  rows: Rows
  job: Callable[[Sequence[Spec]], Job]  # from runs to what their process needs to know
  workers: int  # processes at a time
  together: int = 1  # runs of a network that a process trains at once, at most
  again: bool = False  # whether to make rows that are there once more, and compare
  say: Callable[[str], None] = print
  others: int = 0  # rows made again that differ
  failed: list[str] = dataclasses.field(default_factory=list)  # what went wrong, run by run
  unsaved: bool = False  # whether it was a disk, as one that is full, of any

  def run(self, plan: Plan) -> None:
    """Carries out a plan, stage by stage; it is asked again after each."""
    finished: set[str] = set()
    if not self._missing(plan, finished):
      self.say("all rows are there")
    while todo := self._missing(plan, finished):
      self._stage(todo)
      finished |= {identity(spec) for spec in todo}

  def check(self) -> None:
    """Raises a FailedRunsError if runs failed, with the exit code of a full disk if it was one."""
    if self.failed:
      error = FailedRunsError(f"these runs failed: {'; '.join(self.failed)}")
      error.exit_code = EXIT_UNSAVED if self.unsaved else EXIT_USAGE
      raise error

  def _missing(self, plan: Plan, finished: set[str]) -> list[Spec]:
    """The runs to make now, each once."""
    rows = self.rows.all()
    wanted = {identity(spec): spec for spec in plan(rows)}
    skip = finished if self.again else finished | rows.keys()
    return [spec for name, spec in wanted.items() if name not in skip]

  def _stage(self, specs: Sequence[Spec]) -> None:
    """Makes the rows of these runs."""
    work = groups(specs, self.together)
    order = [spec for group in work for spec in group]
    places = {spec: f"[{place}/{len(order)}]" for place, spec in enumerate(order, 1)}
    threads = ThreadPoolExecutor(self.workers)  # each waits for one process
    futures = {threads.submit(self._make, group): group for group in work}
    try:
      left = set(futures)
      while left:  # an interrupt that came to another thread is met when this one wakes
        done, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
          self._tell(futures[future], future, places)
    finally:
      threads.shutdown(wait=False, cancel_futures=True)
      while not all(future.done() for future in futures):  # interrupted
        end_all()
        time.sleep(0.05)

  def _make(self, group: Sequence[Spec]) -> list[Outcome]:
    """What came of runs, but for those that another command has made meanwhile."""
    if not self.again:
      group = [spec for spec in group if self.rows.get(spec) is None]
    return alone(perform, self.job(group)) if group else []

  def _tell(
    self, group: Sequence[Spec], future: Future[list[Outcome]], places: Mapping[Spec, str]
  ) -> None:
    """Says what became of runs, each with its place in the stage."""
    error = future.exception()
    if error is not None:
      known = told(error) if isinstance(error, Exception) else None
      if known is None and not isinstance(error, BrokenProcessPool):
        traceback.print_exception(error)
      self.unsaved |= known is not None and known[0] == EXIT_UNSAVED
      self.failed.append(f"{'; '.join(map(describe, group))}: {error}")
      self.say(f"{places[group[0]]} {self.failed[-1]}")
      return
    for outcome in future.result():
      self.others += outcome.state == "other"
      self.say(f"{places[outcome.spec]} {self._words(outcome)}")

  def _words(self, outcome: Outcome) -> str:
    """What became of a run."""
    spec, row, state = outcome
    command = (self.rows.get(spec) or {}).get("command")
    words = [describe(spec)] + {
      "other": ["NOT as in its row, which stays"],
      "apart": [f"NOT compared with its row, which {command!r} makes again"],
      "same": ["as in its row, bit for bit"],
      "new": ["there was no row to compare with, now there is"] * self.again,
    }[state]
    told = {
      "diverged_at": "diverged at step {}",
      "accuracy": "accuracy {:.4f}",
      "steps_to_target": "its target after {:,} steps",
      "seconds": "{:.0f} s",
    }
    numbers = [form.format(row[key]) for key, form in told.items() if row.get(key) is not None]
    return ": ".join([*words, ", ".join(numbers)] if numbers else words)


def groups(specs: Sequence[Spec], together: int) -> list[list[Spec]]:
  """Returns runs that are made by one process each, at most so many together.

  Trainings of one network are put together where they differ in seed alone or, in searches, in rate
  alone. Others are by themselves.
  """
  alike: dict[Any, list[Spec]] = {}
  for spec in specs:
    key: Any = spec
    if isinstance(spec, Training) and together > 1:
      key = spec.arm, spec.search, spec.stop_after, spec.seed if spec.search else spec.rate
    alike.setdefault(key, []).append(spec)
  return [
    runs[first : first + together]
    for runs in alike.values()
    for first in range(0, len(runs), together)
  ]


def backend() -> str:
  """Returns the name of the devices of a process: "cpu", "gpu" or "tpu"; a UsageError if none."""
  try:
    return alone(jax.default_backend)
  except RuntimeError as error:
    raise UsageError(f"JAX cannot start: {error}") from error


def describe(spec: Spec) -> str:
  """Returns a run in words."""
  if not isinstance(spec, Training):
    return f"{kind(spec)}: {spec.arm}, seed {spec.seed}"
  name = "search" if spec.search else "training"
  stop = "" if spec.stop_after is None else f", {spec.stop_after} epochs"
  return f"{name}: {spec.arm}, rate {spec.rate:g}, seed {spec.seed}{stop}"
