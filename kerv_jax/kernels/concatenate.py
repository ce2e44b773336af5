"""Several kernel functions side by side, each for a range of the output features."""

import itertools
import operator
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from kerv_jax.kernels.base import Composite, Kernel, Range, require_kernel
from kerv_jax.kernels.fields import child, static
from kerv_jax.kernels.ranges import require_features, take_features


class Concatenate(Composite):
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

  _diagonal = "is several kernels: normalize its parts"

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
  def ranges(self) -> tuple[Range, ...]:
    """The parts, each with its features."""
    stops = list(itertools.accumulate(self.sizes or ()))
    return tuple(map(Range, [0, *stops], stops, self.parts))

  @property
  def _parts(self) -> tuple[Kernel, ...]:
    return self.parts

  def _combine(self, values: list[Array]) -> Array:
    shape = jnp.broadcast_shapes(*(value.shape[:-1] for value in values))
    wide = [
      jnp.broadcast_to(value, (*shape, part.size))
      for value, part in zip(values, self.ranges, strict=True)
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
    pairs = ", ".join(f"({part.size}, {part.kernel!r})" for part in self.ranges)
    return f"Concatenate([{pairs}])"
