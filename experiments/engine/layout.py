"""Where arrays live: the same program on one device, on several, and in several processes.

A batch is divided over the devices of a one-dimensional mesh; parameters are whole on each of them,
or divided over the same axis. `jax.jit` places the rest, so that batch statistics and gradients are
those of the whole batch by construction.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments import UsageError
from experiments.engine.processes import ParallelConfig

AXIS = "data"
_SMALLEST_SHARDED = 1024  # elements; smaller arrays are cheaper to keep whole


class Layout:
  """Where the arrays of a run live.

  Args:
    devices: devices to use; None is the first of this process.
    shard_params: whether the state is divided over the devices, rather than kept whole on each.
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
    """Returns the layout that a configuration asks for.

    Args:
      config: configuration of devices and processes.

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
      batch_size: size of a batch of all devices together.
      option: name of the option that gives the size.
    """
    if batch_size < 1 or batch_size % self.size:
      fewer = max((n for n in range(1, self.size) if batch_size % n == 0), default=1)
      hint = f"; `--parallel.devices {fewer}` would do" if self.processes == 1 else ""
      raise UsageError(
        f"`{option}` must be a multiple of the number of devices, {self.size}, got {batch_size}"
        + hint
      )

  def state(self, tree: Any) -> Any:
    """Returns the shardings of a training state.

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
      array: array that is the same in every process.
      sharding: places of its parts.

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
      rows: rows of this process, in the order of processes.

    Returns:
      The whole batch, divided over the devices.
    """
    if self.size == 1:
      return rows
    return jax.make_array_from_process_local_data(self.batch, rows)

  def put_tree(self, tree: Any, shardings: Any) -> Any:
    """Copies arrays that every process holds whole onto the devices.

    Args:
      tree: NumPy arrays that are the same in every process; they are not aliased, so that a program
        may be given the copies to keep.
      shardings: a sharding for each array.
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
      tree: arrays on the devices.

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
