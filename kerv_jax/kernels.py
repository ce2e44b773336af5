"""Kernel functions: what a kervolution puts in the place of the inner product.

A kernel function maps a patch and a filter, two vectors of the same length, to a number.  All
the built-in ones are a scalar *profile* of one *patch statistic* (the inner product, the squared
distance or the absolute distance of patch and filter), and that is what makes them fast: the
statistic is computed like a convolution, and the profile is pointwise.

Every kernel is an immutable pytree.  Its hyperparameters (``gamma``, ``balance``, ...) are leaves,
each a scalar or one value per output feature; structure, such as the ``degree`` of a polynomial,
is static.  So :func:`jax.grad` with respect to a kernel is a kernel of gradients, and a kernel
passes through :func:`jax.jit`, :func:`jax.vmap` and :func:`jax.lax.scan`.

Called on two vectors, a kernel is its own definition:

>>> import jax
>>> import jax.numpy as jnp
>>> from kerv_jax import kernels
>>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
>>> print(kernels.Polynomial(degree=2, balance=1.0)(x, w))  # (1*0.5 + 2*1 + 1) ** 2
12.25
>>> kernel = 2.0 * kernels.Gaussian(gamma=0.5) + kernels.Linear()
>>> print(f"{kernel(x, w):.4f}")  # 2 exp(-0.5 * 1.25) + 2.5
3.5705
>>> jax.grad(lambda k: k(x, w))(kernels.Polynomial(degree=2, balance=1.0))
Polynomial(degree=2, balance=Array(7., dtype=float32, weak_type=True))

References:
  Wang, Yang, Xie, Yuan, "Kervolutional Neural Networks", CVPR 2019 ("the paper" below).
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from kerv_jax._pytree import Hyperparameter, Node, child, hyperparameter, static

INNER_PRODUCT = "inner_product"
"""``<x, w>``, what a convolution computes."""
SQUARED_DISTANCE = "squared_distance"
"""``sum (x - w)**2``."""
ABSOLUTE_DISTANCE = "absolute_distance"
"""``sum |x - w|``."""
PATCH_SQUARED_NORM = "patch_squared_norm"
"""``<x, x>``."""
FILTER_SQUARED_NORM = "filter_squared_norm"
"""``<w, w>``."""

DEFINITIONS: dict[str, Callable[[Array, Array], Array]] = {
  INNER_PRODUCT: lambda x, w: jnp.vecdot(x, w),
  SQUARED_DISTANCE: lambda x, w: jnp.sum(jnp.square(x - w), axis=-1),
  ABSOLUTE_DISTANCE: lambda x, w: jnp.sum(jnp.abs(x - w), axis=-1),
  PATCH_SQUARED_NORM: lambda x, w: jnp.sum(jnp.square(x), axis=-1),
  FILTER_SQUARED_NORM: lambda x, w: jnp.sum(jnp.square(w), axis=-1),
}
"""Each patch statistic as its formula on patches and filters, the last axis reduced."""


def safe_sqrt(x: Array) -> Array:
  """Square root whose derivatives are 0, not infinite or NaN, at 0.

  Args:
    x: non-negative values, any shape.

  Returns:
    ``sqrt(x)``, the shape and dtype of ``x``.

  Example:
    >>> print(jax.grad(safe_sqrt)(0.0), jax.grad(safe_sqrt)(4.0))
    0.0 0.25
  """
  positive = x > 0
  return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


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
    >>> class Exponential(InnerProductKernel):
    ...   rate: Hyperparameter = hyperparameter(1.0, "positive")
    ...
    ...   def profile(self, statistic):
    ...     return jnp.exp(self.rate * statistic)
    >>> print(f"{Exponential(rate=0.5)(jnp.ones(2), jnp.ones(2)):.4f}")
    2.7183
  """

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

  def __call__(self, x: Array, w: Array, /) -> Array:
    """``kappa(x, w)`` by its definition.

    Args:
      x: patches, shape ``(..., K)``.
      w: filters, shape ``(..., K)``; the leading axes of the two broadcast.

    Returns:
      The kernel's values, in the broadcast leading shape (broadcast with the hyperparameters'
      where there is one value per feature).  16-bit inputs are computed in float32 and the result
      is rounded to their dtype.
    """
    names = self.statistics
    if names is None:
      raise TypeError(f"{type(self).__name__} must define `__call__` or `statistics`")
    dtype = jnp.result_type(x, w)
    if jnp.issubdtype(dtype, jnp.complexfloating):
      raise TypeError(f"`x` and `w` must be real, got dtypes {x.dtype} and {w.dtype}")
    if not jnp.issubdtype(dtype, jnp.floating):
      dtype = jnp.result_type(float)
    computed = jnp.promote_types(dtype, jnp.float32)
    x, w = jnp.asarray(x, computed), jnp.asarray(w, computed)
    return self.from_statistics({n: DEFINITIONS[n](x, w) for n in names}).astype(dtype)

  def __add__(self, other: Any) -> "Sum":
    """``k1 + k2``: the sum of two kernel functions."""
    if not isinstance(other, Kernel):
      return NotImplemented
    return Sum((*_terms(self, Sum), *_terms(other, Sum)))

  def __sub__(self, other: Any) -> "Sum":
    """``k1 - k2``."""
    return self + (-other) if isinstance(other, Kernel) else NotImplemented

  def __neg__(self) -> "Negative":
    """``-k``."""
    return Negative(self)

  def __mul__(self, other: Any) -> "Kernel":
    """``k1 * k2``, the product of two kernel functions, or ``k * number``."""
    if isinstance(other, Kernel):
      return Product((*_terms(self, Product), *_terms(other, Product)))
    return Scaled(other, self)

  def __rmul__(self, other: Any) -> "Scaled":
    """``number * k``."""
    return Scaled(other, self)

  __array_ufunc__ = None  # so that a NumPy number on the left leaves the operator to us


