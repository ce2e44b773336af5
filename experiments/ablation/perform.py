"""Makes rows: trains networks, or looks at trained ones, and compares with rows that are there."""

import dataclasses
import os
import platform
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments import UsageError
from experiments.ablation.attacks import attack
from experiments.ablation.plan import networks
from experiments.ablation.protocol import Filters, Protocol, Spec, Training, cut
from experiments.ablation.reading import Row
from experiments.ablation.rows import ROOM, Rows
from experiments.ablation.rules import rules_digest
from experiments.ablation.train import train
from experiments.common import parameters
from experiments.common.environment import commit, device, version
from experiments.common.files import check_room
from experiments.data import Dataset, load_ordered

DATA = "mnist"
"""The data set where none is named."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
TIMES = ("seconds", "cpu_seconds", "compile_seconds", "seconds_to_target")
ABOUT = ("id", "kind", "spec", "command", "environment")
"""What need not be the same when a run is made again, and what is not of its results."""


@dataclasses.dataclass(frozen=True)
class Job:
  """What it takes to make rows."""

  specs: tuple[Spec, ...]  # several are of one network, and are trained at once
  protocol: Protocol
  data: str  # name of the data set
  data_dir: str | None  # folder of prepared sets
  out: str  # folder of the rows
  weights: str  # folder of the final parameters

  def file(self, spec: Training) -> Path:
    """Returns the file for a run's final parameters."""
    return Path(self.weights) / f"{spec.stem()}.npz"


class Outcome(NamedTuple):
  """What came of a run: its row, or the one that was there if it is the same, and which it is.

  What was there stays. "apart" are rows that need not be the same, for runs were made together by
  one command and not by the other.
  """

  spec: Spec
  row: Row
  state: Literal["new", "same", "other", "apart"]


def perform(job: Job) -> list[Outcome]:
  """Makes the rows of a job, and returns what came of each run.

  Raises:
    UsageError: if the data will not do, or a network that is to be looked at diverged.
  """
  source = [] if job.data == DATA else ["--data", job.data]
  rows, where = Rows(job.out, job.protocol, source), environment()
  loaded, digest = load_ordered(job.data, job.data_dir)
  if digest != job.protocol.data:
    raise UsageError(f"`--data` {job.data!r} has other examples than the rows are of")
  loaded = cut(loaded, job.protocol)
  rows.check_room()
  trainings = [spec for spec in job.specs if isinstance(spec, Training)]
  for spec in trainings:
    check_room(job.file(spec), ROOM)
  if len(trainings) > 1:
    where["together"] = len(trainings)
  if trainings:
    results, params = zip(*train(trainings, job.protocol, loaded), strict=True)
  else:
    results, params = [_look(job, loaded, rows, where)], [None]
  outcomes = []
  for spec, result in zip(job.specs, results, strict=True):
    row, before = rows.row(spec, result | {"environment": where}, trainings), rows.get(spec)
    state = _state(row, before)
    outcomes.append(Outcome(spec, before if before and state == "same" else row, state))
  # At once, so that there is all of a group or nothing; weights can be made again from a row.
  rows.add([outcome.row for outcome in outcomes if outcome.state == "new"])
  for outcome, leaves in zip(outcomes, params, strict=True):
    if isinstance(outcome.spec, Training) and outcome.state in ("new", "same"):
      parameters.save(job.file(outcome.spec), leaves)
  return outcomes


def _look(job: Job, loaded: Dataset, rows: Rows, where: Row) -> Row:
  """What is to be seen in trained networks."""
  (spec,) = job.specs
  assert not isinstance(spec, Training)
  own, *others = (_trained(run, job, loaded, rows, where) for run in networks(spec))
  if isinstance(spec, Filters):
    return {"filters": np.asarray(own["conv1"]["kernel"], np.float64).tolist()}
  return attack(spec, loaded, own, dict(zip(spec.targets, others, strict=True)))


def _state(row: Row, before: Row | None) -> Literal["new", "same", "other", "apart"]:
  """What a row is to the one that was there."""
  if before is None:
    return "new"
  if _results(row, before) == _results(before, row):
    return "same"
  grouped = any("together" in each["environment"] for each in (row, before))
  return "apart" if grouped and row["command"] != before["command"] else "other"


def _results(row: Row, other: Row) -> Row:
  """What must be the same in both; curves at the steps at which both were evaluated."""
  results = {name: value for name, value in row.items() if name not in (*ABOUT, *TIMES)}
  if "curve" in row and "curve" in other and row["curve"]["steps"] != other["curve"]["steps"]:
    pairs = zip(row["curve"]["steps"], row["curve"]["accuracy"], strict=True)
    both = set(other["curve"]["steps"])
    results["curve"] = [(step, accuracy) for step, accuracy in pairs if step in both]
    del results["steps_to_target"], results["epochs_to_target"]  # come sooner in the finer one
  return results


def _trained(spec: Training, job: Job, loaded: Dataset, rows: Rows, where: Row) -> Any:
  """The final parameters of a run: those that are kept or, if need be, made again."""
  row = rows.get(spec)
  params = None if row is None else parameters.load(job.file(spec), row["weights"])
  if params is None:
    ((result, params),) = train([spec], job.protocol, loaded)
    if row is None:
      row = rows.row(spec, result | {"environment": where})
      rows.add([row])
    elif row["weights"] != result["weights"]:
      raise UsageError(
        f"the weights of {spec.stem()} are not in {job.weights!r}, and training it again gives "
        "others than its row has, as on another machine or with other versions; give `--weights` "
        f"the folder that has them, make them by the row's own command, {row['command']!r}, or "
        "give `--out` another folder"
      )
    parameters.save(job.file(spec), params)
  if row is not None and row["diverged_at"] is not None:
    raise UsageError(f"the training of {spec.stem()} diverged: there is no network to look at")
  return params


def environment() -> dict[str, Any]:
  """Returns where a row is being made; the commit may be another one by the end of the run."""
  about = {"commit": commit(), "device": device(), "threads": os.environ.get("NPROC")}
  about |= {"python": platform.python_version(), "rules": rules_digest()}
  return about | {name: version(name) for name in PACKAGES}
