"""What all tests of experiments share: programs that were compiled before."""

import jax
import pytest

CACHE = {
  "jax_persistent_cache_min_compile_time_secs": 0.0,
  "jax_persistent_cache_min_entry_size_bytes": -1,
}


@pytest.fixture(scope="package", autouse=True)
def cache(tmp_path_factory):
  """Compiles each program once, though every run makes its own.

  Not in other processes: JAX writes its files in place, so one that is killed, or cannot write on,
  would leave half a program to all tests after it.
  """
  settings = {"jax_compilation_cache_dir": str(tmp_path_factory.mktemp("cache"))} | CACHE
  before = {name: getattr(jax.config, name) for name in settings}
  for name, value in settings.items():
    jax.config.update(name, value)
  yield
  for name, value in before.items():
    jax.config.update(name, value)