def _terms(kernel: Kernel, kind: "type[Sum] | type[Product]") -> tuple[Kernel, ...]:
  return kernel.terms if isinstance(kernel, kind) else (kernel,)


class _ProfileKernel(Kernel):
  """A scalar profile of one patch statistic."""

  statistic: ClassVar[str]

  @property
  def statistics(self) -> tuple[str, ...]:
    return (self.statistic,)

  def from_statistics(self, statistics: Mapping[str, Array]) -> Array:
    return self.profile(statistics[self.statistic])

  def profile(self, statistic: Array) -> Array:
    """The kernel as a function of its statistic, pointwise.

    Args:
      statistic: any shape that broadcasts with the hyperparameters.

    Returns:
      The kernel's values, in the broadcast shape.
    """
    raise TypeError(f"{type(self).__name__} must define `profile`")


class InnerProductKernel(_ProfileKernel):
  """Base class of the functions of ``<x, w>``; define ``profile``."""

  statistic: ClassVar[str] = INNER_PRODUCT


class SquaredDistanceKernel(_ProfileKernel):
  """Base class of the functions of ``sum (x - w)**2``; define ``profile``."""

  statistic: ClassVar[str] = SQUARED_DISTANCE


class AbsoluteDistanceKernel(_ProfileKernel):
  """Base class of the functions of ``sum |x - w|``; define ``profile``."""

  statistic: ClassVar[str] = ABSOLUTE_DISTANCE


class Linear(InnerProductKernel):
  """``<x, w>``: convolution, the same program and so the same bits.  Paper, eq. (2)."""

  def profile(self, statistic: Array) -> Array:
    """The inner product itself."""
    return statistic


class Polynomial(InnerProductKernel):
  """``(<x, w> + balance) ** degree``.  Paper, eq. (10).

  The expansion printed in the paper lacks the binomial coefficients; this is the power itself.

  Attributes:
    degree: an integer >= 1; static.
    balance: >= 0 (0 gives the homogeneous polynomial); the paper's c_p.  Weighs the orders:
      a larger one favours the low orders.
  """

  degree: int = static(3)
  balance: Hyperparameter = hyperparameter(1.0, "non-negative")

  def __post_init__(self) -> None:
    super().__post_init__()
    self._require_integer("degree", minimum=1)

  def profile(self, statistic: Array) -> Array:
    """``(statistic + balance) ** degree``."""
    return (statistic + self.balance) ** self.degree


