"""What comes in from files: read as JSON, and held to the form that a type states."""

import dataclasses
import functools
import json
import math
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from experiments import UsageError

Form = TypeVar("Form")

LATER = {"later": True}
"""Metadata of a dataclass's field that older files do not have, and that then has its default."""


class FormError(ValueError):
  """A value that is not of the form it must have; the message names its place and what is there."""


def parse_json(text: str | bytes) -> Any:
  """Returns what a text in JSON says.

  Args:
    text: The text; numbers in it must be finite.

  Raises:
    FormError: If it is no JSON, or nested too deeply to read.
  """
  try:
    return json.loads(text, parse_constant=_finite, parse_float=_finite)
  except RecursionError:
    raise FormError("nested too deeply") from None
  except ValueError as error:
    raise FormError(str(error)) from None


def read_json(file: Path, what: str = "the file") -> Any:
  """Returns what a file in JSON says.

  Args:
    file: The file.
    what: What errors call it.

  Raises:
    FileNotFoundError: If there is no such file.
    UsageError: If it is no regular file, cannot be read, or is no JSON.
  """
  try:
    if file.exists() and not file.is_file():  # reading a pipe waits for somebody to write
      raise FormError("not a regular file")
    return parse_json(file.read_bytes())
  except FileNotFoundError:
    raise
  except (OSError, FormError) as error:
    raise UsageError(f"{what} {file} is damaged: {error}") from error


def conform(value: Any, form: type[Form], name: str = "") -> Form:
  """Returns a value of JSON's types as one of a stated type.

  Args:
    value: The value.
    form: A dataclass, each of whose fields must be there but for those that are `LATER`; or
      `list[X]`, `tuple[X, ...]`, `dict[str, X]`, a union, a `Literal`, `bool`, `int`, `float`
      (finite), `str`, `None`, `Any`.
    name: What errors call the value.

  Raises:
    FormError: If the value, or a part of it, is not of its type.

  Example:
    >>> conform([1, 2.5], tuple[float, ...])
    (1, 2.5)
  """
  return _conform(value, form, name)


def _conform(value: Any, form: Any, name: str) -> Any:
  origin, arguments = typing.get_origin(form), typing.get_args(form)
  if form is Any:
    return value
  if dataclasses.is_dataclass(form) and isinstance(value, Mapping):
    return _dataclass(value, form, name)
  if origin in (typing.Union, types.UnionType):
    for argument in arguments:
      try:
        return _conform(value, argument, name)
      except FormError:
        continue
  elif origin is Literal:
    if any(value == each and type(value) is type(each) for each in arguments):
      return value
  elif origin in (list, tuple) and isinstance(value, list | tuple):
    return origin(_conform(item, arguments[0], f"{name}[{i}]") for i, item in enumerate(value))
  elif origin is dict and isinstance(value, Mapping):
    return {key: _conform(item, arguments[1], f"{name}[{key}]") for key, item in value.items()}
  elif form is float and isinstance(value, int | float) and not isinstance(value, bool):
    if abs(value) <= sys.float_info.max:
      return value
  elif form in (bool, int, str, types.NoneType) and type(value) is form:
    return value
  raise FormError(f"`{name}` must be {_told(form)}, got {_short(value)}")


def _dataclass(values: Mapping[str, Any], form: Any, name: str) -> Any:
  """Returns the dataclass that has these values; what is unknown is told before what is missing."""
  hints, prefix = _hints(form), name if name in ("", "--") else f"{name}."
  if unknown := sorted(values.keys() - hints.keys()):
    raise FormError(f"unknown: {', '.join(f'`{prefix}{each}`' for each in unknown)}")
  fields = {
    each: _conform(values[each], hint, prefix + each)
    for each, hint in hints.items()
    if each in values
  }
  later = {
    field.name for field in dataclasses.fields(form) if LATER.items() <= field.metadata.items()
  }
  if missing := [each for each in hints if each not in values and each not in later]:
    raise FormError(f"missing: {', '.join(f'`{prefix}{each}`' for each in missing)}")
  return form(**fields)


@functools.cache
def _hints(form: Any) -> dict[str, Any]:
  return typing.get_type_hints(form)


def _told(form: Any) -> str:
  return form.__name__ if isinstance(form, type) and not typing.get_args(form) else str(form)


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 80 else f"{text[:77]}..."


def _finite(text: str) -> float:
  number = float(text)
  if not math.isfinite(number):
    raise ValueError(f"numbers must be finite, got {text}")
  return number
