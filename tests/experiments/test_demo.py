import dataclasses
import io
import json
import re
import shlex
import subprocess
import sys

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

optax = pytest.importorskip("optax", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")
pytest.importorskip("rich", reason="needs the extra 'experiments'")
pytest.importorskip("matplotlib", reason="needs the extra 'experiments'")

from rich.console import Console  # noqa: E402

from experiments import data, demo  # noqa: E402
from experiments.__main__ import main  # noqa: E402
from experiments.common import figures  # noqa: E402
from experiments.engine import fit  # noqa: E402
from experiments.engine import trainer as training  # noqa: E402
from experiments.engine.step import Learner  # noqa: E402
from experiments.engine.trainer import Trainer  # noqa: E402
from experiments.engine.vmapped import VmappedTrainer  # noqa: E402
from kerv_jax.models import lenet5  # noqa: E402

CLASSES = 3


class Small(nn.Module):
  """A network that compiles fast."""

  @nn.compact
  def __call__(self, x):
    return nn.Dense(CLASSES)(nn.softplus(nn.Dense(8)(x.reshape(len(x), -1))))


def blobs(number, seed):
  """Noisy 12x12 images with a bright square whose place is the class."""
  rng = np.random.default_rng(seed)
  labels = rng.permutation(np.arange(number) % CLASSES).astype(np.int32)
  images = rng.integers(0, 60, (number, 12, 12, 1))
  for image, label in zip(images, labels, strict=True):
    image[4 * label : 4 * label + 4, 2:8] += 190
  return data.Examples(images.astype(np.uint8), labels)


def trainer(**options):
  optimizer = optax.inject_hyperparams(optax.sgd)(0.0, momentum=0.9)
  return training.Trainer(Learner(Small(), optimizer), **options)


def arrays(train=66, test=23, test_seed=1):
  """A Keras-style data set; its sizes are no multiples of a batch."""
  first, second = blobs(train, 0), blobs(test, test_seed)
  return {
    "x_train": first.images[..., 0],
    "y_train": first.labels.astype(np.uint8),
    "x_test": second.images[..., 0],
    "y_test": second.labels.astype(np.uint8),
  }


@pytest.fixture
def npz(tmp_path):
  folder = tmp_path / "data"
  folder.mkdir()
  np.savez(folder / "mnist.npz", **arrays())
  return folder


# Training


def test_steps_are_sgd_with_momentum_on_images_in_0_1():
  examples = blobs(20, 0)
  runner = trainer()
  state = runner.init(3, (12, 12, 1), 0.05)
  params = jax.tree.map(jnp.copy, state.params)
  velocity = jax.tree.map(jnp.zeros_like, params)
  order = data.training_order(20, 6, seed=0, steps=5)

  def cross_entropy(params, indices):
    logits = Small().apply({"params": params}, examples.images[indices] / np.float32(255))
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(6), examples.labels[indices]])

  wanted = []
  for indices in order:
    loss, gradient = jax.value_and_grad(cross_entropy)(params, indices)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradient)
    params = jax.tree.map(lambda p, v: p - 0.05 * v, params, velocity)
    wanted.append(loss)
  state, losses, seconds = runner.run(state, data.picks(training.to_device(examples), order))
  np.testing.assert_allclose(losses, wanted, rtol=1e-5)
  chex.assert_trees_all_close(state.params, params, rtol=1e-4, atol=1e-6)
  assert state.step == 5
  assert seconds > 0


def test_both_loops_give_the_same_result():
  examples = training.to_device(blobs(40, 0))
  order = data.training_order(40, 7, seed=0, steps=12)
  results = []
  for loop in ("python", "scan"):
    runner = trainer(loop=loop)
    state = runner.init(0, (12, 12, 1), 0.1)
    state, first, _ = runner.run(state, data.picks(examples, order[:9]))
    state, last, _ = runner.run(state, data.picks(examples, order[9:]))
    results.append((state.params, np.concatenate([first, last])))
  assert np.ptp(results[0][1]) > 0.1
  chex.assert_trees_all_close(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("backend", "loop"), [("cpu", "python"), ("gpu", "scan"), ("tpu", "scan")])
def test_loop_is_chosen_by_the_backend(monkeypatch, backend, loop):
  monkeypatch.setattr(jax, "default_backend", lambda: backend)
  assert trainer().loop.name == loop