class Sigmoid(InnerProductKernel):
  """``tanh(scale * <x, w> + offset)``.  Paper, section 4.1, where scale is 1 and offset 0.

  The paper, as the literature on support vector machines, calls tanh the sigmoid kernel.

  Attributes:
    scale: any number.
    offset: any number.
  """

  scale: Hyperparameter = hyperparameter(1.0)
  offset: Hyperparameter = hyperparameter(0.0)

  def profile(self, statistic: Array) -> Array:
    """``tanh(scale * statistic + offset)``."""
    return jnp.tanh(self.scale * statistic + self.offset)


class Gaussian(SquaredDistanceKernel):
  """``exp(-gamma * sum (x - w)**2)``.  Paper, eq. (11) and (12).

  Underflows to 0, and its gradients with it, where ``gamma * sum (x - w)**2`` exceeds about 100
  in float32: choose ``gamma`` on the scale of 1 / (patch length * variance).

  Attributes:
    gamma: > 0; the inverse squared width.
  """

  gamma: Hyperparameter = hyperparameter(1.0, "positive")

  def profile(self, statistic: Array) -> Array:
    """``exp(-gamma * statistic)``."""
    return jnp.exp(-self.gamma * statistic)


class L1(AbsoluteDistanceKernel):
  """``sum |x - w|``, the L1 norm of the difference.  Paper, eq. (9) with p = 1.

  The derivative at ``x == w`` is taken as 0.
  """

  def profile(self, statistic: Array) -> Array:
    """The absolute distance itself."""
    return statistic


class L2(SquaredDistanceKernel):
  """``sqrt(sum (x - w)**2)``, the L2 norm of the difference.  Paper, eq. (9) with p = 2.

  The derivative at ``x == w`` is taken as 0.

  Attributes:
    squared: True leaves out the square root; static.
  """

  squared: bool = static(False)

  def profile(self, statistic: Array) -> Array:
    """``sqrt(statistic)``, or the statistic itself if ``squared``."""
    return statistic if self.squared else safe_sqrt(statistic)


class Laplacian(AbsoluteDistanceKernel):
  """``exp(-gamma * sum |x - w|)``.  Beyond the paper.

  Attributes:
    gamma: > 0; the inverse width.
  """

  gamma: Hyperparameter = hyperparameter(1.0, "positive")

  def profile(self, statistic: Array) -> Array:
    """``exp(-gamma * statistic)``."""
    return jnp.exp(-self.gamma * statistic)


class Cauchy(SquaredDistanceKernel):
  """``1 / (1 + sum (x - w)**2 / sigma**2)``.  Beyond the paper.

  Falls off as a power, so that distant filters still get a gradient where a Gaussian's underflows.

  Attributes:
    sigma: > 0; the width.
  """

  sigma: Hyperparameter = hyperparameter(1.0, "positive")

  def profile(self, statistic: Array) -> Array:
    """``sigma**2 / (sigma**2 + statistic)``: the same, and finite for any sigma > 0."""
    width = jnp.square(self.sigma)
    return width / (width + statistic)


class RationalQuadratic(SquaredDistanceKernel):
  """``(1 + sum (x - w)**2 / (2 alpha length**2)) ** -alpha``.  Beyond the paper.

  A mixture of Gaussians of all widths (Rasmussen and Williams, "Gaussian Processes for Machine
  Learning", eq. 4.19); tends to ``Gaussian(1 / (2 length**2))`` as alpha grows.

  Attributes:
    alpha: > 0; the weight of the narrow Gaussians.
    length: > 0; the width.
  """

  alpha: Hyperparameter = hyperparameter(1.0, "positive")
  length: Hyperparameter = hyperparameter(1.0, "positive")

  def profile(self, statistic: Array) -> Array:
    """``(1 + statistic / (2 alpha length**2)) ** -alpha``."""
    # Divided one by one, so that no small hyperparameter's square or product underflows.
    scaled = statistic / (2 * self.alpha) / self.length / self.length
    return jnp.exp(-self.alpha * jnp.log1p(scaled))


class Cosine(Kernel):
  """``<x, w> / (|x| |w|)``, the cosine of the angle; 0 where either is 0.  Beyond the paper."""

  @property
  def statistics(self) -> tuple[str, ...]:
    """The inner product and both squared norms."""
    return (INNER_PRODUCT, PATCH_SQUARED_NORM, FILTER_SQUARED_NORM)

  def from_statistics(self, statistics: Mapping[str, Array]) -> Array:
    """The quotient of the inner product and the norms."""
    norm = safe_sqrt(statistics[PATCH_SQUARED_NORM]) * safe_sqrt(statistics[FILTER_SQUARED_NORM])
    positive = norm > 0
    return jnp.where(positive, statistics[INNER_PRODUCT] / jnp.where(positive, norm, 1), 0)


