"""What is documented runs, and what is public is documented."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import pathlib
import pkgutil
import re
import sys

import pytest

import kerv_jax
from kerv_jax import kernels

ROOT = pathlib.Path(__file__).parent.parent
MODULES = ["kerv_jax"] + [
  module.name for module in pkgutil.walk_packages(kerv_jax.__path__, "kerv_jax.")
]
# From the bottom up: a module imports only from those before it.
ORDER = [
  ["_pytree", "_dtypes", "_definitions"],
  ["_kernel", "_constraints"],
  ["_concatenate"],
  ["kernels", "_difference", "_options"],
  ["_statistics"],
  ["_patches", "_by_statistics"],
  ["kervolution"],
  ["initializers", "optim", "torch_import", "_learnable", "_choice"],
  ["_rules", "_forms", "_nnx_layer"],
  ["_layer", "_runs", "_nnx_forms"],
  ["_dense", "_transpose"],
  ["_kervolved"],
  ["_kervolve"],
  ["nn", "nnx"],
  ["models"],
]
# Modules that must have an example.
EXAMPLES = {"kernels", "kervolution", "nn", "nnx", "initializers", "optim", "torch_import"}
EXAMPLES |= {"_kervolve", "_concatenate", "_dense", "_transpose", "_nnx_layer", "_nnx_forms"}
# What a function needs, and imports itself, so that the library does without.
OPTIONAL = {"optim": {"optax"}, "torch_import": {"torch"}}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
  module = importlib.import_module(name)
  result = doctest.testmod(module)
  assert result.failed == 0
  if name.removeprefix("kerv_jax.") in EXAMPLES:
    assert result.attempted > 0


def blocks_of(path):
  """The Python of a page, block by block."""
  return re.findall(r"^```python\n(.*?)^```$", (ROOT / path).read_text(), re.M | re.S)


README_BLOCKS = blocks_of("README.md")


def quick_start_block(names, printed):
  assert "{'layers_0': {'balance': Array(1., dtype=float32)}}" in printed


def kernels_block(names, printed):
  assert "Gaussian(gamma=Array(-0.669" in printed


CHECKS = [
  quick_start_block,
  kernels_block,
]


@pytest.mark.parametrize("index", range(len(README_BLOCKS)))
def test_python_blocks_of_the_readme(index, capsys):
  names = {}
  exec(compile(README_BLOCKS[index], "README.md", "exec"), names)
  CHECKS[index](names, capsys.readouterr().out)


def test_python_blocks_of_the_page_on_kernels(capsys):
  blocks = blocks_of("docs/kernels.md")
  assert len(blocks) == 4
  for block in blocks:
    exec(compile(block, "kernels.md", "exec"), {})
    printed = capsys.readouterr().out
    for comment in re.findall(r"^print.*  # (.*)$", block, re.M):
      assert ("0.707106" if comment == "1 / sqrt(2)" else comment) in printed


def test_the_page_on_kernels_has_them_all_and_the_table_is_of_today():
  page = (ROOT / "docs" / "kernels.md").read_text()
  for name in kernels.__all__:
    value = getattr(kernels, name)
    if isinstance(value, type) and issubclass(value, kernels.Kernel):
      assert name in {"Sum", "Product", "Scaled", "Negative"} or name in page, name
  spec = importlib.util.spec_from_file_location("plot", ROOT / "docs" / "plot_kernels.py")
  plot = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(plot)
  table = page.partition("<!-- sizes")[2].partition("<!-- end")[0]
  for name, row in plot.sizes():
    (line,) = [line for line in table.splitlines() if line.startswith(f"| `{name}` | ")]
    written = [float(number) for number in re.findall(r"\d\.\de[+-]\d+", line)]
    computed = [number for pair in row for number in pair]
    assert written == pytest.approx(computed, rel=0.06), name


def public_objects():
  for name in MODULES:
    if "._" in name:
      continue
    module = importlib.import_module(name)
    for member, value in vars(module).items():
      own = getattr(value, "__module__", "").startswith("kerv_jax")
      if own and not member.startswith("_") and callable(value):
        yield f"{name}.{member}", value


@pytest.mark.parametrize(
  ("name", "value"), list(public_objects()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_public_names_are_documented(name, value):
  doc = inspect.getdoc(value)
  assert doc, name
  if inspect.isfunction(value):
    if inspect.signature(value).parameters:
      assert "Args:" in doc, name
    assert "Returns:" in doc or inspect.signature(value).return_annotation is None, name


def test_imports_point_one_way():
  level = {name: i for i, names in enumerate(ORDER) for name in names}
  seen = set()
  for path in (ROOT / "kerv_jax").rglob("*.py"):
    parts = path.relative_to(ROOT / "kerv_jax").with_suffix("").parts
    if parts == ("__init__",):
      continue
    seen.add(parts[0])
    for node in ast.walk(ast.parse(path.read_text())):
      names = []
      if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kerv_jax"):
        names = [node.module.removeprefix("kerv_jax").lstrip(".")]
        names = [a.name for a in node.names] if names == [""] else names
      for imported in names:
        imported = imported.split(".")[0]
        if imported not in level:
          continue  # an object of the package itself
        assert level[imported] < level[parts[0]] or imported == parts[0], f"{path}: {imported}"
  assert seen == set(level)


def test_the_library_needs_only_jax_and_flax():
  allowed = {"jax", "flax", "numpy", "kerv_jax"}
  standard = set(sys.stdlib_module_names)
  for path in (ROOT / "kerv_jax").rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
      names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
      optional = OPTIONAL.get(path.stem, set()) if getattr(node, "col_offset", 0) else set()
      for name in names:
        assert name.split(".")[0] in allowed | standard | optional, f"{path}: {name}"
  for name in ("_pytree", "_kernel", "kernels", "kervolution", "_statistics", "_difference"):
    assert "flax" not in (ROOT / "kerv_jax" / f"{name}.py").read_text()
