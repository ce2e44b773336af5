"""What runs do, alone and together, and what their rows say."""

import dataclasses
import shlex
from typing import Any

import jax
import numpy as np
import optax
import pytest
import tyro

from experiments import UsageError, __main__
from experiments.ablation.command import AblationCommand
from experiments.ablation.perform import Job, perform
from experiments.ablation.pool import groups
from experiments.ablation.protocol import (
  Attack,
  Filters,
  Protocol,
  Training,
  command,
)
from experiments.ablation.rows import Rows
from experiments.ablation.train import (
  first_gradient,
  make_optimizer,
  matched_rate,
  next_evaluation,
  train,
)
from experiments.common import parameters
from experiments.common.curve import Curve
from experiments.data import Dataset, Examples, Normalisation
from experiments.engine.optim import SGDConfig
from experiments.engine.optim import make_optimizer as reference_optimizer
from experiments.engine.step import Learner
from tests.experiments.ablation.jobs import OPTIONS, TINY, job, perform_one
from tests.runs import blobs


def test_the_optimizer_is_that_of_the_engine_with_its_rate_in_the_state():
  params = {"a": np.float32([1.0, -2.0]), "b": np.float32(0.5)}
  config = SGDConfig(learning_rate=0.03, milestones=(2.0, 3.0))
  theirs = reference_optimizer(config, steps_per_epoch=2, total_steps=8)
  ours = make_optimizer(8)
  states = [theirs.init(params), optax.tree.set(ours.init(params), learning_rate=0.03)]
  rng = np.random.default_rng(0)
  for step in range(8):
    gradient = {"a": rng.normal(size=2).astype(np.float32), "b": np.float32(rng.normal())}
    updates = []
    for number, optimizer in enumerate((theirs, ours)):
      update, states[number] = optimizer.update(gradient, states[number], params)
      updates.append(update)
    for one, other in zip(*map(jax.tree.leaves, updates), strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=str(step))


def test_evaluations_are_frequent_until_the_target_is_reached():
  def steps(accuracies):
    curve = Curve([0], [0.0], [0.1])
    while curve.steps[-1] < 60:
      curve.steps.append(curve.steps[-1] + next_evaluation(curve, 12, 0.98))
      curve.seconds.append(0.0)
      curve.accuracy.append(accuracies(curve.steps[-1]))
    return curve.steps

  first = [*range(12)]
  assert steps(lambda step: 0.99) == [*first, *range(12, 37, 2), 48, 60]
  assert steps(lambda step: 0.99 if step > 40 else 0.5) == [*first, *range(12, 43, 2), 48, 60]
  assert steps(lambda step: 0.5) == [*first, *range(12, 61, 2)]
  assert next_evaluation(Curve([0], [0.0], [0.1]), 12, 0.98, first=6) == 2


def test_a_first_gradient_is_that_of_the_step():
  from experiments.ablation.arms import arm

  images, labels = blobs(8, 0)
  # Without max pooling: of its ties, the compiler at its lowest effort loses some.
  learner = Learner(arm("linear-polynomial-polynomial").network(3), make_optimizer(10))
  norm = first_gradient(learner, 1, images, labels)
  init = jax.jit(learner.initial_state)
  state = init(np.uint32(1), np.zeros((1, 12, 12, 1)), np.float32(0.25))
  after, _ = jax.jit(learner.step)(state, images, labels, np.arange(8))
  moved = optax.tree.norm(jax.tree.map(lambda a, b: a - b, after.params, state.params))
  np.testing.assert_allclose(moved, 0.25 * norm, rtol=1e-3)
  double = Learner(learner.model, learner.optimizer, normalisation=Normalisation((0.0,), (0.5,)))
  rate, norms = matched_rate(
    Training("x", 1), {"own": learner, "y": double}, Examples(images, labels)
  )
  assert norms["own"] == norm != norms["y"]
  np.testing.assert_allclose(rate * norms["own"], 0.003 * norms["y"])


