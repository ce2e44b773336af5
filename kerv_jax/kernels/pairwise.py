"""The additive kernels that are built in."""

import jax
import jax.numpy as jnp
from jax import Array

from kerv_jax.kernels.additive import AdditiveKernel
from kerv_jax.kernels.definitions import absolute, absolute_difference, quotient
from kerv_jax.kernels.fields import Hyperparameter, hyperparameter


class Chebyshev(AdditiveKernel):
  """``max |x - w|``, the largest difference.  Beyond the paper.

  Example:
    >>> import jax.numpy as jnp
    >>> print(Chebyshev()(jnp.array([1.0, 2.0]), jnp.array([0.5, 4.0])))
    2.0
  """

  reduction = "max"

  def term(self, x: Array, w: Array) -> Array:
    """``|x - w|``."""
    return absolute_difference(x, w)


class MaxPlus(AdditiveKernel):
  """``max (x + w)``: dilation by the filter, of mathematical morphology.  Beyond the paper.

  Example:
    >>> import jax.numpy as jnp
    >>> print(MaxPlus()(jnp.array([1.0, 2.0]), jnp.array([0.5, -4.0])))
    1.5
  """

  reduction = "max"

  def term(self, x: Array, w: Array) -> Array:
    """``x + w``."""
    return x + w


class Huber(AdditiveKernel):
  """``sum h(x - w)``, where ``h(d)`` is ``d**2 / 2`` up to ``delta`` and linear beyond.

  Huber, "Robust Estimation of a Location Parameter", 1964.  Beyond the paper.

  Attributes:
    delta: > 0; where ``h`` becomes linear, ``delta (|d| - delta / 2)``.

  Example:
    >>> import jax.numpy as jnp
    >>> print(Huber(delta=1.0)(jnp.array([1.0, 2.0]), jnp.array([0.5, 4.0])))
    1.625
  """

  delta: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  def term(self, x: Array, w: Array) -> Array:
    """``h(x - w)``."""
    difference = x - w
    # The derivative of jnp.clip would be NaN where the difference is infinite.
    bounded = jnp.where(difference < -self.delta, -self.delta, difference)
    bounded = jnp.where(difference > self.delta, self.delta, bounded)
    return bounded * (difference - bounded / 2)


class Intersection(AdditiveKernel):
  """``sum min(x, w)``, the intersection of histograms.  Beyond the paper.

  Swain and Ballard, "Color Indexing", 1991.  Where x and w are equal they share the derivative.

  Example:
    >>> import jax.numpy as jnp
    >>> print(Intersection()(jnp.array([1.0, 2.0]), jnp.array([0.5, 4.0])))
    2.5
  """

  def term(self, x: Array, w: Array) -> Array:
    """``min(x, w)``."""
    return jnp.minimum(x, w)


class ChiSquared(AdditiveKernel):
  """``sum (x - w)**2 / (|x| + |w|)``, a distance of histograms; 0 where both are 0.

  Beyond the paper.  As in ``L1``, the derivative of ``|x|`` at 0 is taken as 0; so that of a pair
  of zeros is 0.

  Example:
    >>> import jax.numpy as jnp
    >>> print(ChiSquared()(jnp.array([1.0, 0.0]), jnp.array([3.0, 0.0])))
    1.0
  """

  def term(self, x: Array, w: Array) -> Array:
    """``(x - w)**2 / (|x| + |w|)``."""
    return _chi_squared(x, w)


@jax.custom_jvp
def _chi_squared(x: Array, w: Array) -> Array:
  """The term, as a product with a quotient: a square would overflow, or be 0."""
  difference = x - w
  return difference * quotient(difference, _size(x, w))


@_chi_squared.defjvp
def _chi_squared_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
  (x, w), (of_x, of_w) = primals, tangents
  difference, size = x - w, _size(x, w)
  # Two quotients, where a square of one would do: what is used twice XLA keeps in memory.
  ratio = quotient(difference, size)
  by_x = ratio * (1 + quotient(size - jnp.sign(x) * difference, size))
  by_w = -ratio * (1 + quotient(size + jnp.sign(w) * difference, size))
  return _chi_squared(x, w), by_x * of_x + by_w * of_w


def _size(x: Array, w: Array) -> Array:
  """``|x| + |w|``, but 1 where that is 0."""
  size = absolute(x) + absolute(w)
  return jnp.where(size == 0, 1, size)


class Minkowski(AdditiveKernel):
  """``(sum |x - w|**p) ** (1 / p)``, the Lp norm of the difference.  Beyond the paper.

  A ``p`` in the hundreds is as good as any.  The derivative at ``x == w`` is taken as 0.

  Attributes:
    p: >= 1; learned as ``1 + softplus(r)``.

  Example:
    >>> import jax.numpy as jnp
    >>> print(f"{Minkowski(p=2.0)(jnp.array([3.0, 4.0]), jnp.zeros(2)):.4f}")
    5.0000
  """

  reduction = "norm"
  p: Hyperparameter = hyperparameter(default=3.0, constraint="at least 1")

  def term(self, x: Array, w: Array) -> Array:
    """``x - w``."""
    return x - w
