"""An exit code and a line where JAX's C++ would end this process by a signal."""

import ctypes
import os
import signal
from typing import Any

_kept: list[Any] = []  # what C calls must not be collected


def end_with(code: int, line: str) -> None:
  """Makes an abort of this process an exit code and a line, until this is called again.

  JAX's runtime aborts processes whose peers are lost or do not come, from threads of its own, after
  lines of its own; Python's signal handlers do not run then, a function for C does.

  Args:
    code: The exit code.
    line: The line, for standard error.
  """

  def handler(_: int) -> None:
    os.write(2, f"error: {line}\n".encode())
    os._exit(code)

  function = ctypes.CFUNCTYPE(None, ctypes.c_int)(handler)
  _kept.append(function)
  library = ctypes.CDLL(None)
  library.signal.restype = ctypes.c_void_p
  library.signal(ctypes.c_int(signal.SIGABRT), function)
