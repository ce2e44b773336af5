"""Where and with what something is run: the record that every result carries."""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

import kerv_jax

PACKAGES = ("kerv_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
"""Packages whose versions are recorded where nothing else is asked for."""


SETTINGS = (
  "jax_default_prng_impl",
  "jax_threefry_partitionable",
  "jax_enable_x64",
  "jax_default_matmul_precision",
  "jax_numpy_dtype_promotion",
)
"""What of JAX's settings decides results."""


def environment(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
  """Returns where and with what this process runs, of JSON's types.

  Args:
    packages: packages whose versions are recorded beside that of Python.

  Returns:
    "commit" (see `commit`), "backend", "device" (the processor's name for a CPU), "devices" (the
    kinds that JAX names), "device_count", "process_count", "cores", "system", "settings", those of
    JAX that decide results, and "versions", by package, with None for one that is not installed.
  """
  return {
    "commit": commit(),
    "backend": jax.default_backend(),
    "device": device(),
    "devices": sorted({each.device_kind for each in jax.devices()}),
    "device_count": jax.device_count(),
    "process_count": jax.process_count(),
    "cores": os.cpu_count(),
    "system": f"{platform.system()} {platform.machine()}",
    "settings": {name: _setting(name) for name in SETTINGS},
    "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
  }


def _setting(name: str) -> Any:
  """A setting of JAX, of JSON's types."""
  value = getattr(jax.config, name)
  return getattr(value, "value", value)


def device() -> str:
  """Returns the name of the first device: for a CPU, that of the processor."""
  first = jax.devices()[0]
  return processor() if first.platform == "cpu" else first.device_kind


def processor() -> str:
  """Returns the processor's name."""
  try:
    with open("/proc/cpuinfo") as info:
      names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0]
  except (OSError, IndexError):
    return platform.processor() or platform.machine()


def commit() -> str | None:
  """Returns the commit of this repository, marked if files other than results differ from it.

  Returns:
    40 hexadecimal digits, with a "+" after them if files differ; None if there is no repository.
  """
  git = ["git", "-C", str(Path(__file__).parent)]
  changed = ["status", "--porcelain", "--untracked-files=no", ":(top)", ":(top,exclude)results"]
  try:
    head, changes = (
      subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout.strip()
      for words in (["rev-parse", "HEAD"], changed)
    )
  except (OSError, subprocess.CalledProcessError):
    return None
  return head + ("+" if changes else "")


def version(package: str) -> str | None:
  """Returns the installed version of a package.

  Args:
    package: name of the package, as `pip` knows it.

  Returns:
    The version; None where the package is not installed but only on the path.
  """
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def code_digest() -> str:
  """Returns a SHA-256 over the code of this library and of the experiments.

  Returns:
    64 hexadecimal digits, the same for the same files, wherever they lie.
  """
  total = hashlib.sha256()
  for package in (Path(kerv_jax.__file__).parent, Path(__file__).parent.parent):
    for file in sorted(package.rglob("*.py")):
      total.update(f"\0{file.relative_to(package)}\0".encode())
      total.update(file.read_bytes())
  return total.hexdigest()
