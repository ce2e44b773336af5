"""SGD as PyTorch's, learning rates by epoch, and the loss."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Hashable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import UsageError
from experiments.common.forms import LATER
from kerv_jax.kernels.definitions import at_least_float32
from kerv_jax.optim import lookahead

TRIANGLE_START, TRIANGLE_PEAK, TRIANGLE_END = 0.2, 0.23, 0.07
"""Of the schedule triangle: part of the rate at first, part of the run before the top, and part of
the rate at last."""
NORM_BIAS = 64.0
"""Times the learning rate, for biases of batch normalization in the groups whitened."""
BRIEF_EPOCHS = 3
"""Epochs for which the whitening's bias is trained there."""


@dataclasses.dataclass(frozen=True)
class SGDConfig:
  """Stochastic gradient descent with momentum, as `torch.optim.SGD`."""

  learning_rate: float = 0.1
  """Before the schedule lowers it."""
  momentum: float = 0.9
  """Part of the last step's direction that is kept."""
  nesterov: bool = False
  """Whether to look ahead along the momentum."""
  weight_decay: float = 0.0
  """Times the parameters, added to the gradient before the momentum."""
  decay: Literal["all", "weights"] = "all"
  """What decays: every parameter, as in the paper, or weights only: no biases, no normalisation, no
  hyperparameters of a kernel function."""
  schedule: Literal["milestones", "cosine", "triangle", "constant"] = "milestones"
  """How the learning rate falls: by a factor at milestones, along half a cosine to 0 at the end of
  training, from 0.2 of it up to all of it at 23 % of the steps and down to 0.07, or not at all."""
  milestones: tuple[float, ...] = ()
  """Epochs, counted from the start of training, after which the rate is multiplied."""
  factor: float = 0.1
  """What it is multiplied by."""
  warmup_epochs: float = 0.0
  """Epochs over which the learning rate rises in equal steps to its full value."""
  clip_norm: float | None = None
  """The longest that a gradient over all parameters may be; a longer one is shortened."""
  label_smoothing: float = 0.0
  """Part of the target that is spread evenly over all classes."""
  groups: Literal["whitened"] | None = dataclasses.field(default=None, metadata=LATER)
  """Learning rates by group. whitened: the filters of a layer called whitening stay as they are,
  its bias is trained for three epochs, and the biases of batch normalization have 64 times the rate
  and a 64th of the weight decay."""
  lookahead: int | None = dataclasses.field(default=None, metadata=LATER)
  """Steps between returns to slow parameters, see `kerv_jax.optim.lookahead`."""

  def check(self, option: str = "--optim") -> None:
    """Raises a UsageError for the first value that is out of range.

    Args:
      option: name that the errors give this configuration.
    """
    ranges = {
      "learning_rate": (0 < self.learning_rate < math.inf, "positive"),
      "momentum": (0 <= self.momentum < 1, "at least 0 and below 1"),
      "weight_decay": (0 <= self.weight_decay < math.inf, "at least 0"),
      "factor": (0 < self.factor < math.inf, "positive"),
      "warmup_epochs": (0 <= self.warmup_epochs < math.inf, "at least 0"),
      "clip_norm": (self.clip_norm is None or self.clip_norm > 0, "positive"),
      "label_smoothing": (0 <= self.label_smoothing < 1, "at least 0 and below 1"),
      "lookahead": (self.lookahead is None or self.lookahead >= 1, "at least 1"),
    }
    for name, (right, allowed) in ranges.items():
      if not right:
        flag = f"{option}.{name.replace('_', '-')}"
        raise UsageError(f"`{flag}` must be {allowed}, got {getattr(self, name):g}")
    if self.schedule == "triangle" and self.warmup_epochs:
      raise UsageError(
        f"`{option}.warmup-epochs` must be 0 for the schedule triangle, which has its own, got "
        f"{self.warmup_epochs:g}"
      )
    if self.nesterov and not self.momentum:
      raise UsageError(f"`{option}.nesterov` needs a momentum, got `{option}.momentum` 0")
    begin = self.warmup_epochs if self.schedule == "milestones" else 0.0
    pairs = itertools.pairwise((begin, *self.milestones, math.inf))
    if not all(a < b for a, b in pairs):
      after = f" and after the warm-up, {begin:g}" if begin else ""
      raise UsageError(
        f"`{option}.milestones` must be positive and ascending{after}, got {list(self.milestones)}"
      )


