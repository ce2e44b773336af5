"""Random arrays, and comparisons of trees of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal


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


def same(a, b):
  """The same tree of the same bits."""
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    assert_array_equal(np.asarray(x), np.asarray(y))


def close(a, b, rtol=1e-5, atol=1e-5):
  """The same tree of nearly the same numbers."""
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(functools.partial(assert_allclose, rtol=rtol, atol=atol), a, b)


def different(a, b):
  """Arrays of other numbers."""
  assert not np.allclose(a, b, rtol=1e-2, atol=1e-2)
