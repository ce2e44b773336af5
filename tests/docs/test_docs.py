"""What is documented runs, and what is public is documented."""

import ast
import doctest
import graphlib
import importlib
import importlib.util
import inspect
import os
import pathlib
import pkgutil
import re
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import kerv_jax
from kerv_jax import kernels

ROOT = pathlib.Path(__file__).parents[2]
MODULES = ["kerv_jax"] + [
  module.name for module in pkgutil.walk_packages(kerv_jax.__path__, "kerv_jax.")
]
# From the bottom up, one floor a line: what is in a room imports only from the floors below it and
# from that room.
FLOORS = [
  ["kernels", "optim"],
  ["_operator", "initializers"],
  ["kervolution", "torch_import"],
  ["_flax"],
  ["nn", "nnx"],
  ["models"],
]
# Rooms that need no Flax.
PURE_JAX = {"kernels", "_operator", "kervolution", "initializers", "optim"}
# What a function needs, and imports itself, so that the library does without.
OPTIONAL = {"optim": {"optax"}, "torch_import": {"torch"}, "trained": {"safetensors"}}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
  runner = doctest.DocTestRunner()
  for test in doctest.DocTestFinder().find(importlib.import_module(name)):
    if "import torch" in test.docstring and importlib.util.find_spec("torch") is None:
      continue  # an extra that need not be installed
    assert runner.run(test).failed == 0, test.name


def blocks_of(path):
  """The Python of a page, block by block."""
  return re.findall(r"^```python\n(.*?)^```$", (ROOT / path).read_text(), re.M | re.S)


IMAGES = jax.ShapeDtypeStruct((2, 64, 64, 3), "float32")


def layers_of(model):
  """Class and kernel of the layers that a linen model calls, by path, in order."""
  found = {}

  def record(call, args, kwargs, context):
    module = context.module
    if isinstance(module, nn.Conv) and context.method_name == "__call__":
      found["/".join(module.path)] = getattr(module, "kernel_fn", type(module))
    return call(*args, **kwargs)

  with nn.intercept_methods(record):
    jax.eval_shape(model.init, jax.random.key(0), IMAGES)
  return found


def quick_start_block(names, printed):
  assert "{'layers_0': {'balance': Array(1., dtype=float32)}}" in printed


def kernels_block(names, printed):
  assert "Gaussian(gamma=Array(-0.669" in printed


def layer_block(names, printed):
  assert layers_of(names["model"]) == {"layers_0": kernels.Gaussian(0.1), "layers_1": nn.Conv}


def conv_block(names, printed):
  first, *others = layers_of(names["model"]).values()
  assert first == kernels.L2()
  assert others == [kernels.Sigmoid()] * 19


def kervolve_block(names, printed):
  assert re.findall(r"^\S*conv\d", printed, re.M) == ["conv1", "layer1_0/conv2", "layer1_1/conv2"]
  assert "3 of 20 convolutions" in printed


def nnx_block(names, printed):
  assert names["layer"].kernel_fn == kernels.Gaussian(0.1)
  assert re.search(r"^layers/0 .*Polynomial\(degree=2, balance=1.0\) +balance$", printed, re.M)


def torch_block(names, printed):
  kernel = names["variables"]["params"]["kernel"]
  assert kernel.shape == (5, 5, 3, 16)
  out = names["layer"].apply(names["variables"], jnp.zeros((1, 9, 9, 3)))
  assert out[0, 4, 4, 7] == 1 - 75


CHECKS = {
  "README.md": [quick_start_block, None],  # the other one is run by test_commands
  "docs/in-your-model.md": [
    kernels_block, layer_block, conv_block, kervolve_block, nnx_block, torch_block,
  ],
}  # fmt: skip
BLOCKS = [
  pytest.param(page, block, check, id=check.__name__)
  for page, checks in CHECKS.items()
  for block, check in zip(blocks_of(page), checks, strict=True)
  if check is not None
]


@pytest.mark.parametrize(("page", "block", "check"), BLOCKS)
def test_python_blocks_of_a_page(page, block, check, capsys):
  names = {}
  exec(compile(block, page, "exec"), names)
  check(names, capsys.readouterr().out)