def make_schedule(config: SGDConfig, *, steps_per_epoch: int, total_steps: int) -> optax.Schedule:
  """Returns the learning rate of each step, as a function.

  Args:
    config: configuration of the optimizer.
    steps_per_epoch: number of steps in an epoch, at least 1.
    total_steps: number of steps of the run; the cosine ends there.

  Returns:
    From the number of steps taken before, to the learning rate.

  Raises:
    UsageError: if the configuration is out of range.
  """
  config.check()
  rate = config.learning_rate
  warmup = round(min(config.warmup_epochs * steps_per_epoch, total_steps))
  if warmup and warmup >= total_steps:
    raise UsageError(
      f"`--optim.warmup-epochs` must end before the run of {total_steps} steps, got "
      f"{config.warmup_epochs:g}, {config.warmup_epochs * steps_per_epoch:g} steps"
    )
  if config.schedule == "cosine":
    schedule = optax.cosine_decay_schedule(rate, total_steps - warmup)
  elif config.schedule == "triangle":
    places = np.asarray([0, int(TRIANGLE_PEAK * total_steps), total_steps], np.float32)
    heights = np.asarray([TRIANGLE_START, 1, TRIANGLE_END], np.float32) * np.float32(rate)
    if places[1] == 0:  # a run too short to rise
      places, heights = places[1:], heights[1:]
    schedule = functools.partial(jnp.interp, xp=places, fp=heights)
  elif config.schedule == "milestones":
    scales: dict[int, float] = {}
    for epoch in config.milestones:
      if epoch * steps_per_epoch < total_steps:  # those after the run are in no step's way
        step = round(epoch * steps_per_epoch) - warmup  # of the schedule, which follows the warm-up
        scales[step] = scales.get(step, 1.0) * config.factor
    schedule = optax.piecewise_constant_schedule(rate, scales)
  else:
    schedule = optax.constant_schedule(rate)
  if warmup:
    schedule = optax.join_schedules([lambda step: rate / warmup * (step + 1), schedule], [warmup])
  return lambda step: schedule(jnp.asarray(step, float))


def learning_rate_at(
  config: SGDConfig, step: int, *, steps_per_epoch: int, total_steps: int
) -> float:
  """Returns the learning rate of one step.

  Args:
    config: configuration of the optimizer.
    step: number of the step, from 0.
    steps_per_epoch: number of steps in an epoch, at least 1.
    total_steps: number of steps of the run.

  Returns:
    The learning rate, as the optimizer has it.
  """
  schedule = make_schedule(config, steps_per_epoch=steps_per_epoch, total_steps=total_steps)
  return float(np.asarray(schedule(jnp.asarray(step, jnp.int32))))


def make_optimizer(
  config: SGDConfig, *, steps_per_epoch: int, total_steps: int
) -> optax.GradientTransformation:
  """Returns SGD as `torch.optim.SGD`, step for step.

  With gradient g, parameters p and learning rate r: g is clipped, g += weight_decay * p, the
  buffer b = momentum * b + g, from 0, and p -= r * b, or r * (g + momentum * b) by Nesterov.

  Args:
    config: configuration of the optimizer.
    steps_per_epoch: number of steps in an epoch, at least 1.
    total_steps: number of steps of the run.

  Returns:
    The optimizer.

  Raises:
    UsageError: if the configuration is out of range.
  """
  schedule = make_schedule(config, steps_per_epoch=steps_per_epoch, total_steps=total_steps)
  clip = optax.identity()  # what is off keeps its place in the state
  if config.clip_norm is not None:
    clip = optax.clip_by_global_norm(config.clip_norm)

  def sgd(rate: optax.Schedule, scale: float = 1.0) -> tuple[optax.GradientTransformation, ...]:
    """Returns the decay of weights, whose pace does not depend on the scale, and SGD."""
    decay = optax.identity()
    if config.weight_decay:
      mask = weights_only if config.decay == "weights" else None
      decay = optax.add_decayed_weights(config.weight_decay / scale, mask)
    return decay, optax.sgd(rate, config.momentum or None, config.nesterov)

  if config.groups is None:
    optimizer = optax.chain(clip, *sgd(schedule))
  else:

    def early(step: Any) -> Any:
      return jnp.where(step < BRIEF_EPOCHS * steps_per_epoch, schedule(step), 0.0)

    groups: dict[Hashable, optax.GradientTransformation] = {
      "rest": optax.chain(*sgd(schedule)),
      "norm bias": optax.chain(*sgd(lambda step: NORM_BIAS * schedule(step), NORM_BIAS)),
      "brief": optax.chain(*sgd(early)),
      "frozen": optax.set_to_zero(),
    }
    optimizer = optax.chain(clip, optax.multi_transform(groups, whitened_groups))
  if config.lookahead is not None:
    optimizer = lookahead(optimizer, total_steps, config.lookahead)
  return optimizer


def whitened_groups(params: Any) -> Any:
  """Returns the group of each parameter by `groups="whitened"`.

  Args:
    params: the parameters of Flax modules; batch normalizations are called norm or bn.

  Returns:
    The same tree of "frozen", "brief", "norm bias" and "rest".
  """

  def group(path: tuple[Any, ...], _: Any) -> str:
    *_, layer, name = ("", *(part.key for part in path))
    if layer == "whitening":
      return "frozen" if name == "kernel" else "brief"
    return "norm bias" if name == "bias" and layer.startswith(("norm", "bn")) else "rest"

  return jax.tree_util.tree_map_with_path(group, params)


def weights_only(params: Any) -> Any:
  """Returns what decays by `decay="weights"`: the parameters called "kernel".

  Args:
    params: the parameters of Flax modules.

  Returns:
    The same tree of booleans.
  """
  return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.0) -> jax.Array:
  """Returns the cross entropy of each example, as PyTorch's with `label_smoothing`.

  Args:
    logits: class scores, (..., classes).
    labels: integers, (...).
    smoothing: part of the target that is spread evenly over all classes, the right one included.

  Returns:
    The losses, (...), float32 or wider.
  """
  logits = logits.astype(at_least_float32(logits.dtype))
  if not smoothing:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  targets = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
  return optax.softmax_cross_entropy(logits, optax.smooth_labels(targets, smoothing))
