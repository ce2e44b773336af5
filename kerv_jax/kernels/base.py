"""What a kernel function is: its protocol and its algebra."""

import abc
import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from kerv_jax.kernels.definitions import at_least_float32, define
from kerv_jax.kernels.fields import Hyperparameter, child, hyperparameter
from kerv_jax.kernels.pytree import Node


class Range(NamedTuple):
  """Output features, from ``start`` to before ``stop``, and the kernel function that they have.

  A hyperparameter of that kernel is a scalar or has a value for each feature of the range.
  """

  start: int
  stop: int
  kernel: "Kernel"

  @property
  def size(self) -> int:
    """The number of features."""
    return self.stop - self.start


class Kernel(Node):
  """A kernel function ``kappa(patch, filter)``; the base class of all of them.

  To write one's own, subclass

  * :class:`InnerProductKernel`, :class:`SquaredDistanceKernel` or :class:`AbsoluteDistanceKernel`
    and define ``profile(statistic)``, a pointwise function: as fast as the built-in ones;
  * this class and define ``__call__(patch, filter)``: any function at all, through the patches
    method (slower, and memory for all patches).

  Fields become arguments of the constructor, as in a dataclass; :func:`hyperparameter` declares
  one that is a leaf of the pytree, :func:`static` one that is structure.

  Example:
    >>> from kerv_jax.kernels import InnerProductKernel, Hyperparameter, hyperparameter
    >>> class Exponential(InnerProductKernel):
    ...   rate: Hyperparameter = hyperparameter(default=1.0, constraint="positive")
    ...
    ...   def profile(self, statistic):
    ...     return jnp.exp(self.rate * statistic)
    >>> print(f"{Exponential(rate=0.5)(jnp.ones(2), jnp.ones(2)):.4f}")
    2.7183

  Attributes:
    positive_diagonal: whether it is positive at ``(x, x)``, or 0, whatever x, as
      :class:`Normalized` requires; a class says it of itself alone, not of its subclasses.
  """

  positive_diagonal: ClassVar[bool] = False
  _diagonal: ClassVar[str] = "does not say of itself that it is (`positive_diagonal`)"

  @property
  def statistics(self) -> tuple[str, ...] | None:
    """Names of the patch statistics it needs; None if it needs the patches themselves."""
    return None

  def from_statistics(self, statistics: Mapping[str, Array]) -> Array:
    """The kernel's value from its statistics.

    Args:
      statistics: an array for each name in :attr:`statistics`; shapes broadcast together and
        with the hyperparameters.

    Returns:
      The kernel's values, in the broadcast shape.

    Raises:
      TypeError: if the kernel is not a function of patch statistics.
    """
    raise TypeError(f"{type(self).__name__} is not a function of patch statistics")

  @property
  def ranges(self) -> tuple[Range, ...]:
    """The kernels that stand side by side here, each for its features; none in most kernels."""
    return ()

  def __call__(self, x: Array, w: Array, /) -> Array:
    """``kappa(x, w)`` by its definition.

    Args:
      x: patches, shape ``(..., K)``.
      w: filters, shape ``(..., K)``; the leading axes of the two broadcast.

    Returns:
      The kernel's values, in the broadcast leading shape (broadcast with the hyperparameters'
      where there is one value per feature).  16-bit inputs are computed in float32 and the result
      is rounded to their dtype.

    Raises:
      TypeError: if ``x`` or ``w`` is complex.
      ValueError: if their last axes differ in length.
    """
    if self.statistics is None:
      raise TypeError(f"{type(self).__name__} must define `__call__` or `statistics`")
    if jnp.iscomplexobj(x) or jnp.iscomplexobj(w):
      raise TypeError(f"`x` and `w` must be real, got dtypes {x.dtype} and {w.dtype}")
    dtype = jnp.result_type(x, w)
    if not jnp.issubdtype(dtype, jnp.floating):
      dtype = jnp.result_type(float)
    computed = at_least_float32(dtype)
    x, w = jnp.asarray(x, computed), jnp.asarray(w, computed)
    if x.ndim < 1 or w.ndim < 1 or x.shape[-1] != w.shape[-1]:
      raise ValueError(
        f"`x` and `w` must have shape (..., K) with the same K, got {x.shape} and {w.shape}"
      )
    rank = max(x.ndim, w.ndim)
    x, w = _of_rank(x, rank), _of_rank(w, rank)
    kernel = _broadcastable(self, rank - 1, computed)
    statistics = {name: define(name, x, w) for name in kernel.statistics}
    return kernel.from_statistics(statistics).astype(dtype)

  def __add__(self, other: Any) -> "Sum":
    """``k1 + k2``: the sum of two kernel functions."""
    if not isinstance(other, Kernel):
      return NotImplemented
    return Sum((self, other))

  def __radd__(self, other: Any) -> "Kernel":
    """``0 + k``, which is ``k``: so that ``sum`` works on a list of kernels."""
    return self if isinstance(other, int) and other == 0 else NotImplemented

  def __sub__(self, other: Any) -> "Sum":
    """``k1 - k2``."""
    return self + (-other) if isinstance(other, Kernel) else NotImplemented

  def __neg__(self) -> "Kernel":
    """``-k``; twice is ``k`` itself."""
    return self.kernel if isinstance(self, Negative) else Negative(self)

  def __mul__(self, other: Any) -> "Kernel":
    """``k1 * k2``, the product of two kernel functions, or ``k * number``."""
    if isinstance(other, Kernel):
      return Product((self, other))
    return Scaled(other, self)

  def __rmul__(self, other: Any) -> "Scaled":
    """``number * k``."""
    return Scaled(other, self)

  __array_ufunc__ = None  # so that a NumPy number on the left leaves the operator to us


