"""A run that is stopped, killed or damaged ends with the bits of one that was left alone."""

import ctypes
import dataclasses
import io
import json
import random
import re
import resource
import shutil
import signal
import time

import chex
import jax
import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from PIL import Image
from rich.console import Console

from experiments import UsageError
from experiments.configs import build
from experiments.configs.config import RunConfig
from experiments.configs.presets import PRESETS
from experiments.data import StreamedDataset
from experiments.runs import run
from experiments.runs.checkpoints import SaveError
from experiments.runs.ends import Diverged
from experiments.runs.folder import Folder
from experiments.runs.metrics import Metrics
from experiments.runs.record import DamagedError
from tests import runs

BUILD, PARTS = run.build, {}


@pytest.fixture(autouse=True)
def parts(monkeypatch):
  """Makes the parts of equal configurations once: they hold compiled programs, no state."""

  def build(config, layout):
    key = dataclasses.replace(config, run=RunConfig())
    if key not in PARTS:
      PARTS[key] = BUILD(config, layout)
    return PARTS[key]

  monkeypatch.setattr(run, "build", build)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp("data"))


def train(config, **options):
  buffer = io.StringIO()
  return run.train(config, "the command", Console(file=buffer), **options), buffer.getvalue()


def metrics(folder):
  return (folder / "metrics.jsonl").read_bytes()


@pytest.fixture(scope="module", params=["lenet5", "resnet8"])
def whole(request, data, tmp_path_factory):
  """A run that nothing disturbs."""
  out = tmp_path_factory.mktemp("whole")
  config = runs.config(data, out, model=request.param)
  outcome, printed = train(config)
  return config, outcome, out, printed


@pytest.fixture(scope="module")
def lenet(data, tmp_path_factory):
  out = tmp_path_factory.mktemp("lenet")
  config = runs.config(data, out)
  return config, train(config)[0], out


def assert_same(outcome, out, whole_outcome, whole_out):
  assert metrics(out) == metrics(whole_out)
  assert outcome.step == whole_outcome.step
  chex.assert_trees_all_equal(outcome.state, whole_outcome.state)


def moved(config, out, **changes):
  return dataclasses.replace(config, run=dataclasses.replace(config.run, out=str(out), **changes))


def test_run_learns_and_writes_its_files(whole):
  config, outcome, out, printed = whole
  rows = [json.loads(line) for line in metrics(out).splitlines()]
  assert [(row["step"], row["epoch"]) for row in rows] == [(7, 1), (14, 2), (21, 3), (28, 4)]
  assert [row["learning_rate"] for row in rows] == pytest.approx([0.05, 0.025, 0.025, 0.0125])
  assert rows[-1]["train_loss"] < rows[0]["train_loss"]
  assert outcome == (outcome.status, 28, rows, outcome.state)
  assert outcome.status == "finished"
  timing = [json.loads(line) for line in (out / "timing.jsonl").read_text().splitlines()]
  assert [row["step"] for row in timing] == [7, 14, 21, 28]
  assert np.all(np.diff([0] + [row["train_seconds"] for row in timing]) > 0)
  assert json.loads((out / "config.json").read_text()) == json.loads(
    json.dumps(dataclasses.asdict(config))
  )
  (launch,) = json.loads((out / "manifest.json").read_text())["launches"]
  assert launch["command"] == "the command"
  assert launch["versions"]["jax"] == jax.__version__
  assert launch["device_count"] == 1
  summary = json.loads((out / "summary.json").read_text())
  assert summary["test_accuracy"] == rows[-1]["test_accuracy"]
  times = summary["time_to_accuracy"]
  reached = next((t for r, t in zip(rows, timing, strict=True) if r["test_accuracy"] >= 0.5), None)
  assert times["0.5"]["train_seconds"] == (reached and reached["train_seconds"])
  assert "finished: test accuracy" in printed


def test_paused_run_goes_on_with_the_same_bits(whole, tmp_path):
  config, outcome, out, _ = whole
  first, printed = train(moved(config, tmp_path, stop_after=2))
  assert (first.status, first.step) == ("paused", 14)
  assert "paused after step 14" in printed
  assert "the same command, without --run.stop-after, goes on" in printed
  second, printed = train(moved(config, tmp_path))
  assert "goes on from step 14" in printed
  assert_same(second, tmp_path, outcome, out)


