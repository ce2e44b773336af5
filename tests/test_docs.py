"""What is documented runs, and what is public is documented."""

import ast
import doctest
import importlib
import inspect
import pathlib
import pkgutil
import re
import sys

import pytest

import kerv_jax

ROOT = pathlib.Path(__file__).parent.parent
MODULES = ["kerv_jax"] + [
  module.name for module in pkgutil.walk_packages(kerv_jax.__path__, "kerv_jax.")
]
# From the bottom up: a module imports only from those before it.
ORDER = [
  ["_pytree", "_dtypes"],
  ["_kernel", "_constraints"],
  ["kernels", "_difference", "_options"],
  ["_statistics"],
  ["_patches"],
  ["kervolution"],
  ["initializers"],
  ["nn"],
  ["models"],
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
  module = importlib.import_module(name)
  result = doctest.testmod(module)
  assert result.failed == 0
  if name in ("kerv_jax.kernels", "kerv_jax.kervolution", "kerv_jax.nn", "kerv_jax.initializers"):
    assert result.attempted > 0


def test_python_blocks_of_the_readme(capsys):
  blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
  assert len(blocks) == 2
  for block in blocks:
    exec(compile(block, "README.md", "exec"), {})
  printed = capsys.readouterr().out
  assert "{'layers_0': {'balance': Array(1., dtype=float32)}}" in printed
  assert "Gaussian(gamma=Array(-0.669" in printed


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
      for name in names:
        assert name.split(".")[0] in allowed | standard, f"{path}: {name}"
  for name in ("_pytree", "_kernel", "kernels", "kervolution", "_statistics", "_difference"):
    assert "flax" not in (ROOT / "kerv_jax" / f"{name}.py").read_text()
