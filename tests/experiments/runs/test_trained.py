"""What a run has trained is used without its data: in Python, by `predict`, and exported."""

import dataclasses
import io
import json
import os
import re
import shutil
import sys

import jax
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("safetensors", reason="needs the extra 'experiments'")

from rich.console import Console

import experiments
from experiments import UsageError, data, inference
from experiments.__main__ import main
from experiments.configs.config import EvalConfig, from_dict
from experiments.data.pictures import pictures
from experiments.engine.trainer import Trainer
from experiments.runs import run
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.evaluation import evaluate
from experiments.runs.folder import read_config
from experiments.runs.store import Store
from kerv_jax import models
from kerv_jax.models import Description
from tests import runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run whose best checkpoint is its first, whatever its numbers are, and its test images."""
  folder = tmp_path_factory.mktemp("trained")
  config = runs.config(runs.write_data(folder), folder / "run", epochs=3, keep=3)
  evaluated, better = Trainer.evaluate, iter([0.9, 0.1, 0.2])

  def decreasing(self, state, batches):
    return evaluated(self, state, batches)._replace(accuracy=next(better))

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Trainer, "evaluate", decreasing)
    run.train(config, console=Console(file=io.StringIO()))
  with np.load(config.data.name) as arrays:
    images, labels = arrays["x_test"], arrays["y_test"]
  return folder / "run", images, labels


@pytest.fixture
def no_data(monkeypatch):
  """Within a test, no data set is read."""
  monkeypatch.setattr(data, "load", lambda *args, **options: pytest.fail("read the data"))


def test_a_run_is_loaded_without_its_data(trained, no_data):
  folder, images, labels = trained
  network = experiments.load(folder)
  assert network.description.image_shape == (12, 12, 1)
  assert network.description.num_classes == runs.CLASSES
  hits = network.predict(images).argmax(-1) == labels
  assert network.predict(images).shape == (len(images), runs.CLASSES)
  assert hits.mean() > 0.8
  jax.tree.map(
    np.testing.assert_array_equal, network.variables, experiments.load(folder, 21).variables
  )


def test_predictions_have_the_score_of_eval(trained):
  folder, images, labels = trained
  for checkpoint in ("newest", "best"):
    hits = experiments.load(folder, checkpoint).predict(images).argmax(-1) == labels
    assert hits.mean() == pytest.approx(evaluate(folder, checkpoint=checkpoint)["accuracy"])


def test_the_best_is_the_best_though_nothing_was_restored_before(trained, no_data):
  folder, images, _ = trained
  checkpoints = Checkpoints(folder, run.Layout(), read_only=True)
  assert (checkpoints.steps, checkpoints.best_step) == ([7, 14, 21], 7)
  checkpoints.close()
  newest, best, first = (experiments.load(folder, each) for each in ("newest", "best", 7))
  jax.tree.map(np.testing.assert_array_equal, best.variables, first.variables)
  assert not np.array_equal(best.predict(images), newest.predict(images))


@pytest.mark.parametrize("checkpoint", ["bset", "", "14", 14.0, True, None])
def test_what_names_no_checkpoint_is_an_error(trained, checkpoint):
  with pytest.raises(UsageError, match="`checkpoint` must be newest, best or a step, got"):
    experiments.load(trained[0], checkpoint)


def test_a_file_is_no_run(tmp_path):
  (tmp_path / "a.safetensors").write_bytes(b"")
  with pytest.raises(UsageError, match=r"got the file .*a.safetensors.*; .* kerv_jax.models.load"):
    experiments.load(tmp_path / "a.safetensors")


def test_the_best_of_a_run_that_was_never_evaluated_is_an_error(tmp_path):
  config = runs.config(runs.write_data(tmp_path), tmp_path / "run", epochs=3, stop_after=1)
  config = dataclasses.replace(config, eval=EvalConfig(every=3))
  run.train(config, console=Console(file=io.StringIO()))
  with pytest.raises(UsageError, match=r"`checkpoint` best: none of the run in .* has been eval"):
    experiments.load(tmp_path / "run", "best")


@pytest.mark.parametrize("lost", ["checkpoints/21/state", "checkpoints/21"])
@pytest.mark.parametrize("checkpoint", ["newest", "best"])
def test_a_lost_checkpoint_is_told_and_that_which_is_used(
  trained, tmp_path, capsys, lost, checkpoint
):
  folder = tmp_path / "run"
  shutil.copytree(trained[0], folder)
  shutil.rmtree(folder / lost)
  step = {"newest": 14, "best": 7}[checkpoint]
  np.save(tmp_path / "a.npy", trained[1][:1])
  command = ["predict", str(folder), str(tmp_path / "a.npy"), "--checkpoint", checkpoint]
  assert main(command) == 0
  *faults, used = capsys.readouterr().err.splitlines()
  assert used == f"checkpoint: step {step} of {folder}"
  if (lost, checkpoint) == ("checkpoints/21/state", "best"):
    assert not faults  # its record tells that it is not the best
    return
  (fault,) = faults
  how = "/21: .* is missing" if "state" in lost else ": there is no checkpoint of step 21, though"
  assert re.match(f"damaged checkpoint: .*/checkpoints{how}.*; that of step {step} is used", fault)
  assert len(evaluate(folder, checkpoint=checkpoint)["damaged"]) == 1
  with pytest.warns(UserWarning, match=f"damaged checkpoint: .*; that of step {step} is used"):
    network = experiments.load(folder, checkpoint)
  wanted = experiments.load(trained[0], step).variables
  jax.tree.map(np.testing.assert_array_equal, network.variables, wanted)


def test_the_best_that_is_gone_is_an_error_and_no_other_is_the_best(trained, tmp_path, capsys):
  folder = tmp_path / "run"
  shutil.copytree(trained[0], folder)
  shutil.rmtree(folder / "checkpoints" / "7")
  (folder / "digests" / "7.sha256").unlink()  # as the next save would do
  for command in (["eval", str(folder)], ["predict", str(folder), "a.png"]):
    assert main([*command, "--checkpoint", "best"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
      "error: damaged: .*there is no checkpoint of step 7, which was the .*", line
    )
  with pytest.raises(UsageError, match="there is no checkpoint of step 7, which was the best"):
    experiments.load(folder, "best")
  assert evaluate(folder)["step"] == 21
  config = from_dict(read_config(folder))
  console = Console(file=io.StringIO(), width=200)
  config = dataclasses.replace(config, run=dataclasses.replace(config.run, out=str(folder)))
  run.train(config, console=console)
  (line,) = re.findall(".*which was the best.*", console.file.getvalue())
  assert "there is no checkpoint of step 7, which was the best; of the others, " in line


def test_a_folder_that_goes_away_while_it_is_read_is_no_error(trained, tmp_path, monkeypatch):
  """A live run gives its temporary folders their names, and removes old checkpoints."""
  folder = tmp_path / "run"
  shutil.copytree(trained[0], folder)
  scan, step = os.scandir, folder / "checkpoints" / "22.orbax-checkpoint-tmp"

  def vanishing(path="."):
    if os.fspath(path) == str(step):
      step.rmdir()
    return scan(path)

  step.mkdir()
  monkeypatch.setattr(os, "scandir", vanishing)
  assert evaluate(folder)["step"] == 21
  assert not step.exists()
  monkeypatch.undo()
  init, calls = Store.__init__, []

  def gone(self, *arguments, **options):
    calls.append(1)
    if len(calls) == 1:
      raise FileNotFoundError("22.orbax-checkpoint-tmp")
    init(self, *arguments, **options)

  monkeypatch.setattr(Store, "__init__", gone)
  assert evaluate(folder)["step"] == 21


def test_a_checkpoint_from_before_a_change_is_not_shown_what_came_after(tmp_path):
  config = runs.config(runs.write_data(tmp_path), tmp_path / "run", epochs=2, stop_after=1)
  run.train(config, console=Console(file=io.StringIO()))
  changed = dataclasses.replace(
    config,
    data=dataclasses.replace(config.data, normalisation="channel"),
    run=dataclasses.replace(config.run, stop_after=None, accept_changes=True),
  )
  run.train(changed, console=Console(file=io.StringIO()))
  assert experiments.load(tmp_path / "run", 14).description.mean != (0.0,)
  with pytest.raises(UsageError, match='normalisation` was "unit", now "channel"'):
    experiments.load(tmp_path / "run", 7)


def test_images_are_predicted_from_files_folders_and_arrays(trained, tmp_path, capsys):
  folder, images, _ = trained
  wanted = experiments.load(folder).predict(images[:3])
  (tmp_path / "pictures").mkdir()
  for i, image in enumerate(images[:3]):
    Image.fromarray(image[..., 0]).save(tmp_path / "pictures" / f"{i}.png")
  for name in ("notes.txt", "notes.pdf"):  # Pillow writes the latter, but does not read it
    (tmp_path / "pictures" / name).write_text("no image")
  (tmp_path / "pictures" / "x.png").mkdir()
  np.save(tmp_path / "a.npy", images[:3])
  np.savez(tmp_path / "one.npz", images[:3, ..., 0])
  np.savez(tmp_path / "set.npz", x_test=images[:3], y_test=np.zeros(3))
  one, *rest = ("pictures/0.png", "pictures", "a.npy", "one.npz", "set.npz")
  command = ["predict", str(folder), *(str(tmp_path / name) for name in (one, *rest))]
  assert main(command) == 0
  rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert len(rows) == 13
  assert rows[0] == rows[1]
  names = [row["image"].removeprefix(f"{tmp_path}/") for row in rows]
  assert names[2:5] == ["pictures/1.png", "pictures/2.png", "a.npy[0]"]
  for row, expected in zip(rows[1:], np.tile(wanted, (4, 1)), strict=True):
    assert row["class"] == expected.argmax()
    assert row["probability"] == pytest.approx(expected.max(), abs=1e-5)


def write(file, content):
  """A file of an image, of arrays, or of bytes."""
  if isinstance(content, bytes):
    file.write_bytes(content)
  elif isinstance(content, Image.Image):
    content.save(file)
  elif isinstance(content, dict):
    np.savez(file, **content)
  else:
    np.save(file, content, allow_pickle=True)


GREY = np.zeros((2, 12, 12, 1), np.uint8)


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("none.png", None, "must be files or folders, got '.*none.png': there is no file"),
    ("a.png", b"\x89PNG\r\n\x1a\n", "'.*a.png' is no image that can be read: "),
    ("a.txt", b"12", "'.*a.txt' is no image that can be read: "),
    ("a.png", Image.new("L", (12, 11)), "must be images of 12x12 .* '.*a.png' is 11x12, L"),
    ("a.png", Image.new("RGB", (12, 12)), "must be images of 12x12 with 1 channel .* 12x12, RGB"),
    ("a.npy", b"\x93NUMPY", "'.*a.npy' cannot be read: "),
    ("a.npy", np.array([print]), "'.*a.npy' cannot be read: "),
    ("a.npy", np.float32(3), r"must be uint8 images of shape \(number, 12, 12, 1\), got .*float32"),
    ("a.npy", GREY[:, 1:], r"must be uint8 .*, got '.*a.npy' with uint8\(2, 11, 12, 1\)"),
    ("a.npy", GREY[:0], r"must be uint8 .*, got '.*a.npy' with uint8\(0, 12, 12, 1\)"),
    ("a.npy", GREY.astype(float), "must be uint8 .*, got '.*a.npy' with float64"),
    ("a.npz", b"PK", "'.*a.npz' cannot be read: "),
    ("a.npz", {"a": GREY, "b": GREY}, "'.*a.npz' cannot be read: it has a.npy, b.npy, not one"),
    ("a.npz", {}, "'.*a.npz' cannot be read: it has nothing, not one array or x_test"),
  ],
)
def test_images_that_will_not_do_are_a_line(trained, tmp_path, capsys, name, content, message):
  if content is not None:
    write(tmp_path / name, content)
  assert main(["predict", str(trained[0]), str(tmp_path / name)]) == 2
  printed = capsys.readouterr()
  assert re.fullmatch(f"error: `IMAGES`:? {message}.*\n", printed.err)
  assert printed.out == ""


def test_images_before_one_that_will_not_do_are_predicted(trained, tmp_path, monkeypatch, capsys):
  folder, images, _ = trained
  monkeypatch.setattr(inference, "AT_ONCE", 2)
  np.save(tmp_path / "a.npy", images[:3])
  Image.new("RGB", (12, 12)).save(tmp_path / "b.png")
  assert main(["predict", str(folder), *(str(tmp_path / name) for name in ("a.npy", "b.png"))]) == 2
  printed = capsys.readouterr()
  rows = [json.loads(line) for line in printed.out.splitlines()]
  assert [row["image"] for row in rows] == [f"{tmp_path}/a.npy[{i}]" for i in range(3)]
  assert "error: `IMAGES` must be images of 12x12" in printed.err


def test_no_images_are_a_line(trained, tmp_path, capsys):
  for images, message in (
    ([], "must be one file or folder at least, got none"),
    ([str(tmp_path)], "must be images, got the folder .*, which has none"),
    ([""], "must be files or folders, got ''"),
  ):
    assert main(["predict", str(trained[0]), *images]) == 2
    assert re.fullmatch(f"error: `IMAGES` {message}\n", capsys.readouterr().err)


def test_images_of_any_size_are_cut_where_the_network_was_evaluated_so(tmp_path):
  shown = Image.new("RGB", (40, 20))
  shown.paste((9, 8, 7), (16, 6, 24, 14))
  shown.save(tmp_path / "a.png")
  network = Description(name="resnet18", image_shape=(8, 8, 3), resize=20)
  ((_, image),) = pictures([tmp_path / "a.png"], network)
  assert np.array_equal(image, np.broadcast_to(np.array([9, 8, 7], np.uint8), (8, 8, 3)))


def test_what_is_exported_predicts_the_same_without_the_run(trained, tmp_path, capsys):
  folder, images, _ = trained
  wanted = experiments.load(folder, "best").predict(images)
  command = ["export", str(folder), "--checkpoint", "best", "--out"]
  assert main([*command, str(tmp_path / "a.safetensors")]) == 0
  assert main([*command, str(tmp_path / "a.jax"), "--format", "jax"]) == 0
  read = models.load(tmp_path / "a.safetensors")
  assert read.description.step == 7
  assert np.array_equal(read.predict(images), wanted)
  program = jax.export.deserialize(bytearray((tmp_path / "a.jax").read_bytes()))
  for number in (1, 5):
    np.testing.assert_allclose(program.call(images[:number]), wanted[:number], rtol=1e-5)
  capsys.readouterr()
  assert main([*command, str(tmp_path / "a.jax")]) == 2
  assert "error: `--out` must be a new file, got " in capsys.readouterr().err
  assert main([*command, str(tmp_path / "no" / "a")]) == 2
  assert "its folder is not there" in capsys.readouterr().err


def test_export_without_safetensors_names_the_extra(trained, tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "safetensors", None)
  assert main(["export", str(trained[0]), "--out", str(tmp_path / "a")]) == 2
  assert "pip install 'kerv_jax[safetensors]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["predict", "RUN", "a.png"], ["export", "RUN", "--out", "a"]])
def test_runs_that_are_none_or_changed_are_a_line(trained, tmp_path, capsys, command):
  def said(folder):
    assert main([str(folder) if part == "RUN" else part for part in command]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line

  assert re.match("error: there is no run in '/nowhere'", said("/nowhere"))
  assert re.match("error: there is no run in ", said(tmp_path))
  folder = tmp_path / "run"
  shutil.copytree(trained[0], folder)
  config = (folder / "config.json").read_text()
  (folder / "config.json").write_text(config.replace('"degree": 2', '"degree": 3'))
  assert "`--model.degree` was 2, now 3" in said(folder)
  (folder / "config.json").write_text(config.replace('"learnable": true', '"learnable": false'))
  assert "`--model.learnable` was true, now false" in said(folder)
  (folder / "config.json").write_text(config[:50])
  assert "is damaged" in said(folder)
