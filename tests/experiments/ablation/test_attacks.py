"""Attacks stay where they must, and do what they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.ablation.alikeness import match, sentence
from experiments.ablation.attacks import Attacker, fgsm, input_gradient, losses, pgd_step, project
from experiments.ablation.evidence import Evidence
from experiments.ablation.protocol import Filters, identity
from experiments.ablation.study import STUDIES

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(16, 3)).astype(np.float32)
IMAGES = RNG.uniform(size=(11, 4, 4, 1)).astype(np.float32)


def apply(params, x):
  return jnp.tanh(x.reshape(len(x), -1) @ params) * 3


LABELS = np.asarray(jnp.argmax(apply(WEIGHTS, IMAGES), axis=-1))
LABELS = np.where(np.arange(11) == 4, (LABELS + 1) % 3, LABELS)  # one is wrong from the start


def test_fgsm_moves_every_pixel_in_the_direction_in_which_the_loss_rises():
  gradient = input_gradient(lambda x: apply(WEIGHTS, x), jnp.asarray(IMAGES), jnp.asarray(LABELS))
  moved = np.asarray(fgsm(gradient, jnp.asarray(IMAGES), 0.2))
  np.testing.assert_allclose(moved, np.clip(IMAGES + 0.2 * np.sign(gradient), 0, 1), atol=1e-6)
  assert moved.min() >= 0
  assert moved.max() <= 1
  before, after = (losses(apply(WEIGHTS, x), LABELS, "cross-entropy") for x in (IMAGES, moved))
  assert np.mean(after) > np.mean(before)


def test_gradients_are_each_images_own():
  network = lambda x: apply(WEIGHTS, x)  # noqa: E731
  together = input_gradient(network, jnp.asarray(IMAGES), jnp.asarray(LABELS))
  single = input_gradient(network, jnp.asarray(IMAGES[2:3]), jnp.asarray(LABELS[2:3]))
  np.testing.assert_allclose(together[2:3], single, rtol=1e-5)


def test_losses():
  logits = jnp.asarray([[3.0, 1.0, 2.0], [0.0, 5.0, 5.5]])
  labels = jnp.asarray([0, 1])
  np.testing.assert_allclose(losses(logits, labels, "margin"), [-1.0, 0.5])
  expected = -np.log(jax.nn.softmax(logits))[[0, 1], [0, 1]]
  np.testing.assert_allclose(losses(logits, labels, "cross-entropy"), expected, rtol=1e-6)


@pytest.mark.parametrize("epsilon", [0.05, 0.3])
def test_pgd_stays_within_epsilon_and_beats_one_step(epsilon):
  attacker = Attacker(apply, WEIGHTS, IMAGES, LABELS, batch_size=4)  # 11 is no multiple
  moved = attacker.pgd(epsilon, seed=3)
  assert np.abs(moved - IMAGES).max() <= epsilon + 1e-6
  assert moved.min() >= 0
  assert moved.max() <= 1
  one = np.asarray(fgsm(jnp.asarray(attacker.gradients()), jnp.asarray(IMAGES), epsilon))
  assert attacker.right(moved).sum() <= attacker.right(one).sum()
  np.testing.assert_array_equal(moved, attacker.pgd(epsilon, seed=3))


def test_a_step_of_pgd_is_an_eighth_of_epsilon():
  network = lambda x: apply(WEIGHTS, x)  # noqa: E731
  images = jnp.asarray(0.5 + 0.1 * IMAGES)
  moved = pgd_step(network, images, images, jnp.asarray(LABELS), 0.4)
  np.testing.assert_allclose(np.abs(moved - images), 0.05, atol=1e-6)


def test_images_that_are_wrong_from_the_start_stay_wrong():
  labels = (LABELS + 1) % 3  # all but one are wrong
  attacker = Attacker(apply, WEIGHTS, IMAGES, labels, batch_size=4)
  before = attacker.right(IMAGES)
  assert not attacker.right(attacker.pgd(0.3))[~before].any()


def test_projection():
  far = jnp.asarray([0.9, -2.0, 0.5])
  np.testing.assert_allclose(project(jnp.asarray([0.5, 0.05, 0.5]), far, 0.1), [0.6, 0.0, 0.5])


def test_batches_cover_every_image_once():
  attacker = Attacker(apply, WEIGHTS, IMAGES, LABELS, batch_size=4)
  expected = np.asarray(jnp.argmax(apply(WEIGHTS, IMAGES), axis=-1)) == LABELS
  np.testing.assert_array_equal(attacker.right(IMAGES), expected)
  assert attacker.gradients().shape == IMAGES.shape


def test_filters_are_paired_with_what_they_are_like():
  filters = RNG.normal(size=(5, 5, 1, 6))
  order = [3, 0, 5, 1, 4, 2]
  others = 2 * filters[..., order] + 1.0  # neither scale nor mean matter
  partners, correlations = match(filters, others)
  assert [order[partner] for partner in partners] == list(range(6))
  np.testing.assert_allclose(correlations, 1.0)


def test_how_like_filters_are_by_the_seeds_that_they_start_from():
  def filters(*values):
    rows = {}
    for arm, weights in zip(STUDIES["filters"].arms, values, strict=True):
      for seed, each in enumerate(weights):
        spec = Filters(arm, seed)
        rows[identity(spec)] = {"spec": {"seed": seed}, "filters": each.tolist()}
    return Evidence(rows)

  starts = RNG.normal(size=(2, 5, 5, 1, 6))
  text = sentence(filters(starts, 3 * starts))
  assert "is 1.00 of a CNN and a KNN that start from the same weights (2 seeds)" in text
  other = float(text.split("and ")[-1].split(" of")[0])
  assert 0.0 < other < 0.6  # by chance
  assert "(2 pairs of seeds)" in text
  assert sentence(filters(starts[:1], starts[:1])) == ""
