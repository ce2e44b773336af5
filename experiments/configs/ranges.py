"""The range of every number, and the length of every text, of a configuration."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments import UsageError

LARGEST = 2**31 - 1
"""Of whole numbers: JAX counts in int32."""
SEEDS = 2**32
"""Seeds are below it: they are uint32."""
LONGEST = 4096
"""Characters in a text, as in a path."""
_FLOAT = np.finfo(np.float32)


def check_ranges(config: Any) -> None:
  """Checks that a run can compute with all numbers of a configuration, in float32 and int32.

  Args:
    config: A dataclass, whose fields may be dataclasses.

  Raises:
    UsageError: If it cannot, or if a text cannot be written to a file.
  """
  for option, value in _options(config, "--"):
    if isinstance(value, float | np.floating):
      tiny, largest = float(_FLOAT.tiny), float(_FLOAT.max)
      if value != 0 and not tiny <= abs(value) <= largest:
        raise UsageError(
          f"`{option}` must be 0, or from {tiny:.2g} to {largest:.2g} in size as float32 is, got "
          f"{value:g}"
        )
    elif isinstance(value, int):
      most = SEEDS - 1 if option in ("--seed", "--seeds") else LARGEST
      if abs(value) > most:
        raise UsageError(f"`{option}` must be at most {most}, got {shown(value)}")
    elif isinstance(value, str) and (len(value) > LONGEST or "\0" in value or not _utf8(value)):
      raise UsageError(
        f"`{option}` must be at most {LONGEST} characters in UTF-8, without NUL, got "
        f"{value[:50]!r}{'...' if len(value) > 50 else ''}"
      )


def shown(value: int) -> str:
  """Returns a whole number as errors show it, however long it is."""
  try:
    return f"{value:.4g}"
  except OverflowError:
    return f"one of {len(str(value))} digits"


def _options(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
  """Yields each value with the name of its option."""
  for field in dataclasses.fields(config):
    value, option = getattr(config, field.name), prefix + field.name.replace("_", "-")
    if dataclasses.is_dataclass(value):
      yield from _options(value, f"{option}.")
    else:
      yield from ((option, each) for each in (value if isinstance(value, tuple) else [value]))


def _utf8(text: str) -> bool:
  try:
    text.encode()
  except UnicodeEncodeError:
    return False
  return True
