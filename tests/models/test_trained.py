"""A trained network is described, written and read; what is no such file is told in a line."""

import dataclasses
import json
import re
import sys

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from kerv_jax import kernels, models
from kerv_jax.models import Description, Trained

safetensors = pytest.importorskip("safetensors.numpy", reason="needs the extra 'safetensors'")

LENET = Description(
  name="lenet5",
  kernel="polynomial",
  degree=2,
  learnable=True,
  num_classes=3,
  image_shape=(12, 14, 2),
  mean=(0.25, 0.5),
  std=(0.5, 2.0),
)
RESNET = Description(
  name="resnet8", kernel="polynomial", layers="all", dtype="bfloat16", image_shape=(8, 8, 3)
)
FASTNET = Description(
  name="fastnet", kernel="l1", widths=(2, 3, 4), num_classes=7, image_shape=(9, 9, 1), std=(3.0,)
)


def network(description):
  """A network whose variables are random."""
  image = jax.ShapeDtypeStruct((1, *description.image_shape), np.float32)
  shapes = jax.eval_shape(description.network().init, jax.random.key(0), image)
  rng = np.random.default_rng(0)
  variables = jax.tree.map(lambda leaf: rng.uniform(-0.2, 0.2, leaf.shape).astype("f4"), shapes)
  return Trained(description, variables)


@pytest.fixture(scope="module")
def lenet():
  return network(LENET)


def images(number, shape=LENET.image_shape, seed=0):
  return np.random.default_rng(seed).integers(0, 256, (number, *shape)).astype(np.uint8)


def test_a_recipe_is_that_of_deep_and_older_texts_have_none():
  described = dataclasses.replace(LENET, recipe="deep").network()
  conv = models.deep(kernels.Polynomial(2, 1.0), learnable=("balance",))
  own = models.LeNet5(num_classes=3, conv1=conv)
  image = jax.random.normal(jax.random.key(0), (2, *LENET.image_shape))
  scores, variables = own.init_with_output(jax.random.key(1), image)
  np.testing.assert_array_equal(described.apply(variables, image), scores)
  values = dataclasses.asdict(LENET)
  del values["recipe"], values["step"]
  assert Description.from_json(json.dumps(values)) == LENET


@pytest.mark.parametrize("description", [LENET, RESNET, FASTNET], ids=lambda each: each.name)
def test_a_file_gives_the_network_back(tmp_path, description):
  written = network(description)
  models.save(tmp_path / "network", written)
  read = models.load(str(tmp_path / "network"))
  assert read.description == description
  jax.tree.map(np.testing.assert_array_equal, read.variables, written.variables)
  assert [path.name for path in tmp_path.iterdir()] == ["network"]


def test_predictions_are_the_models_probabilities_of_normalized_images(lenet):
  shown = images(5)
  inputs = (shown / 255 - np.array(LENET.mean)) / np.array(LENET.std)
  np.testing.assert_allclose(lenet.preprocess(shown), inputs, rtol=1e-5, atol=1e-6)
  scores = np.asarray(lenet.model.apply(lenet.variables, inputs.astype("f4")), np.float64)
  wanted = np.exp(scores - scores.max(-1, keepdims=True))
  wanted /= wanted.sum(-1, keepdims=True)
  found = lenet.predict(shown)
  np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
  assert np.ptp(found, axis=0).max() > 1e-4  # the images differ
  np.testing.assert_allclose(lenet.predict(shown, batch_size=2), found, rtol=1e-5)
  assert lenet.predict(shown[:0]).shape == (0, 3)


@pytest.mark.parametrize(
  "shown",
  [
    images(2, (12, 14, 1)),
    images(2, (14, 12, 2)),
    images(1)[0],
    images(2).astype(np.float32),
    images(2).tolist(),
    3,
  ],
  ids=["channels", "size", "one", "float", "list", "number"],
)
def test_images_of_another_form_are_refused(lenet, shown):
  for see in (lenet.predict, lenet.preprocess):
    with pytest.raises(ValueError, match=r"`images` must be uint8 of shape \(number, 12, 14, 2\)"):
      see(shown)
  with pytest.raises(ValueError, match="`batch_size` must be at least 1, got 0"):
    lenet.predict(images(1), batch_size=0)


