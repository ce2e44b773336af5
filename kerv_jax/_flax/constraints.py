"""How a hyperparameter that must be positive is learned by an optimizer that knows no bounds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer

from kerv_jax.kernels.definitions import at_least_float32
from kerv_jax.kernels.fields import Constraint

# Below, quotients such as statistic / sigma**2 and their derivatives would overflow float32.
SMALLEST = 1e-9
# What the constraints other than "any" keep a value above.
_BOUNDS = {"positive": 0.0, "non-negative": 0.0, "at least 1": 1.0}


def from_raw(raw: Array, constraint: Constraint) -> Array:
  """The hyperparameter's value from the parameter an optimizer sees.

  Args:
    raw: any real numbers, any shape.
    constraint: "any" leaves them as they are; "positive" and "non-negative" give
      ``max(softplus(raw), 1e-9)``, "at least 1" gives one more.

  Returns:
    The values, same shape; at least float32.
  """
  raw = jnp.asarray(raw)
  raw = raw.astype(at_least_float32(raw.dtype))
  if constraint == "any":
    return raw
  return _BOUNDS[constraint] + jnp.maximum(jax.nn.softplus(raw), SMALLEST)


def to_raw(value: Any, constraint: Constraint, dtype: Any) -> Array:
  """The parameter whose :func:`from_raw` is ``value``, as nearly as the dtype can hold it.

  A part of the program that initializes a layer: tracing it computes nothing on a device.

  Args:
    value: the value asked for, any shape; more than 1e-9 above what the constraint allows.
    constraint: its constraint.
    dtype: dtype of the parameter.

  Returns:
    An array of the value's shape: ``v + log(1 - exp(-v))`` of the value above its bound, or of its
    neighbors in ``dtype`` the one that comes nearest, so that a value such as 1.0 or 0.5 is met
    exactly.
  """
  value = np.asarray(value, np.float64)
  if constraint == "any":
    return jnp.asarray(value, dtype)
  above = value - _BOUNDS[constraint]
  raw = above + np.log(-np.expm1(-above))
  steps = np.arange(-4, 5) * float(jnp.finfo(dtype).eps) / 2
  candidates = jnp.asarray(raw[..., None] * (1 + steps), dtype)
  # The compiler would fold constants with another last bit than what runs has.
  reached = from_raw(lax.optimization_barrier(candidates), constraint)
  error = jnp.abs(reached - jnp.asarray(value[..., None], reached.dtype))
  nearest = jnp.argmin(error, axis=-1, keepdims=True)
  return jnp.take_along_axis(candidates, nearest, axis=-1)[..., 0]


def require_learnable(name: str, value: Any, constraint: Constraint, dtype: Any) -> None:
  """Raises an error unless learning can start from ``value``.

  Args:
    name: the hyperparameter's name, for the message.
    value: its initial value.
    constraint: its constraint.
    dtype: dtype of the parameter.

  Raises:
    TypeError: if the value is not known yet, because it is being traced.
    ValueError: if it is not clearly within its bounds, or the dtype cannot hold it.
  """
  if isinstance(value, Tracer):
    raise TypeError(f"the initial value of learnable `{name}` must be known, got {value!r}")
  known, largest = np.asarray(value, np.float64), float(jnp.finfo(dtype).max)
  if constraint != "any" and np.any(known - _BOUNDS[constraint] <= SMALLEST):
    least = _BOUNDS[constraint] or SMALLEST
    raise ValueError(f"learnable `{name}` must start above {least:g}, got {value!r}")
  if np.any(np.abs(known) > largest):
    raise ValueError(
      f"learnable `{name}` must start within the range of {jnp.dtype(dtype)}, {largest:g}, "
      f"got {value!r}"
    )
