"""The record of a checkpoint: what a run needs to go on, and the digests that tell damage."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from experiments import UsageError
from experiments.common.digests import digest, leaf_name


class DamagedError(ValueError):
  """There are checkpoints, and none of them can be used."""


def pack(arrays: Any, run: Mapping[str, Any], scores: Mapping[int, float]) -> dict[str, str]:
  """Returns what is saved beside the arrays of a checkpoint.

  Args:
    arrays: the state, of NumPy arrays.
    run: what the run needs to go on, of JSON's types.
    scores: scores of the checkpoints so far, by step.
  """
  text = json.dumps({"run": run, "scores": sorted(scores.items()), "leaves": _leaves(arrays)})
  return {"record": text, "record_sha256": digest({}, text), "state_sha256": digest(arrays)}


def unpack(item: Mapping[str, str], target: Any, checkpoint: Path) -> dict[str, Any]:
  """Returns a record, checked against its digest and against the state that is wanted.

  Args:
    item: what `pack` made.
    target: arrays of the shapes and types that are wanted.
    checkpoint: the folder of the checkpoint.

  Returns:
    "run" and "scores" as they were given to `pack`, and "leaves".

  Raises:
    DamagedError: if it is not as it was saved.
    UsageError: if the checkpoint is of another network.
  """
  text = item["record"]
  if digest({}, text) != item["record_sha256"]:
    raise DamagedError(f"{checkpoint.name}/record/ does not have the SHA-256 it was saved with")
  record = json.loads(text)
  saved, wanted = record["leaves"], _leaves(target)
  if saved != wanted:
    names = sorted(saved.keys() | wanted.keys(), key=lambda name: (name not in wanted, name))
    name = next(name for name in names if saved.get(name) != wanted.get(name))
    raise UsageError(
      f"the checkpoint {checkpoint} is of another network: {name} was {saved.get(name)}, now "
      f"{wanted.get(name)}"
    )
  return record


def check_state(item: Mapping[str, str], state: Any, checkpoint: Path) -> None:
  """Checks arrays that were read against their digest.

  Args:
    item: what `pack` made.
    state: the arrays.
    checkpoint: the folder of the checkpoint.

  Raises:
    DamagedError: if they are not as they were saved.
  """
  if digest(state) != item["state_sha256"]:
    raise DamagedError(f"{checkpoint.name}/state/ does not have the SHA-256 it was saved with")


def _leaves(tree: Any) -> dict[str, str]:
  """Returns types and shapes by the names of arrays."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {leaf_name(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}
