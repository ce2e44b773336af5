import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

optax = pytest.importorskip("optax", reason="needs the extra 'experiments'")

import flax.linen as nn  # noqa: E402

from experiments import UsageError  # noqa: E402
from experiments.engine.optim import (  # noqa: E402
  SGDConfig,
  cross_entropy,
  learning_rate_at,
  make_optimizer,
  make_schedule,
  weights_only,
)
from kerv_jax.kernels import Gaussian  # noqa: E402
from kerv_jax.nn import KervConv  # noqa: E402

SHAPES = {"kernel": (3, 4), "bias": (4,), "gamma": ()}
STEPS_PER_EPOCH, EPOCHS = 4, 8


def tree(seed):
  """Parameters or gradients of one layer, in float64."""
  rng = np.random.default_rng(seed)
  return {"layer": {name: rng.normal(size=shape) for name, shape in SHAPES.items()}}


def reference_rate(config, step, steps_per_epoch, total_steps):
  """The learning rate, epoch by epoch as one would write it down."""
  warmup = int(config.warmup_epochs * steps_per_epoch)
  if step < warmup:
    return config.learning_rate * (step + 1) / warmup
  rate = config.learning_rate
  if config.schedule == "milestones":
    for milestone in config.milestones:
      if step >= milestone * steps_per_epoch:
        rate *= config.factor
  if config.schedule == "cosine":
    rate *= (1 + math.cos(math.pi * (step - warmup) / (total_steps - warmup))) / 2
  return rate


def reference_sgd(config, params, gradients, steps_per_epoch, total_steps):
  """torch.optim.SGD with its documented steps, number by number; the parameters after each."""
  params = {name: value.copy() for name, value in params["layer"].items()}
  buffers = {}
  history = []
  for step, tree_of_gradients in enumerate(gradients):
    gradient = tree_of_gradients["layer"]
    rate = reference_rate(config, step, steps_per_epoch, total_steps)
    length = math.sqrt(sum(float(x) ** 2 for g in gradient.values() for x in np.ravel(g)))
    for name, value in params.items():
      new_value = np.empty_like(value)
      old_buffer, buffers[name] = buffers.get(name), np.empty_like(value)
      for index in np.ndindex(value.shape):
        g = gradient[name][index]
        if config.clip_norm is not None and length > config.clip_norm:
          g = g * config.clip_norm / length
        if config.decay == "all" or name == "kernel":
          g = g + config.weight_decay * value[index]
        if config.momentum != 0:
          if old_buffer is None:
            buffers[name][index] = g
          else:
            buffers[name][index] = config.momentum * old_buffer[index] + g
          if config.nesterov:
            g = g + config.momentum * buffers[name][index]
          else:
            g = buffers[name][index]
        new_value[index] = value[index] - rate * g
      params[name] = new_value
    history.append({"layer": params})
    params = dict(params)
  return history


CASES = {
  "plain": {"momentum": 0.0},
  "momentum": {},
  "Nesterov": {"nesterov": True, "weight_decay": 0.05},
  "decay of all": {"weight_decay": 0.1},
  "decay of weights": {"weight_decay": 0.1, "decay": "weights"},
  "decay without momentum": {"weight_decay": 0.1, "momentum": 0.0},
  "clipping": {"clip_norm": 4.0, "weight_decay": 0.1},
  "milestones": {"milestones": (1, 2.5, 5), "factor": 0.2},
  "milestones after warm-up": {"milestones": (3, 5), "warmup_epochs": 1.5},
  "cosine": {"schedule": "cosine"},
  "cosine after warm-up": {"schedule": "cosine", "warmup_epochs": 2, "nesterov": True},
  "constant after one step": {"schedule": "constant", "warmup_epochs": 0.25},
}


