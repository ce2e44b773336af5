"""Data that somebody else made: nothing in them is run, and what cannot be is one line."""

import io
import json
import random
import shutil
import struct
import sys
import zipfile

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs the extra 'experiments'")
tfds = pytest.importorskip("tensorflow_datasets", reason="needs the extra 'experiments'")

from experiments import UsageError, data  # noqa: E402
from tests.experiments.data.test_data import arrays, pictures, prepare  # noqa: E402


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """A prepared set of five training and two test images."""
  folder = tmp_path_factory.mktemp("source")
  prepare(folder, "toy", {"train": pictures(5), "test": pictures(2, seed=1)})
  return folder


@pytest.fixture
def toy(source, tmp_path):
  shutil.copytree(source, tmp_path, dirs_exist_ok=True)
  return tmp_path


def change(file, function):
  """Rewrites a file of JSON."""
  content = json.loads(file.read_text())
  function(content)
  file.write_text(json.dumps(content))


# Prepared sets


def evil(content):
  for feature in content["featuresDict"]["features"].values():
    if feature["pythonClassName"].endswith("Image"):
      feature["pythonClassName"] = "mydata.evil.Image"


def evil_by_another_spelling(content):
  evil(content)
  for feature in content["featuresDict"]["features"].values():
    feature["python_class_name"] = feature.pop("pythonClassName")


def evil_of_old(content):
  content.clear()
  image = {"type": "mydata.evil.Image", "content": "{}"}
  content |= {
    "type": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "content": {"image": image},
  }


def evil_within_a_text(content):
  inner = json.dumps({"pythonClassName": "mydata.evil.Image"})
  content["featuresDict"]["features"]["image"]["jsonFeature"] = {"json": inner}


@pytest.mark.parametrize("how", [evil, evil_by_another_spelling, evil_of_old, evil_within_a_text])
def test_prepared_set_runs_no_code(toy, tmp_path_factory, monkeypatch, how):
  package = tmp_path_factory.mktemp("code")
  (package / "mydata").mkdir()
  ran = package / "ran"
  (package / "mydata" / "evil.py").write_text(f"open({str(ran)!r}, 'w')")
  monkeypatch.syspath_prepend(package)
  change(toy / "toy" / "1.0.0" / "features.json", how)
  with pytest.raises(
    UsageError, match=r"features\.json' must name features of TensorFlow Datasets alone, got 'myd"
  ):
    data.load("toy", toy)
  assert not ran.exists()
  assert "mydata" not in sys.modules


def test_label_above_the_classes_is_refused(tmp_path):
  """As in a set whose number of classes was edited."""
  folder = prepare(tmp_path, "toy", {"train": pictures(5), "test": pictures(1)})

  def fewer(content):
    content["featuresDict"]["features"]["label"]["classLabel"]["numClasses"] = "4"

  change(folder / "features.json", fewer)
  with pytest.raises(UsageError, match=r"'train', must have a label from 0 to 3 .*, got [78]"):
    data.load("toy", tmp_path)


def test_label_above_the_classes_is_refused_in_a_stream(tmp_path):
  examples = pictures(2, (20, 21, 3))
  folder = prepare(
    tmp_path, "toy", {"train": examples, "validation": examples[:1]}, shape=(None, None, 3)
  )

  def fewer(content):
    content["featuresDict"]["features"]["label"]["classLabel"]["numClasses"] = "2"

  change(folder / "features.json", fewer)
  dataset = data.load("toy", tmp_path)
  with pytest.raises(UsageError, match="must have a label from 0 to 1 for every image, got 7"):
    [dataset.train[index] for index in range(2)]


@pytest.mark.parametrize("length", ["3", "9", "0", str(2**62)])
def test_wrong_number_of_records_is_refused(toy, length):
  def lengths(content):
    (train,) = (split for split in content["splits"] if split["name"] == "train")
    train["shardLengths"] = [length]

  change(toy / "toy" / "1.0.0" / "dataset_info.json", lengths)
  with pytest.raises(UsageError, match=r"^data set 'toy' in .*(5 instead of|cannot be read)"):
    data.load("toy", toy)


def test_training_file_in_the_place_of_the_test_file_is_refused(tmp_path):
  folder = prepare(tmp_path, "toy", {"train": pictures(4), "test": pictures(4, seed=1)})
  shutil.copy(*sorted(folder.glob("toy-*"), reverse=True))  # train over test
  with pytest.raises(UsageError, match=r"split 'test', has examples to train on in .*toy-test"):
    data.load("toy", tmp_path)


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
@pytest.mark.parametrize("content", [b"", b"[" * 50_000, b"\xff", b"[]", b'{"splits": 3}', b"{}"])
def test_description_that_makes_no_sense_is_refused(toy, name, content):
  (toy / "toy" / "1.0.0" / name).write_bytes(content)
  with pytest.raises(UsageError, match=f"toy.*({name}|prepare it again|must have the splits)"):
    data.load("toy", toy)


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 300 + ".npz", "a\0b"])
def test_name_that_cannot_be_a_path_is_refused(tmp_path, name):
  with pytest.raises(UsageError, match=r"^`--data.name`"):
    data.load(name, tmp_path, option="--data.name")


# Keras-style files