def test_seeds_and_learning_rates_share_programs():
  runner, examples = trainer(), training.to_device(blobs(20, 0))
  order = data.training_order(20, 5, seed=0, steps=8)

  def last_loss(seed, rate):
    state = runner.init(seed, (12, 12, 1), rate)
    return runner.run(state, data.picks(examples, order))[1][-1]

  first = last_loss(0, 0.01)
  spent = runner.compile_seconds
  assert spent > 0
  assert len({float(first), float(last_loss(0, 0.3)), float(last_loss(1, 0.01))}) == 3
  assert last_loss(0, 0.01) == first
  assert runner.compile_seconds == spent


@pytest.mark.parametrize("batch_size", [1, 5, 8, 23, 1000])
def test_evaluation_counts_every_example_once(batch_size):
  examples, runner = blobs(23, 5), trainer()
  state = runner.init(1, (12, 12, 1), 0.1)
  params = state.params

  def hits_and_losses():
    logits = Small().apply({"params": params}, examples.images / np.float32(255))
    losses = -np.asarray(jax.nn.log_softmax(logits))[np.arange(23), examples.labels]
    return np.asarray(jnp.argmax(logits, axis=-1)) == examples.labels, losses

  examples = examples[np.argsort(hits_and_losses()[0])]
  hits, losses = hits_and_losses()
  assert hits[-1]  # so that it shows if the padding, made of the last example, is counted
  assert 0 < hits.mean() < 1
  score = runner.evaluate(state, data.each_once(training.to_device(examples), batch_size))
  assert score.accuracy == pytest.approx(hits.mean(), abs=1e-9)
  assert score.loss == pytest.approx(losses.mean(), rel=1e-5)


def run_fit(rate, steps=60, eval_every=25, spoil=False):
  runner, taken = trainer(), []
  state = runner.init(0, (12, 12, 1), rate)
  if spoil:
    state = state.replace(params=jax.tree.map(lambda p: p * jnp.nan, state.params))
  train, test = training.to_device(blobs(60, 0)), training.to_device(blobs(23, 1))
  order = data.training_order(60, 10, seed=0, steps=steps)
  state, curve = fit.fit(
    runner, state, train, test, order, eval_every=eval_every, on_progress=taken.append
  )
  return state, curve, taken, runner.evaluate(state, data.each_once(train))


def test_fit_learns_and_follows_the_accuracy():
  state, curve, taken, on_train = run_fit(0.1)
  assert curve.steps == [0, 25, 50, 60]
  assert taken == [25, 25, 10]
  assert state.step == 60
  assert curve.accuracy[0] < 0.7
  assert curve.accuracy[-1] > 0.95
  assert on_train.loss < 0.2
  assert curve.seconds[0] == 0
  assert np.all(np.diff(curve.seconds) > 0)
  assert curve.diverged_at is None


def test_first_evaluation_at_a_target_counts():
  curve = fit.Curve([0, 10, 20, 30], [0.0, 0.5, 1.0, 1.5], [0.1, 0.9, 0.8, 0.95])
  assert curve.reaches(0.9) == (10, 0.5)
  assert curve.reaches(0.95) == (30, 1.5)
  assert curve.reaches(0.96) is None


def test_run_that_diverges_stops_and_says_when():
  _, curve, taken, _ = run_fit(1e38)
  assert curve.diverged_at is not None
  assert 0 < curve.diverged_at < 25
  assert curve.steps == [0]
  assert taken == []


def test_run_that_starts_from_nan_has_diverged():
  _, curve, taken, on_train = run_fit(0.1, spoil=True)
  assert curve.diverged_at == 0
  assert curve.accuracy == [0.0]  # NaN is no prediction, not even of class 0
  assert taken == []
  assert on_train.accuracy == 0


@pytest.mark.parametrize("loop", ["python", "scan"])
@pytest.mark.usefixtures("promotion")
def test_runs_together_are_each_alone(loop):
  """Each with its seed, rate, order, part of the data, marks and, the last one, end."""
  train, test = training.to_device(blobs(60, 0)), training.to_device(blobs(23, 1))
  runs = [(0, 0.1), (1, 0.02), (2, np.inf)]
  rng = np.random.default_rng(0)
  orders = np.stack([data.training_order(60, 10, seed=seed, steps=30) for seed, _ in runs], axis=1)
  subsets = np.stack([rng.permutation(23)[:17] for _ in runs])

  def marks(curve):
    return 7 if curve.accuracy[-1] < 0.9 else 4

  with jax.enable_x64(True):
    learner = Learner(Small(), trainer().learner.optimizer, dtype=jnp.float64)
    together = VmappedTrainer(learner, loop=loop)
    states = together.init([seed for seed, _ in runs], (12, 12, 1), [rate for _, rate in runs])
    states, curves = fit.fit_together(
      together, states, train, test, orders, subsets, eval_every=marks
    )
    scores = together.evaluate(states, test, subsets, batch_size=5)
    for number, (seed, rate) in enumerate(runs):
      alone = Trainer(learner)
      own = training.to_device(blobs(23, 1)[subsets[number]])
      state = alone.init(seed, (12, 12, 1), rate)
      state, curve = fit.fit(alone, state, train, own, orders[:, number], eval_every=marks)
      assert (curves[number].steps, curves[number].accuracy) == (curve.steps, curve.accuracy)
      assert curves[number].diverged_at == curve.diverged_at
      assert (curve.diverged_at is not None) == (rate == np.inf)
      if curve.diverged_at is None:
        assert scores[number].loss == pytest.approx(
          alone.evaluate(state, data.each_once(own)).loss, rel=1e-9
        )
        for leaf, leaves in zip(*map(jax.tree.leaves, (state.params, states.params)), strict=True):
          np.testing.assert_allclose(leaves[number], leaf, rtol=1e-8, atol=1e-12)
  assert curves[0].steps != curves[1].steps