def test_shorter_run_can_be_made_longer(whole, tmp_path):
  config, outcome, out, _ = whole
  train(dataclasses.replace(moved(config, tmp_path), epochs=2))
  with pytest.raises(UsageError, match="`--epochs` was 2, now 4"):
    train(moved(config, tmp_path))
  longer, _ = train(moved(config, tmp_path, accept_changes=True))
  assert_same(longer, tmp_path, outcome, out)


def test_run_that_diverged_goes_on_with_what_was_suggested(data, tmp_path):
  config = runs.config(data, tmp_path, epochs=2)
  train(moved(config, tmp_path, stop_after=1))
  optim = dataclasses.replace(
    config.optim,
    clip_norm=1.0,
    learning_rate=0.01,
    warmup_epochs=1.5,
    milestones=(2.0,),
    weight_decay=0.0,
  )
  model = dataclasses.replace(config.model, balance=0.5)
  changed = dataclasses.replace(
    moved(config, tmp_path, accept_changes=True), optim=optim, model=model
  )
  outcome, printed = train(changed)
  assert "goes on from step 7" in printed
  assert outcome.status == "finished"


def test_new_configuration_that_is_no_good_costs_no_checkpoint(data, tmp_path):
  config = runs.config(data, tmp_path, epochs=2)
  train(moved(config, tmp_path, stop_after=1))
  wild = dataclasses.replace(
    moved(config, tmp_path, accept_changes=True),
    model=dataclasses.replace(config.model, kernel="polynomial", degree=999),
  )
  with pytest.raises(Diverged, match=r"at step 7, .*kept: the checkpoint of step 7\. What"):
    train(wild)
  assert train(moved(config, tmp_path, accept_changes=True))[0].status == "finished"


@pytest.mark.parametrize("asks", [2, 5])
def test_streamed_run_goes_on_with_the_same_bits(tmp_path, monkeypatch, asks):
  """Images that are read when they are needed; it is stopped within an epoch."""
  images, labels = runs.blobs(30, 0)
  files = []
  for image, label in zip(images, labels, strict=True):
    buffer = io.BytesIO()
    Image.fromarray(np.kron(image[..., 0], np.ones((2, 2), np.uint8))).save(buffer, "PNG")
    files.append((buffer.getvalue(), int(label)))
  dataset = StreamedDataset(
    files[:23], files[23:], "files", num_classes=3, channels=1, size=12, resize=14, threads=2
  )
  monkeypatch.setattr(build.data, "load", lambda *_, **__: dataset)
  config = runs.config("files", tmp_path / "whole", epochs=3)
  data = dataclasses.replace(config.data, flip=False, pad=0)
  config = dataclasses.replace(config, data=data)
  outcome, _ = train(config)
  assert outcome.step == 6
  with monkeypatch.context() as patch:
    stop_after(patch, asks)
    stopped, _ = train(moved(config, tmp_path / "cut"))
  assert 0 < stopped.step < 6
  assert stopped.step % 2 == 1
  again, _ = train(moved(config, tmp_path / "cut"))
  assert_same(again, tmp_path / "cut", outcome, tmp_path / "whole")


def stop_after(monkeypatch, asks):
  """Makes the signal of a run come when it has been asked about so many times."""

  class Signals(run.StopSignals):
    count = 0

    def __call__(self):
      self.count += 1
      return self.count >= asks

  monkeypatch.setattr(run, "StopSignals", Signals)


@pytest.mark.parametrize("asks", [1, 2, 6, 9])
def test_stopped_run_goes_on_with_the_same_bits(whole, tmp_path, monkeypatch, asks):
  config, outcome, out, _ = whole
  with monkeypatch.context() as patch:
    stop_after(patch, asks)
    stopped, printed = train(moved(config, tmp_path))
  assert stopped.status == "stopped"
  assert stopped.step == {1: 0, 2: 1, 6: 5, 9: 7}[asks]
  assert f"stopped after step {stopped.step}" in printed
  again, printed = train(moved(config, tmp_path))
  assert f"goes on from step {stopped.step}" in printed
  assert_same(again, tmp_path, outcome, out)