def test_the_test_set_has_no_part_in_a_search():
  train_set = Examples(*blobs(61, 0))
  spec = Training("cnn", 0, 0.05, search=True)
  nothing: Any = None
  ((one, _),) = train([spec], TINY, Dataset(train_set, nothing, "", 3))
  assert one["curve"]["steps"][-1] == 2 * (55 // 8)  # a tenth of each class is held out


def test_a_row_says_what_came_of_a_run(tiny, tmp_path):
  row, state = perform_one(job(tiny, tmp_path, Training("learnable", 1, 0.05)))
  assert state == "new"
  assert row["command"] == (
    "python -m experiments ablation run --arms learnable --seeds 1 --rate 0.05 --epochs 4 "
    f"--search-epochs 2 --batch-size 8 --data {shlex.quote(tiny[0])} --again"
  )
  assert len(row["epoch_accuracy"]) == 4
  assert row["epoch_accuracy"][-1] == row["accuracy"] == row["curve"]["accuracy"][-1]
  assert row["curve"]["steps"][-1] == 4 * row["steps_per_epoch"] == 28
  assert row["steps_to_target"] is None  # the target is known when all rows are there
  assert len(row["curve"]["steps"]) == 1 + 7 + 3 * 6  # in the first epoch after each step
  assert row["hyperparameters"]["conv1/balance"] != 1.0
  assert {"commit", "threads", "jax", "numpy"} <= row["environment"].keys()
  kept = parameters.load(tmp_path / "weights" / "learnable-rate0.05-seed1.npz", row["weights"])
  assert kept["conv1"]["kernel"].shape == (5, 5, 1, 6)
  assert str(tmp_path) not in (tmp_path / "rows" / "rows.jsonl").read_text()


def test_a_run_that_diverges_has_a_row(tiny, tmp_path):
  for arm in ("linear-cnn", "learnable"):
    row, _ = perform_one(job(tiny, tmp_path, Training(arm, 0, 1e6)))
    assert row["accuracy"] is None
    assert row["diverged_at"] is not None
    assert row["steps_to_target"] is None
    assert row["hyperparameters"] == {}


def test_there_is_nothing_to_see_in_a_network_that_diverged(tiny, tmp_path):
  made = job(tiny, tmp_path, Filters("linear-cnn", 0))
  rows = Rows(tmp_path / "rows", made.protocol)
  run = Training("linear-cnn", 0)
  perform(job(tiny, tmp_path, run))
  rows.add([rows.get(run) | {"diverged_at": 3}])
  with pytest.raises(UsageError, match=r"linear-cnn-rate0\.003-seed0 diverged"):
    perform(made)


def test_attacks_and_filters_train_what_is_not_there(tiny, tmp_path):
  spec = Attack("linear-cnn", 0, ("linear-cnn",), 1)
  row, state = perform_one(job(tiny, tmp_path, spec))
  assert state == "new"
  rows = Rows(tmp_path / "rows")
  trained = rows.get(Training("linear-cnn", 0))
  assert trained is not None
  assert rows.get(Training("linear-cnn", 1)) is not None
  assert row["accuracy"] == trained["accuracy"] == row["white_box"]["fgsm"]["0.0"]
  assert row["white_box"]["pgd"]["0.3"] <= row["white_box"]["fgsm"]["0.3"]
  assert len(row["transfer"]["linear-cnn"]["fgsm"]) == 13
  filters, _ = perform_one(job(tiny, tmp_path, Filters("linear-cnn", 0)))
  kept = parameters.load(
    tmp_path / "weights" / "linear-cnn-rate0.003-seed0.npz", trained["weights"]
  )
  np.testing.assert_array_equal(np.float32(filters["filters"]), kept["conv1"]["kernel"])
  # Weights that are not those of the row are made again.
  (tmp_path / "weights" / "linear-cnn-rate0.003-seed0.npz").write_bytes(b"damaged")
  again, state = perform_one(job(tiny, tmp_path, Filters("linear-cnn", 0)))
  assert state == "same"
  assert again == filters


def test_a_row_made_again_is_compared_and_stays(tiny, tmp_path):
  spec = Training("linear-cnn", 0)
  row, _ = perform_one(job(tiny, tmp_path, spec))
  assert perform_one(job(tiny, tmp_path, spec)) == (row, "same")
  rows = Rows(tmp_path / "rows")
  rows.add([row | {"accuracy": 0.5}])
  _, state = perform_one(job(tiny, tmp_path, spec))
  assert state == "other"
  kept = rows.get(spec)
  assert kept is not None
  assert kept["accuracy"] == 0.5


def test_all_that_is_read_off_a_run_is_compared(tiny, tmp_path):
  spec = Training("linear-cnn", 0)
  row, _ = perform_one(job(tiny, tmp_path, spec))
  rows = Rows(tmp_path / "rows")
  curve = {name: list(values) for name, values in row["curve"].items()}
  curve["accuracy"][3] += 0.01
  for wrong in ({"curve": curve}, {"steps_to_target": 7}, {"final_loss": 0.0}):
    rows.add([row | wrong])
    assert perform_one(job(tiny, tmp_path, spec))[1] == "other"
  # A row with fewer evaluations is compared where there are both.
  fewer = {name: values[::2] for name, values in row["curve"].items()}
  old = row | {"curve": fewer}
  for times in ({"seconds": 1.0}, {"steps_to_target": 8}):
    rows.add([old | times])
    assert perform_one(job(tiny, tmp_path, spec))[1] == "same"
  fewer["accuracy"][1] += 0.01
  rows.add([old])
  assert perform_one(job(tiny, tmp_path, spec))[1] == "other"


def test_the_command_of_a_row_makes_it_again_in_other_processes(tiny, tmp_path, capsys):
  file, _ = tiny
  where = ["--data", file, "--out", str(tmp_path / "rows"), "--weights", str(tmp_path / "w")]
  command = ["ablation", "no-relu", "--arms", "linear-cnn", "--seeds", "2", *OPTIONS, *where]
  assert __main__.main(command) == 0
  assert "[1/1] training: linear-cnn, rate 0.003, seed 2: accuracy" in capsys.readouterr().out
  (row,) = Rows(tmp_path / "rows").all().values()
  assert row["environment"]["threads"] == "1"
  assert __main__.main(command) == 0  # there already
  told = capsys.readouterr().out
  assert "training" not in told
  assert "all rows are there" in told
  words = shlex.split(row["command"])
  assert words[:3] == ["python", "-m", "experiments"]
  assert __main__.main([*words[3:], *where[2:]]) == 0
  assert "as in its row, bit for bit" in capsys.readouterr().out


def test_runs_that_differ_in_seed_or_in_a_searchs_rate_go_together():
  finals = [Training(arm, seed) for seed in range(3) for arm in ("cnn", "l1")]
  searches = [Training("cnn", 0, rate, search=True) for rate in (0.01, 0.1)]
  others = [Training("cnn", 0, 0.1), Attack("l1", 0, ("cnn",), 1), Filters("cnn", 0)]
  assert groups([*finals, *searches, *others], 2) == [
    [Training("cnn", 0), Training("cnn", 1)],
    [Training("cnn", 2)],
    [Training("l1", 0), Training("l1", 1)],
    [Training("l1", 2)],
    searches,
    *([other] for other in others),
  ]
  assert groups(finals, 1) == [[run] for run in finals]
  assert command(searches, Protocol()) == (
    "python -m experiments ablation run --arms cnn --seeds 0 --rate 0.01 0.1 --search --together 2 "
    "--again"
  )


def same_as_alone(specs):
  """The rows of runs trained together, compared with those of each alone."""
  data = Dataset(Examples(*blobs(61, 0)), Examples(*blobs(23, 1)), "", 3)
  rows = []
  for spec, (row, params) in zip(specs, train(specs, TINY, data), strict=True):
    ((alone, wanted),) = train([spec], TINY, data)
    assert row.keys() == alone.keys()
    for name in ("curve", "diverged_at", "learning_rate", "steps_per_epoch", "parameters"):
      assert row[name] == alone[name], (spec, name)
    if row["diverged_at"] is None:
      jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), params, wanted
      )
    rows.append((row, alone))
  return rows


