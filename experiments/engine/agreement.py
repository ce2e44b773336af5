"""What the processes of a run have to agree on before they train together."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments import UsageError


def in_any_process(flag: bool) -> bool:
  """Returns whether the flag is set in any process; all of them must ask."""
  if jax.process_count() == 1:
    return flag
  return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))


@contextlib.contextmanager
def together() -> Iterator[None]:
  """Within it, what goes wrong in one process ends all of them, in order."""
  error: Exception | None = None
  try:
    yield
  except Exception as caught:
    error = caught
  failed = in_any_process(error is not None)
  if error is not None:
    raise error
  if failed:
    raise UsageError("another process cannot start; it says why")


def agree(facts: Mapping[str, Any]) -> None:
  """Checks that the processes have the same facts; all of them must ask.

  Args:
    facts: Values of JSON's types by the names that errors give them.

  Raises:
    UsageError: If they differ, in every process, with what differs and in which.
  """
  if jax.process_count() == 1:
    return
  first, *others = map(json.loads, _everywhere(json.dumps(facts)))
  differ = [
    f"{name} is {json.dumps(first.get(name))} in process 0 and {json.dumps(other.get(name))} in "
    f"process {number}"
    for number, other in enumerate(others, 1)
    for name in sorted(first.keys() | other.keys())
    if first.get(name) != other.get(name)
  ]
  if differ:
    raise UsageError(f"the processes of a run must have everything the same: {'; '.join(differ)}")


def _everywhere(text: str) -> list[str]:
  """Returns the text of each process, by its number."""
  content = np.frombuffer(text.encode(), np.uint8)
  lengths = multihost_utils.process_allgather(np.asarray(len(content)))
  padded = np.zeros(lengths.max(), np.uint8)
  padded[: len(content)] = content
  every = multihost_utils.process_allgather(padded)
  return [bytes(row[:length]).decode() for row, length in zip(every, lengths, strict=True)]
