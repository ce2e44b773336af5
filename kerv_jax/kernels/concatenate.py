"""Several kernel functions side by side, each for a range of the output features."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from kerv_jax.kernels.base import Kernel, _Composite, require_kernel
from kerv_jax.kernels.pytree import child, static


class Concatenate(_Composite):
  """Kernels side by side: the first ``size`` output features are the first kernel's, and so on.

  Each statistic is computed once, for the features whose kernels need it.  A vector of
  hyperparameters of one of the kernels has a value for each feature of that kernel.  Where one
  kernel needs the patches themselves, all go through the patches method.

  Attributes:
    parts: pairs (size, kernel); kept as a tuple of the kernels.
    sizes: numbers of output features, one for each of ``parts``; None where these are pairs.

  Example:
    >>> from kerv_jax.kernels import Concatenate, Gaussian, Linear
    >>> kernel = Concatenate([(8, Linear()), (4, Gaussian(0.1))])
    >>> kernel
    Concatenate([(8, Linear()), (4, Gaussian(gamma=0.1))])
    >>> kernel.hyperparameters()
    {'parts_1_gamma': 0.1}
    >>> from kerv_jax.nn import KervConv
    >>> layer = KervConv(features=12, kernel_size=(3, 3), kernel_fn=kernel, learnable=True)
  """

  parts: tuple[Kernel, ...] = child()
  sizes: tuple[int, ...] | None = static(default=None)

  def __post_init__(self) -> None:
    """Takes the pairs apart and checks them."""
    super().__post_init__()
    wrong = TypeError(f"`parts` must be pairs (size, kernel), at least one, got {self.parts!r}")
    try:
      pairs: Any = self.parts if self.sizes is None else zip(self.sizes, self.parts, strict=True)
      pairs = [(size, kernel) for size, kernel in pairs]
    except (TypeError, ValueError):
      raise wrong from None
    if not pairs:
      raise wrong
    sizes = []
    for size, kernel in pairs:
      require_kernel("parts", kernel)
      try:
        integer = operator.index(size)
      except TypeError:
        raise wrong from None
      if integer < 1:
        raise ValueError(f"the sizes in `parts` must be at least 1, got {size!r} in {pairs!r}")
      require_features("parts", kernel, integer)
      sizes.append(integer)
    object.__setattr__(self, "parts", tuple(kernel for _, kernel in pairs))
    object.__setattr__(self, "sizes", tuple(sizes))

  @property
  def features(self) -> int:
    """Number of output features of all parts."""
    return sum(self.sizes or ())

  @property
  def ranges(self) -> list[tuple[int, int, Kernel]]:
    """First and last feature (that one left out) of each part, and the part."""
    stops = [sum((self.sizes or ())[: i + 1]) for i in range(len(self.parts))]
    return [(a, b, k) for a, b, k in zip([0, *stops], stops, self.parts, strict=False)]

  @property
  def _parts(self) -> tuple[Kernel, ...]:
    return self.parts

  def _combine(self, values: list[Array]) -> Array:
    shape = jnp.broadcast_shapes(*(value.shape[:-1] for value in values))
    wide = [
      jnp.broadcast_to(value, (*shape, stop - start))
      for value, (start, stop, _) in zip(values, self.ranges, strict=True)
    ]
    return jnp.concatenate(wide, axis=-1)

  def from_statistics(self, statistics: Mapping[str, Array]) -> Array:
    """The kernels' values from the statistics, whose last axis is that of the output features."""
    values = []
    for start, stop, part in self.ranges:
      own = {n: self._take(statistics[n], start, stop, -1) for n in part.statistics or ()}
      values.append(part.from_statistics(own))
    return self._combine(values)

  def __call__(self, x: Array, w: Array, /) -> Array:
    """``kappa(x, w)`` with a filter for each feature.

    Args:
      x: patches, shape ``(..., K)``.
      w: filters, shape ``(..., features, K)``; the leading axes of the two broadcast.

    Returns:
      Shape ``(..., features)``.

    Raises:
      ValueError: if there is not a filter for each feature.
    """
    if jnp.ndim(w) < 2 or jnp.shape(w)[-2] != self.features:
      raise ValueError(
        f"`w` must have shape (..., {self.features}, K), a filter for each feature of {self!r}, "
        f"got {jnp.shape(w)}"
      )
    if self.statistics is not None:
      return super().__call__(x, w)
    x = jnp.broadcast_to(x, (*jnp.broadcast_shapes(jnp.shape(x)[:-1], w.shape[:-1]), x.shape[-1]))
    return self._combine(
      [part(x[..., start:stop, :], w[..., start:stop, :]) for start, stop, part in self.ranges]
    )

  def _take(self, value: Array, start: int, stop: int, axis: int) -> Array:
    if value.ndim and value.shape[axis] not in (1, self.features):
      raise ValueError(
        f"a statistic must have {self.features} features or 1 for {self!r}, got shape {value.shape}"
      )
    return take_features(value, start, stop, axis)

  def __repr__(self) -> str:
    pairs = ", ".join(f"({stop - start}, {kernel!r})" for start, stop, kernel in self.ranges)
    return f"Concatenate([{pairs}])"