def test_finished_run_is_not_trained_again(lenet):
  config, outcome, out = lenet
  before = {path: path.stat().st_mtime_ns for path in (out / "checkpoints").rglob("*")}
  again, _ = train(config)
  assert_same(again, out, outcome, out)
  assert {path: path.stat().st_mtime_ns for path in (out / "checkpoints").rglob("*")} == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_run_in_order(lenet, tmp_path, number):
  config, outcome, out = lenet
  long = dataclasses.replace(moved(config, tmp_path), epochs=10_000)
  process = runs.launch(long)
  wait_for(process, tmp_path / "checkpoints", "[0-9]*")
  process.send_signal(number)
  code, printed, errors = runs.finish(process)
  assert (code, errors) == (75, "")
  assert "stopped after step" in printed
  step = int(printed.split("stopped after step ")[1].split(",")[0].replace(",", ""))
  assert (tmp_path / "checkpoints" / str(step)).is_dir()
  if step < outcome.step:
    again, _ = train(moved(config, tmp_path, accept_changes=True))
    assert_same(again, tmp_path, outcome, out)


def wait_for(process, folder, pattern, seconds=180):
  """Waits until a folder has such a file, or the process has ended."""
  end = time.monotonic() + seconds
  while not list(folder.glob(pattern)) and process.poll() is None:
    assert time.monotonic() < end
    time.sleep(0.002)


def kill_and_go_on(whole, folder, moments, seed):
  """Kills a run at random moments, half of them during a save, and lets it go on to the end.

  Returns how many of them left a save unfinished.
  """
  config, outcome, out = whole
  rng, unfinished = random.Random(seed), 0
  checkpoints = folder / "checkpoints"
  for _ in range(moments):
    before = newest(checkpoints)
    process = runs.launch(moved(config, folder))
    if rng.random() < 0.5:
      wait_for(process, checkpoints, "*tmp*")
      time.sleep(rng.random() * 0.015)
    else:
      wait_for(process, folder, "manifest.json")
      time.sleep(rng.random() * 1.5)
    process.kill()
    process.communicate()
    unfinished += bool(list(checkpoints.glob("*tmp*")))
    rows = [json.loads(line)["step"] for line in metrics(folder).splitlines()]
    assert rows == sorted(set(rows))
    assert newest(checkpoints) >= before  # what is complete stays
    assert newest(checkpoints) >= max(rows, default=0) - 2 * INTERVAL  # one may be under way
  again, _ = train(moved(config, folder))
  assert_same(again, folder, outcome, out)
  return unfinished


INTERVAL = 7  # steps between the checkpoints of these runs


def newest(checkpoints):
  return max(
    (int(path.name) for path in checkpoints.glob("[0-9]*") if path.name.isdigit()), default=0
  )


def test_killed_run_goes_on_with_the_same_bits(lenet, tmp_path):
  kill_and_go_on(lenet, tmp_path, moments=2, seed=0)


def fast_recipe(data, out):
  """Whitening, lookahead, groups of parameters, mirrored views, a part held out."""
  config = PRESETS["fast-cifar10-polynomial"].config
  return dataclasses.replace(
    config,
    model=dataclasses.replace(config.model, widths=(8, 8, 8)),
    data=dataclasses.replace(config.data, name=data, batch_size=8, validation=5),
    eval=dataclasses.replace(config.eval, batch_size=10),
    run=RunConfig(out=str(out)),
  )


@pytest.mark.slow
@pytest.mark.parametrize("make", [runs.config, fast_recipe])
def test_run_killed_many_times_goes_on_with_the_same_bits(make, data, tmp_path):
  """24 random moments in 4 runs, long enough not to have ended before."""
  config = dataclasses.replace(make(data, tmp_path / "whole"), epochs=300)
  whole = config, train(config)[0], tmp_path / "whole"
  unfinished = [
    kill_and_go_on(whole, tmp_path / str(seed), moments=6, seed=seed) for seed in range(4)
  ]
  assert sum(unfinished) > 0
  print(f"{sum(unfinished)} of 24 kills left a save unfinished")


def test_live_run_is_not_disturbed(lenet):
  config, _, out = lenet
  before = metrics(out)
  folder = Folder(out)
  folder.claim()
  try:
    with pytest.raises(UsageError, match=r"another run is live in .*process \d+ on "):
      train(config)
  finally:
    folder.close()
  assert metrics(out) == before
  train(config)


