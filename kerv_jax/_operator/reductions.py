"""How the values of a term over all pairs of patch and filter are brought together."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

Term = Callable[..., Any]
"""A pointwise function of (inputs, filters, parameters, outputs), each a tuple of arrays.

It returns an array, or a tuple of them for a reduction of tuples.
"""


class Operands(NamedTuple):
  """What a term is a function of.

  Attributes:
    lhs: inputs, shape (batch, *spatial, groups * channels), padded.
    rhs: filters, shape (*window, channels, groups * features), or 1 for one that all share.
    params: shape (), or (groups * features,) for one value per output feature.
    outs: arrays like the output, shape (batch, *out_spatial, groups * features).
  """

  lhs: tuple[Array, ...]
  rhs: tuple[Array, ...]
  params: tuple[Array, ...] = ()
  outs: tuple[Array, ...] = ()


@dataclasses.dataclass(frozen=True)
class Reduction:
  """An associative and commutative reduction of numbers, or of tuples of numbers.

  Attributes:
    start: the value over nothing.
    combine: two values into one.
    over: reduces an axis of an array, or of each of a tuple.
  """

  start: Any
  combine: Callable[[Any, Any], Any]
  over: Callable[[Any, int], Any]


def _farther(sign: int) -> Reduction:
  """The extreme value and the least index that attains it, of pairs of a value and an index.

  NaN is beyond every number.
  """
  start = (-sign * jnp.inf, jnp.inf)
  extreme = jnp.maximum if sign > 0 else jnp.minimum

  def combine(one: Any, other: Any) -> Any:
    (a, i), (b, k) = one, other
    better = (sign * b > sign * a) | ((b == a) & (k < i)) | ((b != b) & ((a == a) | (k < i)))
    # The value does not need the indices, so that loops overwrite both in place.
    return extreme(a, b), jnp.where(better, k, i)

  def over(pair: Any, axis: int) -> Any:
    value, index = jnp.broadcast_arrays(*pair)
    starts = tuple(jnp.asarray(s, value.dtype) for s in start)
    return lax.reduce((value, index), starts, combine, (axis % value.ndim,))

  return Reduction(start, combine, over)


SUM = Reduction(0.0, jnp.add, jnp.sum)
MAX = Reduction(-jnp.inf, jnp.maximum, jnp.max)
MIN = Reduction(jnp.inf, jnp.minimum, jnp.min)
WHERE = {MAX: _farther(1), MIN: _farther(-1)}
"""For an extreme value, the reduction that also tells which pair attains it first."""
