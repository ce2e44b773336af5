"""The cosine normalization of kernels that are positive where patch and filter are the same."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from kerv_jax.kernels.base import Kernel, Product, Scaled, Sum, require_kernel
from kerv_jax.kernels.builtin import Polynomial
from kerv_jax.kernels.definitions import (
  DEFINITIONS,
  FILTER_SQUARED_NORM,
  INNER_PRODUCT,
  PATCH_SQUARED_NORM,
  quotient,
  safe_sqrt,
)
from kerv_jax.kernels.fields import child

_LINE = jax.tree.structure(Polynomial(degree=1))


class Normalized(Kernel):
  """The cosine normalization of a kernel is ``k(x, w) / sqrt(k(x, x) k(w, w))``, or 0 over 0.

  Its values lie in [-1, 1] for a positive definite kernel, whatever the lengths of patch and
  filter, and are 1 where the two are equal.  ``Normalized(Linear())`` is the cosine kernel.
  ``k(x, x)`` follows from the squared norm of the patch, as ``k(w, w)`` from that of the filter, so
  nothing more is computed for pairs of them.  A function of distances alone has the same value at
  every ``(x, x)``, and needs no norms either.

  The kernel must be positive at ``(x, x)``, or 0, whatever x: a built-in one that is, or sums,
  products and positive multiples of such kernels.  A class of one's own says that it is by
  ``positive_diagonal = True`` in its body; a subclass does not inherit it.  Where a multiple in a
  sum is learned, and turns ``k(x, x)`` negative, the value is 0.

  A polynomial is normalized before it is raised to its power, so it holds for lengths up to about
  1e19 in float32, whatever the degree.  In sums and products ``k(x, x)`` must be within the range
  of the dtype, about 1e-38 to 3e38: below, the value is 0, and beyond NaN.

  Attributes:
    kernel: the kernel; the names of its hyperparameters begin with ``inner_``.

  Raises:
    TypeError: if ``kernel`` is not a kernel.
    ValueError: if it may be negative at ``(x, x)``, or is no function of patch statistics.

  Example:
    >>> import jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> kernel = kernels.Normalized(kernels.Polynomial(degree=2, balance=1.0))
    >>> x, w = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> print(f"{kernel(x, w):.4f}")  # 3.5**2 / sqrt(6**2 * 2.25**2)
    0.9074
    >>> kernel.hyperparameters()
    {'inner_balance': 1.0}

  References:
    Schoelkopf and Smola, "Learning with Kernels", 2002, section 13.2 (normalization).
  """

  kernel: Kernel = child(called="inner")

  positive_diagonal = True

  def __post_init__(self) -> None:
    """Refuses a kernel that may be negative at ``(x, x)``, with the reason."""
    super().__post_init__()
    require_kernel("kernel", self.kernel)
    reason = _objection(self.kernel)
    if reason:
      raise ValueError(
        f"`kernel` must be positive at (x, x) whatever x, such as kernels.Polynomial(), "
        f"got {self.kernel!r}: {reason}"
      )

  @property
  def statistics(self) -> tuple[str, ...]:
    """The kernel's own, and both squared norms unless all of them are distances."""
    own = self.kernel.statistics or ()
    norms = (PATCH_SQUARED_NORM, FILTER_SQUARED_NORM)
    needed = {INNER_PRODUCT, *norms}.intersection(own)
    return tuple(dict.fromkeys((*own, *norms))) if needed else own

  def from_statistics(self, statistics: Mapping[str, Array]) -> Array:
    """The quotient of the kernel and the roots of ``k(x, x)`` and ``k(w, w)``."""
    kernel, degree = self.kernel, 1
    if type(kernel) is Polynomial:  # the power of a quotient, and no quotient of powers
      kernel, degree = _LINE.unflatten(jax.tree.leaves(kernel)), kernel.degree
    none = jnp.zeros(())  # what a function of distances does not ask for
    roots = [
      safe_sqrt(_of_itself(kernel, statistics.get(name, none)))
      for name in (PATCH_SQUARED_NORM, FILTER_SQUARED_NORM)
    ]
    norm = roots[0] * roots[1]
    zero = norm == 0
    cosine = quotient(kernel.from_statistics(statistics), jnp.where(zero, 1, norm))
    return jnp.where(zero, 0, cosine) ** degree


def _of_itself(kernel: Kernel, square: Array) -> Array:
  """``k(x, x)``, from the square of the norm of x: all distances are 0."""
  products = (INNER_PRODUCT, PATCH_SQUARED_NORM, FILTER_SQUARED_NORM)
  zero = jnp.zeros_like(square)
  names = kernel.statistics or ()
  return kernel.from_statistics({n: square if n in products else zero for n in names})


def _objection(kernel: Kernel) -> str:
  """Why a kernel may be negative at ``(x, x)``, or that nobody says it is not; "" if it is not."""
  if type(kernel) in (Sum, Product):
    terms = kernel.terms  # pyright: ignore
    return next(filter(None, map(_objection, terms)), "")
  if type(kernel) is Scaled:
    known = not isinstance(kernel.scale, Tracer)
    if known and not np.all(np.asarray(kernel.scale) > 0):
      return f"the factor {kernel.scale!r} is not positive"
    return _objection(kernel.kernel)
  if not vars(type(kernel)).get("positive_diagonal"):
    return f"{type(kernel).__name__} {kernel._diagonal}"
  if not kernel.statistics or not DEFINITIONS.keys() >= {*kernel.statistics}:
    return f"{type(kernel).__name__} is not a function of inner product, distances and norms"
  return ""