@pytest.mark.parametrize("case", CASES)
def test_optimizer_is_sgd_step_for_step(case):
  config = SGDConfig(learning_rate=0.3, **CASES[case])
  steps = STEPS_PER_EPOCH * EPOCHS
  gradients = [tree(seed) for seed in range(1, steps + 1)]
  wanted = reference_sgd(config, tree(0), gradients, STEPS_PER_EPOCH, steps)
  if config.clip_norm is not None:
    lengths = np.array([optax.tree.norm(gradient) for gradient in gradients])
    assert 5 < np.sum(lengths > config.clip_norm) < steps - 5
  with jax.enable_x64(True):
    optimizer = make_optimizer(config, steps_per_epoch=STEPS_PER_EPOCH, total_steps=steps)
    params = jax.tree.map(jnp.asarray, tree(0))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, gradient):
      updates, state = optimizer.update(gradient, state, params)
      return optax.apply_updates(params, updates), state

    for gradient, after in zip(gradients, wanted, strict=True):
      params, state = step(params, state, gradient)
      chex.assert_trees_all_close(params, after, rtol=1e-12, atol=1e-13)


def test_optimizer_keeps_float32():
  config = SGDConfig(weight_decay=0.1, clip_norm=1.0, schedule="cosine", warmup_epochs=1)
  optimizer = make_optimizer(config, steps_per_epoch=2, total_steps=8)
  params = {"kernel": jnp.ones(3, jnp.float32)}
  state = optimizer.init(params)
  for _ in range(2):
    updates, state = optimizer.update({"kernel": jnp.ones(3, jnp.float32)}, state, params)
    params = optax.apply_updates(params, updates)
  assert params["kernel"].dtype == jnp.float32
  kinds = {leaf.dtype for leaf in jax.tree.leaves(state)}
  assert kinds == {jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)}


@pytest.mark.parametrize(
  "case", [case for case in CASES if "milestones" in CASES[case]] + ["cosine"]
)
def test_learning_rate_of_each_step(case):
  config = SGDConfig(learning_rate=0.3, **CASES[case])
  options = {"steps_per_epoch": STEPS_PER_EPOCH, "total_steps": STEPS_PER_EPOCH * EPOCHS}
  schedule = jax.jit(make_schedule(config, **options))
  for step in range(STEPS_PER_EPOCH * EPOCHS):
    wanted = reference_rate(config, step, *options.values())
    np.testing.assert_allclose(schedule(step), wanted, rtol=1e-5)
    assert learning_rate_at(config, step, **options) == pytest.approx(wanted, rel=1e-5)


def test_schedule_of_the_paper():
  config = SGDConfig(0.1, milestones=(75, 125, 150))
  rates = [
    learning_rate_at(config, epoch * 390 + step, steps_per_epoch=390, total_steps=200 * 390)
    for epoch, step in ((0, 0), (74, 389), (75, 0), (124, 389), (125, 0), (149, 389), (150, 0))
  ]
  np.testing.assert_allclose(rates, [0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001], rtol=1e-5)


def test_milestones_in_one_step_both_count():
  config = SGDConfig(1.0, milestones=(1.1, 1.2))
  rates = [learning_rate_at(config, s, steps_per_epoch=2, total_steps=9) for s in range(4)]
  np.testing.assert_allclose(rates, [1, 1, 0.01, 0.01], rtol=1e-5)


def test_warmup_never_has_a_rate_of_zero():
  config = SGDConfig(0.8, warmup_epochs=2, schedule="constant")
  rates = [learning_rate_at(config, s, steps_per_epoch=2, total_steps=9) for s in range(6)]
  np.testing.assert_allclose(rates, [0.2, 0.4, 0.6, 0.8, 0.8, 0.8], rtol=1e-6)


def test_weights_are_kernels_alone():
  class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
      x = KervConv(4, (3, 3), kernel_fn=Gaussian(), learnable=True, name="kerv")(x)
      x = nn.BatchNorm(use_running_average=False, name="norm")(x)
      return nn.Dense(2, name="dense")(x)

  images = jnp.zeros((1, 4, 4, 3))
  params = jax.eval_shape(Network().init, jax.random.key(0), images)["params"]
  decays = jax.tree_util.tree_leaves_with_path(weights_only(params))
  assert len(decays) == 7
  names = {
    jax.tree_util.keystr(path, simple=True, separator="/") for path, decay in decays if decay
  }
  assert names == {"kerv/kernel", "dense/kernel"}


# Loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_cross_entropy_is_the_sum_written_out(smoothing):
  rng = np.random.default_rng(0)
  logits, labels = 3 * rng.normal(size=(5, 7)), rng.integers(0, 7, 5)
  wanted = []
  for scores, label in zip(logits, labels, strict=True):
    normaliser = sum(math.exp(score) for score in scores)
    loss = 0.0
    for k, score in enumerate(scores):
      target = smoothing / 7 + (1 - smoothing if k == label else 0)
      loss -= target * (score - math.log(normaliser))
    wanted.append(loss)
  with jax.enable_x64(True):
    losses = cross_entropy(jnp.asarray(logits), jnp.asarray(labels), smoothing)
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
  for dtype in (jnp.float32, jnp.bfloat16):
    short = jnp.asarray(logits, dtype)
    losses = cross_entropy(short, jnp.asarray(labels), smoothing)
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(
      losses, cross_entropy(short.astype(jnp.float32), jnp.asarray(labels), smoothing)
    )


def test_cross_entropy_of_large_scores_is_finite():
  for smoothing in (0.0, 0.1):
    losses = cross_entropy(jnp.array([[1e4, 0.0], [-1e4, 0.0]]), jnp.array([1, 1]), smoothing)
    np.testing.assert_allclose(losses, [1e4 * (1 - smoothing / 2), 1e4 * smoothing / 2], rtol=1e-6)


# Errors


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"learning_rate": 0.0}, "`--optim.learning-rate` must be positive, got 0"),
    ({"learning_rate": math.nan}, "`--optim.learning-rate` must be positive, got nan"),
    ({"learning_rate": math.inf}, "`--optim.learning-rate` must be positive, got inf"),
    ({"momentum": 1.0}, "`--optim.momentum` must be at least 0 and below 1, got 1"),
    ({"weight_decay": -1e-4}, "`--optim.weight-decay` must be at least 0, got -0.0001"),
    ({"factor": 0.0}, "`--optim.factor` must be positive, got 0"),
    ({"warmup_epochs": -1.0}, "`--optim.warmup-epochs` must be at least 0, got -1"),
    ({"clip_norm": 0.0}, "`--optim.clip-norm` must be positive, got 0"),
    ({"label_smoothing": 1.0}, "`--optim.label-smoothing` must be at least 0 and below 1, got 1"),
    ({"nesterov": True, "momentum": 0.0}, "`--optim.nesterov` needs a momentum"),
    ({"milestones": (5, 3)}, r"`--optim.milestones` must be positive and ascending, got \[5, 3\]"),
    ({"milestones": (5, 5)}, "`--optim.milestones` must be positive and ascending"),
    ({"milestones": (0, 5)}, "`--optim.milestones` must be positive and ascending"),
    ({"milestones": (math.nan,)}, "`--optim.milestones` must be positive and ascending"),
    (
      {"milestones": (2, 5), "warmup_epochs": 2},
      r"ascending and after the warm-up, 2, got \[2, 5\]",
    ),
    (
      {"schedule": "cosine", "warmup_epochs": 3},
      "`--optim.warmup-epochs` must end before the run of 12 steps, got 3, 12 steps",
    ),
  ],
)
def test_configuration_out_of_range_is_refused(change, message):
  config = dataclasses.replace(SGDConfig(), **change)
  with pytest.raises(UsageError, match=message):
    make_optimizer(config, steps_per_epoch=4, total_steps=12)
  if change.get("schedule") != "cosine":  # which is known only with the length of the run
    with pytest.raises(UsageError, match=message.replace("--optim", "--sgd")):
      config.check("--sgd")
