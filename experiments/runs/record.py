"""The record of a checkpoint: what a run needs to go on, and the digests that tell damage."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from experiments import UsageError
from experiments.common.digests import digest, leaf_name
from experiments.common.forms import conform, parse_json
from experiments.failures import Failure


class DamagedError(Failure, ValueError):
  """There are checkpoints, and none of them can be used."""

  hint = "no checkpoint can be used; move them away or give `--run.fresh` to start again:\n"


@dataclasses.dataclass(frozen=True)
class Item:
  """What is saved beside the arrays of a checkpoint: a text, and digests of it and of them."""

  record: str
  record_sha256: str
  state_sha256: str


@dataclasses.dataclass(frozen=True)
class Record:
  """What the text says.

  Attributes:
    run: what the run needs to go on, of JSON's types.
    scores: pairs of step and score, of the checkpoints that there are.
    leaves: types and shapes by the names of arrays.
    step: number of steps taken; None in a checkpoint of version 0.1, which does not tell.
  """

  run: dict[str, Any]
  scores: list[tuple[float, ...]]
  leaves: dict[str, str]
  step: int | None


def pack(
  step: int, arrays: Any, run: Mapping[str, Any], scores: Mapping[int, float]
) -> dict[str, str]:
  """Returns what is saved beside the arrays of a checkpoint.

  Args:
    step: the number of steps taken.
    arrays: the state, of NumPy arrays.
    run: what the run needs to go on, of JSON's types.
    scores: scores of the checkpoints that there are, by step.
  """
  record = Record(dict(run), sorted(scores.items()), _leaves(arrays), step)
  text = json.dumps(dataclasses.asdict(record))
  return dataclasses.asdict(Item(text, digest({}, text), digest(arrays)))


def unpack(values: Any, checkpoint: Path) -> tuple[Record, Item]:
  """Returns a record, checked against its digest and its step.

  Args:
    values: what `pack` made.
    checkpoint: the folder of the checkpoint, which has its step for a name.

  Raises:
    DamagedError: if it is not as it was saved, or of another step.
    FormError: if it has not the form of a record.
  """
  item = conform(values, Item, "record")
  if digest({}, item.record) != item.record_sha256:
    raise DamagedError(f"{checkpoint.name}/record/ does not have the SHA-256 it was saved with")
  content = parse_json(item.record)
  old = isinstance(content, dict) and "step" not in content
  record = conform(content | {"step": None} if old else content, Record, "record")
  if record.step not in (None, int(checkpoint.name)):
    raise DamagedError(f"{checkpoint.name}/ is the checkpoint of step {record.step}")
  if any(len(pair) != 2 for pair in record.scores):
    raise DamagedError(f"{checkpoint.name}/record/ must have pairs of step and score")
  return record, item


def check_target(record: Record, target: Any, checkpoint: Path) -> None:
  """Checks that a checkpoint has the state that is wanted.

  Args:
    record: its record.
    target: arrays of the shapes and types that are wanted.
    checkpoint: the folder of the checkpoint.

  Raises:
    UsageError: if it is of another network.
  """
  saved, wanted = record.leaves, _leaves(target)
  if saved != wanted:
    names = sorted(saved.keys() | wanted.keys(), key=lambda name: (name not in wanted, name))
    name = next(name for name in names if saved.get(name) != wanted.get(name))
    raise UsageError(
      f"the checkpoint {checkpoint} is of another network: {name} was {saved.get(name)}, now "
      f"{wanted.get(name)}"
    )


def check_state(item: Item, state: Any, checkpoint: Path) -> None:
  """Checks arrays that were read against their digest.

  Args:
    item: what was saved beside the arrays.
    state: the arrays.
    checkpoint: the folder of the checkpoint.

  Raises:
    DamagedError: if they are not as they were saved.
  """
  if digest(state) != item.state_sha256:
    raise DamagedError(f"{checkpoint.name}/state/ does not have the SHA-256 it was saved with")


def _leaves(tree: Any) -> dict[str, str]:
  """Returns types and shapes by the names of arrays."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {leaf_name(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}
