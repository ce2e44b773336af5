"""Feeds: batches that depend on their step alone, and tests in which every example counts once."""

import itertools

import jax
import numpy as np
import pytest

pytest.importorskip("optax", reason="experiments need: pip install '.[experiments]'")

from experiments import UsageError
from experiments.data import epoch_order
from experiments.data.feeds import MemoryFeed


def images(number):
  return jax.device_put((np.zeros((number, 2, 2, 1), np.uint8), np.arange(number, dtype=np.int32)))


def feed(**options):
  return MemoryFeed(images(23), images(11), batch_size=5, seed=3, **options)


def ids(batches, steps):
  return [batch.ids.tolist() for batch in itertools.islice(batches, steps)]


def test_epochs_follow_each_other():
  orders = np.concatenate([epoch_order(23, 5, seed=3, epoch=epoch) for epoch in range(3)])
  assert feed().steps_per_epoch == 4
  assert ids(feed().train_batches(0), 11) == orders[:11].tolist()


@pytest.mark.parametrize("start", [1, 3, 4, 5, 9])
def test_a_feed_begins_at_any_step(start):
  assert ids(feed().train_batches(start), 6) == ids(feed().train_batches(0), start + 6)[start:]


@pytest.mark.parametrize(("batch_size", "devices"), [(4, 1), (4, 2), (5, 3), (1, 4), (100, 2)])
def test_every_example_counts_once_in_batches_that_devices_can_share(batch_size, devices):
  batches = list(feed(devices=devices).test_batches(batch_size))
  counted = np.concatenate([batch.ids[batch.mask] for batch in batches])
  assert sorted(counted.tolist()) == list(range(11))
  assert {len(batch.ids) % devices for batch in batches} == {0}


def test_images_in_memory_have_no_pieces():
  with pytest.raises(UsageError, match=r"`--crops` must be 1 for images .*, got 10"):
    feed().test_batches(4, crops=10)
