"""A row of results has the form of one, whoever wrote it, or is told with its line."""

import errno
import json
import math
import re
import shutil

import pytest

from experiments import UsageError
from experiments.ablation.rows import Rows
from experiments.common import files
from tests.runs import ROOT

RESULTS = ROOT / "results" / "mnist"
KINDS = ("training", "attack", "filters")


@pytest.fixture(scope="module")
def lines():
  """A real row of each kind."""
  every = (RESULTS / "rows.jsonl").read_text().splitlines()
  return {kind: next(line for line in every if f'"kind": "{kind}"' in line) for kind in KINDS}


@pytest.fixture
def folder(tmp_path, lines):
  shutil.copy(RESULTS / "protocol.json", tmp_path)
  (tmp_path / "rows.jsonl").write_text("\n".join(lines.values()) + "\n")
  return tmp_path


def change(folder, kind, function):
  rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
  function(next(row for row in rows if row["kind"] == kind))
  (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_real_rows_are_good(folder):
  assert len(Rows(folder).all()) == 3
  assert len(Rows(RESULTS).all()) > 100


WRONG = {
  "NaN": ("training", lambda row: row.update(accuracy=math.nan), "finite, got NaN"),
  "five": ("training", lambda row: row.update(accuracy=5.0), "`accuracy` must be from 0 to 1, got"),
  "true": ("training", lambda row: row.update(accuracy=True), "`accuracy` must be float"),
  "none": ("training", lambda row: row.update(accuracy=None), "unless the run diverged"),
  "no curve": ("training", lambda row: row.pop("curve"), "missing: `curve`"),
  "curve of text": ("training", lambda row: row.update(curve="x"), "`curve` must be dict"),
  "short curve": ("training", lambda row: row["curve"]["steps"].pop(), "for each of ascending"),
  "curve of 2": ("training", lambda row: row["curve"]["accuracy"].append(2), "from 0 to 1, got 2"),
  "seed": ("training", lambda row: row["spec"].update(seed="0"), "`spec.seed` must be a whole"),
  "rate": ("training", lambda row: row["spec"].update(rate=-1), "`spec.rate` must be positive"),
  "arm": ("training", lambda row: row["spec"].update(arm="vgg"), "`spec.arm` must be a network"),
  "kind": ("training", lambda row: row.update(kind="trial"), "is no row"),
  "attack of 2": ("attack", lambda row: row["white_box"]["fgsm"].update(x=2), "0 to 1, got 2"),
  "no attack": ("attack", lambda row: row.update(white_box=[]), "`white_box` must be dict"),
  "flat filters": ("filters", lambda row: row.update(filters=[1, 2]), r"`filters\[0\]` must be"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_row_that_cannot_be_is_told_with_its_line(folder, fault):
  kind, function, message = WRONG[fault]
  change(folder, kind, function)
  with pytest.raises(UsageError, match=rf"rows\.jsonl', line [123], .*{message}") as error:
    Rows(folder).all()
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("line", ["null", "[]", "3", "{", "[" * 100_000, '{"kind": [], "spec": 1}'])
def test_line_that_is_no_row_is_told(folder, line):
  with (folder / "rows.jsonl").open("a") as stream:
    stream.write(line + "\n")
  with pytest.raises(UsageError, match="line 4, is no row"):
    Rows(folder).all()


def test_two_results_of_one_run_are_told(folder, lines):
  with (folder / "rows.jsonl").open("a") as stream:
    stream.write(lines["training"] + "\n")
  assert len(Rows(folder).all()) == 3
  change(folder, "training", lambda row: row.update(accuracy=0.5))
  with pytest.raises(UsageError, match="line 4: another row of the same run has other results"):
    Rows(folder).all()


@pytest.mark.parametrize(
  "text", ["", "[]", "{", '{"epochs": "20"}', '{"epochs": 0}', '{"depth": 1}', "[" * 100_000]
)
def test_protocol_that_makes_no_sense_is_told(folder, text):
  if text.startswith('{"'):
    text = json.dumps(json.loads((folder / "protocol.json").read_text()) | json.loads(text))
  (folder / "protocol.json").write_text(text)
  with pytest.raises(UsageError, match=r"protocol\.json' is damaged"):
    Rows(folder)


def test_lock_of_the_rows_is_no_way_to_another_file(folder, lines):
  (folder / "mine.txt").write_text("mine")
  (folder / ".lock").symlink_to(folder / "mine.txt")
  with Rows(folder)._locked():
    pass
  assert (folder / "mine.txt").read_text() == "mine"


def test_full_disk_is_met_before_a_run_is_made(folder, monkeypatch):
  rows = Rows(folder)
  rows.check_room()
  before = sorted(path.name for path in folder.iterdir())
  assert before == ["protocol.json", "rows.jsonl"]

  def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(files, "write_atomically", full)
  with pytest.raises(OSError, match=re.escape("No space left")):
    rows.check_room()
