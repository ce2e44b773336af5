"""What can go wrong in a command, as a line and an exit code; imports neither JAX nor the rest."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any

from experiments import UsageError

EXIT_USAGE, EXIT_DIVERGED, EXIT_UNSAVED, EXIT_LOST, EXIT_STOPPED, EXIT_UNREAD = 2, 3, 4, 5, 75, 141
EXIT_CODES = (
  "Exit codes: 0 done; 2 something to mend in what was given; 3 the loss is not finite; 4 cannot "
  "save; 5 another process was lost; 75 stopped by a signal and saved, the same command goes on; "
  "141 who reads the output went away."
)
AT_ONCE = EXIT_DIVERGED, EXIT_UNSAVED, EXIT_LOST
"""Codes after which nothing is waited for when Python ends: Orbax would wait minutes for a
save that has failed, and threads of JAX for a process that is gone."""

_FULL = errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO


class Failure(Exception):
  """Something that has a line and an exit code; a class of errors derives from it to say its own.

  Attributes:
    exit_code: the exit code.
    hint: a text that goes before the message.
  """

  exit_code = EXIT_USAGE
  hint = ""


class OutputError(Exception):
  """What is printed has nowhere to go; no OSError, so as not to be taken for one of a file."""


def told(error: Exception) -> tuple[int, str] | None:
  """Returns the exit code and the line of an error; None of one that nobody has foreseen.

  Args:
    error: the error.
  """
  if isinstance(error, Failure):
    return error.exit_code, f"{error.hint}{error}"
  if isinstance(error, UsageError):
    return EXIT_USAGE, str(error)
  if isinstance(error, OutputError):
    if isinstance(error.__cause__, BrokenPipeError):
      return EXIT_UNREAD, ""
    return EXIT_UNSAVED, f"cannot write to standard output: {error}"
  if isinstance(error, OSError):
    return (EXIT_UNSAVED if error.errno in _FULL else EXIT_USAGE), str(error)
  if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
    return EXIT_USAGE, f"out of memory: {' '.join(str(error).split())}"
  return None


def open_streams() -> None:
  """Opens what is closed of the standard streams, to nowhere.

  A file that is opened later would otherwise take the place of one, and what libraries in C print
  would be written into it.
  """
  while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
    os.set_inheritable(descriptor, True)
  os.close(descriptor)
  for name in ("stdout", "stderr"):
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, for as long as the process lives


@contextlib.contextmanager
def output() -> Iterator[None]:
  """Within it, what goes wrong with standard output is an OutputError."""
  stream = sys.stdout
  with contextlib.redirect_stdout(_Output(stream)):
    try:
      yield
    except (OutputError, SystemExit):
      _flush(stream)
      raise
    sys.stdout.flush()


def _flush(stream: Any) -> None:
  """Writes what is left to a stream, or away, where it cannot fail when Python ends."""
  try:
    stream.flush()
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Output:
  """A stream whose failures are told apart from those of files."""

  def __init__(self, stream: Any):
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes a text."""
    with _as_output():
      return self._stream.write(text)

  def flush(self) -> None:
    """Writes what is buffered."""
    with _as_output():
      self._stream.flush()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


@contextlib.contextmanager
def _as_output() -> Iterator[None]:
  try:
    yield
  except OSError as error:
    raise OutputError(os.strerror(error.errno or errno.EIO)) from error
