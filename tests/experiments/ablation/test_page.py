"""The page of a study, of made-up rows and of the committed ones."""

import shlex

import pytest
import tyro

from experiments import UsageError
from experiments.ablation import page, plan, tables
from experiments.ablation.command import AblationCommand, ReportCommand
from experiments.ablation.evidence import Evidence
from experiments.ablation.plots import _styles
from experiments.ablation.protocol import (
  Filters,
  Protocol,
  Training,
  identity,
  spec_from,
)
from experiments.ablation.report import run as report
from experiments.ablation.rows import Rows
from tests.experiments.ablation.rows import fill, training
from tests.runs import ROOT


def readme(tmp_path):
  file = tmp_path / "README.md"
  file.write_text(f"above\n{page.BEGIN}\nold\n{page.END}\nbelow\n")
  return file


def test_the_page_of_all_rows(tmp_path):
  fill(Rows(tmp_path / "rows", Protocol(data="x")))
  file = readme(tmp_path)
  assert report(ReportCommand(str(tmp_path / "rows"), str(file))) == 0
  text = (tmp_path / "rows" / "README.md").read_text()
  assert "nan" not in text
  assert "Missing runs" not in text
  for name in ("convergence", "arrangement", "hyperparameters", "no-relu", "controls", "tuned"):
    assert f"]({name}.png)" in text
  for name in ("fgsm", "filters"):
    assert f"]({name}.png)" in text
    assert (tmp_path / "rows" / f"{name}.png").stat().st_size > 5000
  theirs, ours = text.split("### What it leaves open")
  assert "The polynomial KNN reaches 98 % twice as fast" in theirs
  assert "some KNN is more accurate" in ours
  assert "| at 0.003, % | error of epochs 1 to 3, % |" in text
  assert "The mean correlation of pairs, paired the same way, is" in text
  assert "; 3 seeds of each network, for a run takes" in text
  section = file.read_text()
  assert "at most" not in section
  assert section.startswith("above\n")
  assert section.endswith("below\n")
  assert "\nold\n" not in section
  assert "](rows/convergence.png)" in section
  assert "| CNN | 99.0" in section
  assert "- The polynomial KNN reaches 98 % twice as fast as the CNN. **" in section
  assert "- With its own learning rate, some KNN is more accurate" in section


def test_the_paper_is_not_judged_by_other_runs(tmp_path):
  rows = fill(Rows(tmp_path, Protocol(epochs=10, data="x")))
  assert report(ReportCommand(str(tmp_path), None)) == 0
  text = (tmp_path / "README.md").read_text()
  assert "it is not judged" in text
  assert "twice as fast as the CNN" not in text
  assert "some KNN is more accurate" in text
  section = page.readme_section(Evidence(rows.all()), rows.protocol, "rows", [])
  assert "twice as fast as the CNN" not in section
  assert "some KNN is more accurate" in section


def test_the_page_says_where_there_are_more_seeds(tmp_path):
  rows = fill(Rows(tmp_path / "rows", Protocol(data="x")))
  fill(rows, seeds=(0, 1, 2, 3), studies=("tuned",))
  text = page.method(Evidence(rows.all()), Protocol())
  assert "4 seeds of each network in tuned, 3 in kernels, arrangement, no-relu," in text
  assert "of 3 to 4 seeds;" in page.readme_section(Evidence(rows.all()), Protocol(), "rows", [])


def test_runs_made_together_have_no_seconds_and_no_cost_of_their_own(tmp_path):
  rows = fill(Rows(tmp_path, Protocol(data="x"))).all()
  assert "1.5 minutes of a core" in page.method(Evidence(rows), Protocol())
  table = tables.trainings(Evidence(rows), "kernels")
  together = {
    name: row | {"environment": row["environment"] | {"together": 3}} for name, row in rows.items()
  }
  text = page.method(Evidence(together), Protocol())
  assert "3 runs at once" in text
  assert "minutes" not in text
  for line, same in zip(
    table.splitlines()[2:],
    tables.trainings(Evidence(together), "kernels").splitlines()[2:],
    strict=True,
  ):
    assert line.split("|")[:-2] == same.split("|")[:-2]
    assert line.split("|")[-2].strip()
    assert not same.split("|")[-2].strip()


