"""Which hyperparameters of a kernel function a layer learns, and what they start from."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array

from kerv_jax._flax.constraints import from_raw, require_learnable
from kerv_jax.kernels import Polynomial
from kerv_jax.kernels.base import Kernel, require_kernel
from kerv_jax.kernels.fields import Constraint
from kerv_jax.kernels.names import current_name
from kerv_jax.kernels.ranges import feature_counts, require_features

CUBIC = Polynomial()
"""The kernel function of a layer that is given none."""


def learnable_names(kernel_fn: Kernel, learnable: bool | Sequence[str]) -> tuple[str, ...]:
  """Names of the hyperparameters that ``learnable`` chooses.

  Args:
    kernel_fn: the kernel function.
    learnable: True for all, False for none, or names.

  Returns:
    The names, in the order of ``learnable``; for True in that of the kernel.

  Raises:
    TypeError: if ``learnable`` is neither a bool nor a sequence of names.
    ValueError: if it names one that the kernel does not have, or one twice.
  """
  known = tuple(kernel_fn.hyperparameters())
  if isinstance(learnable, bool):
    return known if learnable else ()
  if isinstance(learnable, str) or not isinstance(learnable, Sequence):
    raise TypeError(
      f"`learnable` must be a bool or a tuple of names, such as {known or ('gamma',)}, "
      f"got {learnable!r}"
    )
  names = tuple(current_name(name) if isinstance(name, str) else name for name in learnable)
  for name in names:
    if name not in known:
      raise ValueError(
        f"`learnable` must name hyperparameters of {kernel_fn!r}, which has "
        f"{known or 'none'}, got {name!r}"
      )
  if len(set(names)) < len(names):
    raise ValueError(f"`learnable` must name each hyperparameter once, got {learnable!r}")
  return names


def require_options(
  kernel_fn: Any, learnable: Any, per_feature: Any, taken: Callable[[str], bool]
) -> tuple[str, ...]:
  """Checks what a layer is told of its kernel function, before anything is traced.

  Args:
    kernel_fn: the kernel function.
    learnable: True, False or names.
    per_feature: whether a learnable hyperparameter has one value per output feature.
    taken: whether the layer uses a name itself, so that no parameter can have it.

  Returns:
    The names of the learnable hyperparameters.

  Raises:
    TypeError: for an argument of the wrong type.
    ValueError: for a name that is unknown, repeated or taken, or ``per_feature`` with none.
  """
  require_kernel("kernel_fn", kernel_fn)
  if not isinstance(per_feature, bool):
    raise TypeError(f"`per_feature` must be True or False, got {per_feature!r}")
  names = learnable_names(kernel_fn, learnable)
  if per_feature and not names:
    raise ValueError(
      f"`per_feature` needs a learnable hyperparameter, got `learnable` {learnable!r} "
      f"with {kernel_fn!r}"
    )
  for name in names:
    if taken(name):
      raise ValueError(
        f"learnable `{name}` of `kernel_fn` must not have the name of a parameter or an "
        "attribute of the layer"
      )
  return names


def require_fits(kernel_fn: Kernel, names: Sequence[str], features: int, param_dtype: Any) -> None:
  """Raises an error unless a kernel function fits a layer, and can start to learn there.

  Args:
    kernel_fn: the kernel function, with the initial values.
    names: the learnable hyperparameters.
    features: number of output features of the layer.
    param_dtype: dtype of its parameters.

  Raises:
    TypeError: for a learnable value that is not known yet, because it is being traced.
    ValueError: for one too near 0 or too large, see ``constraints.require_learnable``, and for
      hyperparameters or parts of a ``Concatenate`` for another number of features.
  """
  require_features("kernel_fn", kernel_fn, features)
  values, constraints = kernel_fn.hyperparameters(), kernel_fn.constraints()
  for name in names:
    require_learnable(name, values[name], constraints[name], param_dtype)


def with_parameters(
  kernel_fn: Kernel,
  names: Sequence[str],
  features: int | None,
  parameter: Callable[[str, np.ndarray, Constraint], Array],
) -> Kernel:
  """The kernel function with the values that have been learned.

  Args:
    kernel_fn: the kernel function, with the initial values.
    names: the learnable hyperparameters.
    features: number of output features, for one value for each that the hyperparameter serves;
      None leaves the initial values as they are.
    parameter: called with name, initial value and constraint of each; returns its parameter, as
      ``constraints.to_raw`` would make it.

  Returns:
    A kernel function of the same structure.
  """
  initial, constraints = kernel_fn.hyperparameters(), kernel_fn.constraints()
  counts = None if features is None else feature_counts(kernel_fn, features)
  values = {}
  for name in names:
    start = np.asarray(initial[name])
    start = start if counts is None else np.broadcast_to(start, (counts[name],))
    raw = parameter(name, start, constraints[name])
    values[name] = from_raw(raw, constraints[name])
  return kernel_fn._with_leaves(values)


def plain_values(
  parameters: Mapping[str, Any], kernel_fn: Kernel, names: Sequence[str]
) -> dict[str, Array]:
  """The learned values of a layer's hyperparameters.

  Args:
    parameters: of the layer, by name; those of the hyperparameters among them.
    kernel_fn: its kernel function.
    names: its learnable hyperparameters.

  Returns:
    The values by name.
  """
  constraints = kernel_fn.constraints()
  return {name: from_raw(parameters[name], constraints[name]) for name in names}
