"""Other ways to compute distances: that they compute them."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import formulations, questions, rivals
from benchmarks.shapes import Shape

SMALL = Shape("small", 2, (9, 8), 3, 4, (3, 3))
STRIDED = Shape("strided", 2, (9, 8), 3, 4, (3, 2), stride=2)


@pytest.mark.parametrize("way", formulations.answers(SMALL))
def test_other_ways_compute_the_same(way):
  layers = formulations.answers(STRIDED)[way], questions.exact(way, STRIDED)
  found, right = (rivals.program(layer, backward=True)(*STRIDED.operands()) for layer in layers)
  for actual, expected in zip(found, right, strict=True):
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("near", ["branch", "select"])
def test_the_sum_mends_what_cancels(near):
  lhs = 100 + SMALL.operands()[0]
  rhs = lhs[0, 2:5, 2:5, :, None] + 0.5 * jnp.ones((3, 3, 3, 4))  # beside a patch
  full = formulations.convolution(SMALL, "highest")
  exact = np.exp(-0.1 * 27 * 0.25)
  found = formulations.gaussian(SMALL, full, near=near)(lhs, rhs)[0, 3, 3]
  np.testing.assert_allclose(found, exact, rtol=1e-4)
  alone = formulations.gaussian(SMALL, full)(lhs, rhs)[0, 3, 3]
  assert np.abs(alone - exact).max() > 1e-3


def test_parts_of_factors_have_ten_bits():
  array = jnp.asarray(np.random.default_rng(0).standard_normal(1000), jnp.float32)
  upper, lower = formulations.parts(array)
  np.testing.assert_array_equal(upper + lower, array)
  assert not np.any(np.asarray(upper).view(np.uint32) & 0x1FFF)
  assert np.all(np.abs(lower) <= 2.0**-10 * np.abs(array))


SHARED = """
from benchmarks import questions, shapes
shapes.SHAPES["small"] = shapes.Shape("small", 2, (9, 8), 3, 4, (3, 3))
for row in questions.shared("small", {"rounds": 3, "seconds": 0.01}):
  assert row["devices"] == 4 and row["ratio"] > 0, row
  print(row["way"])
"""


def test_kernels_are_timed_on_several_devices():
  flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
  command = [sys.executable, "-c", SHARED]
  done = subprocess.run(
    command, env={**os.environ, **flags}, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines() == [f"{kernel}: shared" for kernel in questions.SHARED]