def test_the_page_of_some_rows_says_what_is_missing(tmp_path):
  rows = Rows(tmp_path / "rows", Protocol(data="x"))
  rows.add(Training("cnn", 0), training(0.99))
  rows.add(Training("polynomial", 0), training(None, None))
  assert report(ReportCommand(str(tmp_path / "rows"), None)) == 0
  text = (tmp_path / "rows" / "README.md").read_text()
  assert "nan" not in text
  assert "- no-relu: linear-cnn: seed 0, seed 1, seed 2" in text
  assert "; polynomial: seed 1, seed 2" in text
  assert "**holds" not in text
  assert "**does not hold" not in text
  assert "(1 diverged)" in text


def test_the_page_of_runs_that_diverged(tmp_path):
  rows = fill(Rows(tmp_path / "rows", Protocol(data="x")))
  at_once = {"steps_to_target": None, "curve": {"steps": [0], "accuracy": [0.1]}, "seconds": 0.0}
  lost = {"accuracy": None, "diverged_at": 5, "final_loss": None, "epoch_accuracy": []} | at_once
  chosen = [
    row | lost
    for row in rows.all().values()
    if row["kind"] == "training"
    and row["spec"]["arm"] in ("gaussian", "kerv-kerv", "linear-cnn")
    and (row["spec"]["rate"] > 0.01 or row["spec"]["rate"] == 0.003)
  ]
  assert len(chosen) > 10
  rows.add_all(chosen)
  assert report(ReportCommand(str(tmp_path / "rows"), None)) == 0
  text = (tmp_path / "rows" / "README.md").read_text()
  assert "nan" not in text
  claim = "Without activations the CNN falls to 92.22 %, but for 0.2 points."
  assert f"| {claim} | section 4 | **does not hold** |" in text
  assert "(3 diverged)" in text
  assert (tmp_path / "rows" / "tuned.png").stat().st_size > 5000


def test_networks_look_the_same_in_every_figure():
  looks = [_styles(labels) for labels in (("CNN", "L2", "a", "b"), ("c", "L2"))]
  assert looks[0]["L2"] == looks[1]["L2"]
  assert len({str(style) for style in looks[0].values()}) == 4
  assert len(_styles([*map(str, range(9))])) == 9


def test_a_report_needs_rows_and_a_place(tmp_path):
  with pytest.raises(UsageError, match="no rows"):
    report(ReportCommand(str(tmp_path), None))
  Rows(tmp_path, Protocol()).add(Training("cnn", 0), training())
  (tmp_path / "README.md").write_text("nothing")
  with pytest.raises(UsageError, match="`--readme` must have one line"):
    report(ReportCommand(str(tmp_path), str(tmp_path / "README.md")))
  assert (tmp_path / "README.md").read_text() == "nothing"


def test_the_committed_page_is_that_of_the_committed_rows():
  folder = ROOT / "results" / "mnist"
  rows = Rows(folder)
  evidence = Evidence(rows.all())
  drawn = sorted(file.name for file in folder.glob("*.png"))
  assert page.page(evidence, rows.protocol, drawn) == (folder / "README.md").read_text()
  section = page.readme_section(evidence, rows.protocol, "results/mnist", drawn)
  assert f"{page.BEGIN}\n\n{section}\n\n{page.END}" in (ROOT / "README.md").read_text()


def test_commands_of_committed_rows_mean_their_runs():
  """Each row's command names its run, and no others."""
  rows = Rows(ROOT / "results" / "mnist").all()
  for row in rows.values():
    words = shlex.split(row["command"])
    assert words[:4] == ["python", "-m", "experiments", "ablation"]
    parsed = tyro.cli(AblationCommand, args=words[4:])
    parsed.check()
    assert parsed.again
    (wanted,) = parsed.plans().values()
    *before, own = (identity(spec) for spec in wanted(rows))
    assert own == row["id"]
    assert before == [identity(spec) for spec in networks(row)]


def networks(row):
  spec = spec_from(row["kind"], row["spec"])
  return plan.networks(spec) if isinstance(spec, Filters) else []
