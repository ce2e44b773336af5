"""A run believes nothing that it has not checked: what is not as it was ends in a line."""

import dataclasses
import io
import json
import os
import shutil
import signal
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")

from rich.console import Console

from experiments import UsageError, load
from experiments.common.digests import digest
from experiments.common.environment import environment
from experiments.configs import build
from experiments.configs.config import TrainConfig
from experiments.data import StreamedDataset
from experiments.engine.layout import Layout
from experiments.engine.processes import ParallelConfig
from experiments.runs import evaluation, run
from experiments.runs.checkpoints import Checkpoints, SaveError
from experiments.runs.continuation import UNSEALED, Continuation
from experiments.runs.evaluation import evaluate
from experiments.runs.folder import Folder
from experiments.runs.record import DamagedError
from experiments.runs.seals import Seals
from experiments.runs.signals import StopSignals
from experiments.runs.store import MISREAD, check_path
from tests import runs
from tests.experiments.runs.test_checkpoints import SHAPES, make_state, restore, store

BUILD, PARTS = run.build, {}


@pytest.fixture(autouse=True)
def parts(monkeypatch):
  """Makes the parts of equal configurations once, unless the data have changed."""

  def build(config, layout):
    key = dataclasses.replace(config, run=runs.RunConfig()), os.stat(config.data.name).st_mtime_ns
    if key not in PARTS:
      PARTS[key] = BUILD(config, layout)
    return PARTS[key]

  monkeypatch.setattr(run, "build", build)
  monkeypatch.setattr(evaluation, "build", build)


