"""The fields that a kernel function is made of, and the values that they may have.

A field is a *hyperparameter* (a leaf: a scalar or one value per output feature), a *child* (a
kernel function, or a tuple of them) or *static* (structure, part of the tree's definition).
"""

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

Hyperparameter = float | np.ndarray | Array
"""A scalar, or a vector of one value per output feature."""

Constraint = Literal["positive", "non-negative", "at least 1", "any"]


def hyperparameter(*, default: Any = dataclasses.MISSING, constraint: Constraint = "any") -> Any:
  """Declares a field that is a leaf: a scalar, or one value per output feature.

  Args:
    default: the constructor's default; none if left out.
    constraint: the values allowed, checked whenever the value is known: "positive",
      "non-negative", "at least 1" or "any".  The first two stay positive when they are learned, the
      third stays above 1.

  Returns:
    A dataclass field.

  Example:
    >>> from kerv_jax.kernels import Hyperparameter, InnerProductKernel, hyperparameter
    >>> class Shifted(InnerProductKernel):
    ...   offset: Hyperparameter = hyperparameter(default=0.5, constraint="positive")
    ...
    ...   def profile(self, statistic):
    ...     return statistic + self.offset
    >>> Shifted(2).hyperparameters()
    {'offset': 2.0}
  """
  return dataclasses.field(default=default, metadata={"kind": "leaf", "constraint": constraint})


def static(*, default: Any = dataclasses.MISSING) -> Any:
  """Declares a field that is structure: hashable, never traced, never learned.

  Args:
    default: the constructor's default; none if left out.

  Returns:
    A dataclass field.

  Example:
    >>> from kerv_jax.kernels import InnerProductKernel, static
    >>> class Power(InnerProductKernel):
    ...   exponent: int = static(default=2)
    ...
    ...   def profile(self, statistic):
    ...     return statistic**self.exponent
    >>> Power(4), Power().hyperparameters()
    (Power(exponent=4), {})
  """
  return dataclasses.field(default=default, metadata={"kind": "static"})


def child(*, default: Any = dataclasses.MISSING, called: str | None = None) -> Any:
  """Declares a field that holds another :class:`Node`, or a tuple of them.

  Args:
    default: the constructor's default; none if left out.
    called: what the names of the hyperparameters inside begin with; None is the field's name.

  Returns:
    A dataclass field.
  """
  return dataclasses.field(default=default, metadata={"kind": "child", "called": called})


def kind_of(field: dataclasses.Field) -> str:
  """The kind of a field: "leaf", "child" or "static"."""
  return field.metadata.get("kind", "static")


def called(field: dataclasses.Field) -> str:
  """The field's part of the names of hyperparameters."""
  return field.metadata.get("called") or field.name


def checked(name: str, value: Any, constraint: Constraint) -> Hyperparameter:
  """The value as a float or a floating array of rank 0 or 1; an error if it is not allowed."""
  numbers = {"any": "a number", "at least 1": "a number of at least 1"}
  allowed = numbers.get(constraint, f"a {constraint} number")
  allowed += " (or one per output feature)"
  if isinstance(value, (bool, str, bytes)) or value is None:
    raise TypeError(f"`{name}` must be {allowed}, got {value!r}")
  try:
    array = value if isinstance(value, (np.ndarray, Array)) else np.asarray(value)
  except (TypeError, ValueError):
    array = np.asarray(None)
  if not (jnp.issubdtype(array.dtype, jnp.integer) or jnp.issubdtype(array.dtype, jnp.floating)):
    raise TypeError(f"`{name}` must be {allowed}, got {value!r}")
  if array.ndim > 1:
    raise ValueError(f"`{name}` must be {allowed}, got an array of shape {array.shape}")
  if not isinstance(array, Tracer):
    known = np.asarray(array)
    wrong = ~np.isfinite(known)
    if constraint == "positive":
      wrong |= ~(known > 0)
    elif constraint == "non-negative":
      wrong |= ~(known >= 0)
    elif constraint == "at least 1":
      wrong |= ~(known >= 1)
    if np.any(wrong):
      raise ValueError(f"`{name}` must be {allowed}, got {value!r}")
  if isinstance(value, Array):
    return value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(float)
  if not isinstance(value, np.ndarray) and array.ndim == 0:
    return float(array)
  own = np.array(array, array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else float)
  own.flags.writeable = False  # nobody else's: what changes theirs does not change this
  return own
