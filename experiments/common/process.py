"""Processes of one thread each, in which a function is called. It imports no JAX."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")

ENVIRONMENT = {"NPROC": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""What makes XLA use one thread on CPU, and of a GPU's memory only what it needs, so that several
processes fit; set before JAX is imported."""


def alone(function: Callable[..., Result], *arguments: Any) -> Result:
  """Calls a function in a process of its own, which ends with this one, however that ends.

  With one thread a run has the same bits whatever else is running, and several side by side are
  faster on a CPU than one with several threads.

  Args:
    function: of a module.
    *arguments: that can be pickled.

  Raises:
    BrokenProcessPool: if the process dies.
  """
  spawn = multiprocessing.get_context("spawn")
  with ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin) as executor:
    return executor.submit(function, *arguments).result()


def end_all() -> None:
  """Ends the processes in which this one has called functions."""
  for process in multiprocessing.active_children():
    process.kill()


def _begin() -> None:
  """Makes this process one that ends with its parent, and not by an interrupt from the keyboard."""
  os.environ.update(ENVIRONMENT)
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
  parent = multiprocessing.parent_process()
  assert parent is not None
  parent.join()
  os._exit(1)
