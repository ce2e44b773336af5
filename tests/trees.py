"""Random arrays, and comparisons of trees of them."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np


def numpy_init(key, shape, dtype=jnp.float32):
  """Random weights that, unlike JAX's, cost no second of compilation."""
  del key
  rng = np.random.default_rng(sum(shape))
  return jnp.asarray(rng.normal(0.02, 0.3, shape), dtype)


def normal(*shape, seed=0, dtype=np.float32):
  """Random, signed, not centred, every item different."""
  return jnp.asarray(np.random.default_rng(seed).normal(0.1, 0.8, shape), dtype)


def random_variables(module, x, seed=1):
  """Random variables of a module, not centred."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: jnp.asarray(rng.normal(0.1, 0.4, leaf.shape), leaf.dtype),
    jax.eval_shape(module.init, jax.random.key(0), x),
  )


# The same tree of the same bits, and of nearly the same numbers.
same = functools.partial(chex.assert_trees_all_equal, strict=True)
close = functools.partial(chex.assert_trees_all_close, rtol=1e-5, atol=1e-5)


def different(a, b):
  """Arrays of other numbers."""
  assert not np.allclose(a, b, rtol=1e-2, atol=1e-2)
