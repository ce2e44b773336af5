"""The pages' way from training to a prediction is what happens, block by block."""

import json
import pathlib
import re
import shlex

import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
pytest.importorskip("safetensors", reason="needs the extra 'experiments'")

from experiments.__main__ import main
from kerv_jax import models

ROOT = pathlib.Path(__file__).parents[2]


def section(page, title):
  """The blocks of a section, with their languages."""
  text = (ROOT / page).read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
  return re.findall(r"^```(sh|python)\n(.*?)^```$", text, re.M | re.S)


def commands(block):
  """Arguments of `python -m experiments` in a block of the shell."""
  for line in block.splitlines():
    start, *arguments = shlex.split(line, comments=True)
    assert (start, arguments[:2]) == (".venv/bin/python", ["-m", "experiments"])
    yield arguments[2:]


def test_what_was_trained_is_used_as_the_readme_says(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  blocks = section("README.md", "Use what was trained")
  assert [language for language, _ in blocks] == ["sh", "python", "sh"]
  (train,) = commands(blocks[0][1])
  assert main([*train, "--epochs", "2", "--optim.learning-rate", "0.01"]) == 0  # in seconds
  capsys.readouterr()
  names = {}
  exec(compile(blocks[1][1], "README.md", "exec"), names)
  shown = capsys.readouterr().out
  wanted = names["network"].predict(names["digits"])
  assert shown == f"{wanted.argmax(-1)}\n"
  assert (wanted.argmax(-1) == [0, 2, 5, 7]).sum() >= 3
  for command in commands(blocks[2][1]):
    assert main(command) == 0
  row = json.loads(capsys.readouterr().out.splitlines()[0])
  assert row["image"] == "digit.png"
  exported = models.load("lenet5.safetensors").predict(names["digits"])
  assert row["class"] == exported[-1].argmax()
  np.testing.assert_allclose(row["probability"], exported[-1].max(), atol=1e-5)