class Composite(Kernel):
  """A function of other kernels; every statistic they share is computed once."""

  @property
  @abc.abstractmethod
  def _parts(self) -> tuple[Kernel, ...]:
    """The kernels that it is a function of."""

  @abc.abstractmethod
  def _combine(self, values: list[Array]) -> Array:
    """Its value from theirs."""

  @property
  def statistics(self) -> tuple[str, ...] | None:
    """Those of all the kernels; None if one of them has none."""
    names: dict[str, None] = {}
    for part in self._parts:
      if part.statistics is None:
        return None
      names |= dict.fromkeys(part.statistics)
    return tuple(names)

  def from_statistics(self, statistics: Mapping[str, Array]) -> Array:
    """The value, from theirs."""
    return self._combine([part.from_statistics(statistics) for part in self._parts])

  def __call__(self, x: Array, w: Array, /) -> Array:
    """``kappa(x, w)``, from theirs where one is no function of patch statistics."""
    if self.statistics is not None:
      return super().__call__(x, w)
    values = [part(x, w) for part in self._parts]
    rank = max(value.ndim for value in values)
    return _broadcastable(self, rank, jnp.result_type(*values))._combine(values)


class _Terms(Composite):
  terms: tuple[Kernel, ...] = child()

  def __post_init__(self) -> None:
    """Checks the terms; those of a term of the same sort are its own: ``(a + b) + c``."""
    super().__post_init__()
    if not isinstance(self.terms, tuple) or not self.terms:
      raise TypeError(f"`terms` must be a non-empty tuple of kernels, got {self.terms!r}")
    flat: list[Kernel] = []
    for term in self.terms:
      require_kernel("terms", term)
      flat += term.terms if type(term) is type(self) else (term,)  # pyright: ignore
    object.__setattr__(self, "terms", tuple(flat))

  @property
  def _parts(self) -> tuple[Kernel, ...]:
    return self.terms


class Sum(_Terms):
  """The sum of kernels, ``k1 + k2 + ...``; written with ``+``.

  Attributes:
    terms: the kernels.

  Example:
    >>> from kerv_jax import kernels
    >>> kernel = kernels.Linear() + kernels.Gaussian(0.1)
    >>> kernel == kernels.Sum((kernels.Linear(), kernels.Gaussian(0.1)))
    True
  """

  def _combine(self, values: list[Array]) -> Array:
    return functools.reduce(operator.add, values)

  def __repr__(self) -> str:
    if len(self.terms) < 2:
      return f"Sum(terms={self.terms!r})"
    text = _factor(self.terms[0], Sum)
    for term in self.terms[1:]:
      negative = isinstance(term, Negative)
      text += f" - {_factor(term.kernel, Sum)}" if negative else f" + {_factor(term, Sum)}"
    return text


