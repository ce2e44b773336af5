"""The command `ablation`, and the options of `report`."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Annotated

import tyro

from experiments import UsageError
from experiments.ablation import dataset, plan
from experiments.ablation.arms import arm
from experiments.ablation.perform import DATA, Job
from experiments.ablation.pool import Pool, backend
from experiments.ablation.protocol import FIXED, RATE, Protocol, Spec, Training
from experiments.ablation.rows import Rows
from experiments.ablation.study import ATTACKED, ORDER, STUDIES

TOGETHER = 16
NAMES = (*STUDIES, "all", "run", "attack")


@dataclasses.dataclass(frozen=True)
class AblationCommand:
  """Run the studies of the paper's MNIST section, and those that question them.

  Each run adds a row to rows.jsonl in --out. Runs that have a row are skipped, so the command can
  be stopped or killed at any time and given again. Every row has the command that makes it again.
  """

  name: Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(
      metavar="|".join(NAMES),
      help="The study, or all of them; run is the runs that --arms, --seeds, --rate and --search "
      "name, attack the attacks on --arms of --seeds. Networks that it takes and that have no "
      "weights are trained.",
    ),
  ]
  arms: tuple[str, ...] = ()
  """Networks to run; if not given, all of the study's."""
  seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
  """Of initial weights and order of examples."""
  rate: tuple[float, ...] = (RATE,)
  """Learning rates, of run alone."""
  search: bool = False
  """Short, with the score on a held-out part of the training set, of run alone."""
  again: bool = False
  """Make rows that are there once more, and say whether they are the same; they stay. Rows of runs
  made together are compared only where the same runs are made together again."""
  data: str = DATA
  """A set of TensorFlow Datasets, or a Keras-style .npz file; of the same examples either makes the
  same rows."""
  data_dir: str | None = None
  """Folder of prepared TensorFlow Datasets; if not given, theirs."""
  out: str = "results/mnist"
  """Folder of the rows."""
  weights: str = "runs/mnist"
  """Folder for final weights, for fgsm and filters; what is not there is trained again."""
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
    if (
      not self.rate
      or len(set(self.rate)) < len(self.rate)
      or not all(0 < rate < float("inf") for rate in self.rate)
    ):
      raise UsageError(f"`--rate` must be positive and finite, each once, got {list(self.rate)}")
    for option, value in (("workers", self.workers), ("together", self.together)):
      if value is not None and value < 1:
        raise UsageError(f"`--{option}` must be at least 1, got {value}")
    if self.name == "run":
      if not self.arms:
        raise UsageError("`--arms` must name networks for run, got none")
    else:
      for option, given in (("rate", self.rate != (RATE,)), ("search", self.search)):
        if given:
          raise UsageError(f"`--{option}` is for run, got it for {self.name}")
    for each in self.arms:
      arm(each)
    self.plans()
    self.protocol("").check()

  def protocol(self, digest: str) -> Protocol:
    """The protocol that the options ask for.

    Args:
      digest: of the data set.
    """
    names = [field.name for field in dataclasses.fields(Protocol) if field.name not in FIXED]
    return Protocol(**{name: getattr(self, name) for name in names}, data=digest)

  def plans(self) -> dict[str, plan.Plan]:
    """What is to be run, one after the other, by what it is called.

    Raises:
      UsageError: if none of the networks is in the study.
    """
    if self.name == "run":
      runs = [
        Training(each, seed, rate, self.search)
        for seed in self.seeds
        for each in self.arms
        for rate in self.rate
      ]
      return {"run": lambda rows: runs}
    known = {name: STUDIES[name].arms for name in ORDER} | {"attack": ATTACKED}
    names = ORDER if self.name == "all" else (self.name,)
    if unknown := set(self.arms).difference(*(known[name] for name in names)):
      every = sorted(set().union(*(known[name] for name in names)))
      raise UsageError(
        f"`--arms` of {self.name} must be of {', '.join(every)}, got {sorted(unknown)}"
      )
    chosen = {
      name: [each for each in known[name] if not self.arms or each in self.arms] for name in names
    }
    if self.name == "attack":
      attacks = [plan.attack(each, seed) for seed in self.seeds for each in chosen["attack"]]
      return {"attack": lambda rows: attacks}
    return {
      f"{name}: {', '.join(arms)}": functools.partial(plan.todo, name, arms, self.seeds)
      for name, arms in chosen.items()
      if arms
    }


@dataclasses.dataclass(frozen=True)
class ReportCommand:
  """Make the page of the MNIST section, its plots, and the README's part, from the rows."""

  out: str = "results/mnist"
  """Folder of the rows, where page and plots go."""
  readme: str | None = "README.md"
  """File with the part between the comments "mnist"; None leaves it as it is."""


def run(command: AblationCommand) -> int:
  """Makes the rows that are missing.

  Args:
    command: its options.

  Returns:
    The exit code: 0, or 1 if a row that was made again is not the same.

  Raises:
    UsageError: if an option or the data will not do.
  """
  command.check()
  loaded, digest = dataset.load(command.data, command.data_dir)
  protocol = command.protocol(digest)
  dataset.cut(loaded, protocol)
  rows = Rows(command.out, protocol)
  rows.all()  # whether they can be read

  def job(specs: Sequence[Spec]) -> Job:
    places = command.data, command.data_dir, command.out, command.weights
    return Job(tuple(specs), protocol, *places)

  workers, together = _how(command)
  pool = Pool(rows, job, workers=workers, together=together, again=command.again, say=_say)
  for name, wanted in command.plans().items():
    _say(name)
    pool.run(wanted)
  if pool.failed:
    raise UsageError("these runs failed: " + "; ".join(pool.failed))
  return 1 if pool.others else 0


def _how(command: AblationCommand) -> tuple[int, int]:
  """How many processes at a time, and how many runs in each."""
  workers, together = command.workers, command.together
  if workers is None or together is None:
    on_cpu = backend() == "cpu"
    workers = workers or (os.cpu_count() or 1 if on_cpu else 1)
    together = together or (1 if on_cpu else TOGETHER)
  return workers, together


def _say(text: str) -> None:
  print(text, flush=True)
