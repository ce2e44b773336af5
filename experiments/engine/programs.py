"""Compiled functions, and what compiling them took."""

import time
from collections.abc import Callable
from typing import Any

import jax


class Programs:
  """Functions that are compiled on first use, for arguments of each shape, and kept.

  Attributes:
    compile_seconds: what compiling all of them took.
  """

  def __init__(self):
    self.compile_seconds = 0.0
    self._kept: dict[Any, Callable[..., Any]] = {}

  def compiled(
    self, function: Callable[..., Any], *arguments: Any, **options: Any
  ) -> Callable[..., Any]:
    """Returns the compiled function for arguments of these shapes.

    Args:
      function: the function; two of one name are taken for the same.
      *arguments: arguments like those it will be called with.
      **options: options of `jax.jit`.
    """
    leaves, structure = jax.tree.flatten(arguments)
    key = function.__name__, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    if key not in self._kept:
      start = time.perf_counter()
      self._kept[key] = jax.jit(function, **options).lower(*arguments).compile()
      self.compile_seconds += time.perf_counter() - start
    return self._kept[key]