VALUES = dataclasses.asdict(LENET)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"name": "os.system"}, "`name` must be one of lenet5, "),
    ({"name": ["lenet5"]}, "`name` must be one of lenet5, "),
    ({"kernel": "__import__('os')"}, "`kernel` must be one of none, polynomial, "),
    ({"layers": "second"}, "`layers` must be one of first, all, got 'second'"),
    ({"dtype": "int8"}, "`dtype` must be one of float32, "),
    ({"step": -1}, "`step` must be a whole number from 0 to 9007199254740992, got -1"),
    ({"recipe": "shallow"}, "`recipe` must be None, or 'deep' for kervolutions, got 'shallow'"),
    ({"kernel": "none", "recipe": "deep"}, "`recipe` must be .*got 'deep' with `kernel` 'none'"),
    ({"learnable": 1}, "`learnable` must be true or false, got 1"),
    ({"kernel": "l2"}, "`learnable` needs `kernel` to be polynomial or gaussian, got 'l2'"),
    ({"degree": 1001}, "`degree` must be a whole number from 1 to 1000, got 1001"),
    ({"degree": True}, "`degree` must be a whole number from 1 to 1000, got True"),
    ({"balance": 0}, "`balance` must be positive, since it is learned,"),
    ({"kernel": "gaussian", "balance": -1.0}, "`balance` must be at least 0 and finite in float32"),
    ({"gamma": 10**400}, "`gamma` must be positive and finite in float32, got 1000"),
    ({"gamma": float("inf")}, "`gamma` must be positive and finite in float32, got inf"),
    ({"gamma": [1.0]}, r"`gamma` must be positive and finite in float32, got \[1.0\]"),
    ({"widths": [1, 2, 3]}, r"`widths` is for fastnet alone, got \(1, 2, 3\) for lenet5"),
    ({"num_classes": 0}, "`num_classes` must be a whole number from 1 to 1048576, got 0"),
    ({"image_shape": [12, 14]}, "`image_shape` must be 3 whole numbers from 1 to 65536"),
    ({"image_shape": [12, 10**9, 2]}, "`image_shape` must be 3 whole numbers from 1 to 65536"),
    ({"mean": [0.0, 0.0, 0.0]}, "`mean` must be finite in float32, one or one for each"),
    ({"mean": [float("nan")]}, "`mean` must be finite in float32, one or one for each"),
    ({"std": [1.0, 0.0]}, "`std` must be at least 1.17549e-38, one or one for each"),
    ({"std": [1e-40, 1.0]}, "`std` must be at least 1.17549e-38, one or one for each"),
    ({"mean": [1e39, 0.0]}, "`mean` must be finite in float32, one or one for each"),
    ({"gamma": 1e-300}, "`gamma` must be positive and finite in float32, got 1e-300"),
    ({"gamma": 1e39}, "`gamma` must be positive and finite in float32, got 1e\\+39"),
    ({"std": "1"}, "`std` must be at least 1.17549e-38, one or one for each channel, got '1'"),
    ({"resize": 13}, "`resize` must be a whole number from 14 to 65536, got 13"),
    ({"code": "print(1)"}, "unknown in the description of the network: 'code'; it must have bal"),
    # What can be, but is of other arrays than there are.
    ({"image_shape": [8, 8, 2]}, "`x` must be images, .* at least 12, got shape"),
    ({"image_shape": [65536, 65536, 2]}, "must have the variables of the lenet5"),
    ({"image_shape": [12, 14, 1], "mean": [0], "std": [1]}, "'params/conv1/kernel' must be"),
    ({"num_classes": 4}, "the file must have the variables of the lenet5 that it describes"),
    ({"learnable": False}, "'params/conv1/balance' must be left out, got float32"),
    ({"dtype": "float64"}, "must be float64 of shape .*, got float32"),
    ({"name": "resnet110"}, "must have the variables of the resnet110 that it describes"),
  ],
  ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_header_that_lies_is_an_error(tmp_path, lenet, change, message):
  arrays = flatten_dict(lenet.variables, sep="/")
  file = tmp_path / "network"
  header = json.dumps(VALUES | change)
  file.write_bytes(safetensors.save(arrays, {"kerv_jax.network": header}))
  with pytest.raises(ValueError, match=f"^`path` must be a network that .*: .*{message}") as error:
    models.load(file)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("header", "message"),
  [
    (None, "there is no 'kerv_jax.network' in its header"),
    ({"format": "pt"}, "there is no 'kerv_jax.network' in its header"),
    ({"kerv_jax.network": "{"}, "the description of the network is no JSON: "),
    ({"kerv_jax.network": "[" * 10**5}, "the description of the network is no JSON: "),
    ({"kerv_jax.network": "[1]"}, "the description of the network must be an object, got "),
    ({"kerv_jax.network": '{"name": "lenet5"}'}, "missing in the description of the network: 'bal"),
  ],
)
def test_a_header_of_something_else_is_an_error(tmp_path, header, message):
  (tmp_path / "network").write_bytes(safetensors.save({"a": np.zeros(2)}, header))
  with pytest.raises(ValueError, match=f"^`path` must be a network that .*{message}"):
    models.load(tmp_path / "network")


def test_files_that_are_damaged_or_none_are_errors(tmp_path, lenet):
  models.save(tmp_path / "network", lenet)
  whole = (tmp_path / "network").read_bytes()
  flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
  other = whole.replace(b'\\"degree\\": 2', b'\\"degree\\": 5')  # what can be, but was not written
  cut = (b"", b"\x80\x04", whole[:7], whole[:500], whole[:-1], whole + b"\0")
  assert whole not in (flipped, other)
  for damaged in (*cut, flipped, other):
    (tmp_path / "damaged").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"^`path` must be a network that .*damaged'"):
      models.load(tmp_path / "damaged")
  with pytest.raises(FileNotFoundError, match="there is no file '/nowhere/a'"):
    models.load("/nowhere/a")
  with pytest.raises(ValueError, match=r"must be a safetensors file, got .* no regular file"):
    models.load(tmp_path)


def test_variables_of_another_network_are_not_written(tmp_path, lenet):
  wrong = Trained(dataclasses.replace(LENET, num_classes=4), lenet.variables)
  with pytest.raises(ValueError, match="`network` must have the variables of the lenet5"):
    models.save(tmp_path / "network", wrong)
  assert not list(tmp_path.iterdir())


def test_without_safetensors_an_error_names_the_extra(tmp_path, lenet, monkeypatch):
  monkeypatch.setitem(sys.modules, "safetensors", None)
  for action in (lambda: models.save(tmp_path / "a", lenet), lambda: models.load(tmp_path / "a")):
    with pytest.raises(ImportError, match=r"needs safetensors: pip install 'kerv_jax\[safetens"):
      action()


def test_display_tells_what_it_is_and_no_weights(lenet):
  assert re.fullmatch(r"Trained\(Description\(.*\), variables of [\d,]+ numbers\)", repr(lenet))
