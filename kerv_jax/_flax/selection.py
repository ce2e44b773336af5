"""Which convolutions of a model are chosen, and what is said of them."""

import fnmatch
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Predicate = Callable[[Any], Any]
Where = str | Predicate | Sequence[str | Predicate]
"""A path, a glob over paths, a predicate on the convolution, or a sequence of these."""


def entries(where: Where) -> tuple[str | Predicate, ...]:
  """The paths, globs and predicates that ``where`` holds.

  Args:
    where: what a user chose convolutions by.

  Returns:
    Each path, glob or predicate by itself; at least one.

  Raises:
    TypeError: if it is none of these.
    ValueError: if it is an empty sequence.
  """
  single = isinstance(where, str) or callable(where)
  if not single and not isinstance(where, Sequence):
    raise TypeError(_wrong(where))
  result = (where,) if single else tuple(where)  # pyright: ignore
  for entry in result:
    if not (isinstance(entry, str) or callable(entry)) or inspect.isclass(entry):
      raise TypeError(_wrong(entry))
  if not result:
    raise ValueError(f"`where` must choose at least one convolution, got {where!r}")
  return result  # pyright: ignore


def _wrong(value: Any) -> str:
  return (
    "`where` must be a path such as 'stem' or 'blocks_0/conv', a glob over paths such as "
    "'blocks_*/conv', a function of the convolution that says whether it is chosen, or a list of "
    f"these, got {value!r}"
  )


def matches(entry: str | Predicate, path: str, module: Any) -> bool:
  """Whether one entry of ``where`` chooses a convolution.

  Args:
    entry: a path, a glob, whose ``*`` stands for any characters, ``/`` too, or a predicate.
    path: the convolution's path, its parts joined by ``/``; "" for the model itself.
    module: the convolution.

  Returns:
    Whether it is chosen.
  """
  if isinstance(entry, str):
    return entry == path or fnmatch.fnmatchcase(path, entry)
  return bool(entry(module))


def describe(entry: str | Predicate) -> str:
  """An entry of ``where`` as an error or a table shows it."""
  return repr(entry) if isinstance(entry, str) else getattr(entry, "__qualname__", repr(entry))


def nothing_chosen(
  entry: str | Predicate,
  found: Mapping[str, str],
  others: Iterable[str],
  apart: Iterable[str] = (),
) -> str:
  """The message of the error that an entry of ``where`` chooses nothing.

  Args:
    entry: the entry.
    found: what there is to choose from: description by path.
    others: paths of kervolutions, which are not chosen again.
    apart: descriptions of convolutions that cannot be chosen, see :func:`out_of_reach`.

  Returns:
    The message.
  """
  listed = "".join(f"\n  {path or '(the model itself)'}: {text}" for path, text in found.items())
  message = f"`where` {describe(entry)} chooses no convolution; "
  message += f"there are:{listed}" if listed else "there is none"
  already = ", ".join(path or "(the model itself)" for path in others)
  message += f"\nkervolutions already: {already}" if already else ""
  return message + out_of_reach(apart)


def out_of_reach(apart: Iterable[str]) -> str:
  """A line about convolutions whose own ``apply`` is called, so that they have no path.

  Args:
    apart: their descriptions.

  Returns:
    The line, with the end of the one before; "" if there is none.
  """
  listed = ", ".join(sorted(apart))
  return f"\nout of reach, run by `apply` of their own: {listed}" if listed else ""


def layer_text(module: Any, features: int) -> str:
  """What kind of layer a module is, such as ``Conv 3x3, 16 features`` or ``Dense, 10 features``."""
  size = getattr(module, "kernel_size", ())
  window = "x".join(map(str, (size,) if isinstance(size, int) else size))
  groups = getattr(module, "feature_group_count", 1)
  split = f" in {groups} groups" if groups > 1 else ""
  return f"{type(module).__name__} {window}".rstrip() + f", {features} features{split}"


def table(rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> str:
  """Rows of text under a header, columns aligned.

  Args:
    rows: of as many columns as the header.
    header: the columns' names.

  Returns:
    Lines joined by newlines.
  """
  lines = [header, *rows]
  widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
  lines.insert(1, tuple("-" * width for width in widths))
  return "\n".join(
    "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    for line in lines
  )
