"""The kernel functions of the paper."""

import jax.numpy as jnp
from jax import Array

from kerv_jax.kernels.base import Kernel
from kerv_jax.kernels.definitions import (
  ABSOLUTE_DISTANCE,
  ADDER_DISTANCE,
  safe_sqrt,
)
from kerv_jax.kernels.fields import Hyperparameter, hyperparameter, static
from kerv_jax.kernels.profiles import (
  AbsoluteDistanceKernel,
  InnerProductKernel,
  SquaredDistanceKernel,
)


class Linear(InnerProductKernel):
  """The linear kernel is ``<x, w>``: convolution, bit for bit.  Paper, eq. (2).

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{kernels.Linear()(x, w):.4f}")
    2.5000
  """

  positive_diagonal = True

  def profile(self, statistic: Array) -> Array:
    """The inner product itself."""
    return statistic


def is_convolution(kernel_fn: Kernel) -> bool:
  """Whether kervolution with a kernel function is the convolution itself, bit for bit."""
  return type(kernel_fn) is Linear


class Polynomial(InnerProductKernel):
  """The polynomial kernel is ``(<x, w> + balance) ** degree``.  Paper, eq. (10).

  The expansion printed in the paper lacks the binomial coefficients; this is the power itself.

  Attributes:
    degree: an integer >= 1; static.
    balance: >= 0 (0 gives the homogeneous polynomial); the paper's c_p.  Weighs the orders:
      a larger one favors the low orders.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{kernels.Polynomial(degree=2, balance=0.5)(x, w):.4f}")  # (2.5 + 0.5) ** 2
    9.0000
  """

  degree: int = static(default=3)
  balance: Hyperparameter = hyperparameter(default=1.0, constraint="non-negative")

  positive_diagonal = True

  def __post_init__(self) -> None:
    self._require_integer("degree", minimum=1)
    super().__post_init__()

  def profile(self, statistic: Array) -> Array:
    """``(statistic + balance) ** degree``."""
    return (statistic + self.balance) ** self.degree


class Sigmoid(InnerProductKernel):
  """The sigmoid kernel is ``tanh(scale * <x, w> + offset)``.  Paper, section 4.1.

  The paper, where scale is 1 and offset is 0, calls tanh the sigmoid kernel, as the literature on
  support vector machines does.

  Attributes:
    scale: any number.
    offset: any number.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{kernels.Sigmoid(scale=0.2, offset=0.5)(x, w):.4f}")  # tanh(1)
    0.7616
  """

  scale: Hyperparameter = hyperparameter(default=1.0)
  offset: Hyperparameter = hyperparameter(default=0.0)

  _diagonal = "is negative there where scale * <x, x> + offset is"

  def profile(self, statistic: Array) -> Array:
    """``tanh(scale * statistic + offset)``."""
    return jnp.tanh(self.scale * statistic + self.offset)


class Gaussian(SquaredDistanceKernel):
  """The Gaussian kernel is ``exp(-gamma * sum (x - w)**2)``.  Paper, eq. (11) and (12).

  Underflows to 0, and its gradients with it, where ``gamma * sum (x - w)**2`` exceeds about 87
  in float32: choose ``gamma`` on the scale of 1 / (patch length * variance).

  Attributes:
    gamma: > 0; the inverse squared width.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{kernels.Gaussian(gamma=0.8)(x, w):.4f}")  # exp(-0.8 * 1.25)
    0.3679
  """

  gamma: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  positive_diagonal = True

  def profile(self, statistic: Array) -> Array:
    """``exp(-gamma * statistic)``."""
    return jnp.exp(-self.gamma * statistic)


class L1(AbsoluteDistanceKernel):
  r"""The L1 kernel is ``sum |x - w|``, the L1 norm of the difference.  Paper, eq. (9), p = 1.

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

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{kernels.L1()(x, w):.4f}")
    1.5000
  """

  surrogate: bool = static(default=False)

  _diagonal = "is a distance, 0 there"

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
  """The L2 kernel is ``sqrt(sum (x - w)**2)``, the L2 norm.  Paper, eq. (9), p = 2.

  The derivative at ``x == w`` is taken as 0.  The squares must be within the range of the dtype,
  for float32 the differences between about 1e-19 and 1e19: below, the value is 0; above, it is
  infinite with derivative 0.  ``Minkowski(2.0)`` has no such bounds, at two to three times the
  time of L1.

  Attributes:
    squared: True leaves out the square root; static.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{kernels.L2(squared=True)(x, w):.4f}")
    1.2500
  """

  squared: bool = static(default=False)

  _diagonal = "is a distance, 0 there"

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.squared, bool):
      raise TypeError(f"`squared` must be True or False, got {self.squared!r}")

  def profile(self, statistic: Array) -> Array:
    """``sqrt(statistic)``, or the statistic itself if ``squared``."""
    return statistic if self.squared else safe_sqrt(statistic)

  def __repr__(self) -> str:
    return f"{type(self).__name__}({'squared=True' if self.squared else ''})"