def save(file, change=lambda name, content: content, **zipped):
  """Writes an archive as `np.savez`, each array's bytes changed on the way."""
  with zipfile.ZipFile(file, "w", **zipped) as archive:
    for name, array in arrays().items():
      stream = io.BytesIO()
      np.save(stream, array)
      archive.writestr(f"{name}.npy", change(name, stream.getvalue()))
  return file


def header(text):
  """A change of the header of x_train to this text."""

  def change(name, content):
    if name != "x_train":
      return content
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content[128:]

  return change


def described(shape, kind="'|u1'"):
  return header(f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}}}\n".encode())


def set_flag(file, offset, value):
  """Sets a byte in each local and central header of an archive."""
  content = bytearray(file.read_bytes())
  for magic, more in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
    start = content.find(magic)
    while start >= 0:
      content[start + offset + more] = value
      start = content.find(magic, start + 4)
  file.write_bytes(content)


MEMBERS = {
  "hundred gigabytes": described("(100000000000,)"),
  "no such memory": described((2**40, 2**40)),
  "a scalar": described("()"),
  "other bytes": described("(66, 12, 13)"),
  "objects": described("(66, 12, 12)", "'|O'"),
  "no Python": header(b"{'descr': " + b"(" * 5000 + b"\n"),
  "no header": header(b"\n"),
  "another version": lambda name, content: content.replace(b"NUMPY\x01", b"NUMPY\x09"),
  "no array": lambda name, content: b"text" if name == "x_train" else content,
  "nothing": lambda name, content: b"" if name == "x_train" else content,
  "more than an array": lambda name, content: content + b"x",
}


TOLD_BY_ITS_SIZE = ("hundred gigabytes", "no such memory", "a scalar", "other bytes")


@pytest.mark.parametrize("kind", MEMBERS)
def test_member_that_is_not_what_it_says_is_refused(tmp_path, kind):
  file = save(tmp_path / "a.npz", MEMBERS[kind])
  why = "x_train.npy says that it has " if kind in TOLD_BY_ITS_SIZE else ""  # none is allocated
  with pytest.raises(UsageError, match=rf"^`--data-dir` must .*a\.npz'.*{why}"):
    data.load_npz(file)


def test_archive_that_cannot_be_read_is_refused(tmp_path):
  for name, offset, value in (("encrypted", 6, 1), ("compression", 8, 99)):
    file = save(tmp_path / f"{name}.npz")
    set_flag(file, offset, value)
    with pytest.raises(UsageError, match=rf"^`--data-dir` must be an .npz file .*{name}\.npz'"):
      data.load_npz(file)


def test_scalar_in_place_of_images_is_refused(tmp_path):
  for name in arrays():
    np.savez(tmp_path / "a.npz", **arrays() | {name: np.uint8(3)})
    with pytest.raises(UsageError, match=rf"^`--data-dir` must hold .*{name} of uint8\(\)"):
      data.load_npz(tmp_path / "a.npz")


def same(one, other):
  return all(
    np.array_equal(getattr(getattr(one, part), name), getattr(getattr(other, part), name))
    for part in ("train", "test")
    for name in ("images", "labels")
  )


def flips(file, number, rng):
  """Contents of a file with one bit flipped, half of them among its first and last 2,000 bytes."""
  content = file.read_bytes()
  ends = [*range(min(2000, len(content))), *range(max(len(content) - 2000, 0), len(content))]
  for turn in range(number):
    place = rng.choice(ends) if turn % 2 else rng.randrange(len(content))
    damaged = bytearray(content)
    damaged[place] ^= 1 << rng.randrange(8)
    yield bytes(damaged)


def sweep(files, load, number, seed):
  """What becomes of random bit flips: refused in a line, or loaded as the data were.

  A prepared set has no checksum of the number of classes in its description: a run compares it with
  what it was trained on, and a first one cannot.
  """
  rng, told, unharmed, classes = random.Random(seed), 0, 0, 0
  whole = load()
  for file in files:
    before = file.read_bytes()
    for content in flips(file, number, rng):
      file.write_bytes(content)
      try:
        loaded = load()
      except UsageError:
        told += 1
        continue
      assert same(loaded, whole), f"a flipped bit of {file.name} went unnoticed"
      if loaded.num_classes == whole.num_classes:
        unharmed += 1
      else:
        assert file.name == "features.json"
        classes += 1
    file.write_bytes(before)
  return f"{told} refused, {unharmed} without a meaning, {classes} of other classes"


def test_flipped_bits_are_told_or_have_no_meaning(tmp_path):
  file = save(tmp_path / "a.npz")
  sweep([file], lambda: data.load_npz(file), 40, seed=0)


@pytest.mark.slow
def test_many_flipped_bits_are_told_or_have_no_meaning(toy, tmp_path):
  """600 of an .npz, and 150 of each file of a prepared set."""
  stored, packed = (tmp_path / f"{name}.npz" for name in ("stored", "packed"))
  save(stored)
  np.savez_compressed(packed, **arrays())
  for file in (stored, packed):
    print(file.name, sweep([file], lambda file=file: data.load_npz(file), 300, seed=1))
  files = sorted(path for path in (toy / "toy" / "1.0.0").iterdir() if path.is_file())
  print([file.name for file in files], sweep(files, lambda: data.load("toy", toy), 150, seed=2))