# The demo


def options(npz, out, *more):
  return ["demo", "--data-dir", str(npz), "--out", str(out), "--batch-size", "10", *more]


def results(out):
  return json.loads((out / "results.json").read_text())


CONFIG = demo.DemoConfig(
  arms=("cnn", "gaussian"),
  epochs=2,
  batch_size=10,
  lrs=(1e20, 1e-6, 0.05),
  tune_steps=20,
  eval_every=5,
)


def run_demo(folder, **changes):
  config = dataclasses.replace(CONFIG, data_dir=str(folder), out=str(folder / "out"), **changes)
  buffer = io.StringIO()
  runs = demo.run(config, "the command", Console(file=buffer))
  return runs, json.loads((folder / "out" / "results.json").read_text()), buffer.getvalue()


@pytest.fixture(scope="module")
def example(tmp_path_factory):
  """A demo with two networks, and the folder that it read and wrote."""
  folder = tmp_path_factory.mktemp("demo")
  np.savez(folder / "mnist.npz", **arrays())
  return *run_demo(folder), folder


def test_demo_trains_every_arm_twice(example):
  runs, record, _, _ = example
  assert [(row["arm"], row["protocol"], row["learning_rate"]) for row in record["rows"]] == [
    ("cnn", "paper", 0.003),
    ("cnn", "tuned", 0.05),  # 1e20 diverges
    ("gaussian", "paper", 0.003),
    ("gaussian", "tuned", 0.05),
  ]
  for run, row, curve in zip(runs, record["rows"], record["curves"], strict=True):
    # convolutions, one position of 16 features, and three classes
    assert row["parameters"] == 156 + 2416 + 17 * 120 + 121 * 84 + 85 * 3
    assert row["test_accuracy"] == curve["accuracy"][-1]
    assert row["diverged_at"] is None
    assert curve["steps"] == [0, 5, 10, 12]  # 2 epochs of 66 // 10 steps
    assert np.all(np.diff(curve["seconds"]) > 0)
    steps = [step for step, x in zip(curve["steps"], curve["accuracy"], strict=True) if x >= 0.9]
    assert row["steps_to_0.90"] == (steps[0] if steps else None)
    assert run.filters.shape == (5, 5, 1, 6)
  assert np.any(runs[0].filters != runs[2].filters)


def test_demo_writes_figures_and_a_record(example):
  _, record, _, folder = example
  assert sorted(path.name for path in (folder / "out").iterdir()) == sorted(demo.FILES)
  for name in ("convergence.png", "filters.png"):
    content = (folder / "out" / name).read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(content) > 10_000
  assert record["command"] == "the command"
  assert record["seed"] == 0
  assert record["config"]["tune_steps"] == 20
  assert record["config"]["data_dir"] == str(folder)
  assert record["versions"]["jax"] == jax.__version__


def test_demo_prints_one_table(example):
  runs, _, printed, folder = example
  best = max(run.curve.accuracy[-1] for run in runs)
  error = 100 * np.sqrt(min(best, 22 / 23) * (1 - min(best, 22 / 23)) / 23)
  (line,) = [line for line in printed.splitlines() if line.startswith("One seed, 23 test images")]
  assert f"uncertain by about {error:.1f} points. In three seeds on all of MNIST no tuned" in line
  assert "66 to train, 23 to test" in printed
  assert f"{folder / 'out'}" in printed
  lines = [line.split() for line in printed.splitlines()]
  rows = [cells for cells in lines if cells[-1:] == ["15,031"]]
  labels = [["CNN", "paper"], ["CNN", "tuned"], ["Gaussian", "KNN", "paper"]]
  assert [cells[:-7] for cells in rows] == [*labels, ["Gaussian", "KNN", "tuned"]]
  assert [cells[-7] for cells in rows] == ["0.003", "0.05", "0.003", "0.05"]
  assert [cells[-6] for cells in rows] == [f"{run.curve.accuracy[-1]:.3f}" for run in runs]


