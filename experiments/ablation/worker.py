"""A process that makes one row: `python -m experiments.ablation.worker`, with the job as JSON.

The runner starts it with one thread, so that a run has the same bits whatever else is running, and
several side by side, which is faster on a CPU than one with several threads.
"""

import dataclasses
import json
import os
import platform
import sys
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
    spec: of the run.
    protocol: of the run.
    data: name of the data set.
    data_dir: folder of prepared sets, or None.
    out: folder of the rows.
    weights: folder of the final parameters.
    again: whether to run though there is a row, and compare.
  """

  spec: Spec
  protocol: Protocol
  data: str
  data_dir: str | None
  out: str
  weights: str
  again: bool = False

  def to_json(self) -> str:
    """The job as text."""
    return json.dumps({"kind": type(self.spec).__name__.lower()} | dataclasses.asdict(self))

  @classmethod
  def from_json(cls, text: str) -> "Job":
    """The job of a text.

    Args:
      text: that `to_json` made.
    """
    values = json.loads(text)
    values["spec"] = spec_from(values.pop("kind"), values["spec"])
    return cls(**values | {"protocol": Protocol(**values["protocol"])})


def perform(job: Job) -> tuple[Row, Literal["new", "same", "other"]]:
  """Makes the row of a job.

  Args:
    job: to do.

  Returns:
    The row, and whether it is new, the same as the one that was there, or another: then the one
    that was there stays.

  Raises:
    UsageError: if the data will not do.
  """
  from experiments.ablation import dataset, weights
  from experiments.ablation.attacked import attack
  from experiments.ablation.train import train

  source = [] if job.data == DATA else ["--data", job.data]
  rows, where = Rows(job.out, job.protocol, source), environment()
  loaded, digest = dataset.load(job.data, job.data_dir)
  if digest != job.protocol.data:
    raise UsageError(f"`--data` {job.data!r} has other examples than the rows are of")
  loaded = dataset.cut(loaded, job.protocol)
  before = rows.get(job.spec)
  params = None
  if isinstance(job.spec, Training):
    result, params = train(job.spec, job.protocol, loaded, on_progress=_end_with_the_runner())
  elif isinstance(job.spec, Filters):
    params = _trained(Training(job.spec.arm, job.spec.seed), job, loaded, rows, where)
    result = {"filters": np.asarray(params["conv1"]["kernel"], np.float64).tolist()}
  else:
    own = Training(job.spec.arm, job.spec.seed)
    others = {name: Training(name, job.spec.target_seed) for name in job.spec.targets}
    params = _trained(own, job, loaded, rows, where)
    result = attack(
      job.spec,
      loaded,
      params,
      {name: _trained(run, job, loaded, rows, where) for name, run in others.items()},
    )
  result |= {"environment": where}
  if before is not None and any(before.get(name) != result.get(name) for name in COMPARED):
    return before | result, "other"
  if params is not None and isinstance(job.spec, Training):
    weights.save(Path(job.weights) / f"{job.spec.stem()}.npz", params)
  if before is not None:
    return before, "same"
  return rows.add(job.spec, result), "new"


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
      "others than its row has: another machine or version; give `--weights` the folder that has "
      "them, or `--out` another folder"
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
    The exit code: 0, or 2 for input that will not do. The last line on standard output is
    {"state": ..., "accuracy": ...} or {"error": ...}.
  """
  try:
    row, state = perform(Job.from_json(sys.stdin.read()))
  except UsageError as error:
    print(json.dumps({"error": str(error)}))
    return 2
  told = ("accuracy", "diverged_at", "steps_to_target", "seconds")
  print(json.dumps({"state": state} | {name: row.get(name) for name in told}))
  return 0


if __name__ == "__main__":
  sys.exit(main())