class Product(_Terms):
  """The product of kernels, ``k1 * k2 * ...``; written with ``*``.

  Attributes:
    terms: the kernels.

  Example:
    >>> from kerv_jax import kernels
    >>> kernel = kernels.Linear() * kernels.Gaussian(0.1)
    >>> kernel == kernels.Product((kernels.Linear(), kernels.Gaussian(0.1)))
    True
  """

  def _combine(self, values: list[Array]) -> Array:
    return functools.reduce(operator.mul, values)

  def __repr__(self) -> str:
    if len(self.terms) < 2:
      return f"Product(terms={self.terms!r})"
    return " * ".join(_factor(term, Sum, Product, Scaled) for term in self.terms)


class Negative(Composite):
  """The negative of a kernel, ``-k``; written with ``-``.

  Attributes:
    kernel: the kernel; the names of its hyperparameters begin with ``inner_``.

  Example:
    >>> from kerv_jax import kernels
    >>> kernels.Negative(kernels.Gaussian(0.1)).hyperparameters()
    {'inner_gamma': 0.1}
  """

  kernel: Kernel = child(called="inner")

  _diagonal = "has the opposite sign of the kernel inside"

  def __post_init__(self) -> None:
    super().__post_init__()
    require_kernel("kernel", self.kernel)

  @property
  def _parts(self) -> tuple[Kernel, ...]:
    return (self.kernel,)

  def _combine(self, values: list[Array]) -> Array:
    return -values[0]

  def __repr__(self) -> str:
    return f"-{_factor(self.kernel, Sum, Product, Scaled)}"


class Scaled(Composite):
  """A multiple of a kernel, ``scale * k``; written with ``*``.

  Attributes:
    scale: any number, or one per output feature; a hyperparameter.
    kernel: the kernel; the names of its hyperparameters begin with ``inner_``.

  Example:
    >>> from kerv_jax import kernels
    >>> kernels.Scaled(2.0, kernels.Gaussian(0.1)).hyperparameters()
    {'scale': 2.0, 'inner_gamma': 0.1}
  """

  scale: Hyperparameter = hyperparameter()
  kernel: Kernel = child(called="inner")

  def __post_init__(self) -> None:
    super().__post_init__()
    require_kernel("kernel", self.kernel)

  @property
  def _parts(self) -> tuple[Kernel, ...]:
    return (self.kernel,)

  def _combine(self, values: list[Array]) -> Array:
    return jnp.multiply(self.scale, values[0])

  def __repr__(self) -> str:
    return f"{self.scale!r} * {_factor(self.kernel, Sum, Product, Scaled)}"


def _of_rank(value: Array, rank: int) -> Array:
  """An array with leading axes of length 1 up to a rank; scalars broadcast as they are."""
  return value.reshape((1,) * (rank - value.ndim) + value.shape) if value.ndim else value


def _broadcastable(kernel: Any, rank: int, dtype: Any) -> Any:
  """A kernel whose hyperparameters, where they are arrays, are of a rank and a dtype."""

  def cast(leaf: Any) -> Any:
    return leaf if isinstance(leaf, float) else _of_rank(jnp.asarray(leaf, dtype), rank)

  return jax.tree.map(cast, kernel)


def _factor(kernel: Any, *weaker: type) -> str:
  """A kernel as part of an expression; in parentheses if it is one that binds more weakly."""
  return f"({kernel!r})" if isinstance(kernel, weaker) else repr(kernel)


def _names(cls: type) -> Iterator[str]:
  """The names of the library's kernels among the subclasses of a class."""
  for other in cls.__subclasses__():
    if other.__module__.startswith("kerv_jax."):
      yield other.__name__
      yield from _names(other)


def require_kernel(name: str, value: Any) -> None:
  """Raises a TypeError naming the argument unless ``value`` is a kernel.

  Args:
    name: the argument's name, for the message.
    value: what was received.

  Raises:
    TypeError: if ``value`` is not a :class:`Kernel` instance.
  """
  if isinstance(value, Kernel):
    return
  hint = ""
  if isinstance(value, type) and issubclass(value, Kernel):
    hint = f"; call it: {value.__name__}()"
  elif isinstance(value, str):
    same = [name for name in _names(Kernel) if name.lower() == value.replace("_", "").lower()]
    hint = f"; perhaps kernels.{same[0]}()" if same else ""
  elif callable(value):
    hint = "; wrap a function of (patch, filter) as kernels.Custom(fn)"
  raise TypeError(f"`{name}` must be a kernel such as kernels.Gaussian(), got {value!r}{hint}")
