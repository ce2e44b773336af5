"""Kernel functions beyond the paper, and any function at all."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array

from kerv_jax.kernels.base import Kernel
from kerv_jax.kernels.definitions import (
  FILTER_SQUARED_NORM,
  INNER_PRODUCT,
  PATCH_SQUARED_NORM,
  safe_sqrt,
)
from kerv_jax.kernels.fields import Hyperparameter, hyperparameter, static
from kerv_jax.kernels.profiles import (
  AbsoluteDistanceKernel,
  SquaredDistanceKernel,
)


class Laplacian(AbsoluteDistanceKernel):
  """The Laplacian kernel is ``exp(-gamma * sum |x - w|)``.  Beyond the paper.

  Attributes:
    gamma: > 0; the inverse width.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{kernels.Laplacian(gamma=2.0)(x, w):.4f}")  # exp(-2 * 1.5)
    0.0498
  """

  gamma: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  positive_diagonal = True

  def profile(self, statistic: Array) -> Array:
    """``exp(-gamma * statistic)``."""
    return jnp.exp(-self.gamma * statistic)


class Cauchy(SquaredDistanceKernel):
  """The Cauchy kernel is ``1 / (1 + sum (x - w)**2 / sigma**2)``.  Beyond the paper.

  Falls off as a power, so that distant filters still get a gradient where a Gaussian's underflows.

  Attributes:
    sigma: > 0; the width.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{kernels.Cauchy(sigma=0.5)(x, w):.4f}")  # 1 / (1 + 1.25 / 0.25)
    0.1667
  """

  sigma: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  positive_diagonal = True

  def profile(self, statistic: Array) -> Array:
    """``1 / (1 + statistic / sigma**2)``."""
    return 1 / (1 + statistic / self.sigma / self.sigma)  # sigma**2 alone can underflow


class RationalQuadratic(SquaredDistanceKernel):
  """The rational quadratic is ``(1 + sum (x - w)**2 / (2 alpha length**2)) ** -alpha``.

  Beyond the paper.  It is a mixture of Gaussians of all widths (Rasmussen and Williams, "Gaussian
  Processes for Machine Learning", eq. 4.19), and tends to
  ``Gaussian(1 / (2 length**2))`` as alpha grows.

  Attributes:
    alpha: > 0; the weight of the narrow Gaussians.
    length: > 0; the width.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> kernel = kernels.RationalQuadratic(alpha=2.0, length=0.5)
    >>> print(f"{kernel(x, w):.4f}")  # (1 + 1.25 / (2 * 2 * 0.25)) ** -2
    0.1975
  """

  alpha: Hyperparameter = hyperparameter(default=1.0, constraint="positive")
  length: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  positive_diagonal = True

  def profile(self, statistic: Array) -> Array:
    """``(1 + statistic / (2 alpha length**2)) ** -alpha``."""
    # Divided one by one, so that no small hyperparameter's square or product underflows.
    scaled = statistic / (2 * self.alpha) / self.length / self.length
    return jnp.exp(-self.alpha * jnp.log1p(scaled))


class Cosine(Kernel):
  """The cosine kernel is ``<x, w> / (|x| |w|)``, or 0 where either is 0.  Beyond the paper.

  The squares of the norms must be within the range of the dtype, for float32 the norms between
  about 1e-19 and 1e19: below, the value is 0; above, NaN.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{kernels.Cosine()(x, w):.4f}")
    1.0000
  """

  positive_diagonal = True

  @property
  def statistics(self) -> tuple[str, ...]:
    """The inner product and both squared norms."""
    return (INNER_PRODUCT, PATCH_SQUARED_NORM, FILTER_SQUARED_NORM)

  def from_statistics(self, statistics: Mapping[str, Array]) -> Array:
    """The quotient of the inner product and the norms."""
    norm = safe_sqrt(statistics[PATCH_SQUARED_NORM]) * safe_sqrt(statistics[FILTER_SQUARED_NORM])
    zero = norm == 0
    return jnp.where(zero, 0, statistics[INNER_PRODUCT] / jnp.where(zero, 1, norm))


class Custom(Kernel):
  """A kernel that is any function of a patch and a filter, through the patches method.

  Two ``Custom`` kernels are equal if their functions are the same object: define the function
  once, outside the traced code, or each call compiles anew.

  Attributes:
    fn: ``fn(patch, filter) -> scalar`` of two vectors of shape (K,) in the same order: window
      positions first, then the group's input channels, as ``kernel[..., o].ravel()`` of an HWIO
      kernel, whatever the layout of the operands; static.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax.kernels import Custom
    >>> chebyshev = Custom(lambda x, w: jnp.max(jnp.abs(x - w)))
    >>> print(chebyshev(jnp.array([1.0, 2.0]), jnp.array([0.5, 4.0])))
    2.0
  """

  fn: Callable[[Array, Array], Array] = static()

  _diagonal = "may be any function, and is none of patch statistics"

  def __post_init__(self) -> None:
    super().__post_init__()
    if not callable(self.fn):
      raise TypeError(f"`fn` must be a function of (patch, filter), got {self.fn!r}")

  def __call__(self, x: Array, w: Array, /) -> Array:
    """``fn(x, w)``, for each pair of vectors of batches that broadcast."""
    if jnp.ndim(x) <= 1 and jnp.ndim(w) <= 1:
      return self.fn(x, w)
    lead = jnp.broadcast_shapes(jnp.shape(x)[:-1], jnp.shape(w)[:-1])
    pairs = (
      jnp.broadcast_to(v, (*lead, jnp.shape(v)[-1])).reshape(-1, jnp.shape(v)[-1]) for v in (x, w)
    )
    return jax.vmap(self.fn)(*pairs).reshape(lead)