def test_runs_repeat_and_the_test_set_has_no_part_in_them(example, tmp_path):
  other = arrays(test=31, test_seed=9)
  other["y_test"] = (other["y_test"] + 1) % CLASSES  # a network that learns does badly on it
  np.savez(tmp_path / "mnist.npz", **other)
  again, *_ = run_demo(tmp_path, arms=("cnn",))
  first, second = example[0][:2], again
  assert len(second) == 2
  for a, b in zip(first, second, strict=True):
    assert a.learning_rate == b.learning_rate
    np.testing.assert_array_equal(a.filters, b.filters)
  assert np.any(first[0].filters != first[1].filters)


def test_paper_arm_is_the_papers_protocol(example):
  optimizer = optax.inject_hyperparams(optax.sgd)(0.0, momentum=0.9)
  runner = training.Trainer(Learner(lenet5("conv-conv", num_classes=CLASSES), optimizer))
  order = data.training_order(66, 10, seed=0, steps=12)
  state = runner.init(0, (12, 12, 1), 0.003)
  state, *_ = runner.run(state, data.picks(training.to_device(blobs(66, 0)), order))
  np.testing.assert_allclose(
    example[0][0].filters, state.params["conv1"]["kernel"], rtol=1e-6, atol=1e-7
  )


def test_seed_decides(example, tmp_path):
  np.savez(tmp_path / "mnist.npz", **arrays())
  (other,), *_ = run_demo(tmp_path, arms=("cnn",), seed=1, tune=False)
  assert np.any(other.filters != example[0][0].filters)


def test_run_at_the_papers_rate_is_not_made_again(npz):
  (paper, tuned), record, _ = run_demo(npz, arms=("cnn",), lrs=(0.003,))
  assert (paper.protocol, tuned.protocol) == ("paper", "tuned")
  assert tuned.curve is paper.curve
  assert record["rows"][1] == record["rows"][0] | {"protocol": "tuned"}


def test_run_that_diverges_is_reported(npz):
  (paper, _), record, printed = run_demo(npz, arms=("cnn",), lrs=(1e30,))
  assert paper.curve.diverged_at is None
  row = record["rows"][1]
  assert row["diverged_at"] > 0
  assert row["test_accuracy"] is None
  assert f"diverged at step {row['diverged_at']}" in printed
  assert [
    line.split()[3] for line in printed.splitlines() if "1e+30" in line and "15,031" in line
  ] == ["NaN"]


