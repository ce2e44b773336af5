"""The step, the evaluation and the loops around them."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

optax = pytest.importorskip("optax", reason="needs the extra 'experiments'")
pytest.importorskip("grain", reason="needs the extra 'experiments'")


from experiments import data  # noqa: E402
from experiments.data import (  # noqa: E402
  Augmentation,
  Batch,
  Normalisation,
  each_once,
  picks,
)
from experiments.engine import trainer as training  # noqa: E402
from experiments.engine.step import Learner  # noqa: E402
from tests import runs  # noqa: E402

CLASSES = runs.CLASSES
OPTIMIZER = optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9)


class Norm(nn.Module):
  """A network with batch statistics that compiles fast."""

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.Dense(8)(x.reshape(len(x), -1))
    x = nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5)(x)
    return nn.Dense(CLASSES)(nn.softplus(x))


def trainer(**options):
  options_of_the_loop = {key: options.pop(key) for key in ("loop", "layout") if key in options}
  return training.Trainer(Learner(Norm(), OPTIMIZER, **options), **options_of_the_loop)


def examples(number=40, seed=0):
  return data.Examples(*runs.blobs(number, seed))


def test_step_uses_batch_statistics_and_keeps_running_ones():
  runner, shown = trainer(), examples()
  state = runner.init(1, (12, 12, 1))
  before = jax.tree.map(np.array, state)
  indices = np.array([3, 1, 4, 15, 9, 2], np.int32)
  state, losses, _ = runner.run(state, picks(training.to_device(shown), indices[None]))

  hidden = before.params["Dense_0"]
  x = shown.images[indices].reshape(6, -1) / np.float32(255) @ hidden["kernel"] + hidden["bias"]
  mean, var = x.mean(axis=0), x.var(axis=0)
  running = state.batch_stats["BatchNorm_0"]
  np.testing.assert_allclose(running["mean"], 0.1 * mean, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(running["var"], 0.9 + 0.1 * var, rtol=1e-4, atol=1e-6)
  out = before.params["Dense_1"]
  y = np.log1p(np.exp((x - mean) / np.sqrt(var + 1e-5)))
  logits = y @ out["kernel"] + out["bias"]
  wanted = -jax.nn.log_softmax(logits)[np.arange(6), shown.labels[indices]].mean()
  np.testing.assert_allclose(losses, [wanted], rtol=1e-4)
  assert (state.step, state.seed) == (1, 1)


@pytest.mark.parametrize("loop", ["python", "scan"])
def test_steps_are_traced_once(loop, monkeypatch):
  runner, shown = trainer(loop=loop), training.to_device(examples())
  monkeypatch.setattr(runner.learner, "step", chex.assert_max_traces(runner.learner.step, n=1))
  order = data.training_order(40, 8, seed=0, steps=6)
  state = runner.init(0, (12, 12, 1))
  for part in (order[:2], order[2:4], order[4:]):
    state, _, _ = runner.run(state, picks(shown, part))
  assert state.step == 6


def test_evaluation_uses_running_statistics():
  runner, shown = trainer(), training.to_device(examples(23))
  state = runner.init(0, (12, 12, 1))
  whole = runner.evaluate(state, each_once(shown, 23))
  for batch_size in (1, 7):  # with the statistics of a batch these would differ
    chex.assert_trees_all_close(
      runner.evaluate(state, each_once(shown, batch_size)), whole, rtol=1e-5
    )


def test_both_loops_are_the_same_with_batch_statistics_and_augmentation():
  shown = training.to_device(examples())
  order = data.training_order(40, 8, seed=0, steps=12)
  ends = []
  for loop in ("python", "scan"):
    runner = trainer(loop=loop, augmentation=Augmentation(flip=True, pad=2))
    state = runner.init(0, (12, 12, 1))
    state, first, _ = runner.run(state, picks(shown, order[:5]))
    state, last, _ = runner.run(state, picks(shown, order[5:]))
    ends.append((state, np.concatenate([first, last])))
  chex.assert_trees_all_close(*ends, rtol=1e-4, atol=1e-5)


def test_stream_gives_what_memory_gives():
  shown = examples()
  order = data.training_order(40, 8, seed=0, steps=4)
  options = {"augmentation": Augmentation(flip=True, pad=2)}
  memory, stream = trainer(**options), trainer(**options)
  batches = (Batch(shown.images[i], shown.labels[i], i) for i in order)
  state, losses, _ = memory.run(
    memory.init(0, (12, 12, 1)), picks(training.to_device(shown), order)
  )
  other, streamed, _ = stream.run(stream.init(0, (12, 12, 1)), batches)
  np.testing.assert_array_equal(streamed, losses)
  chex.assert_trees_all_equal(other, state)


def test_augmentation_normalisation_and_smoothing_are_those_asked_for():
  runner = trainer(
    augmentation=Augmentation(flip=True, pad=3),
    normalisation=Normalisation((0.2,), (0.5,)),
    smoothing=0.1,
  )
  shown, ids = examples(6), np.array([9, 4, 7, 1, 0, 3], np.int32)
  state = runner.init(2, (12, 12, 1)).replace(step=jnp.asarray(5, jnp.int32))
  _, loss = jax.jit(runner.learner.step)(state, shown.images, shown.labels, ids)
  images = data.augment(
    Augmentation(flip=True, pad=3), shown.images, jax.random.key(jnp.uint32(2)), 5, ids
  )
  logits, _ = Norm().apply(
    {"params": state.params, "batch_stats": state.batch_stats},
    (np.asarray(images) / np.float32(255) - 0.2) / 0.5,
    train=True,
    mutable=["batch_stats"],
  )
  targets = 0.9 * np.eye(CLASSES)[shown.labels] + 0.1 / CLASSES
  wanted = -(targets * jax.nn.log_softmax(logits)).sum(axis=-1).mean()
  np.testing.assert_allclose(loss, wanted, rtol=1e-4)


class Logits(nn.Module):
  """Takes scores from the first pixels of an image, so that a test can choose them."""

  classes: int = 7

  @nn.compact
  def __call__(self, x):
    scale = self.param("scale", nn.initializers.ones, ())
    return scale * x[:, 0, : self.classes, 0]


@pytest.mark.parametrize("crops", [1, 10])
def test_five_highest_scores_of_crops(crops):
  runner = training.Trainer(Learner(Logits(), OPTIMIZER))
  rng = np.random.default_rng(0)
  rows = np.tile(np.arange(0, 240, 20, np.uint8), (50, crops, 12, 1))
  images = rng.permuted(rows, axis=-1)[..., None]  # (examples, crops, height, width, channels)
  labels = rng.integers(0, 7, 50).astype(np.int32)
  each = np.arange(50)
  probabilities = np.asarray(jax.nn.softmax(images[:, :, 0, :7, 0] / 255.0).mean(axis=1))
  own = probabilities[each, labels]
  rank = (probabilities > own[:, None]).sum(axis=1)
  batches = [  # as a set of 43 is streamed: the rest is padding
    Batch(images[:25], labels[:25], each[:25], each[:25] < 43),
    Batch(images[25:], labels[25:], each[25:], each[25:] < 43),
  ]
  score = runner.evaluate(runner.init(0, (12, 12, 1)), batches)
  assert score.accuracy == pytest.approx((rank[:43] == 0).mean())
  assert score.top5 == pytest.approx((rank[:43] < 5).mean())
  assert score.loss == pytest.approx(-np.log(own[:43]).mean(), rel=1e-5)
  assert 0 < score.accuracy < score.top5 < 1


def test_runs_are_vmapped_over_seeds_and_learning_rates():
  """What an ablation needs: the pure functions, transformed, and no folder."""
  runner, shown = trainer(augmentation=Augmentation(flip=True)), examples()
  seeds, rates = np.array([0, 1, 2], np.uint32), np.array([0.1, 0.02, 0.3], np.float32)
  order = np.stack([data.training_order(40, 8, seed=int(seed), steps=4) for seed in seeds])
  image = np.zeros((1, 12, 12, 1), np.float32)

  def train(seed, rate, order):
    def step(state, indices):
      return runner.learner.step(state, images[indices], labels[indices], indices)

    images, labels = jnp.asarray(shown.images), jnp.asarray(shown.labels)
    state = runner.learner.initial_state(seed, image, rate)
    state, losses = jax.lax.scan(step, state, order)
    return losses, runner.learner.score(state, images, labels, np.ones(40, bool))

  losses, scores = jax.jit(jax.vmap(train))(seeds, rates, order)
  for i, (seed, rate) in enumerate(zip(seeds, rates, strict=True)):
    alone = trainer(augmentation=Augmentation(flip=True))
    state = alone.init(int(seed), (12, 12, 1), float(rate))
    state, wanted, _ = alone.run(state, picks(training.to_device(shown), order[i]))
    np.testing.assert_allclose(losses[i], wanted, rtol=1e-4)
    score = alone.evaluate(state, each_once(training.to_device(shown)))
    assert score.accuracy == pytest.approx(float(scores[1][i]) / 40)


def test_steps_that_are_not_finite_are_seen():
  runner = trainer()
  state = runner.init(0, (12, 12, 1))
  assert runner.finite(state)
  for part in ("params", "batch_stats"):
    spoilt = jax.tree.map(lambda leaf: leaf.at[-1].set(jnp.inf), getattr(state, part))
    assert not runner.finite(state.replace(**{part: spoilt}))


def test_loop_ends_after_the_step_when_asked_to():
  runner, asked = trainer(), iter([False, False, True])
  state, losses, _ = runner.run(
    runner.init(0, (12, 12, 1)),
    picks(training.to_device(examples()), data.training_order(40, 8, seed=0, steps=5)),
    stop=lambda: next(asked),
  )
  assert state.step == len(losses) == 3


def test_loop_that_ends_early_takes_no_batch_too_many():
  """So a feed need not know how far a run is."""
  runner, asked = trainer(), iter([False, True])
  shown = training.to_device(examples())
  order = data.training_order(40, 8, seed=0, steps=5)
  whole, wanted, _ = runner.run(runner.init(0, (12, 12, 1)), picks(shown, order))
  batches = picks(shown, order)
  state, first, _ = runner.run(runner.init(0, (12, 12, 1)), batches, stop=lambda: next(asked))
  state, last, _ = runner.run(state, batches)
  assert len(first) == 2
  np.testing.assert_array_equal(np.concatenate([first, last]), wanted)
  jax.tree.map(np.testing.assert_array_equal, state, whole)


def test_compilation_is_not_on_the_clock():
  runner, shown = trainer(), training.to_device(examples())
  order = data.training_order(40, 8, seed=0, steps=3)
  state = runner.init(0, (12, 12, 1))
  before = runner.compile_seconds
  _, _, seconds = runner.run(state, picks(shown, order))
  compiled = runner.compile_seconds - before
  assert compiled > 0.05  # tracing and lowering alone take longer
  assert seconds < compiled
