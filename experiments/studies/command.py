"""The command `study`: the runs of a study that have no row yet, then its page."""

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import tyro

from experiments import UsageError
from experiments.common.files import check_room
from experiments.configs.ranges import check_ranges
from experiments.failures import EXIT_STOPPED
from experiments.studies import rows
from experiments.studies.plan import NAMES, missing, read

ROOM = 1 << 20
"""Bytes that there must be for rows before a run."""


@dataclasses.dataclass(frozen=True)
class StudyCommand:
  """Make the runs of a study that have no row, the most important first, and then its page.

  Each run is a `train` command, which its row has, with checkpoints under runs/: the command can be
  stopped or killed at any time and given again. A row is of one commit: a run that another commit
  left unfinished is deleted, and begun anew.
  """

  name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="|".join([*NAMES, "FILE"]))]
  """The study; a file of one's own is in the form of experiments/studies/cifar.toml."""
  stages: tuple[str, ...] = ()
  """Its stages; if not given, all."""
  minutes: float | None = None
  """Begin no run after so many; 0 makes the page alone."""
  data_dir: str | None = None
  """Folder of prepared TensorFlow Datasets; if not given, theirs."""
  out: str | None = None
  """Folder of rows and page; if not given, results/ and the name."""
  runs: str | None = None
  """Folder of the runs; if not given, runs/ and the name."""


def run(command: StudyCommand) -> int:
  """Does `python -m experiments study NAME`.

  Args:
    command: options that were given.

  Returns:
    The exit code.

  Raises:
    UsageError: if an option, the data or the file of the rows will not do.
    OSError: if the rows cannot be written, before a run is made for them.
  """
  from experiments.studies import page  # imports matplotlib

  study = read(command.name)
  check_ranges(command)
  known = [stage.name for stage in study.stages]
  if unknown := [name for name in command.stages if name not in known]:
    raise UsageError(f"`--stages` must be of {', '.join(known)}, got {unknown}")
  if command.minutes is not None and not command.minutes >= 0:
    raise UsageError(f"`--minutes` must be at least 0, got {command.minutes}")
  stem = Path(command.name).stem
  out, runs = Path(command.out or f"results/{stem}"), Path(command.runs or f"runs/{stem}")
  file = out / "rows.jsonl"
  page.check(out, study)
  stages = [stage for stage in study.stages if stage.name in (command.stages or known)]
  began, code = time.monotonic(), 0
  while True:
    found = rows.load(file, study)
    key = next(missing(study, stages, found), None)
    late = command.minutes is not None and time.monotonic() - began >= 60 * command.minutes
    if key is None or late:
      break
    check_room(file, ROOM)
    row = rows.make(study, key, runs, command.data_dir)
    if row is None:
      code = EXIT_STOPPED
      break
    rows.save(file, rows.load(file, study) | {key: row})
    scored = "held-out images" if key.search else "test images"
    accuracy = "diverged" if row["accuracy"] is None else f"accuracy {row['accuracy']:.4f}"
    print(
      f"{key.setting}, {study.arms[key.arm].label}, rate {key.rate:g}, seed {key.seed}: {accuracy} "
      f"on {scored}",
      flush=True,
    )
  page.write(command.name, study, rows.load(file, study), out)
  print(f"page: {out / page.PAGE}")
  return code
