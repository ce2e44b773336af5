"""Several processes of one run: how they find each other."""

import dataclasses
import os
import re
import socket
import time
from collections.abc import Mapping
from typing import Literal

import jax

from experiments import UsageError
from experiments.engine.aborts import end_with
from experiments.failures import EXIT_LOST, EXIT_USAGE, Failure

HEARTBEAT_SECONDS = 20
"""Silence after which a process counts as dead; the others stop then."""
CONNECT_SECONDS = 120
"""Time for the processes to find each other."""
ADDRESS = re.compile(r"(\[\S+\]|[^\s:/\[\]]+):(\d{1,5})")
SIZES = "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"
"""Variables in which launchers tell how many processes there are."""
SHUTDOWN_SECONDS = 10


class LostError(Failure, RuntimeError):
  """Another process of the run is gone."""

  exit_code = EXIT_LOST
  hint = (
    "another process of this run was lost; the same command, in all of them, goes on from the "
    "newest checkpoint. "
  )


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
  """Devices and processes. They decide no result, but for the order in which numbers are added."""

  devices: int | None = None
  """Devices to use; if not given, all of them."""
  shard_params: bool = False
  """Divide parameters and optimizer state over the devices, rather than keep them whole on each."""
  distributed: Literal["auto", "yes", "no"] = "auto"
  """Whether this is one of several processes; auto: it is where --parallel.coordinator is given,
  and under SLURM or Open MPI where they started more than one. On Kubernetes and cloud TPU say yes:
  JAX finds the others by itself."""
  coordinator: str | None = None
  """host:port of process 0, where nothing tells it."""
  processes: int | None = None
  """How many processes there are, where nothing tells it."""
  process: int | None = None
  """Which of them this is, from 0, where nothing tells it."""

  def check(self) -> None:
    """Raises a UsageError for the first option that will not do."""
    if self.devices is not None and self.devices < 1:
      raise UsageError(f"`--parallel.devices` must be at least 1, got {self.devices}")
    given = [self.coordinator, self.processes, self.process]
    if any(value is None for value in given) and any(value is not None for value in given):
      raise UsageError(
        "`--parallel.coordinator`, `--parallel.processes` and `--parallel.process` must be given "
        f"together, got {given}"
      )
    if self.coordinator is not None and self.distributed == "no":
      raise UsageError(
        f"`--parallel.coordinator` must not be given with `--parallel.distributed no`, got "
        f"{self.coordinator!r}"
      )
    address = ADDRESS.fullmatch(self.coordinator or "host:1")
    if not (address and 0 < int(address[2]) < 2**16):
      raise UsageError(f"`--parallel.coordinator` must be HOST:PORT, got {self.coordinator!r}")
    if self.processes is not None and self.process is not None:
      if self.processes < 1:
        raise UsageError(f"`--parallel.processes` must be at least 1, got {self.processes}")
      if not 0 <= self.process < self.processes:
        raise UsageError(
          f"`--parallel.process` must be from 0 to {self.processes - 1}, got {self.process}"
        )

  def several(self, environ: Mapping[str, str]) -> bool:
    """Returns whether this is one of several processes, by the options and the environment.

    Raises:
      UsageError: if a number in the environment is none.
    """
    if self.distributed != "auto":
      return self.distributed == "yes"
    return self.coordinator is not None or any(_size(environ, name) > 1 for name in SIZES)


def connect(config: ParallelConfig, environ: Mapping[str, str] = os.environ) -> None:
  """Joins the other processes, if there are any; comes before every other use of JAX.

  From then on, an abort of JAX's runtime, as when another process is lost, is an exit code.

  Args:
    config: configuration of devices and processes.
    environ: environment, in which a launcher such as SLURM tells about the others.

  Raises:
    UsageError: if they cannot be joined, or JAX has no devices.
  """
  if config.several(environ) and not jax.distributed.is_initialized():
    _join(config)
  try:
    jax.devices()
  except Exception as error:  # of many types, by what the variables of the environment ask for
    platforms = f", JAX_PLATFORMS being {environ.get('JAX_PLATFORMS')!r}"
    raise UsageError(f"JAX has no devices{platforms}: {error}") from error


def _join(config: ParallelConfig) -> None:
  """Joins the other processes."""
  if config.coordinator is not None:
    _look_for(config.coordinator, begins=config.process == 0)
  advice = (
    "`--parallel.coordinator`, `--parallel.processes` and `--parallel.process` say where they are"
  )
  end_with(EXIT_USAGE, f"cannot join the other processes, within {CONNECT_SECONDS} s; {advice}")
  try:
    jax.distributed.initialize(
      coordinator_address=config.coordinator,
      num_processes=config.processes,
      process_id=config.process,
      initialization_timeout=CONNECT_SECONDS,
      heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
      shutdown_timeout_seconds=SHUTDOWN_SECONDS,
    )
  except Exception as error:  # of many types, by what the launcher's variables lack
    text = " ".join(f"{type(error).__name__}: {error}".split())
    raise UsageError(f"cannot join the other processes ({text}); {advice}") from error
  end_with(EXIT_LOST, LostError.hint)


def _look_for(coordinator: str, *, begins: bool) -> None:
  """Raises a UsageError if JAX, which would abort this process, cannot begin at this address.

  Args:
    coordinator: host and port of process 0.
    begins: whether this is process 0, which takes the port; others wait until it has.
  """
  host, _, port = coordinator.rpartition(":")
  host = host.strip("[]")
  try:
    socket.getaddrinfo(host, int(port))
    if begins:
      with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", int(port)))
      return
  except OSError as error:
    what = "have a free port, this being process 0" if begins else "name a host that there is"
    raise UsageError(
      f"`--parallel.coordinator` must {what}, got {coordinator!r}: {error}"
    ) from error
  end = time.monotonic() + CONNECT_SECONDS
  while True:
    try:
      socket.create_connection((host, int(port)), timeout=5).close()
      return
    except OSError as error:
      if time.monotonic() > end:
        raise UsageError(
          f"no process 0 answers at `--parallel.coordinator` {coordinator!r} within "
          f"{CONNECT_SECONDS} s: {error}"
        ) from error
      time.sleep(0.2)


def _size(environ: Mapping[str, str], name: str) -> int:
  """Returns the number of processes that a launcher has started, by its variable."""
  text = environ.get(name, "1")
  if not (text.isascii() and text.isdecimal()):
    raise UsageError(f"the environment variable {name} must be a number, got {text!r}")
  return int(text)


def is_main() -> bool:
  """Returns whether this process is the one that writes and prints."""
  return jax.process_index() == 0
