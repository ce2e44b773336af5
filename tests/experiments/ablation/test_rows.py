"""Rows and input that are refused, and rows added at the same time."""

import json
import threading

import numpy as np
import pytest

from experiments import UsageError
from experiments.ablation.perform import Job, perform
from experiments.ablation.protocol import (
  Attack,
  Filters,
  Protocol,
  Training,
  identity,
  kind,
  spec_from,
  values,
)
from experiments.ablation.rows import Rows
from experiments.common import parameters
from experiments.data import load_ordered
from tests.experiments.ablation.rows import training
from tests.runs import blobs


def test_the_same_examples_in_another_order_are_the_same_data(tmp_path):
  images, labels = blobs(61, 0)
  test = blobs(23, 1)
  order = np.random.default_rng(0).permutation(61)
  for name, (x, y) in {"a": (images, labels), "b": (images[order], labels[order])}.items():
    np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=test[0], y_test=test[1])
  (one, digest), (other, same) = (load_ordered(str(tmp_path / f"{n}.npz")) for n in "ab")
  assert digest == same
  np.testing.assert_array_equal(one.train.images, other.train.images)
  np.testing.assert_array_equal(one.train.labels, other.train.labels)
  y = labels.copy()
  y[0] = (y[0] + 1) % 3
  np.savez(tmp_path / "c.npz", x_train=images, y_train=y, x_test=test[0], y_test=test[1])
  assert load_ordered(str(tmp_path / "c.npz"))[1] != digest


def test_rows_of_another_protocol_are_refused(tmp_path):
  add_rows(tmp_path, 0, Protocol(data="a"))
  with pytest.raises(UsageError, match="`--epochs` was 20, now 3"):
    Rows(tmp_path, Protocol(epochs=3, data="a"))
  assert Rows(tmp_path).protocol == Protocol(data="a")
  with pytest.raises(UsageError, match="there are no rows"):
    Rows(tmp_path / "nothing")
  (tmp_path / "protocol.json").unlink()
  with pytest.raises(UsageError, match=r"there are rows but no protocol\.json in"):
    Rows(tmp_path)


@pytest.mark.parametrize("line", ["{", '{"id": "x"}', '{"id": "x", "kind": "y", "spec": {}}'])
def test_damaged_rows_are_refused(tmp_path, line):
  rows = Rows(tmp_path, Protocol())
  rows.add([rows.row(Training("cnn", 0), training())])
  with (tmp_path / "rows.jsonl").open("a") as stream:
    stream.write(line + "\n")
  with pytest.raises(UsageError, match="line 2"):
    rows.all()


def add_rows(folder, first, protocol=None):
  rows = Rows(folder, protocol or Protocol())
  for seed in range(first, first + 10):
    rows.add([rows.row(Training("cnn", seed), training())])


def test_rows_are_added_at_the_same_time(tmp_path):
  threads = [threading.Thread(target=add_rows, args=(tmp_path, n)) for n in (0, 10)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  rows = Rows(tmp_path).all()
  assert sorted(row["spec"]["seed"] for row in rows.values()) == list(range(20))


def test_identities_survive_json():
  stopped = Training("cnn", 1, stop_after=3)
  for spec in (
    stopped,
    Training("cnn", 1, 0.1, True),
    Attack("l1", 0, ("cnn", "l2"), 1),
    Filters("cnn", 2),
  ):
    assert spec_from(kind(spec), json.loads(json.dumps(values(spec)))) == spec
  assert (
    len({identity(s) for s in (stopped, Training("cnn", 1), Training("cnn", 1, search=True))}) == 3
  )


def test_data_of_another_digest_are_refused(tiny, tmp_path):
  wrong = Job((Training("cnn", 0),), Protocol(data="other"), tiny[0], None, str(tmp_path), "w")
  with pytest.raises(UsageError, match="other examples"):
    perform(wrong)


def test_weights_of_another_digest_are_not_used(tmp_path):
  params = {"conv1": {"kernel": np.ones((2, 2), np.float32)}}
  parameters.save(tmp_path / "w.npz", params)
  assert parameters.load(tmp_path / "w.npz", "0" * 64) is None
  assert parameters.load(tmp_path / "none.npz", "0" * 64) is None