def test_demo_is_a_command(npz, tmp_path):
  arguments = ["--data-dir", npz, "--out", tmp_path / "a" / "b", "--arms", "polynomial"]
  command = ["-m", "experiments", "demo", *map(str, arguments), "--no-tune", "--seed", "1"]
  done = subprocess.run(
    [sys.executable, "-W", "error", *command], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  assert str(tmp_path / "a" / "b") in done.stdout
  record = json.loads((tmp_path / "a" / "b" / "results.json").read_text())
  assert [(row["arm"], row["protocol"]) for row in record["rows"]] == [("polynomial", "paper")]
  assert record["seed"] == 1
  assert record["command"] == shlex.join(["python", *command])


def test_figures_bear_what_diverged(tmp_path):
  curve = fit.Curve([0], [0.0], [0.1], diverged_at=3)
  figures.convergence(tmp_path / "a.png", {"one": {"CNN": curve}, "two": {"KNN": curve}}, [0.9])
  weights = np.full((5, 5, 3, 6), np.nan, np.float32)
  figures.filters(tmp_path / "b.png", {"one": {"CNN": weights}})
  weights = np.full((5, 5, 3, 6), 3e38, np.float32)
  figures.filters(tmp_path / "c.png", {"one": {"CNN": weights}, "two": {"CNN": -weights}})
  for name in "abc":
    assert (tmp_path / f"{name}.png").stat().st_size > 5000


def test_filters_of_every_network_are_seen(tmp_path, monkeypatch):
  seen = []
  monkeypatch.setattr(figures.Figure, "savefig", lambda self, *_, **__: seen.append(self))
  weights = np.random.default_rng(0).normal(size=(5, 5, 1, 6))
  rows = {"CNN": weights, "KNN": 100 * weights}
  figures.filters(tmp_path / "a.png", {"one": rows, "two": {"CNN": weights / 7, "KNN": weights}})
  peaks = np.tile(np.abs(weights).max((0, 1, 2)), 4) * np.repeat([1, 100, 1 / 7, 1], 6)
  for axis, peak in zip(seen[0].axes, peaks, strict=True):
    assert axis.images[0].get_clim() == pytest.approx((-peak, peak))
    assert axis.get_xlabel() == f"±{peak:.2g}"


def test_progress_is_a_bar_on_a_terminal(npz):
  buffer = io.StringIO()
  console = Console(file=buffer, force_terminal=True, width=100)
  demo.run(
    dataclasses.replace(CONFIG, data_dir=str(npz), out=str(npz / "out"), arms=("cnn",), tune=False),
    console=console,
  )
  assert "\u2501" in buffer.getvalue()
  assert "CNN, paper, lr 0.003" in buffer.getvalue()


@pytest.mark.parametrize(
  ("more", "message"),
  [
    (["--epochs", "0"], "`--epochs` must be at least 1, got 0"),
    (["--tune-steps", "-3"], "`--tune-steps` must be at least 1, got -3"),
    (["--eval-every", "0"], "`--eval-every` must be at least 1, got 0"),
    (["--batch-size", "0"], "`--batch-size` must be at least 1, got 0"),
    (["--batch-size", "61"], "`--batch-size` must be at most 60, .*got 61"),
    (["--batch-size", "67", "--no-tune"], "`--batch-size` must be at most 66, .*got 67"),
    (["--seed", "4294967296"], "`--seed` must be at most 4294967295, got 4.295e"),
    (["--epochs", "1" + "0" * 400], "`--epochs` must be at most 2147483647, got one of 401 digits"),
    (["--lrs", "1e-60"], "`--lrs` must be 0, or from 1.2e-38 to 3.4e"),
    (["--seed", "-1"], "`--seed` must be at least 0, got -1"),
    (["--arms"], r"`--arms` must be one or more.*cnn, polynomial.*got \[\]"),
    (["--arms", "cnn", "cnn"], r"`--arms` must be .*each once.*got \['cnn', 'cnn'\]"),
    (["--lrs"], r"`--lrs` must be one or more positive numbers, got \[\]"),
    (["--lrs", "0.1", "0"], r"`--lrs` must be .*got \[0.1, 0.0\]"),
    (["--lrs", "nan"], r"`--lrs` must be .*got \[nan\]"),
    (["--data-dir", "/nowhere.npz"], "`--data-dir` must be .*got '/nowhere.npz'"),
    (["--out", __file__], "`--out` must be a folder.*got .*test_demo.py"),
  ],
)
def test_option_out_of_range_is_one_line_before_anything_is_done(
  npz, tmp_path, capsys, more, message
):
  out = tmp_path / "out"
  assert main(["demo", "--data-dir", str(npz), "--out", str(out), *more]) == 2
  printed = capsys.readouterr()
  assert re.fullmatch(f"error: {message}.*\n", printed.err)
  assert printed.out == ""
  assert not out.exists()


def test_images_that_are_too_small_are_refused(npz, tmp_path, capsys):
  content = arrays()
  small = {key: content[key][:, :11] for key in ("x_train", "x_test")}
  np.savez(npz / "mnist.npz", **(content | small))
  assert main(["demo", "--data-dir", str(npz), "--out", str(tmp_path / "out")]) == 2
  assert "`--data-dir` must hold images of at least 12x12, got 11x12" in capsys.readouterr().err
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["demo", "--arms", "cnn", "quintic"], ["quintic", "--arms", "polynomial"]),
    (["demo", "--epoch", "3"], ["--epoch"]),
    (["demo", "--batchsize", "3"], ["--batchsize", "--batch-size"]),
    (["demo", "--epochs", "many"], ["--epochs", "many"]),
    (["demos"], ["demos", "demo"]),
    ([], ["demo"]),
  ],
)
def test_command_line_that_cannot_be_parsed_is_explained(capsys, arguments, words):
  with pytest.raises(SystemExit) as exit_:
    main(arguments)
  assert exit_.value.code == 2
  printed = capsys.readouterr().err
  for word in words:
    assert word in printed


def test_help_lists_every_option(capsys):
  with pytest.raises(SystemExit) as exit_:
    main(["demo", "--help"])
  assert exit_.value.code == 0
  printed = capsys.readouterr().out
  for name in ("data-dir", "out", "arms", "epochs", "batch-size", "no-tune", "lrs", "seed"):
    assert f"--{name}" in printed


def test_missing_extra_is_explained(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "tyro", None)
  assert main(["demo"]) == 2
  assert "pip install '.[experiments]'" in capsys.readouterr().err
