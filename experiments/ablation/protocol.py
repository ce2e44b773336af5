"""What a run is: the protocol that all share, and what is particular to one."""

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Sequence
from typing import Any

from experiments import UsageError

RATE = 0.003
"""The paper's learning rate."""
MILESTONES = (0.5, 0.75)
"""When the rate is divided by ten, in parts of the run: epochs 10 and 15 of 20."""
HELD_OUT = 0.1
"""Part of each class of the training set that learning rates are chosen on."""
TARGET = 0.98
"""Accuracy to which the time is taken."""
FIRST, FINE, FINE_EPOCHS = 24, 6, 3
"""There are `FIRST` evaluations in the first epoch of a run, for its curve; `FINE` in an epoch,
among those, up to `FINE_EPOCHS` and until the target is reached; then one."""
DEFINITIONS = 1
"""To be counted up with every change of what a row of the same options would be: then old rows are
not taken for new ones."""


FIXED = ("data", "definitions")
"""Fields of a protocol that are no options."""


@dataclasses.dataclass(frozen=True)
class Protocol:
  """What all runs of a folder have in common; the defaults are the paper's.

  Attributes:
    epochs: of a run.
    search_epochs: of a run that a learning rate is chosen by.
    batch_size: examples in a step.
    train_examples: the first so many of the training set; None is all.
    test_examples: the first so many of the test set; None is all.
    data: digest of the data set.
    definitions: number of what is fixed in the code: networks, target, held-out part, milestones.
  """

  epochs: int = 20
  search_epochs: int = 3
  batch_size: int = 50
  train_examples: int | None = None
  test_examples: int | None = None
  data: str = ""
  definitions: int = DEFINITIONS

  def check(self) -> None:
    """Raises a UsageError for the first number that will not do."""
    for name in ("epochs", "search_epochs", "batch_size", "train_examples", "test_examples"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise UsageError(f"`--{name.replace('_', '-')}` must be at least 1, got {value}")

  def is_papers(self) -> bool:
    """Whether runs are the paper's: as long, of as many images."""
    return not self.options()

  def options(self) -> list[str]:
    """The options of the command line that differ from the defaults."""
    given: list[str] = []
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name not in FIXED and value != field.default:
        given += [f"--{field.name.replace('_', '-')}", str(value)]
    return given


@dataclasses.dataclass(frozen=True)
class Training:
  """A training run of a protocol.

  Attributes:
    arm: name of the network.
    seed: of initial weights and order of examples; of the held-out part too.
    rate: learning rate before the milestones.
    search: whether part of the training set is held out, the score is on that part, and the run is
      a short one.
  """

  arm: str
  seed: int
  rate: float = RATE
  search: bool = False

  def stem(self) -> str:
    """A file name for its weights."""
    return f"{self.arm}-rate{self.rate:g}-seed{self.seed}" + ("-search" if self.search else "")


@dataclasses.dataclass(frozen=True)
class Attack:
  """Attacks on a trained network, and what they do to others.

  Attributes:
    arm: name of the network that the attacks are made for.
    seed: of its training.
    targets: names of the networks that the images are shown to afterwards.
    target_seed: of their training.
    examples: of the test set, the first so many; None is all.
  """

  arm: str
  seed: int
  targets: tuple[str, ...]
  target_seed: int
  examples: int | None = None


@dataclasses.dataclass(frozen=True)
class Filters:
  """The first layer's filters of a trained network.

  Attributes:
    arm: name of the network.
    seed: of its training.
  """

  arm: str
  seed: int


Spec = Training | Attack | Filters


def command(specs: Sequence[Spec], protocol: Protocol, *source: str) -> str:
  """The command that makes rows again.

  Args:
    specs: of the runs: one, or trainings of a network that were made at once, in which either all
      rates or all seeds are equal.
    protocol: of the runs.
    *source: options that say where the data are.
  """
  first = specs[0]
  name = {Training: "run", Attack: "attack", Filters: "filters"}[type(first)]
  words = ["python", "-m", "experiments", "ablation", name, "--arms", first.arm]
  words += ["--seeds", *dict.fromkeys(str(spec.seed) for spec in specs)]
  if isinstance(first, Training):
    rates = (repr(spec.rate) for spec in specs if isinstance(spec, Training))
    words += ["--rate", *dict.fromkeys(rates)] + (["--search"] if first.search else [])
  words += ["--together", str(len(specs))] if len(specs) > 1 else []
  return shlex.join([*words, *protocol.options(), *source, "--again"])


def identity(spec: Spec) -> str:
  """What tells a row from others of its folder: 16 hexadecimal digits.

  Args:
    spec: of the row.
  """
  text = json.dumps([type(spec).__name__.lower(), dataclasses.asdict(spec)], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def spec_from(kind: str, values: dict[str, Any]) -> Spec:
  """The spec that JSON made these values of.

  Args:
    kind: "training", "attack" or "filters".
    values: by name.
  """
  values = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
  kinds: dict[str, type[Spec]] = {"training": Training, "attack": Attack, "filters": Filters}
  return kinds[kind](**values)
