"""Where and with what something was measured."""

import importlib.metadata
import os
import platform
import subprocess
from typing import Any

import jax

from experiments.common.environment import processor


def environment() -> dict[str, Any]:
  """Machine, versions and commit, for the head of a file of results."""
  device = jax.devices()[0]
  versions = {}
  for package in ("jax", "jaxlib", "flax", "optax", "numpy", "torch"):
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  return {
    "backend": jax.default_backend(),
    "device": device.device_kind if device.platform != "cpu" else processor(),
    "cores": os.cpu_count(),
    "system": f"{platform.system()} {platform.machine()}",
    "python": platform.python_version(),
    "versions": versions,
    "commit": _commit(),
  }


def _commit() -> str | None:
  """The commit of the working tree, marked if code differs from it; None outside of git."""
  try:
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", "*.py", "*.toml")
  except (OSError, subprocess.CalledProcessError):
    return None
  return f"{commit} with changes" if changed else commit


def _git(*arguments: str) -> str:
  command = ["git", *arguments]
  return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
