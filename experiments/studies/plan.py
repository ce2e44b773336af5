"""What a study compares, read from its file, and the runs that it takes."""

import dataclasses
import shlex
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from experiments import UsageError
from experiments.common.forms import LATER, conform
from experiments.configs import presets
from experiments.configs.config import TrainConfig

NAMES = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.toml"))}
"""The files of this repository's own studies, by name."""

Row = Mapping[str, Any]


class Key(NamedTuple):
  """What tells a run of a study from its others."""

  setting: str
  arm: str
  rate: float
  seed: int
  search: bool = False  # on held-out training images, to choose a learning rate by


@dataclasses.dataclass(frozen=True)
class Setting:
  """Data, network and training that arms are compared in."""

  label: str
  preset: str
  options: str
  """Of `train`, after the preset."""
  rates: tuple[float, ...]
  """Learning rates that each arm's is chosen from; the middle one is the pilot's."""
  target: float
  """Test accuracy to which steps are counted."""


@dataclasses.dataclass(frozen=True)
class Arm:
  """A network of the comparison."""

  label: str
  options: str
  """Of `train`, after the setting's."""


@dataclasses.dataclass(frozen=True)
class Stage:
  """Runs that belong together; the stages are made in their order."""

  name: str
  setting: str
  arms: tuple[str, ...]
  seeds: tuple[int, ...]
  pilot: bool = dataclasses.field(default=False, metadata=LATER)
  """At the middle rate, without a search; what it says of spread and cost decides the plan."""
  confirms: bool = dataclasses.field(default=False, metadata=LATER)
  """Whether verdicts are given on it."""
  own: bool = dataclasses.field(default=False, metadata=LATER)
  """Each arm at its own learning rate alone, not at the reference's as well."""


@dataclasses.dataclass(frozen=True)
class Study:
  """A study, see its file for what each part means."""

  title: str
  about: str
  rules: str
  reference: str
  """The arm that the others are compared with, each also at its learning rate."""
  held_out: int
  search_seeds: tuple[int, ...]
  settings: dict[str, Setting]
  arms: dict[str, Arm]
  stages: tuple[Stage, ...]

  def check(self) -> None:
    """Raises a ValueError for the first part of it that will not do."""
    for name, setting in self.settings.items():
      if not setting.rates or not all(0 < rate < float("inf") for rate in setting.rates):
        raise ValueError(f"rates of {name} must be positive, got {list(setting.rates)}")
      if not 0 < setting.target < 1:
        raise ValueError(f"target of {name} must be between 0 and 1, got {setting.target}")
      presets.get(setting.preset)
    for stage in self.stages:
      if stage.setting not in self.settings:
        raise ValueError(
          f"setting of {stage.name} must be of {[*self.settings]}: {stage.setting!r}"
        )
      if unknown := {self.reference, *stage.arms} - self.arms.keys():
        raise ValueError(f"arms of {stage.name} must be of {[*self.arms]}, got {sorted(unknown)}")
      if len(set(stage.seeds)) < len(stage.seeds) or min(stage.seeds, default=-1) < 0:
        raise ValueError(f"seeds of {stage.name} must be from 0, each once: {list(stage.seeds)}")

  def options(self, key: Key) -> list[str]:
    """Returns the options of `train`, after the preset, that make a run."""
    setting = self.settings[key.setting]
    rest = ["--optim.learning-rate", f"{key.rate:g}", "--seed", str(key.seed)]
    if key.search:
      rest += ["--data.validation", str(self.held_out)]
    return [*shlex.split(setting.options), *shlex.split(self.arms[key.arm].options), *rest]

  def command(self, key: Key) -> str:
    """Returns the command that makes a run."""
    words = ["train", self.settings[key.setting].preset, *self.options(key)]
    return shlex.join(["python", "-m", "experiments", *words])

  def config(self, key: Key) -> TrainConfig:
    """Returns the configuration of a run."""
    default = presets.get(self.settings[key.setting].preset).config
    return tyro.cli(TrainConfig, args=self.options(key), default=default)

  def searches(self, setting: str, arm: str) -> list[Key]:
    """Returns the runs that a learning rate is chosen by."""
    rates = self.settings[setting].rates
    return [Key(setting, arm, rate, seed, True) for rate in rates for seed in self.search_seeds]

  def rate(self, setting: str, arm: str, rows: Mapping[Key, Row]) -> float | None:
    """Returns the rate of the highest mean accuracy on held-out images, of equals the lowest.

    None if a search has no row, or runs diverged at every rate.
    """
    found: dict[float, list[float | None]] = {}
    for key in self.searches(setting, arm):
      if key not in rows:
        return None
      found.setdefault(key.rate, []).append(rows[key]["accuracy"])
    means = {
      rate: statistics.mean(known)
      for rate, each in found.items()
      if len(known := [value for value in each if value is not None]) == len(each)
    }
    return max(sorted(means), key=lambda rate: means[rate], default=None)

  def wanted(self, stage: Stage, rows: Mapping[Key, Row]) -> Iterator[Key]:
    """Yields the runs of a stage, as far as the rows tell: searches first, then seed by seed."""
    setting = stage.setting
    if stage.pilot:
      middle = sorted(self.settings[setting].rates)[len(self.settings[setting].rates) // 2]
      rates: dict[str, set[float | None]] = {arm: {middle} for arm in stage.arms}
    else:
      for arm in dict.fromkeys((self.reference, *stage.arms)):
        yield from self.searches(setting, arm)
      shared = set() if stage.own else {self.rate(setting, self.reference, rows)}
      rates = {arm: shared | {self.rate(setting, arm, rows)} for arm in stage.arms}
    for seed in stage.seeds:
      for arm in stage.arms:
        known = sorted(rate for rate in rates[arm] if rate is not None)
        yield from (Key(setting, arm, rate, seed) for rate in known)


def read(name: str) -> Study:
  """Returns a study.

  Args:
    name: one of `NAMES`, or a file.

  Raises:
    UsageError: if there is no such study, or it will not do.
  """
  file = NAMES.get(name, Path(name))
  try:
    study = conform(tomllib.loads(file.read_text(encoding="utf-8")), Study)
    study.check()
  except FileNotFoundError:
    raise UsageError(
      f"the study must be {', '.join(NAMES)} or a file, got {name!r}, which is none"
    ) from None
  except (OSError, ValueError) as error:
    raise UsageError(f"{str(file)!r} is no study: {error}") from error
  return study


def missing(study: Study, stages: Iterable[Stage], rows: Mapping[Key, Row]) -> Iterator[Key]:
  """Yields the runs that have no row, in the order in which they are made."""
  for stage in stages:
    yield from (key for key in study.wanted(stage, rows) if key not in rows)