def train(config):
  buffer = io.StringIO()
  outcome = run.train(config, "the command", Console(file=buffer))
  return outcome, buffer.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A folder with data and a run of two epochs, paused after the second of four."""
  folder = tmp_path_factory.mktemp("trained")
  config = runs.config(runs.write_data(folder), folder / "run", stop_after=2, keep=3)
  run.train(config, "the command", Console(file=io.StringIO()))
  return folder / "run", config


@pytest.fixture
def copied(trained, tmp_path):
  """The same, to be damaged."""
  folder, config = trained
  shutil.copytree(folder, tmp_path / "run")
  shutil.copy(config.data.name, tmp_path / "blobs.npz")
  data = dataclasses.replace(config.data, name=str(tmp_path / "blobs.npz"))
  config = dataclasses.replace(config, data=data, run=runs.RunConfig(out=str(tmp_path / "run")))
  change(tmp_path / "run", lambda c: c["data"].update(name=str(tmp_path / "blobs.npz")))
  rewrite(tmp_path / "run", lambda record: record["run"]["config"].update(data_name(tmp_path)))
  return tmp_path / "run", config


def data_name(folder):
  return {"data.name": str(folder / "blobs.npz")}


def change(folder, function):
  """Rewrites the configuration of a run."""
  values = json.loads((folder / "config.json").read_text())
  function(values)
  (folder / "config.json").write_text(json.dumps(values))


def rewrite(folder, function, steps=("7", "14")):
  """Rewrites the records of checkpoints, with all digests of them: they are forged."""
  for step in steps:
    file = folder / "checkpoints" / step / "record" / "metadata"
    item = json.loads(file.read_text())
    record = json.loads(item["record"])
    record = function(record) or record
    item["record"] = json.dumps(record)
    item["record_sha256"] = digest({}, item["record"])
    file.write_text(json.dumps(item))
    Seals(folder / "checkpoints", folder / "digests").write(step)


# Where a run may be


@pytest.mark.parametrize("part", ["a [v2]", "a*", "a?", "a\\b", "gs:/x", "a\0b", "a\udcff"])
@pytest.mark.parametrize("parent", [False, True])
def test_path_that_would_be_misread_is_refused_before_anything_is_done(
  trained, tmp_path, part, parent
):
  config = trained[1]
  out = f"{tmp_path}/{part}/run" if parent else f"{tmp_path}/{part}"
  with pytest.raises(UsageError, match=r"`--run.out` must be a"):
    train(dataclasses.replace(config, run=dataclasses.replace(config.run, out=out)))
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("character", [c for c in map(chr, range(33, 127)) if c not in "/[]*?\\"])
def test_other_paths_are_let_through(tmp_path, character):
  check_path(tmp_path / f"a{character}b", "--run.out")
  assert not any(part in f"a{character}b/" for part in MISREAD)


def test_checkpoints_come_back_from_an_odd_path(tmp_path):
  folder = tmp_path / "é '\" {a} $b &c;d #e %20 ~ (漢)"
  store(folder, (1, 2))
  assert restore(folder).step == 2


def test_first_checkpoint_is_read_before_the_rest_is_trusted(tmp_path, monkeypatch):
  checkpoints = Checkpoints(tmp_path, Layout())
  arrays, read = checkpoints._store.arrays, []

  def spoilt(step, target):
    read.append(step)
    return jax.tree.map(np.zeros_like, arrays(step, target))

  monkeypatch.setattr(checkpoints._store, "arrays", spoilt)
  checkpoints.save(1, make_state(1), {}, None)
  with pytest.raises(SaveError, match=r"cannot read back the checkpoint of step 1 .*SHA-256"):
    checkpoints.wait()
  checkpoints.close()
  assert read == [1]


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "manifest.json", "mine/"])
def test_run_is_not_written_among_what_is_of_no_run(trained, tmp_path, name):
  out = tmp_path / "out"
  out.mkdir()
  (out / name).mkdir() if name.endswith("/") else (out / name).write_text("mine")
  config = dataclasses.replace(trained[1], run=runs.RunConfig(out=str(out)))
  for fresh in (False, True):
    with pytest.raises(UsageError, match=f"of no run and has {name.rstrip('/')}"):
      train(within(config, run={"fresh": fresh}))
  assert [path.name for path in out.iterdir()] == [name.rstrip("/")]


def test_run_may_have_a_folder_with_files_beside(copied, tmp_path):
  """As a log that a shell began; and what a run left that was killed at its beginning."""
  out = tmp_path / "out"
  for name in ("checkpoints", "digests"):
    (out / name).mkdir(parents=True)
  (out / "log.txt").write_text("")
  (copied[0] / "plots").mkdir()
  for path in (out, copied[0]):
    folder = Folder(path)
    folder.check_place()
    folder.close()
  root = Folder("/")
  with pytest.raises(UsageError, match=r"`--run.out` .* got '/', which is of no run and has "):
    root.check_place()
  root.close()


# What is evaluated


def test_configuration_that_was_edited_is_not_evaluated(copied):
  folder, _ = copied
  good = evaluate(folder)
  assert (good["step"], good["sealed"]) == (14, True)
  edits = {"model": {"degree": 3}, "data": {"normalisation": "channel"}}
  for part, edit in edits.items():
    ((name, value),) = edit.items()
    before = json.loads((folder / "config.json").read_text())[part][name]
    change(folder, lambda c, part=part, edit=edit: c[part].update(edit))
    told = f"`--{part}.{name}` was {json.dumps(before)}, now {json.dumps(value)}"
    with pytest.raises(UsageError, match=rf"config\.json is not what .*{told}"):
      evaluate(folder)
    change(folder, lambda c, part=part, old={name: before}: c[part].update(old))
  change(folder, lambda c: c["optim"].update(momentum=0.5))
  assert evaluate(folder) == good  # which does not decide a score
  with pytest.raises(UsageError, match=r"`--optim.momentum` was 0.5, now 0.9"):
    train(copied[1])


@pytest.mark.parametrize("part", [None, "model", "data", "optim", "parallel"])
def test_configuration_without_a_part_is_not_evaluated(copied, part):
  folder, _ = copied
  values = json.loads((folder / "config.json").read_text())
  form = TrainConfig if part is None else type(getattr(TrainConfig(), part))
  later = {field.name for field in dataclasses.fields(form) if field.metadata}
  assert later <= {"widths", "flip_mode", "validation", "views", "groups", "lookahead", "recipe"}
  for name in set(values if part is None else values[part]) - later:
    change(folder, lambda c, name=name: (c if part is None else c[part]).pop(name))
    with pytest.raises(UsageError, match=f"missing: `--.*{name}`, in the configuration"):
      evaluate(folder)
    (folder / "config.json").write_text(json.dumps(values))


def test_other_data_under_the_same_name_are_not_evaluated(copied):
  folder, config = copied
  arrays = dict(np.load(config.data.name))
  np.savez(config.data.name, **arrays | {"x_test": 255 - arrays["x_test"]})
  with pytest.raises(UsageError, match=r"`--data.name` .*blobs.npz has other data now"):
    evaluate(folder)
  with pytest.raises(UsageError, match=r"`--data.name` .*blobs.npz has other data now"):
    train(config)


def test_other_devices_than_there_are_are_refused(trained):
  for devices in (0, -1):
    with pytest.raises(UsageError, match=r"`--parallel.devices` must be at least 1"):
      evaluate(trained[0], parallel=ParallelConfig(devices=devices))


# Which checkpoint it is


def test_checkpoint_under_the_name_of_another_step_is_refused(copied):
  folder, config = copied
  (folder / "checkpoints" / "14").rename(folder / "checkpoints" / "34")
  shutil.rmtree(folder / "digests")
  _, printed = train(config)
  assert "34: 34/ is the checkpoint of step 14" in printed
  assert "goes on from step 7" in printed


def test_checkpoints_of_another_run_are_refused(copied, tmp_path):
  folder, config = copied
  other = dataclasses.replace(
    config, seed=4, run=dataclasses.replace(config.run, out=str(tmp_path / "other"), stop_after=2)
  )
  train(other)
  for name in ("checkpoints", "digests"):
    shutil.rmtree(folder / name)
    shutil.copytree(tmp_path / "other" / name, folder / name)
  with pytest.raises(UsageError, match="saved with another configuration: `--seed` was 4, now 3"):
    train(config)


def test_newest_checkpoint_that_is_gone_is_told(copied):
  folder, config = copied
  shutil.rmtree(folder / "checkpoints" / "14")
  result = evaluate(folder)
  assert result["step"] == 7
  assert "there is no checkpoint of step 14, though there was one" in result["damaged"][0]
  _, printed = train(config)
  assert "damaged checkpoint: " in printed
  assert "there is no checkpoint of step 14, though there was one" in printed


FORGED = {
  "no rows": lambda record: record["run"].pop("rows"),
  "text for rows": lambda record: record["run"].update(rows="x"),
  "row without accuracy": lambda record: record["run"]["rows"][0].pop("test_accuracy"),
  "row of text": lambda record: record["run"]["rows"][0].update(test_accuracy="high"),
  "rows out of order": lambda record: record["run"]["rows"].reverse(),
  "row of a later step": lambda record: record["run"]["rows"][-1].update(step=10**9),
  "timing of others": lambda record: record["run"].update(timing=[]),
  "negative seconds": lambda record: record["run"].update(train_seconds=-1.0),
  "loss of none": lambda record: record["run"].update(loss_sum=None),
  "configuration of text": lambda record: record["run"].update(config="x"),
  "scores of text": lambda record: record.update(scores="high"),
  "score alone": lambda record: record.update(scores=[[7]]),
  "leaves of numbers": lambda record: record.update(leaves={"a": 1}),
  "step of text": lambda record: record.update(step="7"),
  "a list": lambda record: [record],
  "run of null": lambda record: record.update(run=None),
}


@pytest.mark.parametrize("kind", FORGED)
def test_record_that_cannot_be_is_told_in_a_line(copied, kind):
  folder, config = copied

  def forge(record):
    changed = FORGED[kind](record)
    return changed if isinstance(changed, list) and kind == "a list" else None

  rewrite(folder, forge)
  for action in (lambda: train(config), lambda: evaluate(folder)):
    with pytest.raises((UsageError, DamagedError), match="record"):
      action()


@pytest.mark.parametrize("place", ["_CHECKPOINT_METADATA", "record/metadata"])
def test_pipe_in_place_of_a_file_does_not_hang(copied, place):
  folder, config = copied
  file = folder / "checkpoints" / "14" / place
  file.unlink()
  os.mkfifo(file)
  for action in (lambda: train(config), lambda: evaluate(folder)):
    with pytest.raises(DamagedError, match=f"14/{place} is not a regular file"):
      action()


def test_pipe_in_place_of_the_configuration_does_not_hang(copied):
  (copied[0] / "config.json").unlink()
  os.mkfifo(copied[0] / "config.json")
  with pytest.raises(UsageError, match=r"config\.json is damaged: not a regular file"):
    evaluate(copied[0])


# What is in the folder beside


def test_lock_is_no_way_to_another_file(copied, tmp_path):
  folder, config = copied
  (tmp_path / "mine.txt").write_text("mine")
  (folder / "lock").unlink()
  (folder / "lock").symlink_to(tmp_path / "mine.txt")
  train(config)
  assert (tmp_path / "mine.txt").read_text() == "mine"


def test_live_run_is_not_disturbed_where_its_lock_was_deleted(copied):
  folder, config = copied
  live = Folder(folder)
  live.claim()
  (folder / "lock").unlink()
  try:
    with pytest.raises(UsageError, match="another run is live in"):
      train(config)
  finally:
    live.close()


def test_refused_configuration_leaves_nothing(copied):
  folder, config = copied
  (folder / "lock").unlink()
  before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
  with pytest.raises(UsageError, match="another configuration"):
    train(dataclasses.replace(config, seed=8))
  assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_what_killed_runs_left_is_swept(copied):
  folder, config = copied
  left = [folder / ".config.json.123", folder / "digests" / ".7.sha256.123"]
  for file in left:
    file.write_text("half")
  train(config)
  assert not any(file.exists() for file in left)


def test_fresh_run_on_a_disk_that_is_linked_to(copied, tmp_path):
  folder, config = copied
  disk = tmp_path / "disk"
  (folder / "checkpoints").rename(disk)
  (folder / "checkpoints").symlink_to(disk)
  (disk / "mine.txt").write_text("mine")
  fresh = dataclasses.replace(config.run, fresh=True, stop_after=1)
  _, printed = train(dataclasses.replace(config, run=fresh))
  assert "starts at step 0" in printed
  assert (disk / "mine.txt").read_text() == "mine"
  assert sorted(path.name for path in disk.iterdir()) == ["7", "mine.txt"]
  assert train(config)[0].status == "finished"


def test_damaged_checkpoint_is_moved_away_from_a_disk_that_is_linked_to(tmp_path, monkeypatch):
  store(tmp_path, (1, 2))
  (tmp_path / "checkpoints" / "2" / "record" / "metadata").write_text("{")
  rename = os.rename

  def other_disk(source, target, **options):
    if "damaged" in str(target):
      raise OSError(18, "Invalid cross-device link")
    rename(source, target, **options)

  monkeypatch.setattr(os, "rename", other_disk)
  assert restore(tmp_path).step == 1
  assert (tmp_path / "damaged" / "2").is_dir()


# Several processes


COMMON = {
  "`--seed`": lambda patch, config: dataclasses.replace(config, seed=9),
  "`--data.flip`": lambda patch, config: within(config, data={"flip": False}),
  "`--run.save-every`": lambda patch, config: within(config, run={"save_every": 3}),
  "`--parallel.processes`": lambda patch, config: within(config, parallel={"processes": 3}),
  "the digest of the data": lambda patch, config: patch.setattr(
    run, "build", lambda *parts: build.build(*parts)._replace(fingerprint="another")
  ),
  "the digest of the code": lambda patch, config: patch.setattr(run, "code_digest", lambda: "x"),
  "the commit": lambda patch, config: patch.setattr(
    run, "environment", lambda: environment() | {"commit": "another"}
  ),
  "version of jax": lambda patch, config: patch.setattr(
    run, "environment", lambda: environment() | {"versions": environment()["versions"] | {"jax": 0}}
  ),
  "jax_default_prng_impl": lambda patch, config: patch.setattr(
    run,
    "environment",
    lambda: environment() | {"settings": environment()["settings"] | {"jax_default_prng_impl": 0}},
  ),
  "the folder of the run": lambda patch, config: patch.chdir(Path(config.data.name).parent),
}


def within(config, **parts):
  """The configuration with other options in its parts."""
  changed = {name: dataclasses.replace(getattr(config, name), **p) for name, p in parts.items()}
  return dataclasses.replace(config, **changed)


@pytest.mark.parametrize("name", COMMON)
def test_processes_compare_what_decides_a_run(trained, tmp_path, monkeypatch, name):
  config = within(
    trained[1],
    run={"out": "run"},
    parallel={"coordinator": "127.0.0.1:1", "processes": 2, "process": 1},
  )
  compared = []

  def agree(facts):
    compared.append(facts)
    raise UsageError("enough")

  monkeypatch.setattr(run, "connect", lambda _: None)
  monkeypatch.setattr(run, "agree", agree)
  monkeypatch.chdir(tmp_path)
  for change in (lambda patch, config: None, COMMON[name]):
    with monkeypatch.context() as patch, pytest.raises(UsageError, match="enough"):
      train(change(patch, config) or config)
  one, other = compared
  assert one.keys() == other.keys()
  assert {key for key in one if one[key] != other[key]} == {name}
  assert list(tmp_path.iterdir()) == []


# How long it lives


def test_record_does_not_grow_with_the_number_of_saves(tmp_path):
  checkpoints = Checkpoints(tmp_path, Layout(), asynchronous=False)
  for step in range(1, 13):
    checkpoints.save(step, make_state(1), {}, 1 / step)
  assert checkpoints.best_step == 1
  assert len(checkpoints._scores) <= 4
  checkpoints.close()
  again = Checkpoints(tmp_path, Layout())
  again.restore(SHAPES)
  assert again.best_step == 1
  again.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_ask_a_run_to_end(number):
  with StopSignals() as signals:
    signal.raise_signal(number)
    assert signals.received == signal.Signals(number).name


def test_hanging_up_is_ignored_under_nohup():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with StopSignals() as signals:
      signal.raise_signal(signal.SIGHUP)
      assert not signals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
  finally:
    signal.signal(signal.SIGHUP, before)


# Runs of version 0.1


def test_run_of_version_0_1_goes_on_and_is_evaluated(tmp_path, monkeypatch):
  """It was made by that version: one epoch of two, on the data of these tests."""
  with tarfile.open(Path(__file__).with_name("version_0_1.tar.gz")) as archive:
    archive.extractall(tmp_path, filter="data")
  monkeypatch.chdir(tmp_path)
  runs.write_data(tmp_path)
  row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
  result = evaluate("run")
  assert (result["step"], result["sealed"]) == (7, False)
  assert result["accuracy"] == row["test_accuracy"]
  with pytest.warns(UserWarning, match=UNSEALED):
    network = load("run")  # what it saw is told by its data set, since no checkpoint tells
  assert network.description.image_shape == (12, 12, 1)
  with np.load("blobs.npz") as data:
    hits = network.predict(data["x_test"]).argmax(-1) == data["y_test"]
  assert hits.mean() == pytest.approx(result["accuracy"])
  config = dataclasses.replace(
    runs.config("blobs.npz", "run", epochs=2), run=runs.RunConfig(out="run")
  )
  outcome, printed = train(config)
  assert UNSEALED in " ".join(printed.split("\n"))
  assert outcome.rows[0] == row
  assert outcome.step == 14
  assert evaluate("run")["sealed"]
  assert UNSEALED not in train(config)[1]


# Data that are not in memory


def streamed(content=b"an image", label=1, number=100):
  files = [(b"image %d" % i, i % 3) for i in range(number)]
  files[0] = content, label
  return StreamedDataset(files, files[:7], "files", num_classes=3, channels=1, size=12, resize=14)


def test_streamed_data_are_told_apart():
  same = build.fingerprint(streamed())
  assert build.fingerprint(streamed()) == same
  others = [streamed(b"another"), streamed(label=2), streamed(number=101)]
  assert same not in {build.fingerprint(other) for other in others}


def test_streamed_data_of_version_0_1_cannot_be_compared():
  """It kept their number alone, and runs of it go on."""
  nothing = {"rows": [], "timing": [], "train_seconds": 0.0, "loss_sum": 0.0, "loss_steps": 0}
  old = Continuation.read(nothing | {"data": "of their number"}, 3)
  old.check({"data.name": "files"}, build.fingerprint(streamed()))
  new = Continuation.read(
    nothing | {"data": build.fingerprint(streamed()), "config": {"data.name": "files"}}, 3
  )
  with pytest.raises(UsageError, match="files has other data now"):
    new.check({"data.name": "files"}, build.fingerprint(streamed(b"another")))
