"""Settings of every test, made before JAX is imported, and which tests run.

No promotion of dtypes or ranks that the code does not write down, here and in the processes that
tests start; and the compiler's lowest effort, since tests are mostly compilation.
"""
# ruff: noqa: E402

import gc
import importlib.metadata
import os
import signal

FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # a third of the time; gone in 0.12
  FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*FLAGS, os.environ.get("XLA_FLAGS", "")])
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"

# In the background, or under nohup, they are ignored, by the processes that tests start too.
for number, handler in (
  (signal.SIGINT, signal.default_int_handler),
  (signal.SIGHUP, signal.SIG_DFL),
):
  if signal.getsignal(number) == signal.SIG_IGN:
    signal.signal(number, handler)

import chex
import hypothesis
import jax
import pytest

hypothesis.settings.register_profile(
  "ci", max_examples=25, derandomize=True, deadline=None, database=None
)
hypothesis.settings.register_profile(
  "full", parent=hypothesis.settings.get_profile("ci"), max_examples=2000
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


CASES = 3
"""Of each test, where whole folders are run: the grids of cases are most of the time."""

QUICK = [
  "docs/test_gallery.py",
  "kernels/test_algebra.py",
  "kernels/test_errors.py",
  "kernels/test_pytree.py",
  "kernels/test_values.py",
  "nn/test_kervolve.py",
  "nn/test_learnable.py",
  "nn/test_same_as_conv.py",
  "nnx/test_layers.py",
  "operator/test_errors.py",
  "operator/test_kervolution.py",
  "test_interface.py",
]
"""What `-m quick` runs: of each room of the library what breaks first; a minute in one process."""


def pytest_addoption(parser):
  parser.addoption(
    "--cases",
    type=int,
    metavar="N",
    help=f"of each test only N cases, spread over all of them; 0 is all; if not given, {CASES} of "
    "tests in folders, and all of files and tests that are named",
  )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
  """One process for single files, where starting others takes longer than they save."""
  return None if _of_folders(config) else 0


def _of_folders(config):
  return any(map(os.path.isdir, config.args))


def pytest_collection_modifyitems(config, items):
  quick = {config.rootpath / "tests" / name for name in QUICK}
  assert all(path.exists() for path in quick), quick
  for item in items:
    if item.path in quick and item.get_closest_marker("slow") is None:
      item.add_marker("quick")
  most = config.getoption("cases")
  if most is None and _of_folders(config):
    most = CASES
  if not most:
    return
  cases = {}
  for item in items:
    cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
  chosen = {item for same in cases.values() for item in same[:: -(-len(same) // most)]}
  config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
  items[:] = [item for item in items if item in chosen]


def pytest_collection_finish():
  """Traces are many small objects that stay: collecting garbage was one second in twelve."""
  gc.freeze()
  gc.set_threshold(50_000, 20, 100)


@pytest.fixture(autouse=True)
def traces_counted_anew():
  """`chex.assert_max_traces` counts by where a function is written: here, for each test."""
  chex.clear_trace_counter()


@pytest.fixture
def promotion():
  """JAX's usual promotion of dtypes, on which Flax's layers and Optax's Adam rely."""
  with jax.numpy_dtype_promotion("standard"):
    yield
