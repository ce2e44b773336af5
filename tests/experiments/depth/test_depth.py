"""The depth table: every kernel's recipe at depth 16, and the command that makes the page."""

import json

import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("tyro", reason="needs the extra 'experiments'")

from experiments.__main__ import main
from experiments.depth import assumption, page, stacks
from experiments.depth.kernels import KERNELS

SMALL = {"batch": 4, "side": 6, "seeds": 1}


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_recipe_of_a_kernel_at_depth_16(kernel):
  (row,) = stacks.measure(kernel, "deep", [16], norm=True, **SMALL)
  assert page.reaches(row), row


def test_without_the_recipe_the_goal_is_missed():
  (nothing,) = stacks.measure("polynomial 2", "default", [16], norm=False, **SMALL)
  assert nothing["raw"][-1] is None
  (normalized,) = stacks.measure("L2", "default", [16], norm=True, **SMALL)
  assert page.gradient(normalized, 16) == pytest.approx(1, abs=0.9)  # it looks well, but
  assert page.least(normalized, "features", 16) < 0.05
  assert not page.reaches(nothing)
  assert not page.reaches(normalized)


def test_what_is_left_of_the_variation():
  rng = np.random.default_rng(0)
  shared, own = rng.normal(size=(4000, 1)), rng.normal(size=(4000, 50))
  for z, positions, features in [
    (5 + own, 26**-0.5, 26**-0.5), (shared + own, 1, 2**-0.5), (shared + 0 * own, 1, 0),
  ]:  # fmt: skip
    left = stacks.left(np.float32(z))
    assert left["positions"] == pytest.approx(positions, abs=0.03)
    assert left["features"] == pytest.approx(features, abs=0.03)


def test_the_assumption_holds_for_normal_inputs_alone(monkeypatch):
  monkeypatch.setattr(assumption, "FAN_INS", (144,))
  rows = {row["inputs"]: row for row in assumption.measure(seeds=1)}
  for name, relu in (("product", 0.5), ("squared", 0.75), ("absolute", 0.854)):
    assert rows["normal"][name] == pytest.approx(1, abs=0.05)
    assert rows["after a ReLU"][name] == pytest.approx(relu, abs=0.05)
    assert rows["padded corner"][name] < 0.9


def test_the_command_makes_rows_once_and_a_page(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr("experiments.depth.command.STACKS", (("deep", True, False),))
  monkeypatch.setattr(stacks.measure, "__kwdefaults__", stacks.measure.__kwdefaults__ | SMALL)
  out = tmp_path / "start"
  command = ["depth", "--out", str(out), "--depths", "2", "16", "--seeds", "1"]
  assert main([*command, "--parts", "stacks", "--kernels", "cosine"]) == 0
  text = (out / "stacks.json").read_text()
  rows = json.loads(text)["rows"]
  assert [(row["kernel"], row["way"], row["relu"]) for row in rows] == [
    *[("convolution", "default", relu) for relu in (False, False, True)], ("cosine", "deep", False),
  ]  # fmt: skip
  made = (tmp_path / "start.md").read_text()
  assert "| cosine | `Cosine()` |" in made
  assert "every kernel reaches it" in made
  assert "median of 1 seed." in made
  capsys.readouterr()
  assert main([*command, "--parts", "stacks", "--kernels", "cosine"]) == 0
  assert len(capsys.readouterr().out.splitlines()) == 1  # nothing is measured again
  assert (out / "stacks.json").read_text() == text
  for option, *value in (
    ("parts", "all"), ("kernels", "l3"), ("kernels",), ("depths", "1"), ("depths",), ("seeds", "0"),
  ):  # fmt: skip
    assert main([*command[:3], f"--{option}", *value]) == 2
    assert f"`--{option}` must be" in capsys.readouterr().err


def test_rows_of_other_depths_and_seeds_are_measured_beside_them(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr("experiments.depth.command.STACKS", (("deep", True, False),))
  monkeypatch.setattr(stacks.measure, "__kwdefaults__", stacks.measure.__kwdefaults__ | SMALL)
  command = ["depth", "--out", str(tmp_path / "start"), "--parts", "stacks", "--kernels"]
  assert main([*command, "cosine", "--depths", "2", "--seeds", "1"]) == 0
  page = tmp_path / "start.md"
  assert "There are no stacks of 16 layers yet" in page.read_text()
  assert main([*command, "cosine", "--depths", "16", "--seeds", "1"]) == 0
  assert main([*command, "linear", "--depths", "2", "16", "--seeds", "1"]) == 0
  rows = json.loads((tmp_path / "start" / "stacks.json").read_text())["rows"]
  assert {(row["kernel"], *row["gradient"]) for row in rows} == {
    ("convolution", "2", "16"), ("cosine", "16"), ("linear", "2", "16"),
  }  # fmt: skip
  assert len(rows) == 5
  by_depth = page.read_text().partition("| kernel | 2 | 16 |\n")[2].splitlines()
  assert by_depth[1].startswith("| cosine |  | ")
  capsys.readouterr()
  assert main([*command, "linear", "--depths", "2", "--seeds", "2"]) == 0
  assert len(capsys.readouterr().out.splitlines()) == 5
  rows = json.loads((tmp_path / "start" / "stacks.json").read_text())["rows"]
  assert [row["seed"] for row in rows if row["kernel"] == "linear"] == [0, 1]


def test_what_a_network_misses_of_the_goal_is_told():
  row = {"network": "a", "seed": 0, "layers": ["1", "2", "3"], "positions": [1, 1, 0.9]}
  rows = [
    row | {"kernel": "L1", "way": "deep", "raw": [1, 2, 3.5], "features": [1, 1, 1],
           "gradient": [0, 22.0, 2.0]},
    row | {"kernel": "L2", "way": "deep", "raw": [1, 2, 2.5], "features": [1, 0.2, 1],
           "gradient": [0, 2.0, 2.0]},
    row | {"kernel": "L2", "way": "default", "raw": [1, 2, 9.0], "features": [1, 1, 1],
           "gradient": [0, 2.0, 2.0]},
  ]  # fmt: skip
  empty = {"rows": []}
  about = {"versions": {}, "device": "a device", "commit": "none"}
  made = page.page(
    {"stacks": empty, "assumption": empty, "networks": {"rows": rows, "environment": about}}
  )
  assert "| a | L1 |  |  |  | 3.5 | 1 | 11 | size, gradient |" in made
  assert "| a | L2 | 9 | 1 | 1 | 2.5 | 0.2 | 1 | apart |" in made