class Custom(Kernel):
  """Any function of a patch and a filter, through the patches method.

  Two ``Custom`` kernels are equal if their functions are the same object: define the function
  once, outside the traced code, or each call compiles anew.

  Attributes:
    fn: ``fn(patch, filter) -> scalar`` of two vectors of shape (K,) in the same order: window
      positions first, then the group's input channels, as ``kernel[..., o].ravel()`` of an HWIO
      kernel, whatever the layout of the operands; static.

  Example:
    >>> chebyshev = Custom(lambda x, w: jnp.max(jnp.abs(x - w)))
    >>> print(chebyshev(jnp.array([1.0, 2.0]), jnp.array([0.5, 4.0])))
    2.0
  """

  fn: Callable[[Array, Array], Array] = static()

  def __post_init__(self) -> None:
    super().__post_init__()
    if not callable(self.fn):
      raise TypeError(f"`fn` must be a function of (patch, filter), got {self.fn!r}")

  def __call__(self, x: Array, w: Array, /) -> Array:
    """``fn(x, w)``."""
    return self.fn(x, w)


class _Composite(Kernel):
  """A function of other kernels; every statistic they share is computed once."""

  @property
  def _parts(self) -> tuple[Kernel, ...]:
    raise NotImplementedError

  def _combine(self, values: list[Array]) -> Array:
    raise NotImplementedError

  @property
  def statistics(self) -> tuple[str, ...] | None:
    names: dict[str, None] = {}
    for part in self._parts:
      if part.statistics is None:
        return None
      names |= dict.fromkeys(part.statistics)
    return tuple(names)

  def from_statistics(self, statistics: Mapping[str, Array]) -> Array:
    return self._combine([part.from_statistics(statistics) for part in self._parts])

  def __call__(self, x: Array, w: Array, /) -> Array:
    if self.statistics is None:
      return self._combine([part(x, w) for part in self._parts])
    return super().__call__(x, w)


class _Terms(_Composite):
  terms: tuple[Kernel, ...] = child()

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.terms, tuple) or not self.terms:
      raise TypeError(f"`terms` must be a non-empty tuple of kernels, got {self.terms!r}")
    for term in self.terms:
      require_kernel("terms", term)

  @property
  def _parts(self) -> tuple[Kernel, ...]:
    return self.terms


class Sum(_Terms):
  """``k1 + k2 + ...``; written with ``+``.

  Attributes:
    terms: the kernels.
  """

  def _combine(self, values: list[Array]) -> Array:
    total = values[0]
    for value in values[1:]:
      total = total + value
    return total


class Product(_Terms):
  """``k1 * k2 * ...``; written with ``*``.

  Attributes:
    terms: the kernels.
  """

  def _combine(self, values: list[Array]) -> Array:
    total = values[0]
    for value in values[1:]:
      total = total * value
    return total


class Negative(_Composite):
  """``-k``; written with ``-``.

  Attributes:
    kernel: the kernel.
  """

  kernel: Kernel = child()

  def __post_init__(self) -> None:
    super().__post_init__()
    require_kernel("kernel", self.kernel)

  @property
  def _parts(self) -> tuple[Kernel, ...]:
    return (self.kernel,)

  def _combine(self, values: list[Array]) -> Array:
    return -values[0]


class Scaled(_Composite):
  """``scale * k``; written with ``*``.

  Attributes:
    scale: any number, or one per output feature; a hyperparameter.
    kernel: the kernel.
  """

  scale: Hyperparameter = hyperparameter()
  kernel: Kernel = child()

  def __post_init__(self) -> None:
    super().__post_init__()
    require_kernel("kernel", self.kernel)

  @property
  def _parts(self) -> tuple[Kernel, ...]:
    return (self.kernel,)

  def _combine(self, values: list[Array]) -> Array:
    return self.scale * values[0]


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
  elif callable(value):
    hint = "; wrap a function of (patch, filter) as kernels.Custom(fn)"
  raise TypeError(f"`{name}` must be a kernel such as kernels.Gaussian(), got {value!r}{hint}")
