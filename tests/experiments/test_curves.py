"""What runs have measured is drawn and compared, from whatever is in their folders."""

import json
import re

import pytest
from PIL import Image

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from experiments.__main__ import main
from experiments.common import figures
from experiments.runs.history import History

ACCURACIES = {"a": [0.5, 0.875, 0.75], "b": [0.25, None, 0.5]}


def write_run(folder, accuracies, *, kernel="polynomial", validation=None, seconds=2.0):
  """The files of a run that has been evaluated after each epoch."""
  folder.mkdir()
  config = {
    "epochs": 3,
    "model": {"name": "lenet5", "kernel": kernel},
    "eval": {"targets": [0.7]},
    "run": {"out": str(folder)},
  }
  (folder / "config.json").write_text(json.dumps(config))
  lines, clock = "", ""
  for epoch, accuracy in enumerate(accuracies, start=1):
    row = {"step": 10 * epoch, "epoch": epoch, "learning_rate": 0.1, "train_loss": 1 / epoch}
    row |= {"test_loss": 2 / epoch, "test_accuracy": accuracy, "test_top5": 1.0}
    if validation:
      row["validation_accuracy"] = validation[epoch - 1]
    lines += json.dumps(row) + "\n"
    clock += json.dumps({"step": 10 * epoch, "train_seconds": seconds * epoch}) + "\n"
  (folder / "metrics.jsonl").write_text(lines)
  (folder / "timing.jsonl").write_text(clock)
  return folder


@pytest.fixture
def both(tmp_path):
  write_run(tmp_path / "a", ACCURACIES["a"])
  write_run(tmp_path / "b", ACCURACIES["b"], kernel="none", validation=[0.4, 0.6, 0.6])
  return [str(tmp_path / name) for name in "ab"]


def test_runs_are_compared_in_what_they_differ(both, capsys):
  assert main(["compare", *both]) == 0
  a, b = both
  assert capsys.readouterr().out.splitlines() == [
    "| run | `--model.kernel` | epoch | test accuracy | best | at epoch | seconds "
    "| seconds to 0.7 |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
    f'| {a} | "polynomial" | 3 | 0.7500 | 0.8750 | 2 | 6.0 | 4.0 |',
    f'| {b} | "none" | 3 | 0.5000 | 0.5000 | 3 | 6.0 | - |',
  ]


@pytest.fixture
def drawn(monkeypatch):
  """The figures that were written."""
  seen = []
  save = figures.Figure.savefig
  monkeypatch.setattr(
    figures.Figure, "savefig", lambda self, *a, **b: (seen.append(self), save(self, *a, **b))
  )
  return seen


def test_curves_are_those_of_the_rows(both, drawn, tmp_path, capsys):
  assert main(["plot", *both]) == 0
  assert main(["compare", *both, "--out", str(tmp_path / "c.svg")]) == 0
  assert "drawn: " in capsys.readouterr().out
  with Image.open(tmp_path / "a" / "curves.png") as image:
    assert image.size[0] > 1000
  assert (tmp_path / "c.svg").read_text().startswith("<?xml")
  losses, errors = drawn[0].axes
  a, b = both
  lines = {line.get_label(): line for line in (*losses.lines, *errors.lines)}
  assert set(lines) == {
    f"{a}: test", f"{a}: training", f"{b}: test", f"{b}: training", a, b, f"{b}: validation",
  }  # fmt: skip
  assert list(lines[a].get_xdata()) == [1, 2, 3]
  assert list(lines[a].get_ydata()) == [0.5, 0.125, 0.25]
  assert list(lines[f"{b}: validation"].get_ydata()) == [0.6, 0.4, 0.4]
  assert list(lines[f"{b}: training"].get_ydata()) == [1, 1 / 2, 1 / 3]
  assert str(lines[b].get_ydata()[1]) == "nan"  # a loss that was not finite


def test_legends_show_the_names_of_folders_as_they_are(tmp_path, drawn, monkeypatch):
  monkeypatch.chdir(tmp_path)
  names = ["_a", "$b$", r"c$\x", "d$"]
  for name in names:
    write_run(tmp_path / name, ACCURACIES["a"])
  assert main(["plot", *names, "--out", "curves.svg"]) == 0
  losses, errors = (axis.get_legend().get_texts() for axis in drawn[0].axes)
  assert [text.get_text() for text in errors] == names
  assert [text.get_text() for text in losses[:2]] == ["_a: test", "_a: training"]
  assert not any(text.get_parse_math() for text in (*losses, *errors))


def test_a_live_run_is_read_up_to_its_last_whole_line(both, tmp_path):
  folder = tmp_path / "a"
  for name in ("metrics.jsonl", "timing.jsonl"):
    text = (folder / name).read_text()
    (folder / name).write_text(text[:-9])
  assert [row.step for row in History.read(folder).rows] == [10, 20]
  (folder / "timing.jsonl").write_text("")
  assert History.read(folder).seconds == [None, None]


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("config.json", None, "there is no run in "),
    ("metrics.jsonl", None, "there is no file '.*metrics.jsonl' of a run"),
    ("metrics.jsonl", b"", "the run in '.*' has not been evaluated yet"),
    ("metrics.jsonl", b"{}\n", r".*metrics.jsonl is damaged: missing: `line 1.step`"),
    ("metrics.jsonl", b"\xff\n", r".*metrics.jsonl is damaged: "),
    ("timing.jsonl", b'{"step": 1}\n', r".*timing.jsonl is damaged: missing: `line 1.train_sec"),
  ],
)
def test_runs_that_cannot_be_read_are_a_line(both, tmp_path, capsys, name, content, message):
  (tmp_path / "b" / name).unlink()
  if content is not None:
    (tmp_path / "b" / name).write_bytes(content)
  for command in ("plot", "compare"):
    assert main([command, *both]) == 2
    assert re.fullmatch(f"error: {message}.*\n", capsys.readouterr().err)


def test_files_and_folders_that_will_not_do_are_a_line(both, tmp_path, capsys):
  for out in ("", "a.txt", str(tmp_path / "no" / "a.png")):
    assert main(["plot", *both, "--out", out]) == 2
    assert "error: `--out` must be a file .png, .pdf, .svg" in capsys.readouterr().err
  assert main(["compare", both[0], both[0]]) == 2
  assert "error: `RUNS` must be one folder or more, each once" in capsys.readouterr().err
