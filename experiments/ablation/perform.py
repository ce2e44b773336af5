"""Makes rows: trains networks, or looks at trained ones, and compares with rows that are there."""

import dataclasses
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments import UsageError
from experiments.ablation import dataset, weights
from experiments.ablation.attacked import attack
from experiments.ablation.plan import networks
from experiments.ablation.protocol import Filters, Protocol, Spec, Training
from experiments.ablation.rows import Row, Rows
from experiments.ablation.train import train, train_together
from experiments.common.environment import commit, device, version
from experiments.data import Dataset

DATA = "mnist"
"""The data set where none is named."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
TIMES = ("seconds", "cpu_seconds", "compile_seconds", "seconds_to_target")
ABOUT = ("id", "kind", "spec", "command", "environment")
"""What need not be the same when a run is made again, and what is not of its results."""


@dataclasses.dataclass(frozen=True)
class Job:
  """What it takes to make rows.

  Attributes:
    specs: of the runs; several are of one network, and are trained at once.
    protocol: of the runs.
    data: name of the data set.
    data_dir: folder of prepared sets, or None.
    out: folder of the rows.
    weights: folder of the final parameters.
  """

  specs: tuple[Spec, ...]
  protocol: Protocol
  data: str
  data_dir: str | None
  out: str
  weights: str


State = Literal["new", "same", "other", "apart"]
"""What a row is to the one that was there, which stays: there was none, it has the same results or
others, or others where runs were made together by one command and not by the other, so that they
need not be the same."""


class Outcome(NamedTuple):
  """What came of a run.

  Attributes:
    spec: of the run.
    row: that was made, or the one that was there if it is the same.
    state: what it is to the one that was there.
  """

  spec: Spec
  row: Row
  state: State


def perform(job: Job) -> list[Outcome]:
  """Makes the rows of a job.

  Args:
    job: to do.

  Returns:
    What came of each run.

  Raises:
    UsageError: if the data will not do, or a network that is to be looked at diverged.
  """
  source = [] if job.data == DATA else ["--data", job.data]
  rows, where = Rows(job.out, job.protocol, source), environment()
  loaded, digest = dataset.load(job.data, job.data_dir)
  if digest != job.protocol.data:
    raise UsageError(f"`--data` {job.data!r} has other examples than the rows are of")
  loaded = dataset.cut(loaded, job.protocol)
  rows.check_room()
  trainings = [spec for spec in job.specs if isinstance(spec, Training)]
  if len(trainings) > 1:
    where["together"] = len(trainings)
  if trainings:
    params, results = _train(trainings, job, loaded)
  else:
    params, results = [None], [_look(job, loaded, rows, where)]
  made = [
    rows.row(spec, result | {"environment": where}, trainings)
    for spec, result in zip(job.specs, results, strict=True)
  ]
  before = [rows.get(spec) for spec in job.specs]
  states: list[State] = [_state(row, old) for row, old in zip(made, before, strict=True)]
  for spec, state, leaves in zip(job.specs, states, params, strict=True):
    if isinstance(spec, Training) and state in ("new", "same"):
      weights.save(Path(job.weights) / f"{spec.stem()}.npz", leaves)
  # At once, so that there is all of a group or nothing.
  rows.add_all([row for row, state in zip(made, states, strict=True) if state == "new"])
  return [
    Outcome(spec, old if old is not None and state == "same" else row, state)
    for spec, row, old, state in zip(job.specs, made, before, states, strict=True)
  ]


def _train(specs: Sequence[Training], job: Job, loaded: Dataset) -> tuple[list[Any], list[Row]]:
  """Final parameters and results of training runs."""
  if len(specs) > 1:
    trained = train_together(specs, job.protocol, loaded)
  else:
    trained = [train(specs[0], job.protocol, loaded)]
  return [params for _, params in trained], [result for result, _ in trained]


def _look(job: Job, loaded: Dataset, rows: Rows, where: Row) -> Row:
  """What is to be seen in trained networks."""
  (spec,) = job.specs
  assert not isinstance(spec, Training)
  own, *others = (_trained(run, job, loaded, rows, where) for run in networks(spec))
  if isinstance(spec, Filters):
    return {"filters": np.asarray(own["conv1"]["kernel"], np.float64).tolist()}
  return attack(spec, loaded, own, dict(zip(spec.targets, others, strict=True)))


def _state(row: Row, before: Row | None) -> State:
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
  file = Path(job.weights) / f"{spec.stem()}.npz"
  row = rows.get(spec)
  params = None if row is None else weights.load(file, row["weights"])
  if params is None:
    (params,), (result,) = _train([spec], job, loaded)
    if row is None:
      row = rows.add(spec, result | {"environment": where})
    elif row["weights"] != result["weights"]:
      raise UsageError(
        f"the weights of {spec.stem()} are not in {job.weights!r}, and training it again gives "
        "others than its row has, as on another machine or with other versions; give `--weights` "
        f"the folder that has them, make them by the row's own command, {row['command']!r}, or "
        "give `--out` another folder"
      )
    weights.save(file, params)
  if row is not None and row["diverged_at"] is not None:
    raise UsageError(f"the training of {spec.stem()} diverged: there is no network to look at")
  return params


def environment() -> dict[str, Any]:
  """Where a row is being made; the commit may be another one by the end of the run."""
  return {
    "commit": commit(),
    "device": device(),
    "threads": os.environ.get("NPROC"),
    "python": platform.python_version(),
  } | {name: version(name) for name in PACKAGES}