def test_python_blocks_of_the_page_on_kernels(capsys):
  blocks = blocks_of("docs/kernels.md")
  assert len(blocks) == 5
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


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*/*.md")])


def anchors(page):
  """What a link can end in: the headings of a page, as they are shown on the web."""
  headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
  return {
    re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
  }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
  text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
  for link in re.findall(r"\]\(([^)\s]+)\)", re.sub("`[^`]*`", "", text)):
    if "://" in link:
      continue
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    assert target.exists(), link
    assert not anchor or anchor in anchors(target), link


def test_the_page_for_contributors_names_what_there_is():
  for name in re.findall(r"`([\w./]+/[\w./]+)`", (ROOT / "CONTRIBUTING.md").read_text()):
    assert (ROOT / name).exists() or (ROOT / "kerv_jax" / name).exists(), name


def test_workflows_call_scripts_that_there_are():
  for file in (ROOT / ".github" / "workflows").glob("*.yml"):  # an sdist has none
    scripts = re.findall(r"run: (\.ci/\w+)", file.read_text())
    assert scripts
    for script in scripts:
      assert os.access(ROOT / script, os.X_OK), script


@pytest.mark.usefixtures("promotion")
def test_the_recipe_of_the_page_on_depth_is_what_deep_does():
  recipe, ready = blocks_of("docs/deep.md")
  names = {}
  exec(compile(recipe, "deep.md", "exec"), names)
  exec(compile(ready, "deep.md", "exec"), names)
  x = jax.random.normal(jax.random.key(0), (4, 6, 6, 16))
  y, variables = names["Layer"]().init_with_output(jax.random.key(1), x, train=False)
  assert 0.5 < jnp.std(y) < 2

  class Deep(nn.Module):
    @nn.compact
    def __call__(self, x):
      return names["model"].conv(features=16, kernel_size=(3, 3), name="KervConv_0")(x)

  weights = {"params": {"KervConv_0": variables["params"]["KervConv_0"]}}
  # Batch normalization divides by sqrt(1 + 1e-5) before training.
  assert jnp.allclose(Deep().apply(weights, x), y, atol=1e-4)


def public_objects():
  """Classes and functions of the library that a module says are public."""
  for module_name in MODULES:
    module = importlib.import_module(module_name)
    for name in getattr(module, "__all__", ()):
      value = getattr(module, name)
      if getattr(value, "__module__", "").startswith("kerv_jax") and callable(value):
        yield f"{module_name}.{name}", value


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


def examples_of(text):
  """The lines of Python that a docstring shows."""
  return re.findall(r"^\s*(?:>>>|\.\.\.) (.*)$", text or "", re.M)


def test_every_public_name_has_an_example():
  texts = {name: importlib.import_module(name).__doc__ for name in MODULES}
  shown = "\n".join(line for text in texts.values() for line in examples_of(text))
  own = dict(public_objects())
  shown += "\n".join(line for value in own.values() for line in examples_of(value.__doc__))
  for module_name in MODULES:
    for name in getattr(importlib.import_module(module_name), "__all__", ()):
      value = own.get(f"{module_name}.{name}")
      # A constant, or a module, cannot have a docstring of its own that Python would know.
      lines = examples_of(value.__doc__) if value is not None else [shown]
      assert any(name in line for line in lines), f"{module_name}.{name}"


def test_docstrings_begin_with_a_sentence_of_their_own():
  for name, value in public_objects():
    first = inspect.getdoc(value).partition("\n")[0]
    assert first.endswith((".", ":")), name
    literal = re.sub(r":\w+:`[^`]*`|``[^`]*``", "", value.__doc__)
    assert "`" not in literal, f"{name}: a name of Python stands in two backticks"


def imports_of(path):
  """The modules that a file imports, by their full names, with the statement of each."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from ((alias.name, node) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module == "kerv_jax":
      yield from ((f"kerv_jax.{alias.name}", node) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      yield node.module, node


def room_of(path):
  """The folder, or the file, right below the package."""
  return path.relative_to(ROOT / "kerv_jax").with_suffix("").parts[0]


FILES = sorted((ROOT / "kerv_jax").rglob("*.py"))


def test_imports_point_one_way():
  floor = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
  assert {room_of(path) for path in FILES} - {"__init__"} == set(floor)
  for path in FILES:
    room = room_of(path)
    for name, _ in imports_of(path):
      package, _, rest = name.partition(".")
      other = rest.split(".")[0]
      if package == "kerv_jax" and room != "__init__":
        assert other == room or floor[other] < floor[room], f"{path} imports {name}"


def test_imports_within_a_room_make_no_circle():
  modules = {path.relative_to(ROOT).with_suffix("").parts: path for path in FILES}
  modules = {".".join(parts): path for parts, path in modules.items() if parts[-1] != "__init__"}
  below = {
    name: {other for other, _ in imports_of(path) if other in modules}
    for name, path in modules.items()
  }
  graphlib.TopologicalSorter(below).prepare()  # raises a CycleError that names the circle


def test_the_library_needs_only_jax_and_flax():
  allowed = {"jax", "flax", "numpy", "kerv_jax"} | set(sys.stdlib_module_names)
  for path in FILES:
    for name, node in imports_of(path):
      optional = OPTIONAL.get(path.stem, set()) if node.col_offset else set()
      assert name.split(".")[0] in allowed | optional, f"{path} imports {name}"
      assert name.split(".")[0] != "flax" or room_of(path) not in PURE_JAX, f"{path} imports {name}"
