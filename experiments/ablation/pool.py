"""Makes the rows that are missing, several processes side by side."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import jax

from experiments import UsageError
from experiments.ablation.perform import Job, Outcome, perform
from experiments.ablation.plan import Plan
from experiments.ablation.process import alone, end_all
from experiments.ablation.protocol import Spec, Training, identity
from experiments.ablation.rows import Rows


class Pool:
  """Makes rows until a plan has nothing left to do.

  A run that fails does not stop the others; those that are interrupted leave no row.

  Args:
    rows: to read and add to.
    job: from runs to what their process needs to know.
    workers: processes at a time.
    together: runs of one network that a process trains at once, at most.
    again: whether to make the rows that there are once more, and compare.
    say: prints a line.

  Attributes:
    others: number of rows made again that differ.
    failed: what went wrong, run by run.
  """

  def __init__(
    self,
    rows: Rows,
    job: Callable[[Sequence[Spec]], Job],
    *,
    workers: int,
    together: int = 1,
    again: bool = False,
    say: Callable[[str], None] = print,
  ):
    self.rows, self.job, self.again, self.say = rows, job, again, say
    self.workers, self.together = workers, together
    self.others, self.failed = 0, list[str]()

  def run(self, plan: Plan) -> None:
    """Carries out a plan, stage by stage.

    Args:
      plan: asked again after each stage.
    """
    finished: set[str] = set()
    if not self._missing(plan, finished):
      self.say("all rows are there")
    while todo := self._missing(plan, finished):
      self._stage(todo)
      finished |= {identity(spec) for spec in todo}

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
      for future in as_completed(futures):
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
    if error is None:
      for outcome in future.result():
        self._say(outcome, places[outcome.spec])
      return
    if not isinstance(error, UsageError | OSError | BrokenProcessPool):
      traceback.print_exception(error)
    self.failed.append(f"{'; '.join(map(describe, group))}: {error}")
    self.say(f"{places[group[0]]} {self.failed[-1]}")

  def _say(self, outcome: Outcome, place: str) -> None:
    """Says what became of a run."""
    row, what = outcome.row, f"{place} {describe(outcome.spec)}"
    if outcome.state == "other":
      self.others += 1
      what += ": NOT as in its row, which stays"
    elif outcome.state == "apart":
      old = self.rows.get(outcome.spec) or {}
      what += f": NOT compared with its row, which {old.get('command')!r} makes again"
    elif self.again and outcome.state == "new":
      what += ": there was no row to compare with, now there is"
    elif outcome.state == "same":
      what += ": as in its row, bit for bit"
    if row.get("diverged_at") is not None:
      what += f": diverged at step {row['diverged_at']}"
    elif row.get("accuracy") is not None:
      what += f": accuracy {row['accuracy']:.4f}"
    if row.get("steps_to_target") is not None:
      what += f", 98 % after {row['steps_to_target']:,} steps"
    if row.get("seconds") is not None:
      what += f", {row['seconds']:.0f} s"
    self.say(what)


def groups(specs: Sequence[Spec], together: int) -> list[list[Spec]]:
  """Runs that are made by one process each.

  Trainings of one network are put together where they differ in seed alone or, in searches, in rate
  alone. Others are by themselves.

  Args:
    specs: of the runs, each once.
    together: runs in a group, at most.
  """
  alike: dict[Any, list[Spec]] = {}
  for spec in specs:
    key: Any = spec
    if isinstance(spec, Training) and together > 1:
      key = spec.arm, spec.search, spec.seed if spec.search else spec.rate
    alike.setdefault(key, []).append(spec)
  return [
    runs[first : first + together]
    for runs in alike.values()
    for first in range(0, len(runs), together)
  ]


def backend() -> str:
  """The name of the devices that a process would use: "cpu", "gpu" or "tpu".

  Raises:
    UsageError: if JAX finds none.
  """
  try:
    return alone(jax.default_backend)
  except RuntimeError as error:
    raise UsageError(f"JAX cannot start: {error}") from error


def describe(spec: Spec) -> str:
  """A run in words.

  Args:
    spec: of the run.
  """
  if isinstance(spec, Training):
    kind = "search" if spec.search else "training"
    return f"{kind}: {spec.arm}, rate {spec.rate:g}, seed {spec.seed}"
  return f"{type(spec).__name__.lower()}: {spec.arm}, seed {spec.seed}"
