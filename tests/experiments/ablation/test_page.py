"""The page and its plots, and what they say of data that the paper does not know."""

import re
import shlex

import numpy as np
import pytest
import tyro

from experiments import UsageError
from experiments.ablation import page, plan, plots, pool, tables
from experiments.ablation.command import AblationCommand, ReportCommand, run
from experiments.ablation.evidence import Evidence
from experiments.ablation.page import write as report
from experiments.ablation.protocol import MNIST, Filters, Protocol, Training, identity, spec_from
from experiments.ablation.report import check_page
from experiments.ablation.rows import Rows
from experiments.ablation.rules import rules_digest
from experiments.ablation.study import FRESH, STUDIES
from experiments.data import load_ordered
from tests.experiments.ablation.rows import fill, training
from tests.runs import ROOT, write_data

PAPERS = Protocol(data=MNIST)


def readme(tmp_path):
  file = tmp_path / "README.md"
  file.write_text(f"above\n{page.BEGIN}\nold\n{page.END}\nbelow\n")
  return file


def test_the_page_of_all_rows(tmp_path):
  fill(Rows(tmp_path / "rows", PAPERS), studies=tuple(STUDIES))
  file = readme(tmp_path)
  assert report(ReportCommand(str(tmp_path / "rows"), str(file))) == 0
  text = (tmp_path / "rows" / "README.md").read_text()
  assert "nan" not in text
  assert "$" not in text
  assert "Missing runs" not in text
  for name in ("convergence", "arrangement", "hyperparameters", "no-relu", "controls", "tuned"):
    assert f"]({name}.png)" in text
  for name in ("fgsm", "filters", "authors"):
    assert f"]({name}.png)" in text
    assert (tmp_path / "rows" / f"{name}.png").stat().st_size > 5000
  head, rest = text.split("| MNIST | paper says | at 0.003 | tuned |")
  assert head.count(".") < 15  # the answer comes first, in two sentences
  assert "| more than twice as fast (figure 2) |" in rest
  assert "The mean correlation of pairs, paired the same way, is" in text
  assert "; seeds 0, 1, 2; a run takes 1.5 minutes of a core" in text
  section = file.read_text()
  assert section.startswith("above\n")
  assert section.endswith("below\n")
  assert "\nold\n" not in section
  assert "](rows/convergence.png)" in section
  table = [line for line in section.splitlines() if line.startswith("|")]
  assert len(table) == 2 + 5
  assert len(section) < 4000


def test_the_committed_page_is_that_of_the_committed_rows():
  folder = ROOT / "results" / "mnist"
  rows = Rows(folder)
  evidence = Evidence(rows.all(), rows.protocol)
  drawn = [file.name for file in folder.glob("*.png")]
  assert page.page(evidence, rows.name(), drawn) == (folder / "README.md").read_text()
  section = page.readme_section(evidence, "results/mnist")
  assert f"{page.BEGIN}\n\n{section}\n\n{page.END}" in (ROOT / "README.md").read_text()


def test_other_data_have_a_page_of_their_own_by_one_command(tmp_path, monkeypatch):
  file = write_data(tmp_path)
  monkeypatch.chdir(tmp_path)
  digest = load_ordered(file)[1]
  rows = Rows("results/blobs", Protocol(data=digest, batch_size=8), ("--data", file))
  fill(rows, studies=("kernels", "tuned"))
  options = {"data": file, "seeds": (0, 1, 2), "batch_size": 8, "workers": 1, "together": 1}
  assert run(AblationCommand("kernels", **options)) == 0
  text = (tmp_path / "results" / "blobs" / "README.md").read_text()
  assert text.startswith("# LeNet-5 on blobs, ")
  assert "the CNN's mean accuracy at a third of its training" in text
  for figure in ("99.05", "99.19", "99.17", "92.22", "99.11", "99.20", "74.08", "twice as fast"):
    assert figure not in text
  assert "paper says" not in text
  assert "## Attacks" not in text
  assert "| The polynomial network makes fewer errors than the CNN" in text
  assert AblationCommand(data="a/fashion.npz").folder("results") == "results/fashion"
  assert AblationCommand().folder("results") == "results/mnist"
  kept = readme(tmp_path)
  report(ReportCommand("results/blobs", str(kept)))
  assert "\nold\n" in kept.read_text()


