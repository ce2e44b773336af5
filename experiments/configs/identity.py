"""What in a configuration decides a result, and where two configurations differ."""

import json
from collections.abc import Mapping
from typing import Any

UNIDENTIFYING = frozenset({"run", "parallel", "data.data-dir"})
"""What in a configuration decides no result: a run may go on with others."""

STREAMED = "streamed "
"""Before the fingerprint of data that are not in memory, of which version 0.1 saved another one."""


def identifying(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what decides the result of a run.

  Args:
    config: A configuration as nested values of JSON's types.

  Returns:
    The values by the names of their options, such as ``"optim.learning-rate"``.
  """
  return _flat(config, "")


def deciding_scores(options: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what decides the score of parameters on given data.

  Args:
    options: Values by the names of their options.
  """
  return {
    name: value
    for name, value in options.items()
    if name.startswith("model.") or name in ("data.normalisation", "eval.views")
  }


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
  """Returns what differs between two configurations, a phrase for each option.

  Args:
    before: Values by the names of their options.
    after: The same of the other configuration.
  """
  return [
    f"`--{name}` was {json.dumps(before.get(name))}, now {json.dumps(after.get(name))}"
    for name in sorted(before.keys() | after.keys())
    if before.get(name) != after.get(name)
  ]


def words(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
  """Returns the words of a command line that make one configuration another.

  Args:
    before: Values by the names of their options.
    after: The same of the other configuration.
  """
  said: list[str] = []
  for name in after:
    value = after[name]
    if before.get(name, ...) == value:
      continue
    if isinstance(value, bool):
      part, _, last = name.rpartition(".")
      said.append("--" + ".".join(filter(None, (part, last if value else f"no-{last}"))))
    else:
      values = value if isinstance(value, list | tuple) else [value]
      said += [f"--{name}", *map(str, values)]
  return said


def _flat(config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
  values: dict[str, Any] = {}
  for name, value in config.items():
    option = prefix + name.replace("_", "-")
    if option in UNIDENTIFYING:
      continue
    if isinstance(value, Mapping):
      values |= _flat(value, f"{option}.")
    else:
      values[option] = list(value) if isinstance(value, tuple) else value
  return values
