"""The presets of the paper's tables, and the command line around them."""

import dataclasses
import io
import json

import flax.linen as nn
import jax
import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from PIL import Image

from experiments import UsageError, cli, load
from experiments.__main__ import main
from experiments.configs import build
from experiments.configs.config import ModelConfig, TrainConfig, from_dict
from experiments.configs.presets import PRESETS, fitting
from experiments.data import StreamedDataset
from experiments.engine.optim import learning_rate_at
from experiments.runs.evaluation import evaluate

KNNS = [name for name, preset in PRESETS.items() if preset.twin]
SHAPES = {"mnist": (28, 28, 1), "sample": (28, 28, 1), "imagenet2012": (224, 224, 3)}
CLASSES = {"cifar100": 100, "imagenet2012": 1000}


def test_every_row_of_the_tables_has_its_presets():
  groups = {"resnet110-cifar10": 1, "resnet110-cifar100": 1, "resnet32-cifar10+": 6}
  for name in ("googlenet", "resnet110", "densenet40"):
    groups |= {f"{name}-cifar10+": 1, f"{name}-cifar100+": 1}
  groups |= {f"resnet{depth}-imagenet": 1 for depth in (18, 34, 50, 101)}
  for group, knns in groups.items():
    assert f"{group}-cnn" in PRESETS
    assert len([name for name in KNNS if PRESETS[name].twin == f"{group}-cnn"]) == knns
  degrees = [PRESETS[name].config.model for name in KNNS if name.startswith("resnet32")]
  assert [(model.degree, model.balance, model.learnable) for model in degrees] == [
    (degree, balance, learnable)
    for degree in (3, 5)
    for balance, learnable in ((0, False), (1, False), (1, True))
  ]


@pytest.mark.parametrize("name", KNNS)
def test_twins_differ_in_the_first_layer_alone(name):
  knn, cnn = PRESETS[name].config, PRESETS[PRESETS[name].twin].config
  assert dataclasses.replace(knn, model=cnn.model) == cnn
  shape, classes = SHAPES.get(knn.data.name, (32, 32, 3)), CLASSES.get(knn.data.name, 10)
  image = jax.ShapeDtypeStruct((1, *shape), np.float32)

  def layers(config):
    """Every call of a convolution, and whether it is a kervolution; nothing is computed."""
    model = build.describe(config.model, num_classes=classes, image_shape=shape).network()
    calls = []

    def see(next_function, args, kwargs, context):
      if isinstance(context.module, nn.Conv):
        calls.append((context.module.path, type(context.module).__name__, context.module.features))
      return next_function(*args, **kwargs)

    with nn.intercept_methods(see):
      variables = jax.eval_shape(model.init, jax.random.key(0), image)
    return calls, variables

  (knn_calls, knn_variables), (cnn_calls, cnn_variables) = layers(knn), layers(cnn)
  assert {kind for _, kind, _ in cnn_calls} == {"Conv"}
  assert [i for i, call in enumerate(knn_calls) if call[1] == "KervConv"] == [0]
  assert [(path, size) for path, _, size in knn_calls] == [(p, s) for p, _, s in cnn_calls]
  extra = jax.tree.leaves(knn_variables["params"])
  added = sum(leaf.size for leaf in extra) - sum(
    leaf.size for leaf in jax.tree.leaves(cnn_variables["params"])
  )
  assert added == int(knn.model.learnable)


