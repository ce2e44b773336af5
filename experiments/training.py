"""The training loop: state, step, evaluation, and the clock."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.data import Examples

Images = tuple[jax.Array, jax.Array]
"""Images (uint8) and labels on the device."""


class TrainState(flax.struct.PyTreeNode):
  """All that changes in training.

  Attributes:
    step: steps taken.
    params: the model's parameters.
    opt_state: the optimizer's state, with the learning rate as a value in it.
  """

  step: jax.Array
  params: Any
  opt_state: optax.OptState


class Score(NamedTuple):
  """Mean cross entropy and accuracy over a set of examples, each counted once."""

  loss: float
  accuracy: float


@dataclasses.dataclass
class Curve:
  """One training run, seen at every evaluation; the first is before training.

  Attributes:
    steps: steps taken before the evaluation.
    seconds: spent in these steps, without compilation and evaluation.
    accuracy: on the test set.
    diverged_at: step whose loss was NaN or infinite, where the run stopped; None if none was.
  """

  steps: list[int] = dataclasses.field(default_factory=list)
  seconds: list[float] = dataclasses.field(default_factory=list)
  accuracy: list[float] = dataclasses.field(default_factory=list)
  diverged_at: int | None = None

  def reaches(self, target: float) -> tuple[int, float] | None:
    """Steps and seconds at the first evaluation with at least this accuracy; None if none has."""
    for step, seconds, accuracy in zip(self.steps, self.seconds, self.accuracy, strict=True):
      if accuracy >= target:
        return step, seconds
    return None


def to_device(examples: Examples) -> Images:
  """Puts examples on the device, where the steps pick their batches."""
  return jax.device_put((examples.images, examples.labels))


class Trainer:
  """Trains and evaluates one model; runs that differ in seed or learning rate share its programs.

  Programs are compiled on first use and kept, and `compile_seconds` adds up what that took.

  Args:
    model: a Flax module from images in [0, 1] to class scores.
    optimizer: made by `optax.inject_hyperparams`, with a hyperparameter `learning_rate`.
    loop: how several steps are run: "scan" as one `jax.lax.scan`, "python" as a loop over a
      compiled step. A convolution inside a scan takes three to four times as long on CPU, and a
      dispatch per step leaves a GPU idle, so None is "python" on CPU and "scan" elsewhere.
  """

  def __init__(
    self,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    loop: Literal["python", "scan"] | None = None,
  ):
    self.model = model
    self.optimizer = optimizer
    self.loop = loop or ("python" if jax.default_backend() == "cpu" else "scan")
    self.compile_seconds = 0.0
    self._programs: dict[Any, Callable[..., Any]] = {}

  def init(self, seed: int, image_shape: tuple[int, ...], learning_rate: float) -> TrainState:
    """The state before the first step.

    Args:
      seed: of the initial parameters.
      image_shape: (height, width, channels).
      learning_rate: of the run.
    """

    def init(key: jax.Array, image: jax.Array, learning_rate: jax.Array) -> TrainState:
      params = self.model.init(key, image)["params"]
      opt_state = optax.tree.set(self.optimizer.init(params), learning_rate=learning_rate)
      return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=opt_state)

    # Optimising a program that runs once takes most of its time on CPU.
    fast = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
    image = np.zeros((1, *image_shape), np.float32)
    arguments = jax.random.key(seed), image, np.float32(learning_rate)
    return self._program(init, *arguments, compiler_options=fast)(*arguments)

  def run(
    self, state: TrainState, data: Images, order: np.ndarray
  ) -> tuple[TrainState, np.ndarray, float]:
    """Takes one step for each row of indices.

    Args:
      state: where to start; its buffers are reused, so it cannot be used again.
      data: the training set, see `to_device`.
      order: indices into it, (steps, batch size).

    Returns:
      The state after the steps, the loss before each of them, and the seconds they took.
    """
    if self.loop == "scan":
      program = self._program(self._steps, state, order, *data, donate_argnums=0)
      start = time.perf_counter()
      state, losses = program(state, order, *data)
    else:
      program = self._program(self._step, state, order[0], *data, donate_argnums=0)
      losses = []
      start = time.perf_counter()
      for indices in order:
        state, loss = program(state, indices, *data)
        losses.append(loss)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - start
    return state, np.asarray(jax.device_get(losses)), seconds

  def evaluate(self, params: Any, data: Images, batch_size: int = 500) -> Score:
    """Scores parameters on a set; a last batch that is not full is padded, and the padding masked.

    Args:
      params: the model's parameters.
      data: the set, see `to_device`.
      batch_size: examples at a time.
    """
    number = len(data[1])
    batch_size = min(batch_size, number)
    padded = np.arange(-(-number // batch_size) * batch_size, dtype=np.int32)
    batches = np.minimum(padded, number - 1).reshape(-1, batch_size)
    masks = (padded < number).reshape(-1, batch_size)
    program = self._program(self._score, params, batches[0], masks[0], *data)
    totals = [program(params, *batch, *data) for batch in zip(batches, masks, strict=True)]
    loss, correct = np.asarray(jax.device_get(totals), np.float64).sum(axis=0) / number
    return Score(float(loss), float(correct))

  def _program(self, function: Callable[..., Any], *arguments: Any, **options: Any):
    """The compiled function for arguments of these shapes."""
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
    name = function.__name__, shapes
    if name not in self._programs:
      start = time.perf_counter()
      self._programs[name] = jax.jit(function, **options).lower(*arguments).compile()
      self.compile_seconds += time.perf_counter() - start
    return self._programs[name]

  def _loss(self, params: Any, indices: jax.Array, images: jax.Array, labels: jax.Array):
    """Cross entropy of each example picked, and whether its class has the highest score."""
    logits = self.model.apply({"params": params}, images[indices].astype(jnp.float32) / 255)
    assert isinstance(logits, jax.Array)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels[indices])
    return losses, (jnp.argmax(logits, axis=-1) == labels[indices]) & jnp.isfinite(losses)

  def _step(self, state: TrainState, indices: jax.Array, images: jax.Array, labels: jax.Array):
    """One step of the optimizer."""

    def mean_loss(params: Any) -> jax.Array:
      return jnp.mean(self._loss(params, indices, images, labels)[0])

    loss, gradient = jax.value_and_grad(mean_loss)(state.params)
    updates, opt_state = self.optimizer.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return TrainState(step=state.step + 1, params=params, opt_state=opt_state), loss

  def _steps(self, state: TrainState, order: jax.Array, images: jax.Array, labels: jax.Array):
    """One step for each row of indices."""
    return jax.lax.scan(lambda carry, rows: self._step(carry, rows, images, labels), state, order)

  def _score(
    self, params: Any, indices: jax.Array, mask: jax.Array, images: jax.Array, labels: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Sums of loss and of hits over the examples that the mask keeps."""
    losses, hits = self._loss(params, indices, images, labels)
    return jnp.sum(losses, where=mask), jnp.sum(hits, where=mask)


