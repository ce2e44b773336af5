"""What Optax lacks to train kervolutions; needs ``optax``, as nothing else in the library does."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

__all__ = ["scale_by_adder_rate"]


def scale_by_adder_rate(eta: float = 0.2, mask: Any = None) -> Any:
  r"""The layer-wise learning rate of AdderNets, as an Optax transformation of gradients.

  .. math:: \Delta F_l = \gamma \, \alpha_l \, \Delta L(F_l), \qquad
            \alpha_l = \frac{\eta \sqrt{k}}{\lVert \Delta L(F_l) \rVert_2}

  for the filters F of layer l, with their gradient :math:`\Delta L(F_l)`, their number of elements
  k, and the learning rate :math:`\gamma` of all layers.  The gradient of each layer comes out with
  a root mean square of :math:`\eta`, however far its patches are from its filters.  Put it before
  momentum and learning rate: ``optax.chain(scale_by_adder_rate(mask=...), optax.sgd(...))``.

  Args:
    eta: :math:`\eta`, positive; 0.2 is what the authors' code has (there 1/5).
    mask: which parameters it is for, as of ``optax.masked``: a tree of bools, or a function that
      makes one of the parameters; None is all of them.  In an AdderNet those are the ``kernel`` of
      each layer of ``-L1()``, and no others.

  Returns:
    An ``optax.GradientTransformation``.  A gradient that is all 0 stays so.

  Raises:
    ImportError: if Optax is not installed.
    ValueError: if ``eta`` is not a positive number.

  Example:
    >>> import jax, jax.numpy as jnp, optax
    >>> from kerv_jax.optim import scale_by_adder_rate
    >>> def kernels_only(params):
    ...   return jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", params)
    >>> optimizer = optax.chain(scale_by_adder_rate(0.2, kernels_only), optax.sgd(0.1, 0.9))
    >>> params = {"adder": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}}
    >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
    >>> print(updates["adder"]["kernel"][0, 0], updates["adder"]["bias"][0])
    -0.020000001 -0.1

  Reference:
    Chen et al., "AdderNet: Do We Really Need Multiplications in Deep Learning?", CVPR 2020,
    section 3.3.  (An early version of the preprint divides by the root of k instead.)
  """
  try:
    import optax
  except ImportError as error:
    raise ImportError("`kerv_jax.optim` needs Optax: pip install optax") from error
  if not _is_positive(eta):
    raise ValueError(f"`eta` must be a positive number, got {eta!r}")

  def scale(gradient: jax.Array) -> jax.Array:
    wide = gradient.astype(gradient.dtype if gradient.dtype.itemsize >= 4 else jnp.float32)
    largest = jnp.max(jnp.abs(wide), initial=0)
    wide = wide / jnp.where(largest > 0, largest, 1)  # so that no square overflows or underflows
    norm = jnp.sqrt(jnp.sum(jnp.square(wide)))
    rate = eta * gradient.size**0.5 / jnp.where(largest > 0, norm, 1)
    return (rate * wide).astype(gradient.dtype)

  transformation = optax.stateless(lambda updates, params: jax.tree.map(scale, updates))
  return transformation if mask is None else optax.masked(transformation, mask)


def _is_positive(value: Any) -> bool:
  """Whether it is a positive number, as far as it is known: not of one that is being traced."""
  if isinstance(value, Tracer):
    return True
  try:
    return 0 < float(value) < math.inf and not isinstance(value, str)
  except (TypeError, ValueError):
    return False