CIFAR = ("resnet110-cifar", "googlenet-cifar", "densenet40-cifar")
# What the paper is read to state: of which presets (parts of names), and the fields that say so.
# Words in quotation marks are the paper's; the rest is to be compared with its section 5.
STATED = [
  ("MNIST: batches of 50", "lenet5", {"data.batch_size": 50}),
  ("MNIST: learning rate 0.003, momentum 0.9", "lenet5", {
    "optim.learning_rate": 0.003, "optim.momentum": 0.9, "optim.schedule": "constant",
  }),
  ("section 5: the layer 'adopts the learnable balancer with power 3'", CIFAR, {
    "model.kernel": "polynomial", "model.degree": 3, "model.learnable": True,
  }),
  ("table 2: 200 epochs, batches of 128, the rate divided by 10 after 75, 125 and 150", (
    "resnet110-cifar10-", "resnet110-cifar100-",
  ), {
    "epochs": 200, "data.batch_size": 128, "optim.weight_decay": 5e-4, "optim.momentum": 0.9,
    "optim.milestones": (75, 125, 150), "optim.factor": 0.1,
  }),
  ("table 2: no augmentation", ("resnet110-cifar10-", "resnet110-cifar100-"), {
    "data.flip": False, "data.pad": 0,
  }),
  ("table 3: ResNet by table 2's schedule, since DenseNet has another", (
    "resnet110-cifar10+", "resnet110-cifar100+",
  ), {
    "epochs": 200, "data.batch_size": 128, "optim.milestones": (75, 125, 150),
    "optim.weight_decay": 5e-4,
  }),
  ("table 3: 'different from ResNet, we train DenseNet' 300 epochs, batches of 64", "densenet", {
    "epochs": 300, "data.batch_size": 64, "optim.milestones": (150, 225), "optim.factor": 0.1,
    "optim.learning_rate": 0.1,
  }),
  ("tables 4 and 5: ResNet-32 on CIFAR-10+", "resnet32", {
    "model.name": "resnet32", "data.name": "cifar10",
  }),
  ("table 5: time to 94 %", "resnet32", {"eval.targets": (0.90, 0.94)}),
  ("tables 3 to 5: images mirrored, and shifted by up to 4 pixels", "+", {
    "data.flip": True, "data.pad": 4,
  }),
  ("table 6: 100 epochs, batches of 256, the rate 0.1 divided after 30, 60 and 90", "imagenet", {
    "epochs": 100, "data.batch_size": 256, "optim.learning_rate": 0.1, "optim.momentum": 0.9,
    "optim.milestones": (30, 60, 90), "optim.factor": 0.1, "optim.weight_decay": 1e-4,
  }),
  ("table 6: power 3 and balance 2", "imagenet", {"model.degree": 3, "model.balance": 2.0}),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "of", "fields"), STATED)
def test_presets_say_what_the_paper_states(statement, of, fields):
  wanted = (of,) if isinstance(of, str) else of
  names = [name for name in PRESETS if any(part in name for part in wanted)]
  assert len(names) >= 2, statement
  for name in names:
    config = PRESETS[name].config
    for path, value in fields.items():
      found = config
      for attribute in path.split("."):
        found = getattr(found, attribute)
      if not (path.startswith("model.") and path != "model.name" and PRESETS[name].twin is None):
        assert found == value, f"{name}, {path}: {statement}"


def test_learning_rate_falls_where_the_paper_says():
  config = PRESETS["resnet110-cifar10-knn"].config
  lengths = {"steps_per_epoch": 10, "total_steps": 2000}
  for number, epoch in enumerate(config.optim.milestones):
    before, after = (
      learning_rate_at(config.optim, round(at * 10), **lengths) for at in (epoch - 1, epoch)
    )
    assert (before, after) == pytest.approx((0.1 * 0.1**number, 0.1 * 0.1 ** (number + 1)))


def test_what_is_open_names_both_readings():
  assert "--model.learnable" in PRESETS["resnet50-imagenet-knn"].left_open
  assert "five runs" in PRESETS["resnet50-imagenet-knn"].left_open
  assert "7.51 %" in PRESETS["resnet32-cifar10+-degree3-learnable"].left_open
  assert "another reading" in PRESETS["googlenet-cifar10+-knn"].left_open


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_described_and_survive_json(name):
  preset = PRESETS[name]
  preset.config.check()
  assert "paper leaves open" in cli.describe(name)
  assert len(preset.left_open) > 40
  values = json.loads(json.dumps(dataclasses.asdict(preset.config)))
  assert from_dict(values) == preset.config


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"sede": 1}, "unknown: `--sede`, in the configuration"),
    ({"model": {"kernle": "l1"}}, "unknown: `--model.kernle`, in the configuration"),
    ({"seed": "1"}, "`--seed` must be"),
    ({"seed": True}, "`--seed` must be"),
    ({"model": {"kernel": "quintic"}}, "`--model.kernel` must be"),
    ({"optim": {"milestones": [1.0, "2"]}}, r"`--optim.milestones\[1\]` must be"),
  ],
)
def test_configuration_that_makes_no_sense_is_refused(change, message):
  with pytest.raises(UsageError, match=message):
    from_dict(change)


def test_configuration_with_missing_names_is_refused():
  values = json.loads(json.dumps(dataclasses.asdict(TrainConfig())))
  assert from_dict(values) == TrainConfig()
  del values["optim"]["momentum"]
  with pytest.raises(UsageError, match=r"missing: `--optim\.momentum`, in the configuration"):
    from_dict(values)