def fit(
  trainer: Trainer,
  state: TrainState,
  train: Images,
  test: Images,
  order: np.ndarray,
  *,
  eval_every: int,
  on_progress: Callable[[int], None] = lambda steps: None,
) -> tuple[TrainState, Curve]:
  """Trains along an order of examples and evaluates on the way.

  Args:
    trainer: of the model.
    state: where to start; it cannot be used again.
    train: the training set.
    test: the set to evaluate on.
    order: indices into the training set, (steps, batch size).
    eval_every: steps between evaluations; there is one more after the last step.
    on_progress: called with the number of steps just taken.

  Returns:
    The state at the end and the curve. A run whose loss is no longer finite stops there.
  """
  curve = Curve()
  seconds, taken = 0.0, 0

  def evaluate() -> None:
    score = trainer.evaluate(state.params, test)
    curve.steps.append(taken)
    curve.seconds.append(seconds)
    curve.accuracy.append(score.accuracy)
    if not np.isfinite(score.loss):
      curve.diverged_at = taken

  evaluate()
  while curve.diverged_at is None and taken < len(order):
    chunk = order[taken : taken + eval_every]
    state, losses, spent = trainer.run(state, train, chunk)
    finite = np.isfinite(losses)
    if not finite.all():
      curve.diverged_at = taken + int(np.argmin(finite))
      break
    taken, seconds = taken + len(chunk), seconds + spent
    on_progress(len(chunk))
    evaluate()
  return state, curve
