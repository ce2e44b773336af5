"""The command `ablation`, and the options of `report`."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from experiments import UsageError
from experiments.ablation import plan
from experiments.ablation.arms import arm
from experiments.ablation.perform import DATA, Job
from experiments.ablation.pool import Pool, backend
from experiments.ablation.protocol import FIXED, MNIST, RATE, Protocol, Spec, Training, cut
from experiments.ablation.report import ReportCommand, check_page
from experiments.ablation.rows import Rows
from experiments.ablation.study import ANSWER, ATTACKED, CONFIRM, STUDIES
from experiments.configs.ranges import check_ranges
from experiments.data import load_ordered

TOGETHER = 16
NAMES = ("answer", "all", "confirm", *STUDIES, "run", "attack")


@dataclasses.dataclass(frozen=True)
class AblationCommand:
  """Run the studies of the paper's MNIST section, and those that question them, on any data set.

  Each run adds a row to rows.jsonl in --out. Runs that have a row are skipped, so the command can
  be stopped or killed at any time and given again. Every row has the command that makes it again.
  Of other data than MNIST the page of --out is made in the end; of MNIST, `report` makes it.
  """

  name: Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(
      metavar="|".join(NAMES),
      help="The study; answer is those of the main question; confirm, what confirms them on more "
      "seeds, the most important first (--seeds does not count); run, the runs that --arms, "
      "--rate, --seeds, --search and --stop-after-epochs name; attack, attacks on --arms of "
      "--seeds. Networks that it takes and that have no weights are trained.",
    ),
  ] = "answer"
  arms: tuple[str, ...] = ()
  """Networks to run; if not given, all of the study's."""
  seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
  """Of initial weights and order of examples."""
  rate: tuple[float, ...] = (RATE,)
  """Learning rates, of run alone."""
  search: bool = False
  """Short, with the score on a held-out part of the training set, of run alone."""
  stop_after_epochs: int | None = None
  """Stop there, with the rate divided where it is in a whole run, of run alone."""
  again: bool = False
  """Make rows that are there once more, and say whether they are the same; they stay."""
  data: str = DATA
  """A set of TensorFlow Datasets, or a Keras-style .npz file; of the same examples either makes the
  same rows."""
  data_dir: str | None = None
  """Folder of prepared TensorFlow Datasets; if not given, theirs."""
  out: str | None = None
  """Folder of the rows; if not given, results/ and the name of the data."""
  weights: str | None = None
  """Folder for final weights, for fgsm and filters; what is not there is trained again. If not
  given, runs/ and the name of the data."""
  workers: int | None = None
  """Processes at a time, of one thread each; if not given, one for each core, or one in all if
  devices are not CPUs."""
  together: int | None = None
  """Runs of a network, with different seeds (in a search, rates), that a process trains at once by
  vmap, at most; if not given, 1 on a CPU, where that is fastest, and 16 elsewhere. Bits depend on
  it."""
  epochs: int = Protocol.epochs
  """Passes over the training set; the rate is divided by ten at a half and three quarters of it."""
  search_epochs: int = Protocol.search_epochs
  """The same of a run that a learning rate is chosen by."""
  batch_size: int = Protocol.batch_size
  """Examples in a step."""
  train_examples: int | None = None
  """Only so many of the training set; if not given, all."""
  test_examples: int | None = None
  """Only so many of the test set; if not given, all."""

  def check(self) -> None:
    """Raises a UsageError for the first option that will not do."""
    if self.name not in NAMES:
      raise UsageError(f"the study must be of {', '.join(NAMES)}, got {self.name!r}")
    if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
      raise UsageError(f"`--seeds` must be from 0, each once, got {list(self.seeds)}")
    known = all(0 < rate < float("inf") for rate in self.rate)
    if not self.rate or len(set(self.rate)) < len(self.rate) or not known:
      raise UsageError(f"`--rate` must be positive and finite, each once, got {list(self.rate)}")
    for option in ("workers", "together", "stop_after_epochs"):
      value = getattr(self, option)
      if value is not None and value < 1:
        raise UsageError(f"`--{option.replace('_', '-')}` must be at least 1, got {value}")
    if (stop := self.stop_after_epochs) is not None and stop >= self.epochs:
      raise UsageError(f"`--stop-after-epochs` must be below `--epochs`, {self.epochs}, got {stop}")
    for option in ("rate", "search", "stop_after_epochs"):
      given = getattr(self, option) != type(self).__dataclass_fields__[option].default
      if given and self.name != "run":
        raise UsageError(f"`--{option.replace('_', '-')}` is for run, got it for {self.name}")
    if self.name == "run" and not self.arms:
      raise UsageError("`--arms` must name networks for run, got none")
    for each in self.arms:
      arm(each)
    check_ranges(self)
    self.plans()
    self.protocol("").check()

  def protocol(self, digest: str) -> Protocol:
    """The protocol that the options ask for, of a data set of this digest."""
    names = [field.name for field in dataclasses.fields(Protocol) if field.name not in FIXED]
    return Protocol(**{name: getattr(self, name) for name in names}, data=digest)

  def folder(self, name: str) -> str:
    """The folder of this name for the data: `results` or `runs`."""
    return f"{name}/{Path(self.data.split(':')[0]).stem}"

  def plans(self) -> dict[str, plan.Plan]:
    """Returns what is to be run, one after the other, by what it is called."""
    if self.name == "run":
      rest = self.search, self.stop_after_epochs
      runs = [
        Training(each, seed, rate, *rest)
        for seed in self.seeds
        for each in self.arms
        for rate in self.rate
      ]
      return {"run": lambda rows: runs}
    if self.name == "confirm":
      stages = list(CONFIRM)
    else:
      names = {"all": tuple(STUDIES), "answer": ANSWER}.get(self.name, (self.name,))
      arms = {name: study.arms for name, study in STUDIES.items()} | {"attack": ATTACKED}
      stages = [(name, arms[name], self.seeds) for name in names]
    every = {each for _, arms, _ in stages for each in arms}
    if unknown := sorted(set(self.arms) - every):
      raise UsageError(
        f"`--arms` of {self.name} must be of {', '.join(sorted(every))}, got {unknown}"
      )
    chosen = [
      (name, [each for each in arms if each in (self.arms or arms)], seeds)
      for name, arms, seeds in stages
    ]
    if self.name == "attack":
      ((_, arms, seeds),) = chosen
      attacks = [plan.attack(each, seed) for seed in seeds for each in arms]
      return {"attack": lambda rows: attacks}
    return {
      f"{place}. {name}: {', '.join(arms)}": functools.partial(plan.todo, name, arms, seeds)
      for place, (name, arms, seeds) in enumerate(chosen, 1)
      if arms
    }


