"""The dtype that things are computed in."""

from typing import Any

import jax.numpy as jnp


def at_least_float32(dtype: Any) -> jnp.dtype:
  """The dtype itself if it has 32 bits or more, float32 for the narrower ones.

  Args:
    dtype: a floating-point dtype.

  Returns:
    The dtype to compute in.
  """
  dtype = jnp.dtype(dtype)
  return dtype if dtype.itemsize >= 4 else jnp.dtype("float32")
