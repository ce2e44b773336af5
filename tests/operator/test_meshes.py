"""Layers on a mesh of 8 devices, in a process of its own that has them."""

import os
import pathlib
import subprocess
import sys


def test_every_kernel_on_8_devices():
  root = pathlib.Path(__file__).parents[2]
  flags = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")
  command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
  done = subprocess.run(
    [*command, "tests/operator/mesh_cases.py"],
    cwd=root,
    env=os.environ | {"XLA_FLAGS": flags},
    capture_output=True,
    text=True,
    timeout=1200,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
