"""What the initializer assumes, and how far inputs that are otherwise put values out of range."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from experiments.depth.stacks import finite
from kerv_jax.initializers import for_kernel
from kerv_jax.kernels import L1, L2, Linear
from kerv_jax.nn import KervConv

FAN_INS = (9, 144, 4608)
SIDE, NUMBER, FILTERS = 5, 64, 64
INPUTS = ("normal", "after a ReLU", "padded corner")


@functools.partial(jax.jit, static_argnums=(1, 2))
def _measured(key: Array, fan_in: int, inputs: str) -> dict[str, Array]:
  x_key, key = jax.random.split(key)
  x = jax.random.normal(x_key, (NUMBER, SIDE, SIDE, fan_in // 9))
  x = jnp.maximum(x, 0) if inputs == "after a ReLU" else x
  place = (slice(None), 0, 0) if inputs == "padded corner" else (slice(None), SIDE // 2, SIDE // 2)

  def values(kernel_fn: Any) -> Array:
    init = for_kernel(kernel_fn)
    layer = KervConv(FILTERS, (3, 3), kernel_fn=kernel_fn, kernel_init=init, use_bias=False)
    return layer.init_with_output(key, x)[0][place]

  return {
    "product": jnp.var(values(Linear())),
    "squared": jnp.mean(values(L2(squared=True))) / (2 * fan_in),
    "absolute": jnp.mean(values(L1())) / (2 * fan_in / math.sqrt(math.pi)),
  }


def measure(*, seeds: int = 3) -> list[dict[str, Any]]:
  """Measures the statistics that kernels are functions of, over what `for_kernel` makes them.

  Args:
    seeds: number of seeds, from 0.

  Returns:
    A row for each fan-in, kind of inputs and seed: "product", the variance of inner products,
    "squared" and "absolute", mean distances over those of normal inputs. All are 1 where the
    assumption holds.
  """
  return [
    {"fan_in": fan_in, "inputs": inputs, "seed": seed}
    | {
      name: finite(float(v)) for name, v in _measured(jax.random.key(seed), fan_in, inputs).items()
    }
    for fan_in in FAN_INS
    for inputs in INPUTS
    for seed in range(seeds)
  ]
