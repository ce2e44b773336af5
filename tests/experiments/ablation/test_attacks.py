"""Attacks stay where they must, and do what they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.ablation import plan, tables
from experiments.ablation.attacked import PAPER_ATTACKED, signs_of_masking
from experiments.ablation.claims import OURS, PAPER, find
from experiments.ablation.evidence import Evidence
from experiments.ablation.protocol import MNIST, Filters, Protocol
from experiments.ablation.rows import Rows
from experiments.ablation.study import ATTACKED, STUDIES
from experiments.common.statistics import match
from experiments.engine.attacks import Attacker, fgsm, input_gradient, losses, pgd_step, project
from tests.experiments.ablation.rows import attack

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


PAPERS = Protocol(data=MNIST)


def test_how_like_filters_are_by_the_seeds_that_they_start_from(tmp_path):
  rows = Rows(tmp_path, PAPERS)

  def filters(*values):
    made = [
      rows.row(Filters(arm, seed), {"filters": each.tolist()})
      for arm, weights in zip(STUDIES["filters"].arms, values, strict=True)
      for seed, each in enumerate(weights)
    ]
    return Evidence({row["id"]: row for row in made}, PAPERS)

  starts = RNG.normal(size=(2, 5, 5, 1, 6))
  text = tables.alike(filters(starts, 3 * starts))
  assert "is 1.00 of a CNN and a kervolutional network that start from the same weights (2" in text
  other = float(text.split("and ")[-1].split(" of")[0])
  assert 0.0 < other < 0.6  # by chance
  assert "(2 pairs of seeds)" in text
  assert tables.alike(filters(starts[:1], starts[:1])) == ""


def attacked(tmp_path, factors, change=lambda row: None):
  """Evidence of attacks on three seeds of each network."""
  rows, made = Rows(tmp_path, PAPERS), {}
  for arm in ATTACKED:
    for seed in range(3):
      row = rows.row(
        plan.attack(arm, seed), attack(plan.attack(arm, seed), factors[arm] + 0.01 * seed)
      )
      change(row)
      made[row["id"]] = row
  return Evidence(made, PAPERS)


def test_robustness_is_compared_where_the_cnn_has_the_papers_accuracy(tmp_path):
  found = attacked(tmp_path, {"cnn": 1.0, "l1": 0.8, "l2": 1.2})
  values = found.measured("cnn", "fgsm")
  np.testing.assert_allclose(np.mean(list(values.values())), PAPER_ATTACKED["cnn"], atol=1e-9)
  about = {(c.rule, c.ours, c.theirs): c for c in (*PAPER, *OURS)}
  for rule in ("fgsm", "pgd"):
    better, worse = (find(about[rule, (arm,), ("cnn",)], found, False) for arm in ("l1", "l2"))
    assert better.yes < 0.05 < better.no
    assert worse.no < 0.05 < worse.yes
    assert find(about[rule, ("l1",), ("cnn",)], found, True) is None


def test_signs_of_masked_gradients(tmp_path):
  same = dict.fromkeys(ATTACKED, 1.0)

  def signs(change, arm="l1"):
    found = attacked(tmp_path, same, change)
    return signs_of_masking({name: found.runs(name, kind="attack") for name in ATTACKED}, arm)

  assert signs(lambda row: None) == []

  def by_transfer(row):
    if row["spec"]["arm"] == "cnn":
      row["transfer"]["l1"]["fgsm"]["0.2"] = 0.0

  assert signs(by_transfer) == []  # steps of its own leave nothing either

  def weak(row):
    by_transfer(row)
    if row["spec"]["arm"] == "l1":
      row["white_box"] = {"fgsm": {"0.0": 0.99, "0.3": 0.05}, "pgd": {"0.2": 0.02, "0.3": 0.0}}

  text = "FGSM made for CNN leaves 0.0 %, the strongest of its own 2.0 % at epsilon 0.2"
  assert signs(weak) == [text]
  assert signs(weak, "l2") == []

  def change(row, kind, epsilon, value):
    if row["spec"]["arm"] == "l1":
      row["white_box"][kind][epsilon] = value

  (sign,) = signs(lambda row: change(row, "pgd", "0.1", 0.95))
  assert sign.startswith("PGD leaves 95.0 %")
  found = signs(lambda row: [change(row, kind, "0.3", 0.5) for kind in ("pgd", "fgsm")])
  assert "PGD at epsilon 0.3 leaves 50.0 %" in found
  flat = signs(lambda row: row["gradients"].update(images_without=0.2))
  assert flat == ["the gradient of 20.0 % of the images is 0"]


def test_images_are_compared_on_the_network_that_they_are_shown_to(tmp_path):
  """Here the weak one is of seed 1, and images made for the CNN fool it as much as its own."""

  def change(row):
    if row["spec"]["arm"] == "l1" and row["spec"]["seed"] == 1:
      row["white_box"] = {
        kind: {epsilon: value and value - 0.5 for epsilon, value in curve.items()}
        for kind, curve in row["white_box"].items()
      }
    if row["spec"]["arm"] == "cnn" and row["spec"]["target_seed"] == 1:
      for curve in row["transfer"]["l1"].values():
        curve.update({epsilon: value - 0.45 for epsilon, value in curve.items()})

  found = attacked(tmp_path, dict.fromkeys(ATTACKED, 1.0), change)
  attacks = {name: found.runs(name, kind="attack") for name in ATTACKED}
  assert not any("made for" in sign for sign in signs_of_masking(attacks, "l1"))
  del attacks["l1"][2]
  assert signs_of_masking(attacks, "l1") is None
