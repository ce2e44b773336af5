"""What every part of the experiments uses: the environment, Markdown, files and kernels by name."""

import json
import typing

import pytest

pytest.importorskip("optax", reason="experiments need: pip install '.[experiments]'")

from experiments import UsageError
from experiments.common import environment as module
from experiments.common.environment import commit, environment, version
from experiments.common.files import write_atomically
from experiments.common.kernels import KERNELS, KernelName
from experiments.common.markdown import Part, table
from experiments.configs.config import ModelConfig
from experiments.configs.networks import describe
from kerv_jax import kernels

BEGIN, END = "<!-- part -->", "<!-- end of part -->"


def test_the_environment_is_json_and_names_versions():
  found = environment(["jax", "no-such-package"])
  assert json.loads(json.dumps(found)) == found
  assert found["versions"]["jax"] == version("jax") is not None
  assert found["versions"]["no-such-package"] is None
  assert found["device"]
  assert (found["device_count"], found["process_count"]) == (1, 1)


def test_the_commit_tells_whether_files_differ(monkeypatch, tmp_path):
  repository = tmp_path / "repository"
  for words in (
    ["init", "-q", str(repository)],
    ["-C", str(repository), "config", "user.name", "a"],
    ["-C", str(repository), "config", "user.email", "a@b"],
  ):
    module.subprocess.run(["git", *words], check=True)
  (repository / "results").mkdir()
  for name in ("code.py", "results/rows"):
    (repository / name).write_text("before")
  for words in (["add", "."], ["commit", "-qm", "one"]):
    module.subprocess.run(["git", "-C", str(repository), *words], check=True)
  monkeypatch.setattr(module, "__file__", str(repository / "code.py"))
  clean = commit()
  assert clean is not None
  assert len(clean) == 40
  (repository / "results/rows").write_text("after")
  assert commit() == clean
  (repository / "code.py").write_text("after")
  assert commit() == f"{clean}+"
  monkeypatch.setattr(module, "__file__", str(tmp_path / "code.py"))
  assert commit() is None


def test_a_file_is_of_text_or_bytes_as_given(tmp_path):
  write_atomically(tmp_path / "text", "é\n")
  assert (tmp_path / "text").read_bytes() == b"\xc3\xa9\n"
  write_atomically(tmp_path / "text", b"\x00\xff\r\n")
  assert (tmp_path / "text").read_bytes() == b"\x00\xff\r\n"


def test_a_table_in_markdown():
  assert table(["", "a"], [["b", "1"]]) == "|  | a |\n| --- | --- |\n| b | 1 |"


def test_a_part_is_replaced_and_the_rest_stays(tmp_path):
  page = tmp_path / "page.md"
  page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
  part = Part(page, BEGIN, END)
  part.write("new")
  part.write("newer")
  assert page.read_text() == f"before\n{BEGIN}\n\nnewer\n\n{END}\nafter\n"


@pytest.mark.parametrize(
  ("text", "message"),
  [
    (None, "must be a file to read"),
    (b"\xff", "must be a file to read"),
    (f"{BEGIN}", "must have one line"),
    (f"{END} {BEGIN}", "must have one line"),
    (f"{BEGIN} {BEGIN} {END}", "must have one line"),
    (f"{BEGIN} {END} {END}", "must have one line"),
  ],
)
def test_a_page_without_the_comments_is_refused(tmp_path, text, message):
  page = tmp_path / "page.md"
  if text is not None:
    page.write_bytes(text if isinstance(text, bytes) else text.encode())
  with pytest.raises(UsageError, match=f"`--page` {message}.*page.md"):
    Part(page, BEGIN, END, option="--page")


def test_kernels_have_the_papers_hyperparameters_or_those_asked_for():
  assert set(KERNELS) == set(typing.get_args(KernelName))
  options = {"degree": 5, "balance": 0.5, "gamma": 2.0}
  wanted = {
    "polynomial": kernels.Polynomial(5, 0.5),
    "gaussian": kernels.Gaussian(2.0),
    "sigmoid": kernels.Sigmoid(),
    "l1": kernels.L1(),
    "l2": kernels.L2(),
    "cosine": kernels.Cosine(),
  }
  for name, kernel in wanted.items():
    model = describe(ModelConfig(kernel=name, **options), image_shape=(12, 12, 1)).network()
    assert model.conv1.keywords["kernel_fn"] == kernel
  assert KERNELS["polynomial"].kernel == kernels.Polynomial(degree=3, balance=1.0)
