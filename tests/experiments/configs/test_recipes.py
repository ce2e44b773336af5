"""CIFAR in minutes: its options, and runs with tiny numbers."""

import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")

from rich.console import Console

from experiments import UsageError
from experiments.configs import build
from experiments.configs.config import RunConfig, from_dict
from experiments.configs.presets import PRESETS
from experiments.data import Augmentation, augment
from experiments.data.views import views_of
from experiments.engine.layout import Layout
from experiments.engine.optim import SGDConfig, learning_rate_at
from experiments.runs import run
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.evaluation import evaluate
from tests import runs

RECIPE = PRESETS["fast-cifar10-polynomial"].config


def small(folder, out, *, epochs=2, **options):
  """The recipe on noisy squares, with a network of a few features."""
  config = dataclasses.replace(
    RECIPE,
    epochs=epochs,
    model=dataclasses.replace(RECIPE.model, widths=(8, 8, 8)),
    data=dataclasses.replace(
      RECIPE.data, name=runs.write_data(folder), batch_size=8, validation=13
    ),
    eval=dataclasses.replace(RECIPE.eval, batch_size=10),
    run=RunConfig(out=str(out)),
  )
  return dataclasses.replace(config, **options)


def train(config):
  text = io.StringIO()
  run.train(config, console=Console(file=text, width=500))
  return text.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp("recipe")
  return folder, train(small(folder, folder / "whole"))


def test_run_that_is_stopped_and_goes_on_has_the_same_bits(trained):
  folder, _ = trained
  config = small(folder, folder / "parts")
  train(dataclasses.replace(config, run=RunConfig(out=config.run.out, stop_after=1)))
  train(config)
  files = [(folder / name / "metrics.jsonl").read_bytes() for name in ("whole", "parts")]
  assert files[0] == files[1]
  parts = build.build(config, Layout())
  states = []
  for name in ("whole", "parts"):
    checkpoints = Checkpoints(folder / name, Layout(), read_only=True)
    states.append(checkpoints.restore(parts.trainer.shapes(parts.image_shape)).state)
    checkpoints.close()
  for one, other in zip(*map(jax.tree.leaves, states), strict=True):
    np.testing.assert_array_equal(one, other)
  before = parts.trainer.init(config.seed, parts.image_shape).params
  kernels = [params["whitening"]["kernel"] for params in (before, states[0].params)]
  np.testing.assert_array_equal(*kernels)
  assert np.any(before["whitening"]["bias"] != states[0].params["whitening"]["bias"])


def test_best_is_chosen_by_validation_and_said(trained):
  folder, printed = trained
  assert "48 to train, 13 to validate, 23 to test (each shifted)" in printed
  assert "chosen by validation examples" in printed
  rows = [
    json.loads(line) for line in (folder / "whole" / "metrics.jsonl").read_text().splitlines()
  ]
  kept = json.loads((folder / "whole" / "summary.json").read_text())["best_step"]
  best = max(row["validation_accuracy"] for row in rows)
  assert [row["validation_accuracy"] for row in rows if row["step"] == kept] == [best]
  result = evaluate(folder / "whole")
  assert result["views"] == "shifted"
  assert result["accuracy"] == rows[-1]["test_accuracy"]


def test_best_by_the_test_set_is_said(tmp_path):
  printed = train(runs.config(runs.write_data(tmp_path), tmp_path / "run", epochs=1))
  assert "chosen by the test set: its accuracy is no honest estimate" in printed


def test_validation_is_apart_from_training_and_the_same_for_every_seed(tmp_path):
  whole = build.load(runs.config(runs.write_data(tmp_path), tmp_path))
  config = small(tmp_path, tmp_path)
  parts = build.load(config)
  other = build.load(dataclasses.replace(config, seed=9))
  np.testing.assert_array_equal(parts.validation.images, other.validation.images)
  assert (len(parts.train), len(parts.validation)) == (48, 13)
  both = np.concatenate([parts.train.images, parts.validation.images])
  assert {image.tobytes() for image in both} == {image.tobytes() for image in whole.train.images}
  assert build.fingerprint(parts) != build.fingerprint(whole)


@pytest.mark.parametrize(
  ("part", "change", "message"),
  [
    ("data", {"validation": 61}, "`--data.validation` must be below 61, got 61"),
    ("data", {"validation": 0}, "`--data.validation` must be at least 1, got 0"),
    ("data", {"flip": False}, "`--data.flip-mode` alternating needs `--data.flip`"),
    ("model", {"widths": (8, 8)}, "`--model.widths` must be three numbers"),
    ("model", {"name": "resnet8"}, "`--model.widths` is for fastnet alone"),
    ("model", {"remat": True}, "`--model.remat` must be off for fastnet"),
    ("optim", {"lookahead": 0}, "`--optim.lookahead` must be at least 1, got 0"),
    (
      "optim",
      {"warmup_epochs": 1.0},
      "`--optim.warmup-epochs` must be 0 for the schedule triangle",
    ),
  ],
)
def test_options_that_do_not_suit_are_refused(tmp_path, part, change, message):
  config = small(tmp_path, tmp_path / "out")
  changed = dataclasses.replace(getattr(config, part), **change)
  with pytest.raises(UsageError, match=message):
    build.build(dataclasses.replace(config, **{part: changed}), Layout())


def test_configuration_of_an_older_run_is_read():
  values = json.loads(json.dumps(dataclasses.asdict(PRESETS["lenet5-mnist-cnn"].config)))
  for part, names in {
    "data": ("validation", "flip_mode"), "eval": ("views",), "model": ("widths",),
    "optim": ("groups", "lookahead"),
  }.items():  # fmt: skip
    for name in names:
      del values[part][name]
  assert from_dict(values) == PRESETS["lenet5-mnist-cnn"].config


def test_triangle_goes_up_and_down():
  config = SGDConfig(learning_rate=2.0, schedule="triangle")
  rates = [
    learning_rate_at(config, step, steps_per_epoch=10, total_steps=100) for step in (0, 23, 100)
  ]
  assert rates == pytest.approx([0.4, 2.0, 0.14])
  assert learning_rate_at(config, 0, steps_per_epoch=2, total_steps=2) == pytest.approx(2.0)


def test_mirroring_alternates_between_epochs():
  images = np.random.default_rng(0).integers(0, 256, (40, 5, 6, 3)).astype(np.uint8)
  augmentation = Augmentation(flip=True, alternate=3)
  step = jax.jit(
    lambda step: augment(augmentation, images, jax.random.key(1), step, jnp.arange(40))
  )
  shown = [np.asarray(step(at)) for at in (0, 2, 3, 8)]
  np.testing.assert_array_equal(shown[0], shown[1])
  np.testing.assert_array_equal(shown[2], shown[0][:, :, ::-1])
  np.testing.assert_array_equal(shown[3], shown[0])
  assert 8 < np.sum(np.any(shown[0] != images, axis=(1, 2, 3))) < 32


@pytest.mark.parametrize("name", ["mirrored", "shifted"])
def test_views_are_the_image_and_its_neighbours(name):
  images = np.random.default_rng(0).normal(size=(2, 4, 5, 3)).astype(np.float32)
  looks, weights = views_of(name, jnp.asarray(images))
  assert sum(weights) == 1
  wanted = [images]
  if name == "shifted":
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), "reflect")
    wanted += [padded[:, :-2, :-2], padded[:, 2:, 2:]]
  wanted += [look[:, :, ::-1] for look in wanted]
  np.testing.assert_array_equal(looks, wanted)
  assert weights == ((0.5,) * 2 if name == "mirrored" else (0.25, 0.125, 0.125) * 2)
