"""How long layers take to compile, forward and backward, beside a convolutional layer."""

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.measure import compile_seconds
from benchmarks.rivals import KERNELS
from kerv_jax.nn import KervConv

IMAGES = (64, 32, 32, 16)


def _program(layer: nn.Module) -> tuple[Any, ...]:
  images = jnp.zeros(IMAGES)
  variables = jax.jit(layer.init)(jax.random.key(0), images)

  def both(variables: Any, images: jax.Array) -> tuple:
    out, pullback = jax.vjp(layer.apply, variables, images)
    return out, pullback(out)

  return both, variables, images


def rows() -> Iterator[dict[str, Any]]:
  """Measures one row for each kernel, each right after a convolutional layer of its own.

  Yields:
    A row.
  """
  compile_seconds(*_program(nn.Conv(16, (3, 3))))  # the first in a process takes longer
  for kernel, kernel_fn in KERNELS.items():
    baseline = compile_seconds(*_program(nn.Conv(16, (3, 3))))
    mine = compile_seconds(*_program(KervConv(16, (3, 3), kernel_fn=kernel_fn)))
    loops = _loops(*_program(KervConv(16, (3, 3), kernel_fn=kernel_fn)))
    yield {
      "kernel": kernel,
      "seconds": round(mine, 4),
      "baseline_seconds": round(baseline, 4),
      "ratio": float(f"{mine / baseline:.3g}"),
      "loops": loops,
      "baseline_loops": _loops(*_program(nn.Conv(16, (3, 3)))),
    }


def _loops(function: Any, *arguments: Any) -> int:
  """Fused loops that the compiler makes machine code for."""
  text = jax.jit(function).lower(*arguments).compile().as_text() or ""
  return text.count(" fusion(")
