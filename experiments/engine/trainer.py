"""Training on one device or many: the compiled step, evaluation, and the clock."""

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.data import Batch, Examples, eval_batches
from experiments.engine.parallel import Layout
from experiments.engine.step import Learner, Score, TrainState

Images = tuple[jax.Array, jax.Array]
"""Images (uint8) and labels on the devices."""

_AHEAD = 4  # steps that the host is ahead of the device: it need not wait, and can soon stop


def to_device(examples: Examples, layout: Layout | None = None) -> Images:
  """Puts examples on the devices, whole on each, where the steps pick their batches.

  Args:
    examples: the same in every process.
    layout: of the run; None is one device.
  """
  if layout is None or layout.size == 1:
    return jax.device_put((examples.images, examples.labels))
  images, labels = (
    layout.put(part, layout.replicated) for part in (examples.images, examples.labels)
  )
  return jnp.asarray(images), jnp.asarray(labels)


class Trainer(Learner):
  """Trains and evaluates one model; runs that differ in seed or learning rate share its programs.

  Programs are compiled on first use and kept, and `compile_seconds` adds up what that took.

  Args:
    model: see `Learner`.
    optimizer: of the parameters.
    layout: devices; None is one.
    loop: how several steps are run: "scan" as one `jax.lax.scan`, "python" as a loop over a
      compiled step. A convolution inside a scan takes three to four times as long on CPU, and a
      dispatch per step leaves a GPU idle, so None is "python" on CPU and "scan" elsewhere.
    **options: the other arguments of `Learner`.
  """

  def __init__(
    self,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    layout: Layout | None = None,
    loop: Literal["python", "scan"] | None = None,
    **options: Any,
  ):
    super().__init__(model, optimizer, **options)
    self.layout = layout or Layout()
    self.loop = loop or ("python" if jax.default_backend() == "cpu" else "scan")
    self.compile_seconds = 0.0
    self._programs: dict[Any, Callable[..., Any]] = {}

  def init(
    self, seed: int, image_shape: tuple[int, ...], learning_rate: float | None = None
  ) -> TrainState:
    """The state before the first step, on the devices.

    Args:
      seed: of the run, from 0.
      image_shape: (height, width, channels).
      learning_rate: see `initial_state`.
    """
    rate = None if learning_rate is None else np.float32(learning_rate)
    arguments = np.uint32(seed), np.zeros((1, *image_shape), self.dtype), rate
    options: dict[str, Any] = {}
    if jax.default_backend() == "cpu":  # optimising a program that runs once takes most of its time
      options["compiler_options"] = {"xla_backend_optimization_level": 1}
    # By one device, whatever the layout: another program might round otherwise.
    state = self._program(self.initial_state, *arguments, **options)(*arguments)
    if self.layout.size > 1:
      state = self.layout.put_tree(jax.tree.map(np.asarray, state), self.layout.state(state))
    return state

  def shapes(self, image_shape: tuple[int, ...], learning_rate: float | None = None) -> TrainState:
    """Shapes and types of the state, without any computation.

    Args:
      image_shape: (height, width, channels).
      learning_rate: see `initial_state`.
    """
    rate = None if learning_rate is None else np.float32(learning_rate)
    image = jax.ShapeDtypeStruct((1, *image_shape), self.dtype)
    return jax.eval_shape(self.initial_state, np.uint32(0), image, rate)

  def check(self, image_shape: tuple[int, ...], batch_size: int) -> None:
    """Goes through the model once as in training, by shapes alone.

    Args:
      image_shape: (height, width, channels).
      batch_size: examples in a step.

    Raises:
      ValueError: if the model cannot be trained on such images.
    """
    state = self.shapes(image_shape)
    images = jax.ShapeDtypeStruct((batch_size, *image_shape), jnp.uint8)
    forward = functools.partial(self._apply, train=True)
    jax.eval_shape(forward, state.params, state.batch_stats, images)

  def run(
    self,
    state: TrainState,
    data: Images,
    order: np.ndarray,
    *,
    stop: Callable[[], bool] = lambda: False,
  ) -> tuple[TrainState, np.ndarray, float]:
    """Takes one step for each row of indices.

    Args:
      state: where to start; its buffers are reused, so it cannot be used again.
      data: the training set, see `to_device`.
      order: indices into it, (steps, batch size).
      stop: asked after each step of a loop in Python; True ends it early.

    Returns:
      The state after the steps, the loss before each of them, and the seconds they took.
    """
    if self.loop == "python":
      rows = ((self.layout.put(row, self.layout.batch),) for row in order)
      return self._loop(self._step, state, rows, data, stop)
    indices = self.layout.put(order, self.layout.batches)
    program = self._training_program(self._steps, state, indices, *data)
    start = time.perf_counter()
    state, losses = program(state, indices, *data)
    jax.block_until_ready(state)
    return state, np.asarray(losses), time.perf_counter() - start

  def run_stream(
    self,
    state: TrainState,
    batches: Iterable[Batch],
    *,
    stop: Callable[[], bool] = lambda: False,
  ) -> tuple[TrainState, np.ndarray, float]:
    """Takes one step for each batch, as it comes.

    Args:
      state: where to start; its buffers are reused, so it cannot be used again.
      batches: of which this process has its own rows.
      stop: asked after each step; True ends the loop.

    Returns:
      The state after the steps, the loss before each of them, and the seconds they took, waiting
      for data included.
    """
    put = self.layout.put_rows
    rows = ((put(batch.images), put(batch.labels), put(batch.ids)) for batch in batches)
    return self._loop(self.step, state, rows, (), stop)

  def evaluate(self, state: TrainState, data: Images, batch_size: int = 500) -> Score:
    """Scores parameters on a set; a last batch that is not full is padded, and the padding masked.

    Args:
      state: that has the parameters.
      data: the set, see `to_device`.
      batch_size: examples at a time, at most; a multiple of the number of devices is made of it.
    """
    number, size = len(data[1]), self.layout.size
    batch_size = max(min(batch_size, number) // size, 1) * size
    put, batch = self.layout.put, self.layout.batch
    batches = (
      (put(indices, batch), put(mask, batch))
      for indices, mask in zip(*eval_batches(number, batch_size), strict=True)
    )
    return self._mean(self._score, state, batches, data, number=number)

  def evaluate_stream(self, state: TrainState, batches: Iterable[Batch], number: int) -> Score:
    """Scores parameters on a set that comes batch by batch.

    Args:
      state: that has the parameters.
      batches: of which this process has its own rows.
      number: of examples in all.
    """
    put = self.layout.put_rows
    rows = ((put(batch.images), put(batch.labels), put(batch.mask)) for batch in batches)
    return self._mean(self.score, state, rows, (), number=number)

  def finite(self, state: TrainState) -> bool:
    """Whether parameters and batch statistics are all finite."""

    def finite(state: TrainState) -> jax.Array:
      leaves = jax.tree.leaves((state.params, state.batch_stats))
      return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    return bool(self._program(finite, state)(state))

  def _loop(
    self,
    function: Callable[..., Any],
    state: TrainState,
    rows: Iterable[tuple[Any, ...]],
    data: tuple[Any, ...],
    stop: Callable[[], bool],
  ) -> tuple[TrainState, np.ndarray, float]:
    """A step for each of the rows, a few of them ahead of the device."""
    losses: list[jax.Array] = []
    compiled, start = self.compile_seconds, time.perf_counter()
    program = None
    for row in rows:
      program = program or self._training_program(function, state, *row, *data)
      state, loss = program(state, *row, *data)
      losses.append(loss)
      if len(losses) > _AHEAD:
        losses[-_AHEAD].block_until_ready()
      if stop():
        break
    jax.block_until_ready(state)
    seconds = time.perf_counter() - start - (self.compile_seconds - compiled)
    return state, np.asarray(jax.device_get(losses)), seconds

  def _mean(self, *arguments: Any, number: int) -> Score:
    """Means of what a function sums up, see `_sums`."""
    return Score(*(float(total) for total in self._sums(*arguments) / number))

  def _sums(
    self,
    function: Callable[..., Any],
    state: TrainState,
    rows: Iterable[tuple[Any, ...]],
    data: tuple[Any, ...],
  ) -> np.ndarray:
    """Sums over rows of what the function sums up in each."""
    program, totals = None, []
    for row in rows:
      program = program or self._program(function, state, *row, *data)
      totals.append(program(state, *row, *data))
    return np.asarray(jax.device_get(totals), np.float64).sum(axis=0)

  def _training_program(self, function: Callable[..., Any], state: TrainState, *arguments: Any):
    """The compiled function, which reuses the buffers of the state and leaves it where it is."""
    options: dict[str, Any] = {"donate_argnums": 0}
    if self.layout.size > 1:
      shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
      options["out_shardings"] = shardings, self.layout.replicated
    return self._program(function, state, *arguments, **options)

  def _program(self, function: Callable[..., Any], *arguments: Any, **options: Any):
    """The compiled function for arguments of these shapes."""
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
    name = function.__name__, shapes
    if name not in self._programs:
      start = time.perf_counter()
      self._programs[name] = jax.jit(function, **options).lower(*arguments).compile()
      self.compile_seconds += time.perf_counter() - start
    return self._programs[name]

  def _pick(
    self, indices: jax.Array, images: jax.Array, labels: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """A batch of the data on the devices, divided over them."""
    batch = images[indices], labels[indices]
    if self.layout.size > 1:
      batch = jax.lax.with_sharding_constraint(batch, self.layout.batch)
    return batch

  def _step(self, state: TrainState, indices: jax.Array, images: jax.Array, labels: jax.Array):
    """One step on the examples picked."""
    return self.step(state, *self._pick(indices, images, labels), indices)

  def _steps(self, state: TrainState, order: jax.Array, images: jax.Array, labels: jax.Array):
    """One step for each row of indices."""
    return jax.lax.scan(lambda carry, rows: self._step(carry, rows, images, labels), state, order)

  def _score(
    self,
    state: TrainState,
    indices: jax.Array,
    mask: jax.Array,
    images: jax.Array,
    labels: jax.Array,
  ):
    """Sums over the examples picked."""
    return self.score(state, *self._pick(indices, images, labels), mask)