DIFFERENT = {
  "seed": (lambda c: dataclasses.replace(c, seed=4), "`--seed` was 3, now 4"),
  "nested": (
    lambda c: dataclasses.replace(c, optim=dataclasses.replace(c.optim, milestones=(2.0,))),
    r"`--optim.milestones` was \[1.0, 3.0\], now \[2.0\]",
  ),
  "kernel": (
    lambda c: dataclasses.replace(c, model=dataclasses.replace(c.model, degree=3)),
    "`--model.degree` was 2, now 3",
  ),
}


@pytest.mark.parametrize("change", DIFFERENT)
def test_other_configuration_is_refused(lenet, change):
  config, _, out = lenet
  make, message = DIFFERENT[change]
  before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
  with pytest.raises(UsageError, match=f"another configuration: {message}\\. .*accept-changes"):
    train(make(config))
  assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_what_decides_no_result_may_differ(lenet):
  config, outcome, out = lenet
  other = dataclasses.replace(
    moved(config, out, keep=3, save_every=2),
    parallel=dataclasses.replace(config.parallel, devices=1, shard_params=True),
  )
  assert train(other)[0].rows == outcome.rows


def test_fresh_run_starts_again(lenet, tmp_path):
  config, outcome, out = lenet
  train(dataclasses.replace(moved(config, tmp_path), seed=9, epochs=2))
  (tmp_path / "mine.txt").write_text("stays")
  again, printed = train(moved(config, tmp_path, fresh=True))
  assert "starts at step 0" in printed
  assert_same(again, tmp_path, outcome, out)
  assert (tmp_path / "mine.txt").read_text() == "stays"


def test_damaged_files_beside_the_checkpoints(lenet, tmp_path):
  config, outcome, out = lenet
  train(moved(config, tmp_path, stop_after=2))
  (tmp_path / "metrics.jsonl").write_text('{"step": 7}\n{"st')
  (tmp_path / "timing.jsonl").unlink()
  (tmp_path / "manifest.json").write_text("{")
  again, _ = train(moved(config, tmp_path))
  assert_same(again, tmp_path, outcome, out)
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(UsageError, match=r"the configuration .*config\.json is damaged"):
    train(moved(config, tmp_path))
  (tmp_path / "config.json").unlink()
  with pytest.raises(UsageError, match=r"has checkpoints but no config\.json"):
    train(moved(config, tmp_path))
  train(moved(config, tmp_path, accept_changes=True))


def test_damaged_checkpoint_costs_the_steps_since_the_one_before(lenet, tmp_path):
  config, outcome, out = lenet
  train(moved(config, tmp_path, stop_after=3))
  damage(tmp_path / "checkpoints" / "21")
  again, printed = train(moved(config, tmp_path))
  assert "damaged checkpoint:" in printed
  assert "/checkpoints/21: 21/state/" in printed
  assert "goes on from step 14" in printed
  assert_same(again, tmp_path, outcome, out)
  assert (tmp_path / "damaged" / "21").is_dir()


def test_run_never_starts_again_silently(lenet, tmp_path):
  config, _, _ = lenet
  train(moved(config, tmp_path, stop_after=2))
  for step in ("7", "14"):
    damage(tmp_path / "checkpoints" / step)
  with pytest.raises(DamagedError, match=r"(?s)checkpoints/14: 14/state.*checkpoints/7: 7/state"):
    train(moved(config, tmp_path))


def test_checkpoints_that_are_gone_are_missed(lenet, tmp_path):
  config, _, _ = lenet
  train(moved(config, tmp_path, stop_after=2))
  before = metrics(tmp_path)
  for step in ("7", "14"):
    shutil.rmtree(tmp_path / "checkpoints" / step)
  with pytest.raises(DamagedError, match="there is no checkpoint of step 14, though there was one"):
    train(moved(config, tmp_path))
  assert metrics(tmp_path) == before


def test_refused_change_of_the_network_changes_nothing(lenet, tmp_path):
  config, outcome, out = lenet
  train(moved(config, tmp_path, stop_after=1))
  other = dataclasses.replace(config.model, name="resnet8")
  changed = dataclasses.replace(moved(config, tmp_path, accept_changes=True), model=other)
  with pytest.raises(UsageError, match="is of another network"):
    train(changed)
  assert_same(train(moved(config, tmp_path))[0], tmp_path, outcome, out)