def run(command: AblationCommand) -> int:
  """Makes the rows that are missing, and returns 1 if a row made again is not the same, else 0.

  Raises:
    UsageError: if an option or the data will not do.
    FailedRunsError: in the end, if runs failed.
  """
  command.check()
  out = command.out or command.folder("results")
  weights = command.weights or command.folder("runs")
  loaded, digest = load_ordered(command.data, command.data_dir)
  protocol = command.protocol(digest)
  cut(loaded, protocol)
  rows = Rows(out, protocol)
  rows.all()  # whether they can be read
  paged = digest != MNIST and command.name in ("answer", "all", "confirm", *STUDIES)
  if paged:
    check_page(out)

  def job(specs: Sequence[Spec]) -> Job:
    return Job(tuple(specs), protocol, command.data, command.data_dir, out, weights)

  workers, together = command.workers, command.together
  if workers is None or together is None:
    on_cpu = backend() == "cpu"
    workers = workers or (os.cpu_count() or 1 if on_cpu else 1)
    together = together or (1 if on_cpu else TOGETHER)
  say = functools.partial(print, flush=True)
  pool = Pool(rows, job, workers=workers, together=together, again=command.again, say=say)
  for name, wanted in command.plans().items():
    say(name)
    pool.run(wanted)
  if paged:
    from experiments.ablation import page  # imports matplotlib

    page.write(ReportCommand(out))
  pool.check()
  return 1 if pool.others else 0