def test_readme_is_of_this_repositorys_own_results_alone():
  assert ReportCommand().place() == "README.md"
  assert ReportCommand("results/mnist/").place() == "README.md"
  assert ReportCommand("other").place() is None
  assert ReportCommand("other", "mine.md").place() == "mine.md"


def test_the_target_of_other_data_is_the_cnns(tmp_path):
  rows = Rows(tmp_path, Protocol(data="x", epochs=9))
  curve = {"steps": [0, 600, 1200, 3000, 3600, 10800], "accuracy": [0.1, 0.5, 0.6, 0.8, 0.7, 0.9]}
  rows.add(rows.row(Training("cnn", seed), training(0.9, curve=curve)) for seed in range(3))
  assert Evidence(rows.all(), rows.protocol).target == pytest.approx(0.7)
  assert Evidence(rows.all(), PAPERS).target == 0.98


@pytest.mark.parametrize("other", [{"epochs": 10}, {"data": "of another set"}])
def test_other_protocols_are_not_compared_with_the_paper(tmp_path, monkeypatch, other):
  monkeypatch.setattr(plots, "draw", lambda *_: [])
  rows, file = fill(Rows(tmp_path / "rows", Protocol(**{"data": MNIST} | other))), readme(tmp_path)
  evidence = Evidence(rows.all(), rows.protocol)
  text = page.page(evidence, "mnist", [])
  for words in ("paper says", "The paper's MNIST section", "99.05", "92.22", "twice as fast"):
    assert words not in text
  assert report(ReportCommand(str(rows.folder), str(file))) == 0
  assert "\nold\n" in file.read_text()


def test_the_page_of_some_rows_says_what_is_missing(tmp_path):
  rows = Rows(tmp_path / "rows", PAPERS)
  made = {"cnn": training(0.99), "polynomial": training(None, None)}
  rows.add(rows.row(Training(arm, 0), result) for arm, result in made.items())
  assert report(ReportCommand(str(tmp_path / "rows"), None)) == 0
  text = (tmp_path / "rows" / "README.md").read_text()
  assert "nan" not in text
  assert "There are too few runs for an answer." in text
  assert "- no-relu: 3 of linear-cnn, 3 of linear-gaussian-polynomial" in text
  (line,) = (line for line in text.splitlines() if line.startswith("- kernels: "))
  assert {"2 of cnn", "2 of polynomial", "3 of gaussian"} <= set(line[11:].split(", "))
  assert "**" not in text.split("## ")[0]
  assert "(diverged in 1)" in text


def test_the_page_of_runs_that_diverged(tmp_path):
  rows = fill(Rows(tmp_path / "rows", PAPERS))
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
  rows.add(chosen)
  assert report(ReportCommand(str(tmp_path / "rows"), None)) == 0
  text = (tmp_path / "rows" / "README.md").read_text()
  assert "nan" not in text
  claim = "Without activations the CNN falls to its accuracy."
  assert f"| {claim} | 92.22 % (section 4) | **does not hold**: diverged |" in text
  assert "(diverged in 3)" in text
  assert (tmp_path / "rows" / "tuned.png").stat().st_size > 5000


