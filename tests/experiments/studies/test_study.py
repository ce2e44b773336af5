"""The command `study`: a plan becomes runs, rows and a page, whatever stops it on the way."""

import json
import shlex

import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from experiments.__main__ import main
from experiments.common.forms import parse_json
from experiments.studies import command as module
from experiments.studies import measures, page, plan
from experiments.studies.plan import Key
from tests import runs

PLAN = """
title = "Blobs"
about = "About."
rules = "Rules."
reference = "cnn"
held_out = 10
search_seeds = [9]

[settings.blobs]
label = "blobs"
preset = "lenet5-sample-cnn"
options = "--epochs 2 --data.name {data} --data.batch-size 16"
rates = [0.05, 0.1]
target = 0.4

[arms.cnn]
label = "CNN"
options = ""

[arms.square]
label = "square"
options = "--model.kernel polynomial --model.degree 2"

[[stages]]
name = "pilot"
setting = "blobs"
arms = ["cnn"]
seeds = [0, 1]
pilot = true

[[stages]]
name = "confirm"
setting = "blobs"
arms = ["cnn", "square"]
seeds = [3]
confirms = true
"""


def rows_of(out):
  return [parse_json(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def test_a_plan_becomes_rows_and_a_page_that_can_be_stopped_anywhere(tmp_path, capsys):
  file, out = tmp_path / "blobs.toml", tmp_path / "results"
  file.write_text(PLAN.format(data=runs.write_data(tmp_path)))
  options = ["--out", str(out), "--runs", str(tmp_path / "runs")]
  assert main(["study", str(file), *options, "--stages", "pilot"]) == 0
  assert [row["key"]["seed"] for row in rows_of(out)] == [0, 1]
  page = (out / "README.md").read_text()
  assert "**No answer yet**" in page
  assert "The pilot, 2 runs of the CNN at the middle rate" in page
  assert "and more once rates are chosen" in page
  assert main(["study", str(file), *options]) == 0
  rows = rows_of(out)
  made = [Key(**row["key"]) for row in rows]
  assert sum(key.search for key in made) == 4
  study = plan.read(str(file))
  by_key = dict(zip(made, rows, strict=True))
  own = study.rate("blobs", "square", by_key)
  searched = {key.rate: by_key[key]["accuracy"] for key in study.searches("blobs", "square")}
  assert searched[own] == max(searched.values())
  page = (out / "README.md").read_text()
  assert "| square |" in page
  assert (out / "blobs.png").stat().st_size > 10_000
  # Its own command makes a row again, and a row that is missing is the only one that is made.
  row = next(by_key[key] for key in made if key.arm == "square" and not key.search)
  words = shlex.split(row["command"])[3:]
  assert main([*words, "--run.out", str(tmp_path / "again")]) == 0
  again = [parse_json(line) for line in (tmp_path / "again/metrics.jsonl").read_text().splitlines()]
  assert again[-1]["test_accuracy"] == row["accuracy"]
  assert [each["test_loss"] for each in again] == row["test_loss"]
  before = (out / "rows.jsonl").read_text()
  (out / "rows.jsonl").write_text("".join(before.splitlines(keepends=True)[:-1]))
  capsys.readouterr()
  assert main(["study", str(file), *options, "--minutes", "0"]) == 0
  assert len(rows_of(out)) == len(rows) - 1
  assert main(["study", str(file), *options]) == 0
  assert len(capsys.readouterr().out.splitlines()) == 3  # two pages and a row
  timed = [dict(each) for each in rows_of(out)]
  assert [each.pop("accuracy") for each in timed] == [each["accuracy"] for each in rows]


def test_this_repositorys_plans_can_be_run():
  for name in plan.NAMES:
    study = plan.read(name)
    for setting in study.settings:
      for arm in study.arms:
        for key in study.searches(setting, arm):
          study.config(key).check()
    made = [key for stage in study.stages if not stage.pilot for key in study.wanted(stage, {})]
    assert made
    assert all(key.search for key in made)  # rates are chosen before anything else
    assert not {seed for stage in study.stages for seed in stage.seeds} & {*study.search_seeds}


def test_a_stage_can_leave_out_the_rate_of_the_reference(tmp_path):
  file = tmp_path / "blobs.toml"
  rates = {}
  for more in ("", "own = true\n"):
    file.write_text(PLAN.format(data="blobs.npz") + more)
    study = plan.read(str(file))
    (stage,) = (stage for stage in study.stages if not stage.pilot)
    best = {"cnn": 0.05, "square": 0.1}
    rows = {
      key: {"accuracy": 0.9 if key.rate == best[arm] else 0.5}
      for arm in best
      for key in study.searches("blobs", arm)
    }
    rates[more] = [(key.arm, key.rate) for key in study.wanted(stage, rows) if not key.search]
  assert rates == {
    "": [("cnn", 0.05), ("square", 0.05), ("square", 0.1)],
    "own = true\n": [("cnn", 0.05), ("square", 0.1)],
  }


@pytest.mark.parametrize(
  ("old", "new", "message"),
  [
    ('arms = ["cnn", "square"]', 'arms = ["cnn", "cube"]', "cube"),
    ("seeds = [3]", "seeds = [3, 3]", "each once"),
    ("target = 0.4", "target = 40.0", "between 0 and 1"),
    ("rates = [0.05, 0.1]", "rates = [0.0]", "must be positive"),
    ('setting = "blobs"\narms = ["cnn"]', 'setting = "spots"\narms = ["cnn"]', "spots"),
    ('reference = "cnn"', "reference = 3", "reference"),
    ('title = "Blobs"', 'title = "Blobs', "is no study"),
    ("lenet5-sample-cnn", "lenet6", "lenet6"),
  ],
)
def test_a_plan_that_will_not_do_is_told(tmp_path, capsys, old, new, message):
  file, out = tmp_path / "blobs.toml", tmp_path / "results"
  assert old in PLAN
  file.write_text(PLAN.replace(old, new))
  assert main(["study", str(file), "--out", str(out)]) == 2
  assert message in capsys.readouterr().err
  assert not out.exists()


def test_rows_and_places_that_will_not_do_are_told(tmp_path, capsys):
  file, out = tmp_path / "blobs.toml", tmp_path / "results"
  file.write_text(PLAN.format(data="blobs.npz"))
  command = ["study", str(file), "--out", str(out), "--minutes", "0"]
  assert main([*command, "--stages", "first"]) == 2
  assert "`--stages` must be of pilot, confirm" in capsys.readouterr().err
  assert main(["study", "mnist", "--out", str(out)]) == 2
  assert "got 'mnist'" in capsys.readouterr().err
  assert main([*command[:-1], "-1"]) == 2
  out.mkdir()
  key = Key("blobs", "cnn", 0.1, 0)
  good = {"key": key._asdict(), "command": plan.read(str(file)).command(key), "accuracy": 0.5}
  good |= {"steps": [0, 3], "test_accuracy": [0.1, 0.5], "train_seconds": 1.5}
  for row in (
    "{}",
    json.dumps(good | {"accuracy": 5.0}),
    json.dumps({name: value for name, value in good.items() if name != "steps"}),
    json.dumps(good | {"test_accuracy": [0.1]}),
    json.dumps(good | {"test_accuracy": [0.1, 7.0]}),
    json.dumps(good | {"train_seconds": "long"}),
    json.dumps(good | {"train_seconds": 0.0}),
    json.dumps(good | {"command": "python"}),
    json.dumps(good | {"key": key._replace(arm="cube")._asdict()}),
    json.dumps(good) + "\n" + json.dumps(good),
  ):
    (out / "rows.jsonl").write_text(row + "\n")
    assert main(command) == 2
    assert "rows.jsonl', line" in capsys.readouterr().err
  (out / "rows.jsonl").write_text(json.dumps(good) + "\n")
  assert main(command) == 0
  (out / "README.md").write_text("# Mine\n")
  assert main(command) == 2
  assert "would be lost" in capsys.readouterr().err


def test_a_stopped_run_goes_on_and_one_of_another_commit_does_not(tmp_path, monkeypatch):
  file = tmp_path / "blobs.toml"
  file.write_text(PLAN.format(data=runs.write_data(tmp_path)))
  study, key = plan.read(str(file)), Key("blobs", "square", 0.1, 3)
  row = module.rows.make(study, key, tmp_path / "runs", None)
  assert row is not None
  (folder,) = (tmp_path / "runs").iterdir()
  launches = parse_json((folder / "manifest.json").read_text())["launches"]
  assert len(launches) == 1
  again = module.rows.make(study, key, tmp_path / "runs", None)  # it was complete
  assert again is not None
  assert again["test_loss"] == row["test_loss"]
  assert len(parse_json((folder / "manifest.json").read_text())["launches"]) == 2
  monkeypatch.setattr(module.rows, "environment", lambda: {"commit": "another"})
  assert module.rows.make(study, key, tmp_path / "runs", None) is not None
  assert len(parse_json((folder / "manifest.json").read_text())["launches"]) == 1


def made_up(lead, slower=1.0, number=6):
  """Rows of runs in which the arm leads by so much."""
  study = plan.read("cifar")
  rows = {}
  for arm in ("cnn", "cubic"):
    for key in study.searches("augmented", arm):
      rows[key] = {"accuracy": 0.7 if key.rate == 0.73 else 0.6}
    for seed in range(10, 10 + number):
      noise = np.random.default_rng([seed, len(arm)]).normal(0, 0.002)
      accuracies = [0.1, 0.6, 0.75, 0.84, 0.86 + noise + lead * (arm == "cubic")]
      steps = [round(100 * n * (slower if arm == "cubic" else 1.0)) for n in range(5)]
      rows[Key("augmented", arm, 0.73, seed)] = {
        "accuracy": accuracies[-1],
        "test_accuracy": accuracies,
        "steps": steps,
        "train_seconds": 60.0,
      }
  return study, rows


def test_verdicts_follow_the_rows():
  for lead, slower, accuracy, steps in (
    (0.02, 0.5, "better", "better"),
    (-0.02, 2.0, "not better", "not better"),
  ):
    study, rows = made_up(lead, slower)
    words = measures.verdicts(study, rows)
    assert words["augmented", "cubic", "accuracy", "own"] == accuracy
    assert words["augmented", "cubic", "steps", "reference"] == steps
    finding = measures.find(study, rows, "augmented", "cubic", "accuracy", "own")
    assert finding.estimate is not None
    assert abs(finding.estimate.value - lead) < 0.004
  study, rows = made_up(0.0006)
  assert measures.verdicts(study, rows)["augmented", "cubic", "accuracy", "own"] == "undecided"
  study, rows = made_up(0.02, number=2)
  assert measures.verdicts(study, rows) == {}
  study, rows = made_up(0.02)
  rows[Key("augmented", "cubic", 0.73, 10)] = {"accuracy": None}
  assert measures.verdicts(study, rows) == {}
  assert "diverged" in measures.find(study, rows, "augmented", "cubic", "accuracy", "own").why


def test_the_page_begins_with_the_answer(tmp_path):
  study, rows = made_up(0.02, 0.5)
  page.write("cifar", study, rows, tmp_path)
  text = (tmp_path / "README.md").read_text()
  answer = text.split("\n\n")[1]
  assert answer.startswith(
    "None of 18 runs diverged. On CIFAR-10, at the CNN's rate, in points of acc"
  )
  assert answer.count("**better** is cubic, balance learnt (the paper's) (") == 4
  assert text.count("(better) |") == 4
  assert "**0.73: 70.00 %**" in text
  assert "| confirm | CIFAR-10 | verdicts | 18 of 30 |" in text
  page.write("cifar", study, rows, tmp_path)  # over its own


def test_a_page_shows_what_was_asked_alone(tmp_path):
  study, rows = plan.read("depth"), {}
  for arm, accuracy in (("cnn", 0.5), ("l2", 0.4), ("cosine", 0.6), ("sigmoid", None)):
    for key in study.searches("resnet20", arm):
      rows[key] = {"accuracy": 0.3 if key.rate == 0.02 else 0.2}
    for seed in (10, 11, 12):
      noise = np.random.default_rng([seed, len(arm)]).normal(0, 0.002)
      rows[Key("resnet20", arm, 0.02, seed)] = {"accuracy": accuracy and accuracy + noise} | (
        {"steps": [1000], "test_accuracy": [accuracy], "train_seconds": 60.0} if accuracy else {}
      )
  page.write("depth", study, rows, tmp_path)
  text = (tmp_path / "README.md").read_text()
  answer, table = text.split("\n\n")[1], text.partition("| network | ")[2].partition("\n\n")[0]
  assert answer.startswith("3 of 24 runs diverged (3 of all sigmoid). On CIFAR-10 by ResNet-20, ")
  assert "each at its own rate" in answer
  assert "**better** is all cosine (+" in answer
  assert "**not better** is all L2 (-" in answer
  assert "the CNN's rate" not in text  # each has its own alone
  assert "times as fast" not in text  # the target is reached by none
  assert "| all sigmoid | diverged | all sigmoid diverged |" in table
  assert "L1" not in table
  assert not list(tmp_path.glob("*.png"))  # one evaluation makes no curve


def test_steps_are_read_between_evaluations_by_the_logarithm_of_the_error():
  row = {"steps": [0, 100, 200], "test_accuracy": [0.1, 0.6, 0.9]}
  assert measures.steps_to(row, 0.8) == pytest.approx(150.0)  # errors 0.4, 0.2, 0.1
  assert measures.steps_to(row, 0.6) == pytest.approx(100.0)
  assert measures.steps_to(row, 0.05) == 0.0
  assert measures.steps_to(row, 0.95) is None