def test_searches_trained_together_have_their_own_rates_and_ends():
  rates = 0.03, 1e6, 0.01
  rows = same_as_alone([Training("linear-cnn", 0, rate, search=True) for rate in rates])
  assert [row["diverged_at"] is None for row, _ in rows] == [True, False, True]
  first, _, last = (row["final_loss"] for row, _ in rows)
  assert first != last


def test_searches_of_other_seeds_trained_together_hold_out_their_own_examples():
  same_as_alone([Training("linear-cnn", seed, 0.03, search=True) for seed in (0, 2)])


def test_runs_trained_together_match_the_first_step_each_by_itself():
  rows = same_as_alone([Training("cnn-step-polynomial", seed) for seed in (1, 0)])
  for row, alone in rows:
    assert row["first_gradient"] == alone["first_gradient"]
  (first, _), (second, _) = rows
  assert first["learning_rate"] != second["learning_rate"]


def test_all_rows_of_runs_made_together_are_there_though_one_diverged(tiny, tmp_path):
  file, digest = tiny
  protocol = Protocol(**vars(TINY) | {"data": digest})
  specs = tuple(Training("learnable", 0, rate, search=True) for rate in (0.003, 1e6, 0.01))
  made = Job(specs, protocol, file, None, str(tmp_path / "rows"), str(tmp_path / "weights"))
  assert [state for _, _, state in perform(made)] == ["new"] * 3
  rows = Rows(tmp_path / "rows").all().values()
  assert {row["spec"]["rate"]: row["accuracy"] is None for row in rows} == {
    0.003: False,
    1e6: True,
    0.01: False,
  }
  assert {row["environment"]["together"] for row in rows} == {3}


@pytest.mark.parametrize("search", [False, True])
def test_a_run_that_is_stopped_is_the_beginning_of_a_whole_one(search):
  """Bit for bit, since milestones and order are those of the whole run."""
  data = Dataset(Examples(*blobs(61, 0)), Examples(*blobs(23, 1)), "", 3)
  spec = Training("linear-cnn", 1, 0.05, search)
  protocol = dataclasses.replace(TINY, search_epochs=4)
  (whole, _), (short, _) = (
    train([each], protocol, data)[0] for each in (spec, dataclasses.replace(spec, stop_after=3))
  )
  steps = short["curve"]["steps"]
  assert steps[-1] == 3 * short["steps_per_epoch"]
  assert whole["curve"]["steps"][: len(steps)] == steps
  assert whole["curve"]["accuracy"][: len(steps)] == short["curve"]["accuracy"]
  assert whole["weights"] != short["weights"]


def test_a_command_names_where_a_run_is_stopped():
  spec = Training("cnn", 1, 0.01, True, stop_after=3)
  words = shlex.split(command([spec], Protocol()))
  parsed = tyro.cli(AblationCommand, args=words[4:])
  parsed.check()
  (wanted,) = parsed.plans().values()
  assert wanted({}) == [spec]
