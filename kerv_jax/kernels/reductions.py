"""The arithmetic of an additive kernel's reductions: for its definition and for its loops."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero


def all_terms(kernel: Any, x: Array, w: Array) -> Array:
  """The term of every pair, also where it is a function of ``x`` or of ``w`` alone.

  Args:
    kernel: the additive kernel, with hyperparameters that broadcast with ``x`` and ``w``.
    x: elements of patches.
    w: elements of filters, of the same dtype.

  Returns:
    The terms in the shape that all of these broadcast to, and in their dtype.

  Raises:
    ValueError: if ``term`` returns another shape, complex numbers, or none.
  """
  found = kernel.term(x, w)
  if not isinstance(found, Array | np.ndarray | np.generic | float | int):
    raise ValueError(
      f"`term` of {type(kernel).__name__} must return an array of real numbers, got {found!r}"
    )
  value = jnp.asarray(found)
  shape = jnp.broadcast_shapes(x.shape, w.shape, *map(jnp.shape, jax.tree.leaves(kernel)))
  try:
    fits = jnp.broadcast_shapes(value.shape, shape) == shape
  except ValueError:
    fits = False
  if not fits or jnp.iscomplexobj(value):
    raise ValueError(
      f"`term` of {type(kernel).__name__} must be a real pointwise function: of arrays that "
      f"broadcast to {shape} it returned {value.dtype} of shape {value.shape}"
    )
  return jnp.broadcast_to(value.astype(x.dtype), shape)


def finite(largest: Array) -> Array:
  """The largest of the terms as what is factored out of their exponentials: 0 if it is infinite."""
  return jnp.where(jnp.isfinite(largest), largest, 0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def where_kept(function: Callable[..., Array], keep: Array, *args: Any) -> Array:
  """A pointwise function where it is kept, else 0; so are its derivatives, were they infinite."""
  return jnp.where(keep, function(*args), 0)


@functools.partial(where_kept.defjvp, symbolic_zeros=True)
def _where_kept_jvp(function: Callable[..., Array], primals: Any, tangents: Any) -> tuple:
  keep, *args = primals
  out = where_kept(function, keep, *args)
  total = jnp.zeros_like(out)
  for i, (arg, change) in enumerate(zip(args, tangents[1:], strict=True)):
    if not isinstance(change, SymbolicZero):
      alone = lambda value, i=i: function(*args[:i], value, *args[i + 1 :])  # noqa: E731
      slope = jax.jvp(alone, (arg,), (jnp.ones_like(arg),))[1]
      total += jnp.where(keep, slope, 0) * change
  return out, total


def exponential(tree: Any, x: Array, w: Array, *others: Array) -> Array:
  """``exp((term - largest) / temperature)``; a constant 0 where the term is minus infinity.

  Args:
    tree: the structure of the kernel.
    x: elements of patches.
    w: elements of filters.
    *others: the hyperparameters of the kernel, and what is subtracted.

  Returns:
    The values, in the shape that all of these broadcast to.
  """

  def value(x: Array, w: Array, *others: Array) -> Array:
    *params, largest = others
    kernel = tree.unflatten(params)
    difference = all_terms(kernel, x, w) - largest
    return jnp.exp(difference / jnp.asarray(kernel.temperature, difference.dtype))

  kept = all_terms(tree.unflatten(others[:-1]), x, w) != -jnp.inf
  return where_kept(value, kept, x, w, *others)


@jax.custom_jvp
def logarithm(total: Array, temperature: Array) -> Array:
  """``temperature * log(total)``; a constant minus infinity at 0."""
  return temperature * jnp.log(total)


@logarithm.defjvp
def _logarithm_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
  (total, temperature), (change, of_temperature) = primals, tangents
  least = jnp.maximum(total, 0.5)  # it is 0, or at least 1
  slope = temperature / least * change + jnp.log(least) * of_temperature
  return logarithm(total, temperature), slope


def norm_scale(largest: Array) -> Array:
  """What sizes are multiplied with, twice, to be at most about 1: so that no power overflows."""
  bounds = jnp.finfo(largest.dtype)
  return lax.rsqrt(jnp.clip(largest, bounds.tiny, bounds.max))


@jax.custom_jvp
def power(size: Array, exponent: Array) -> Array:
  """``size ** exponent`` of sizes >= 0, where 0 is the least normal number."""
  return jnp.exp(exponent * _logarithm(size))


@power.defjvp
def _power_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
  (size, exponent), (change, of_exponent) = primals, tangents
  out = power(size, exponent)
  by_size = exponent * power(size, exponent - 1)
  return out, by_size * change + out * _logarithm(size) * of_exponent


def _logarithm(size: Array) -> Array:
  return jnp.log(jnp.maximum(size, jnp.finfo(size.dtype).tiny))


@jax.custom_jvp
def norm_of(total: Array, scale: Array, p: Array) -> Array:
  """The norm, from the sum of the powers of sizes that were multiplied with a scale twice."""
  root = jnp.where(_nothing(total), 0, jnp.exp(jnp.log(total) / p))
  return root / scale / scale


@norm_of.defjvp
def _norm_of_jvp(
  primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]
) -> tuple[Array, Array]:
  """That of a fixed scale."""
  (total, scale, p), (change, _, of_p) = primals, tangents
  norm, total = norm_of(total, scale, p), jnp.where(_nothing(total), 1, total)
  return norm, norm / (p * total) * change - norm * jnp.log(total) / p**2 * of_p


def _nothing(total: Array) -> Array:
  """Whether all sizes are 0: else the largest has a power of about 1."""
  return total < jnp.finfo(total.dtype).tiny ** 0.5
