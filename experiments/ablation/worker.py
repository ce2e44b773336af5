"""A process that makes rows: `python -m experiments.ablation.worker`, with the job as JSON.

The runner starts it with one thread, so that a run has the same bits whatever else is running, and
several side by side, which is faster on a CPU than one with several threads. Elsewhere one process
trains several runs at once.
"""

import dataclasses
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments import UsageError
from experiments.ablation.protocol import Filters, Protocol, Spec, Training, spec_from
from experiments.ablation.rows import Row, Rows
from experiments.data import Dataset

DATA = "mnist"
"""The data set where none is named."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
ENVIRONMENT = {"NPROC": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""What makes XLA use one thread on CPU, and of a GPU's memory only what it needs, so that several
workers fit; set before JAX is imported."""
COMPARED = ("accuracy", "weights", "white_box", "transfer", "filters")
"""What must be the same when a run is made again."""


@dataclasses.dataclass(frozen=True)
class Job:
  """What a worker needs to know.

  Attributes:
    specs: of the runs; several are of one network, and are trained at once.
    protocol: of the run.
    data: name of the data set.
    data_dir: folder of prepared sets, or None.
    out: folder of the rows.
    weights: folder of the final parameters.
    again: whether to run though there is a row, and compare.
  """

  specs: tuple[Spec, ...]
  protocol: Protocol
  data: str
  data_dir: str | None
  out: str
  weights: str
  again: bool = False

  def to_json(self) -> str:
    """The job as text."""
    kind = type(self.specs[0]).__name__.lower()
    return json.dumps({"kind": kind} | dataclasses.asdict(self))

  @classmethod
  def from_json(cls, text: str) -> "Job":
    """The job of a text.

    Args:
      text: that `to_json` made.
    """
    values = json.loads(text)
    kind = values.pop("kind")
    values["specs"] = tuple(spec_from(kind, spec) for spec in values["specs"])
    return cls(**values | {"protocol": Protocol(**values["protocol"])})


Outcome = tuple[Row, Literal["new", "same", "other"]]
"""A row, and whether it is new, the same as the one that was there, or another: then the one that
was there stays."""


def perform(job: Job) -> list[Outcome]:
  """Makes the rows of a job.

  Args:
    job: to do.

  Returns:
    What came of each run.

  Raises:
    UsageError: if the data will not do.
  """
  from experiments.ablation import dataset
  from experiments.ablation.attacked import attack
  from experiments.ablation.train import train, train_together

  source = [] if job.data == DATA else ["--data", job.data]
  rows, where = Rows(job.out, job.protocol, source), environment()
  loaded, digest = dataset.load(job.data, job.data_dir)
  if digest != job.protocol.data:
    raise UsageError(f"`--data` {job.data!r} has other examples than the rows are of")
  loaded = dataset.cut(loaded, job.protocol)
  check = _end_with_the_runner()
  trainings = [spec for spec in job.specs if isinstance(spec, Training)]
  if len(trainings) > 1:
    where["together"] = len(trainings)
    trained = train_together(trainings, job.protocol, loaded, on_progress=check)
    return [
      _keep(job, rows, spec, result | {"environment": where}, params, trainings)
      for spec, (result, params) in zip(trainings, trained, strict=True)
    ]
  (spec,) = job.specs
  if isinstance(spec, Training):
    result, params = train(spec, job.protocol, loaded, on_progress=check)
    return [_keep(job, rows, spec, result | {"environment": where}, params)]
  params = _trained(Training(spec.arm, spec.seed), job, loaded, rows, where)
  if isinstance(spec, Filters):
    result = {"filters": np.asarray(params["conv1"]["kernel"], np.float64).tolist()}
  else:
    others = {name: Training(name, spec.target_seed) for name in spec.targets}
    targets = {name: _trained(run, job, loaded, rows, where) for name, run in others.items()}
    result = attack(spec, loaded, params, targets)
  return [_keep(job, rows, spec, result | {"environment": where})]


def _keep(
  job: Job,
  rows: Rows,
  spec: Spec,
  result: Row,
  params: Any = None,
  together: Sequence[Training] = (),
) -> Outcome:
  """Adds a row, with its weights, or compares it with the one that is there."""
  from experiments.ablation import weights

  before = rows.get(spec)
  if before is not None and any(before.get(name) != result.get(name) for name in COMPARED):
    return before | result, "other"
  if isinstance(spec, Training):
    weights.save(Path(job.weights) / f"{spec.stem()}.npz", params)
  if before is not None:
    return before, "same"
  return rows.add(spec, result, together), "new"


def _trained(spec: Training, job: Job, loaded: Dataset, rows: Rows, where: Row) -> Any:
  """The final parameters of a run: those that are kept or, if need be, made again."""
  from experiments.ablation import weights
  from experiments.ablation.train import train

  file = Path(job.weights) / f"{spec.stem()}.npz"
  row = rows.get(spec)
  if row is not None and (params := weights.load(file, row["weights"])) is not None:
    return params
  result, params = train(spec, job.protocol, loaded, on_progress=_end_with_the_runner())
  if row is None:
    rows.add(spec, result | {"environment": where})
  elif row["weights"] != result["weights"]:
    raise UsageError(
      f"the weights of {spec.stem()} are not in {job.weights!r}, and training them again gives "
      "others than its row has: another machine or version, or other runs with `--together`; give "
      "`--weights` the folder that has them, or `--out` another folder"
    )
  weights.save(file, params)
  return params


def environment() -> dict[str, Any]:
  """Where a row is being made; the commit may be another one by the end of the run."""
  import jax

  from experiments.folder import commit, version
  from experiments.machine import processor

  device = jax.devices()[0].device_kind
  return {
    "commit": commit(),
    "device": device if device != "cpu" else processor(),
    "threads": os.environ.get("NPROC"),
    "python": platform.python_version(),
  } | {name: version(name) for name in PACKAGES}


def _end_with_the_runner():
  """What ends this process when the one that started it is gone."""
  parent = os.getppid()

  def check(steps: int) -> None:
    if os.getppid() != parent:
      sys.exit("the runner is gone")

  return check


def main() -> int:
  """Does the job that is on standard input.

  Returns:
    The exit code: 0, or 2 for input that will not do. The last line on standard output is a list of
    {"state": ..., "accuracy": ...}, one for each run, or {"error": ...}.
  """
  try:
    outcomes = perform(Job.from_json(sys.stdin.read()))
  except UsageError as error:
    print(json.dumps({"error": str(error)}))
    return 2
  told = ("accuracy", "diverged_at", "steps_to_target", "seconds")
  print(
    json.dumps(
      [{"state": state} | {name: row.get(name) for name in told} for row, state in outcomes]
    )
  )
  return 0


if __name__ == "__main__":
  sys.exit(main())
