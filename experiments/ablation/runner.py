"""Runs what is missing, several worker processes side by side."""

import collections
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import UsageError
from experiments.ablation.protocol import Spec, Training, identity
from experiments.ablation.rows import Rows
from experiments.ablation.studies import Plan
from experiments.ablation.worker import ENVIRONMENT, Job

ROOT = Path(__file__).parent.parent.parent


class Runner:
  """Makes rows until a plan has nothing left to do.

  Args:
    rows: to read and add to.
    job: from runs to what their worker needs to know.
    workers: processes at a time.
    together: runs of one network that a process trains at once, at most.
    again: whether to make the rows that there are once more, and compare.
    say: prints a line.
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
    self.others = 0  # rows made again that differ
    self._processes: set[subprocess.Popen[str]] = set()
    self._lock = threading.Lock()
    self._error: str | None = None

  def run(self, plan: Plan) -> None:
    """Carries out a plan, stage by stage.

    Args:
      plan: asked again after each stage.

    Raises:
      UsageError: if a worker says that something will not do.
    """
    finished: set[str] = set()
    if not self._missing(plan, finished):
      self.say("all rows are there")
    try:
      while todo := self._missing(plan, finished):
        self._stage(todo)
        finished |= {identity(spec) for spec in todo}
    except BaseException:
      self._error = self._error or "interrupted"  # no thread starts another process
      raise
    finally:
      for process in list(self._processes):
        process.kill()

  def _missing(self, plan: Plan, finished: set[str]) -> list[Spec]:
    """The runs to make now, each once."""
    rows = self.rows.all()
    wanted = {identity(spec): spec for spec in plan(rows)}
    skip = finished if self.again else finished | rows.keys()
    return [spec for name, spec in wanted.items() if name not in skip]

  def _stage(self, specs: Sequence[Spec]) -> None:
    """Makes the rows of these runs."""
    queue = collections.deque(groups(specs, self.together))
    total, taken = len(specs), 0

    def work() -> None:
      try:
        take()
      except Exception as error:  # of a thread, which would end without a word
        self._error = self._error or str(error)

    def take() -> None:
      nonlocal taken
      while self._error is None:
        with self._lock:
          if not queue:
            return
          group = queue.popleft()
          places = {spec: f"[{taken + number}/{total}]" for number, spec in enumerate(group, 1)}
          taken += len(group)
        if not self.again:  # another command may have made some meanwhile
          group = [spec for spec in group if self.rows.get(spec) is None]
        if group:
          self._finish({spec: places[spec] for spec in group}, self._call(self.job(group)))

    threads = [
      threading.Thread(target=work, daemon=True) for _ in range(min(self.workers, len(queue)))
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    if self._error is not None:
      raise UsageError(self._error)

  def _call(self, job: Job) -> Sequence[Mapping[str, Any]]:
    """What a worker says of each run in the end."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
      [sys.executable, "-m", "experiments.ablation.worker"],
      env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      process_group=0,  # an interrupt from the keyboard is for this process alone
    )
    self._processes.add(process)
    try:
      output, _ = process.communicate(job.to_json())
    finally:
      self._processes.discard(process)
    try:
      told = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
      told = {"error": f"a worker ended with code {process.returncode}; see above"}
    return told if isinstance(told, list) else [told]

  def _finish(self, places: Mapping[Spec, str], told: Sequence[Mapping[str, Any]]) -> None:
    """Says what became of runs, each with its place in the stage."""
    if "error" in told[0]:
      names = "; ".join(describe(spec) for spec in places)
      self._error = f"{names}: {told[0]['error']}"
      return
    for (spec, place), outcome in zip(places.items(), told, strict=True):
      self._say(spec, place, outcome)

  def _say(self, spec: Spec, place: str, told: Mapping[str, Any]) -> None:
    """Says what became of a run."""
    what = f"{place} {describe(spec)}"
    if told["state"] == "other":
      self.others += 1
      what += ": NOT as in its row, which stays"
    elif told["state"] == "apart":
      row = self.rows.get(spec) or {}
      what += f": NOT compared with its row, which {row.get('command')!r} makes again"
    elif self.again and told["state"] == "new":
      what += ": there was no row to compare with, now there is"
    elif told["state"] == "same":
      what += ": as in its row, bit for bit"
    if told.get("diverged_at") is not None:
      what += f": diverged at step {told['diverged_at']}"
    elif told.get("accuracy") is not None:
      what += f": accuracy {told['accuracy']:.4f}"
    if told.get("steps_to_target") is not None:
      what += f", 98 % after {told['steps_to_target']:,} steps"
    if told.get("seconds") is not None:
      what += f", {told['seconds']:.0f} s"
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
  """The name of the devices that a worker would use: "cpu", "gpu" or "tpu".

  Raises:
    UsageError: if JAX finds none.
  """
  code = "import jax; print(jax.default_backend())"
  process = subprocess.run(
    [sys.executable, "-c", code], env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, text=True
  )
  if process.returncode:
    raise UsageError("JAX cannot start; see above")
  return process.stdout.splitlines()[-1]


def describe(spec: Spec) -> str:
  """A run in words.

  Args:
    spec: of the run.
  """
  if isinstance(spec, Training):
    kind = "search" if spec.search else "training"
    return f"{kind}: {spec.arm}, rate {spec.rate:g}, seed {spec.seed}"
  return f"{type(spec).__name__.lower()}: {spec.arm}, seed {spec.seed}"