def test_other_data_under_the_same_name_are_refused(data, tmp_path, monkeypatch):
  monkeypatch.setattr(run, "build", BUILD)
  file = tmp_path / "data.npz"
  arrays = dict(np.load(data))
  np.savez(file, **arrays)
  config = runs.config(str(file), tmp_path / "run", epochs=2)
  train(moved(config, tmp_path / "run", stop_after=1))
  np.savez(file, **arrays | {"x_train": 255 - arrays["x_train"]})
  with pytest.raises(UsageError, match=r"`--data.name` .*data\.npz has other data now"):
    train(config)
  assert train(moved(config, tmp_path / "run", accept_changes=True))[0].status == "finished"


def test_only_a_run_is_deleted(data, tmp_path):
  (tmp_path / "checkpoints").mkdir()
  (tmp_path / "checkpoints" / "model.pt").write_text("mine")
  (tmp_path / "config.json").write_text('{"my": 1}')
  with pytest.raises(UsageError, match=r"`--run.fresh` deletes runs only"):
    train(runs.config(data, tmp_path, fresh=True))
  assert (tmp_path / "checkpoints" / "model.pt").read_text() == "mine"
  assert (tmp_path / "config.json").read_text() == '{"my": 1}'


def test_full_disk_at_the_start_is_told(data, tmp_path, monkeypatch):
  def fail(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(Folder, "write_config", fail)
  with pytest.raises(SaveError, match=r"cannot go on in .*No space left on device"):
    train(runs.config(data, tmp_path))


@pytest.mark.parametrize("joins", [False, True])
def test_signal_before_the_first_step_is_not_lost(data, tmp_path, monkeypatch, joins):
  def connect(_):
    if joins:  # then JAX takes SIGTERM, and Python is not told
      ctypes.pythonapi.PyOS_setsig(signal.SIGTERM, signal.SIG_IGN.value)

  def build(config, layout):
    signal.raise_signal(signal.SIGTERM)
    return BUILD(config, layout)

  monkeypatch.setattr(run, "connect", connect)
  monkeypatch.setattr(run, "build", build)
  outcome, printed = train(runs.config(data, tmp_path))
  assert (outcome.status, outcome.step) == ("stopped", 0)
  assert (tmp_path / "checkpoints" / "0").is_dir()
  assert "the same command goes on" in printed


def damage(checkpoint):
  """Flips one byte in the middle of the largest file."""
  file = max(checkpoint.rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(content)


def test_diverging_run_stops_and_keeps_what_was_good(data, tmp_path):
  config = runs.config(data, tmp_path, rate=0.05, epochs=3)
  train(dataclasses.replace(moved(config, tmp_path, stop_after=1)))
  wild = dataclasses.replace(
    moved(config, tmp_path, accept_changes=True),
    optim=dataclasses.replace(config.optim, learning_rate=1e30),
  )
  with pytest.raises(
    Diverged,
    match=r"diverged at step \d+, learning rate 5e\+29: .*kept: the checkpoint of step 7\. What "
    r"helps: a lower `--optim.learning-rate`; a warm-up.*fewer kervolutions.*smaller "
    r"`--model.balance`",
  ):
    train(wild)
  assert [path.name for path in (tmp_path / "checkpoints").glob("[0-9]*")] == ["7"]
  again, printed = train(moved(config, tmp_path, accept_changes=True))
  assert "goes on from step 7" in printed
  chex.assert_tree_all_finite(again.state)


def test_run_that_cannot_save_ends_with_the_cause(data, tmp_path):
  """A limit on the size of files stands for a full disk."""
  process = runs.launch(runs.config(data, tmp_path / "run"))
  resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
  code, printed, errors = runs.finish(process)
  assert code == 4, printed
  assert re.fullmatch(
    r"error: cannot write the checkpoint of step 7 to .*: File too large; complete "
    r"checkpoints, as they were: none\n",
    errors,
  )


def test_other_file_that_cannot_be_written(data, tmp_path, monkeypatch):
  def add(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(Metrics, "add", add)
  with pytest.raises(SaveError, match=r"cannot go on in .*No space left on device"):
    train(runs.config(data, tmp_path))
