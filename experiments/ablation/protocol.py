"""What a run is: the protocol that all share, and what is particular to one."""

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import UsageError
from experiments.data import Dataset, Examples

RATE = 0.003
"""The paper's learning rate."""
MILESTONES = (0.5, 0.75)
"""When the rate is divided by ten, in parts of the run: epochs 10 and 15 of 20."""
HELD_OUT = 0.1
"""Part of each class of the training set that learning rates are chosen on."""
FIRST, FINE, FINE_EPOCHS = 24, 6, 3
"""There are `FIRST` evaluations in the first epoch of a run, for its curve; `FINE` in an epoch,
among those, up to `FINE_EPOCHS` and until the target is reached; then one."""
MNIST = "9d1d65729ee8be39cb8e9988b6de14b6e15d94d3430ecf65aa992874bf9ac2b4"
"""Digest of the data set that the paper's figures are of."""
FIXED = ("data", "definitions")
"""Fields of a protocol that are no options."""


@dataclasses.dataclass(frozen=True)
class Protocol:
  """What all runs of a folder have in common; the defaults are the paper's.

  Examples are the first so many, or all. `definitions` is to be counted up with every change of
  what a row of the same options would be: then old rows are not taken for new ones.
  """

  epochs: int = 20
  search_epochs: int = 3  # of a run that a learning rate is chosen by
  batch_size: int = 50
  train_examples: int | None = None
  test_examples: int | None = None
  data: str = ""  # digest
  definitions: int = 1

  @property
  def target(self) -> float | None:
    """Accuracy to which the time is taken; None is the CNN's at a third of its training."""
    return 0.98 if self.data == MNIST else None

  def check(self) -> None:
    """Raises a UsageError for the first number that will not do."""
    for name, value in dataclasses.asdict(self).items():
      if name not in FIXED and value is not None and value < 1:
        raise UsageError(f"`--{name.replace('_', '-')}` must be at least 1, got {value}")

  def is_papers(self) -> bool:
    """Whether runs are the paper's: as long, of as many images, and of the same ones."""
    return self.data == MNIST and not self.options()

  def options(self) -> list[str]:
    """The options of the command line that differ from the defaults."""
    given: list[str] = []
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name not in FIXED and value != field.default:
        given += [f"--{field.name.replace('_', '-')}", str(value)]
    return given


def cut(dataset: Dataset, protocol: Protocol) -> Dataset:
  """Returns the part of a data set that a protocol asks for; a UsageError if it is not there."""
  for name in ("train", "test"):
    examples: Examples = getattr(dataset, name)
    number = getattr(protocol, f"{name}_examples")
    if number is not None and number > len(examples):
      raise UsageError(f"`--{name}-examples` must be at most {len(examples)}, got {number}")
    if number is not None:
      dataset = dataclasses.replace(dataset, **{name: examples[np.arange(number)]})
  most = round(0.8 * len(dataset.train))  # what is left when part of it is held out
  if protocol.batch_size > most:
    raise UsageError(
      f"`--batch-size` must be at most {most} for {len(dataset.train)} examples to train on, got "
      f"{protocol.batch_size}"
    )
  return dataset


@dataclasses.dataclass(frozen=True)
class Training:
  """A training run of a protocol.

  In a search part of the training set is held out, the score is on that part, and the run is a
  short one. A run that is stopped has its milestones where they are in a whole run.
  """

  arm: str  # name of the network
  seed: int  # of initial weights, order of examples, and the held-out part
  rate: float = RATE  # before the milestones
  search: bool = False
  stop_after: int | None = None  # epochs

  def stem(self) -> str:
    """A file name for its weights."""
    stop = "" if self.stop_after is None else f"-stop{self.stop_after}"
    return f"{self.arm}-rate{self.rate:g}-seed{self.seed}" + "-search" * self.search + stop


@dataclasses.dataclass(frozen=True)
class Attack:
  """Attacks on a trained network, on the first so many test images, or all.

  The images are shown to the networks `targets` of seed `target_seed` afterwards.
  """

  arm: str
  seed: int
  targets: tuple[str, ...]
  target_seed: int
  examples: int | None = None


@dataclasses.dataclass(frozen=True)
class Filters:
  """The first layer's filters of a trained network."""

  arm: str
  seed: int


Spec = Training | Attack | Filters


def command(specs: Sequence[Spec], protocol: Protocol, *source: str) -> str:
  """Returns the command that makes rows again, with the options that say where the data are.

  They are of one run, or of trainings of a network that were made at once, in which either all
  rates or all seeds are equal.
  """
  first = specs[0]
  name = {Training: "run", Attack: "attack", Filters: "filters"}[type(first)]
  words = ["python", "-m", "experiments", "ablation", name, "--arms", first.arm]
  words += ["--seeds", *dict.fromkeys(str(spec.seed) for spec in specs)]
  if isinstance(first, Training):
    rates = (repr(spec.rate) for spec in specs if isinstance(spec, Training))
    words += ["--rate", *dict.fromkeys(rates)] + (["--search"] if first.search else [])
    if first.stop_after is not None:
      words += ["--stop-after-epochs", str(first.stop_after)]
  words += ["--together", str(len(specs))] if len(specs) > 1 else []
  return shlex.join([*words, *protocol.options(), *source, "--again"])


def kind(spec: Spec) -> str:
  """Returns what a row calls a run: "training", "attack" or "filters"."""
  return type(spec).__name__.lower()


def values(spec: Spec) -> dict[str, Any]:
  """Returns what a row says of its run; a later option is left out where it is not used."""
  named = dataclasses.asdict(spec)
  if named.get("stop_after", 0) is None:
    del named["stop_after"]
  return named


def identity(spec: Spec) -> str:
  """Returns what tells a row from others of its folder: 16 hexadecimal digits."""
  text = json.dumps([kind(spec), values(spec)], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def spec_from(kind: str, values: dict[str, Any]) -> Spec:
  """Returns the run of a row's kind and of what it says of it."""
  values = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
  kinds: dict[str, type[Spec]] = {"training": Training, "attack": Attack, "filters": Filters}
  return kinds[kind](**values)