def take_features(value: Array, start: int, stop: int, axis: int) -> Array:
  """A range of the features of an array that has all of them along an axis, or one for all."""
  if value.ndim == 0 or value.shape[axis] in (1, stop - start):
    return value
  return jax.lax.slice_in_dim(value, start, stop, axis=axis)


def _operands(kernel: Kernel) -> tuple[list[Any], Any]:
  """The hyperparameters and kernels that a kernel is made of, and how to make it of others."""
  return jax.tree.flatten(kernel, is_leaf=lambda k: k is not kernel and isinstance(k, Kernel))


def feature_counts(kernel: Kernel, features: int) -> dict[str, int]:
  """How many output features each hyperparameter serves.

  Args:
    kernel: the kernel function.
    features: number of output features of the whole.

  Returns:
    The number by the names of ``kernel.hyperparameters()``: ``features``, or that of the part of a
    :class:`Concatenate` that the hyperparameter belongs to.
  """
  return dict(zip(kernel.hyperparameters(), _counts(kernel, features), strict=True))


def _counts(kernel: Kernel, features: int) -> Iterator[int]:
  if isinstance(kernel, Concatenate):
    for start, stop, part in kernel.ranges:
      yield from _counts(part, stop - start)
  else:
    for operand in _operands(kernel)[0]:
      yield from _counts(operand, features) if isinstance(operand, Kernel) else (features,)


def _cuts(kernel: Kernel) -> set[int]:
  """The features that a part of a ``Concatenate``, anywhere in the kernel, starts with."""
  if isinstance(kernel, Concatenate):
    return {start + cut for start, _, part in kernel.ranges for cut in {0, *_cuts(part)}}
  kernels = [operand for operand in _operands(kernel)[0] if isinstance(operand, Kernel)]
  return {cut for operand in kernels for cut in _cuts(operand)}


def _restricted(kernel: Kernel, start: int, stop: int) -> Kernel:
  """The kernel of a range of features in which no part of a ``Concatenate`` ends."""
  if isinstance(kernel, Concatenate):
    ((first, part),) = [(a, k) for a, b, k in kernel.ranges if a <= start < b]
    return _restricted(part, start - first, stop - first)
  operands, tree = _operands(kernel)
  restricted = [
    _restricted(operand, start, stop)
    if isinstance(operand, Kernel)
    else take_features(jnp.asarray(operand), start, stop, 0)
    for operand in operands
  ]
  return jax.tree.unflatten(tree, restricted)


def split(kernel: Kernel, features: int) -> Sequence[tuple[int, int, Kernel]]:
  """Writes a kernel as kernels without :class:`Concatenate` for ranges of the output features.

  Args:
    kernel: the kernel function, which may have a ``Concatenate`` anywhere inside.
    features: number of output features.

  Returns:
    First and last feature (that one left out) of each range, and the kernel of that range with the
    hyperparameters of its features; the kernel itself if there is nothing to split.
  """
  cuts = sorted({0, *_cuts(kernel)})
  if not _cuts(kernel):
    return [(0, features, kernel)]
  return [
    (start, stop, _restricted(kernel, start, stop))
    for start, stop in zip(cuts, [*cuts[1:], features], strict=True)
  ]


def require_features(name: str, kernel: Kernel, features: int) -> None:
  """Raises an error unless a kernel fits a number of output features.

  Args:
    name: the argument's name, for the message.
    kernel: the kernel function.
    features: number of output features.

  Raises:
    ValueError: for a hyperparameter that is neither a scalar nor has a value for each feature that
      it serves, and for parts of a :class:`Concatenate` that are not as many as the features.
  """
  _require_sizes(name, kernel, features)
  counts = feature_counts(kernel, features)
  for path, value in kernel.hyperparameters().items():
    shape = jnp.shape(value)
    if shape not in ((), (counts[path],)):
      raise ValueError(
        f"`{path}` of `{name}` must be a scalar or have one value for each of the {counts[path]} "
        f"output features, got shape {shape}"
      )


def _require_sizes(name: str, kernel: Kernel, features: int) -> None:
  if isinstance(kernel, Concatenate) and kernel.features != features:
    raise ValueError(
      f"`{name}` has kernels for {kernel.features} output features where there are {features}: "
      f"{kernel!r}"
    )
  # What is inside a Concatenate was checked when that was made.
  for operand in () if isinstance(kernel, Concatenate) else _operands(kernel)[0]:
    if isinstance(operand, Kernel):
      _require_sizes(name, operand, features)