def test_fresh_seeds_are_judged_by_themselves(tmp_path):
  def change(factor):
    return lambda spec: {"steps": None, "error": factor if spec.arm == "polynomial" else 0.5}

  rows = fill(Rows(tmp_path, PAPERS), change=change(0.25))
  assert "There are none yet: `python -m experiments ablation confirm`" in text_of(rows)
  fill(rows, range(FRESH, FRESH + 3), ("kernels",), change(1.0))
  text = text_of(rows)
  line = next(line for line in text.splitlines() if "| 0.003 |" in line and "fewer errors" in line)
  _, _, _, old, new, _ = map(str.strip, line.split("|"))
  assert old.startswith("**holds**: 2.00")
  assert new.startswith("**does not hold**: 0.50")
  decided, same = map(int, re.search(r"Of (\d+) verdicts .* confirm (\d+);", text).groups())
  assert same < decided
  assert f"0 of 18 fresh rows were made under these rules ({rules_digest()})" in text


def text_of(rows):
  return page.page(Evidence(rows.all(), rows.protocol), "mnist", [])


def test_runs_made_together_have_no_pace_and_no_cost_of_their_own(tmp_path):
  rows = fill(Rows(tmp_path, PAPERS)).all()
  together = {
    name: row | {"environment": row["environment"] | {"together": 3}} for name, row in rows.items()
  }
  assert "| ms a step |" in tables.trainings(Evidence(rows, PAPERS), "kernels")
  assert "| ms a step |" not in tables.trainings(Evidence(together, PAPERS), "kernels")
  text = page.page(Evidence(together, PAPERS), "mnist", [])
  assert "3 runs at once" in text
  assert "takes ? minutes" in text


def test_networks_look_the_same_in_every_plot_and_differ_in_each():
  panels = [arms for study in STUDIES.values() for arms in study.panels.values()]
  panels += [STUDIES["kernels"].arms, STUDIES["arrangement"].arms]
  for arms in panels:
    looks = [plots.style(arm) for arm in arms]
    assert len({look["color"] for look in looks}) == len(arms)
    assert len({look["marker"] for look in looks}) == len(arms)


def test_a_report_needs_rows_and_a_place(tmp_path):
  with pytest.raises(UsageError, match="no rows"):
    report(ReportCommand(str(tmp_path), None))
  rows = Rows(tmp_path, PAPERS)
  rows.add([rows.row(Training("cnn", 0), training())])
  readme = tmp_path / "of all.md"
  readme.write_text("nothing")
  with pytest.raises(UsageError, match="`--readme` must have one line"):
    report(ReportCommand(str(tmp_path), str(readme)))
  assert readme.read_text() == "nothing"


def test_a_text_that_is_no_page_is_not_written_over(tmp_path, monkeypatch):
  file, digest = write_data(tmp_path), load_ordered(write_data(tmp_path))[1]
  mine = tmp_path / "README.md"
  mine.write_text("# My project\n")
  monkeypatch.setattr(pool, "alone", lambda *_: pytest.fail("a run was made"))
  options = {"data": file, "out": str(tmp_path), "batch_size": 8, "workers": 1, "together": 1}
  with pytest.raises(UsageError, match=r"whose README.md is no page of one and would be lost"):
    run(AblationCommand("kernels", **options))
  rows = Rows(tmp_path, Protocol(data=digest))
  rows.add([rows.row(Training("cnn", 0), training())])
  with pytest.raises(UsageError, match=r"whose README.md is no page of one"):
    report(ReportCommand(str(tmp_path)))
  assert mine.read_text() == "# My project\n"
  assert not list(tmp_path.glob("*.png"))
  mine.unlink()
  for _ in range(2):  # its own page it may write over
    check_page(tmp_path)
    mine.write_text(page.page(Evidence(rows.all(), rows.protocol), "blobs", []))


def test_the_error_of_the_test_set_is_told(tmp_path):
  rows = fill(Rows(tmp_path, PAPERS))
  right = np.mean(
    [row["accuracy"] for row in Evidence(rows.all(), PAPERS).runs("cnn", "tuned").values()]
  )
  expected = 100 * np.sqrt(right * (1 - right) / 10_000)
  assert f"is itself known to {expected:.2f} points (a standard error)" in text_of(rows)


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