def test_options_of_the_network_reach_it():
  image = jax.ShapeDtypeStruct((1, 8, 8, 3), np.float32)
  plain = ModelConfig(name="resnet8", kernel="gaussian", learnable=True, layers="all")
  saving = dataclasses.replace(plain, dtype="bfloat16", remat=True)
  networks = [
    build.network(config, build.describe(config, image_shape=(8, 8, 3)))
    for config in (plain, saving)
  ]
  shapes = [jax.eval_shape(net.init, jax.random.key(0), image) for net in networks]
  assert shapes[0] == shapes[1]  # parameters stay in float32
  names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes[0])]
  assert sum("gamma" in name for name in names) == 7  # a kervolution each
  ones = np.ones(image.shape, np.float32)
  programs = [
    str(jax.make_jaxpr(jax.grad(lambda v, net=net: net.apply(v, ones).sum()))(shapes[0]))
    for net in networks
  ]
  assert ["bf16" in program for program in programs] == [False, True]
  assert ["remat" in program or "checkpoint" in program for program in programs] == [False, True]


# Every preset trains


@pytest.fixture(scope="module")
def colour(tmp_path_factory):
  """A set in the shape of CIFAR: three colours, 32x32."""
  rng = np.random.default_rng(0)
  arrays = {}
  for part, number in (("train", 8), ("test", 5)):
    arrays[f"x_{part}"] = rng.integers(0, 256, (number, 32, 32, 3)).astype(np.uint8)
    arrays[f"y_{part}"] = np.arange(number) % 3
  file = tmp_path_factory.mktemp("colour") / "colour.npz"
  np.savez(file, **arrays)
  return str(file)


def files(number):
  """Encoded images of many sizes, with labels."""
  rng = np.random.default_rng(number)
  encoded = []
  for i in range(number):
    buffer = io.BytesIO()
    pixels = rng.integers(0, 256, (40 + i, 50 - i, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    encoded.append((buffer.getvalue(), i % 3))
  return encoded


def run_small(name, tmp_path, *more):
  """Two steps and an evaluation of a preset on other data."""
  out = tmp_path / "run"
  small = ["--data.batch-size", 4, "--epochs", 1, "--eval.batch-size", 5]
  assert main(["train", name, "--run.out", str(out), *map(str, small), *map(str, more)]) == 0
  (row,) = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
  assert row["step"] == 2
  assert np.isfinite(row["train_loss"])
  assert 0 <= row["test_accuracy"] <= row["test_top5"] <= 1


@pytest.mark.parametrize("name", ["lenet5-sample-cnn", "lenet5-sample-gaussian", "lenet5-mnist-l1"])
def test_preset_of_lenet_trains(name, colour, tmp_path):
  run_small(name, tmp_path, "--data.name", colour)
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  assert config["eval"]["targets"] == []  # those of digits mean nothing for other images


def test_targets_fit_the_data():
  for preset in PRESETS.values():
    assert fitting(preset.config, preset) == preset.config
    assert all(target < 0.8 for target in preset.config.eval.targets) or "100" not in (
      preset.config.data.name
    )
  preset = PRESETS["lenet5-mnist-cnn"]

  def on(name, **options):
    data = dataclasses.replace(preset.config.data, name=name)
    given = dataclasses.replace(preset.config.eval, **options)
    return fitting(dataclasses.replace(preset.config, data=data, eval=given), preset).eval.targets

  assert on("data/mnist.npz") == (0.90, 0.95, 0.98)
  assert on("cifar10:3.0.2") == (0.90, 0.94)
  assert on("data/fashion.npz") == ()
  assert on("data/fashion.npz", targets=(0.85,)) == (0.85,)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRESETS if "imagenet" not in name])
def test_preset_trains(name, colour, tmp_path):
  run_small(name, tmp_path, "--data.name", colour)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRESETS if "imagenet" in name])
def test_preset_of_imagenet_trains(name, monkeypatch, tmp_path):
  """On images of 32 pixels."""
  dataset = StreamedDataset(files(8), files(5), "files", num_classes=3, size=32, resize=36)
  monkeypatch.setattr(build.data, "load", lambda *_, **__: dataset)
  run_small(name, tmp_path)
  score = evaluate(tmp_path / "run", crops=10)
  assert (score["step"], score["crops"]) == (2, 10)
  assert 0 <= score["accuracy"] <= score["top5"] <= 1
  sees = load(tmp_path / "run").description
  assert (sees.image_shape, sees.resize, len(sees.mean)) == ((32, 32, 3), 36, 3)
