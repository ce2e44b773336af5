"""The kernel functions of the paper, and some beyond it."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array

from kerv_jax.kernels.base import Kernel
from kerv_jax.kernels.definitions import (
  ABSOLUTE_DISTANCE,
  ADDER_DISTANCE,
  FILTER_SQUARED_NORM,
  INNER_PRODUCT,
  PATCH_SQUARED_NORM,
  safe_sqrt,
)
from kerv_jax.kernels.profiles import (
  AbsoluteDistanceKernel,
  InnerProductKernel,
  SquaredDistanceKernel,
)
from kerv_jax.kernels.pytree import Hyperparameter, hyperparameter, static


class Linear(InnerProductKernel):
  """``<x, w>``: convolution, the same program and so the same bits.  Paper, eq. (2)."""

  def profile(self, statistic: Array) -> Array:
    """The inner product itself."""
    return statistic


def is_convolution(kernel_fn: Kernel) -> bool:
  """Whether kervolution with a kernel function is the convolution itself, bit for bit."""
  return type(kernel_fn) is Linear


class Polynomial(InnerProductKernel):
  """``(<x, w> + balance) ** degree``.  Paper, eq. (10).

  The expansion printed in the paper lacks the binomial coefficients; this is the power itself.

  Attributes:
    degree: an integer >= 1; static.
    balance: >= 0 (0 gives the homogeneous polynomial); the paper's c_p.  Weighs the orders:
      a larger one favours the low orders.
  """

  degree: int = static(default=3)
  balance: Hyperparameter = hyperparameter(default=1.0, constraint="non-negative")

  def __post_init__(self) -> None:
    self._require_integer("degree", minimum=1)
    super().__post_init__()

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

  scale: Hyperparameter = hyperparameter(default=1.0)
  offset: Hyperparameter = hyperparameter(default=0.0)

  def profile(self, statistic: Array) -> Array:
    """``tanh(scale * statistic + offset)``."""
    return jnp.tanh(self.scale * statistic + self.offset)


class Gaussian(SquaredDistanceKernel):
  """``exp(-gamma * sum (x - w)**2)``.  Paper, eq. (11) and (12).

  Underflows to 0, and its gradients with it, where ``gamma * sum (x - w)**2`` exceeds about 87
  in float32: choose ``gamma`` on the scale of 1 / (patch length * variance).

  Attributes:
    gamma: > 0; the inverse squared width.
  """

  gamma: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  def profile(self, statistic: Array) -> Array:
    """``exp(-gamma * statistic)``."""
    return jnp.exp(-self.gamma * statistic)


class L1(AbsoluteDistanceKernel):
  r"""``sum |x - w|``, the L1 norm of the difference.  Paper, eq. (9) with p = 1.

  The derivative at ``x == w`` is taken as 0.

  An AdderNet's layer (Chen et al., "AdderNet: Do We Really Need Multiplications in Deep Learning?",
  CVPR 2020) is ``-L1()``, trained with other gradients than the derivatives, which for the layer's
  output Y, patch X and filter F are sgn(F - X) and sgn(X - F):

  .. math:: \frac{\partial Y}{\partial F} = X - F, \qquad
            \frac{\partial Y}{\partial X} = \mathrm{HT}(F - X),
            \qquad \mathrm{HT}(d) = \min(\max(d, -1), 1)

  (its section 3.2: the full-precision gradient, and HardTanh where it goes on to the layers
  before).  That is ``-L1(surrogate=True)``; :func:`kerv_jax.optim.scale_by_adder_rate` is its
  learning rate.

  Attributes:
    surrogate: True for these gradients, of the same value; static.  Derivatives of higher order
      have then no meaning.
  """

  surrogate: bool = static(default=False)

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.surrogate, bool):
      raise TypeError(f"`surrogate` must be True or False, got {self.surrogate!r}")

  @property
  def statistics(self) -> tuple[str, ...]:
    """The absolute distance, with the gradients asked for."""
    return (ADDER_DISTANCE,) if self.surrogate else (ABSOLUTE_DISTANCE,)

  def profile(self, statistic: Array) -> Array:
    """The absolute distance itself."""
    return statistic

  def __repr__(self) -> str:
    return f"{type(self).__name__}({'surrogate=True' if self.surrogate else ''})"


class L2(SquaredDistanceKernel):
  """``sqrt(sum (x - w)**2)``, the L2 norm of the difference.  Paper, eq. (9) with p = 2.

  The derivative at ``x == w`` is taken as 0.

  Attributes:
    squared: True leaves out the square root; static.
  """

  squared: bool = static(default=False)

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.squared, bool):
      raise TypeError(f"`squared` must be True or False, got {self.squared!r}")

  def profile(self, statistic: Array) -> Array:
    """``sqrt(statistic)``, or the statistic itself if ``squared``."""
    return statistic if self.squared else safe_sqrt(statistic)

  def __repr__(self) -> str:
    return f"{type(self).__name__}({'squared=True' if self.squared else ''})"


class Laplacian(AbsoluteDistanceKernel):
  """``exp(-gamma * sum |x - w|)``.  Beyond the paper.

  Attributes:
    gamma: > 0; the inverse width.
  """

  gamma: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  def profile(self, statistic: Array) -> Array:
    """``exp(-gamma * statistic)``."""
    return jnp.exp(-self.gamma * statistic)


class Cauchy(SquaredDistanceKernel):
  """``1 / (1 + sum (x - w)**2 / sigma**2)``.  Beyond the paper.

  Falls off as a power, so that distant filters still get a gradient where a Gaussian's underflows.

  Attributes:
    sigma: > 0; the width.
  """

  sigma: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  def profile(self, statistic: Array) -> Array:
    """``1 / (1 + statistic / sigma**2)``."""
    return 1 / (1 + statistic / self.sigma / self.sigma)  # sigma**2 alone can underflow


class RationalQuadratic(SquaredDistanceKernel):
  """``(1 + sum (x - w)**2 / (2 alpha length**2)) ** -alpha``.  Beyond the paper.

  A mixture of Gaussians of all widths (Rasmussen and Williams, "Gaussian Processes for Machine
  Learning", eq. 4.19); tends to ``Gaussian(1 / (2 length**2))`` as alpha grows.

  Attributes:
    alpha: > 0; the weight of the narrow Gaussians.
    length: > 0; the width.
  """

  alpha: Hyperparameter = hyperparameter(default=1.0, constraint="positive")
  length: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  def profile(self, statistic: Array) -> Array:
    """``(1 + statistic / (2 alpha length**2)) ** -alpha``."""
    # Divided one by one, so that no small hyperparameter's square or product underflows.
    scaled = statistic / (2 * self.alpha) / self.length / self.length
    return jnp.exp(-self.alpha * jnp.log1p(scaled))


class Cosine(Kernel):
  """``<x, w> / (|x| |w|)``, the cosine of the angle; 0 where either is 0.  Beyond the paper.

  The squares of the norms must be within the range of the dtype, for float32 the norms between
  about 1e-19 and 1e19: below, the value is 0; above, NaN.
  """

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
    """``fn(x, w)``, for each pair of vectors of batches that broadcast."""
    if jnp.ndim(x) <= 1 and jnp.ndim(w) <= 1:
      return self.fn(x, w)
    lead = jnp.broadcast_shapes(jnp.shape(x)[:-1], jnp.shape(w)[:-1])
    pairs = (
      jnp.broadcast_to(v, (*lead, jnp.shape(v)[-1])).reshape(-1, jnp.shape(v)[-1]) for v in (x, w)
    )
    return jax.vmap(self.fn)(*pairs).reshape(lead)
