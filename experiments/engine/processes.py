"""Several processes of one run: how they find each other, and what they have to agree on."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Literal

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments import UsageError

HEARTBEAT_SECONDS = 20
"""Silence after which a process counts as dead; the others stop then."""
CONNECT_SECONDS = 120
SHUTDOWN_SECONDS = 10


class LostError(RuntimeError):
  """Another process of the run is gone."""


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
    if self.processes is not None and self.process is not None:
      if self.processes < 1:
        raise UsageError(f"`--parallel.processes` must be at least 1, got {self.processes}")
      if not 0 <= self.process < self.processes:
        raise UsageError(
          f"`--parallel.process` must be from 0 to {self.processes - 1}, got {self.process}"
        )

  def several(self, environ: Mapping[str, str]) -> bool:
    """Returns whether this is one of several processes, by the options and the environment."""
    if self.distributed != "auto":
      return self.distributed == "yes"
    sizes = "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"
    return self.coordinator is not None or any(int(environ.get(name, 1)) > 1 for name in sizes)


def connect(config: ParallelConfig, environ: Mapping[str, str] = os.environ) -> None:
  """Joins the other processes, if there are any; comes before every other use of JAX.

  Args:
    config: configuration of devices and processes.
    environ: environment, in which a launcher such as SLURM tells about the others.

  Raises:
    UsageError: if they cannot be joined.
  """
  if not config.several(environ) or jax.distributed.is_initialized():
    return
  try:
    jax.distributed.initialize(
      coordinator_address=config.coordinator,
      num_processes=config.processes,
      process_id=config.process,
      initialization_timeout=CONNECT_SECONDS,
      heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
      shutdown_timeout_seconds=SHUTDOWN_SECONDS,
    )
  except (RuntimeError, ValueError) as error:
    raise UsageError(
      f"cannot join the other processes ({error}); `--parallel.coordinator`, "
      "`--parallel.processes` and `--parallel.process` say where they are"
    ) from error


def in_any_process(flag: bool) -> bool:
  """Returns whether the flag is set in any process; all of them must ask."""
  if jax.process_count() == 1:
    return flag
  return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))


def in_all_processes_the_same(text: str) -> bool:
  """Returns whether every process gives the same text; all of them must ask."""
  if jax.process_count() == 1:
    return True
  digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
  digests = multihost_utils.process_allgather(digest)
  return bool(np.all(digests == digests[0]))


def is_main() -> bool:
  """Returns whether this process is the one that writes and prints."""
  return jax.process_index() == 0
