"""Devices and processes: the same program on one device, on several, and in several processes.

A batch is divided over the devices of a one-dimensional mesh; parameters are whole on each of them,
or divided over the same axis. `jax.jit` places the rest, so that batch statistics and gradients are
those of the whole batch by construction.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments import UsageError

AXIS = "data"
HEARTBEAT_SECONDS = 20
"""Silence after which a process counts as dead; the others stop then."""
CONNECT_SECONDS = 120
SHUTDOWN_SECONDS = 10
_SMALLEST_SHARDED = 1024  # elements; smaller arrays are cheaper to keep whole


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
    """Whether this is one of several processes, by the options and the environment."""
    if self.distributed != "auto":
      return self.distributed == "yes"
    sizes = "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"
    return self.coordinator is not None or any(int(environ.get(name, 1)) > 1 for name in sizes)


def connect(config: ParallelConfig, environ: Mapping[str, str] = os.environ) -> None:
  """Joins the other processes, if there are any; comes before every other use of JAX.

  Args:
    config: of devices and processes.
    environ: where a launcher such as SLURM tells about the others.

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


class Layout:
  """Where the arrays of a run live.

  Args:
    devices: to use; None is the first of this process.
    shard_params: divide the state over the devices, rather than keep it whole on each.
  """

  def __init__(self, devices: Sequence[Any] | None = None, *, shard_params: bool = False):
    devices = jax.local_devices()[:1] if devices is None else devices
    self.mesh = Mesh(np.asarray(devices), (AXIS,))
    self.size = self.mesh.size
    self.shard_params = shard_params
    self.processes = len({device.process_index for device in devices})
    self.replicated = NamedSharding(self.mesh, PartitionSpec())
    self.batch = NamedSharding(self.mesh, PartitionSpec(AXIS))
    self.batches = NamedSharding(self.mesh, PartitionSpec(None, AXIS))

  @classmethod
  def of(cls, config: ParallelConfig) -> "Layout":
    """The layout that a configuration asks for.

    Args:
      config: of devices and processes.

    Raises:
      UsageError: if there are not as many devices.
    """
    devices, wanted = jax.devices(), config.devices
    if wanted is not None and wanted > len(devices):
      raise UsageError(
        f"`--parallel.devices` must be at most {len(devices)}, the number there is, got {wanted}"
      )
    if wanted is not None and wanted < len(devices) and jax.process_count() > 1:
      raise UsageError(
        f"`--parallel.devices` must be {len(devices)}, or not given, in several processes, got "
        f"{wanted}"
      )
    return cls(devices[:wanted], shard_params=config.shard_params)

  def check_batch(self, batch_size: int, option: str) -> None:
    """Raises a UsageError if a batch cannot be divided over the devices.

    Args:
      batch_size: of all devices together.
      option: that gives it.
    """
    if batch_size < 1 or batch_size % self.size:
      fewer = max((n for n in range(1, self.size) if batch_size % n == 0), default=1)
      hint = f"; `--parallel.devices {fewer}` would do" if self.processes == 1 else ""
      raise UsageError(
        f"`{option}` must be a multiple of the number of devices, {self.size}, got {batch_size}"
        + hint
      )

  def state(self, tree: Any) -> Any:
    """Shardings of a training state.

    Args:
      tree: the state, or its shapes.

    Returns:
      A sharding for each leaf. With `shard_params`, an array is divided along the longest of its
      axes that the devices divide; small arrays are whole.
    """

    def sharding(leaf: Any) -> NamedSharding:
      axes = [i for i, length in enumerate(leaf.shape) if length % self.size == 0]
      if not self.shard_params or leaf.size < _SMALLEST_SHARDED or not axes:
        return self.replicated
      longest = max(axes, key=lambda i: leaf.shape[i])
      return NamedSharding(self.mesh, PartitionSpec(*[None] * longest, AXIS))

    return jax.tree.map(sharding, tree)

  def put(self, array: np.ndarray, sharding: NamedSharding) -> jax.Array | np.ndarray:
    """Places an array that every process holds whole.

    Args:
      array: the same in every process.
      sharding: where it goes.

    Returns:
      The array on the devices, or as it is where one device is all there is and `jax.jit` takes it
      from the host.
    """
    if self.size == 1:
      return array
    if self.processes == 1:
      return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

  def put_rows(self, rows: np.ndarray) -> jax.Array | np.ndarray:
    """Places a batch of which every process holds its own rows.

    Args:
      rows: of this process, in the order of processes.

    Returns:
      The whole batch, divided over the devices.
    """
    if self.size == 1:
      return rows
    return jax.make_array_from_process_local_data(self.batch, rows)

  def put_tree(self, tree: Any, shardings: Any) -> Any:
    """Copies arrays that every process holds whole onto the devices.

    Args:
      tree: of NumPy arrays, the same in every process; they are not aliased, so that a program may
        be given the copies to keep.
      shardings: one for each.
    """

    def place(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
      # A copy for each device: on CPU an array may be used where it lies.
      return jax.make_array_from_callback(
        array.shape, sharding, lambda index: np.array(array[index])
      )

    return jax.tree.map(place, tree, shardings)

  def get_tree(self, tree: Any) -> Any:
    """Copies arrays to the host, whole, in every process.

    Args:
      tree: of arrays on the devices.

    Returns:
      NumPy arrays that share no memory with them.
    """

    def fetch(array: jax.Array) -> np.ndarray:
      if array.is_fully_addressable or array.is_fully_replicated:
        return np.array(array)
      return np.array(multihost_utils.process_allgather(array, tiled=True))

    return jax.tree.map(fetch, tree)

  def barrier(self, name: str) -> None:
    """Waits for the other processes; all of them must come here."""
    if self.processes > 1:
      multihost_utils.sync_global_devices(name)


def in_any_process(flag: bool) -> bool:
  """Whether the flag is set in any process; all of them must ask."""
  if jax.process_count() == 1:
    return flag
  return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))


def in_all_processes_the_same(text: str) -> bool:
  """Whether every process gives the same text; all of them must ask."""
  if jax.process_count() == 1:
    return True
  digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
  digests = multihost_utils.process_allgather(digest)
  return bool(np.all(digests == digests[0]))


def is_main() -> bool:
  """Whether this process is the one that writes and prints."""
  return jax.process_index() == 0
