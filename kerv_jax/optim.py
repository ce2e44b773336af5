"""What Optax lacks to train the networks; needs ``optax``, as nothing else in the library does."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

__all__ = ["lookahead", "scale_by_adder_rate"]


class LookaheadState(NamedTuple):
  """The state of ``lookahead``.

  Attributes:
    inner: state of the optimizer within.
    slow: the slow parameters.
    step: number of steps taken.
  """

  inner: Any
  slow: Any
  step: jax.Array


def lookahead(optimizer: Any, total_steps: int, every: int = 5, decay: float = 0.95) -> Any:
  r"""An optimizer whose parameters are drawn back to slow ones, more and more.

  After every k steps, slow parameters become :math:`d s + (1 - d) p` of the parameters p, with
  :math:`d = \text{decay}^k (t / T)^3` at step t of T, and the parameters become the slow ones. The
  last step ends at the slow parameters.  Parameters of one training, therefore, and no copy to
  evaluate.

  Args:
    optimizer: the ``optax.GradientTransformation`` that takes the steps.
    total_steps: T, at least 1.
    every: k, at least 1.
    decay: from 0 to 1.

  Returns:
    An ``optax.GradientTransformation``, which needs the parameters in ``update``.

  Raises:
    ImportError: if Optax is not installed.
    ValueError: if ``total_steps``, ``every`` or ``decay`` is not as above.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> from kerv_jax.optim import lookahead
    >>> optimizer = lookahead(optax.sgd(0.1), total_steps=2, every=1, decay=0.5)
    >>> params = jnp.asarray(1.0)
    >>> updates, state = optimizer.update(jnp.asarray(1.0), optimizer.init(params), params)
    >>> print(updates)  # d = 0.5 / 8 of the way stays behind
    -0.09375

  References:
    Zhang, Lucas, Hinton, Ba, "Lookahead Optimizer: k steps forward, 1 step back", 2019.
    Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024, whose decay this is.
  """
  try:
    import optax
  except ImportError as error:
    raise ImportError("`kerv_jax.optim` needs Optax: pip install optax") from error
  for name, number in (("total_steps", total_steps), ("every", every)):
    if number < 1:
      raise ValueError(f"`{name}` must be at least 1, got {number!r}")
  if not 0 <= decay <= 1:
    raise ValueError(f"`decay` must be from 0 to 1, got {decay!r}")

  def init(params: Any) -> LookaheadState:
    slow = jax.tree.map(jnp.copy, params)  # the state's buffers are reused, each by itself
    return LookaheadState(optimizer.init(params), slow, jnp.zeros((), jnp.int32))

  def update(updates: Any, state: Any, params: Any = None) -> Any:
    if params is None:
      raise ValueError("`params` must be given to the update of `lookahead`, got None")
    updates, inner = optimizer.update(updates, state.inner, params)
    step = state.step + 1
    kept = decay**every * (step.astype(jnp.float32) / total_steps) ** 3
    due = step % every == 0

    def slower(slow: jax.Array, param: jax.Array, change: jax.Array) -> jax.Array:
      fast = param + change
      return jnp.where(due, fast + kept.astype(param.dtype) * (slow - fast), slow)

    back = due | (step == total_steps)
    slow = jax.tree.map(slower, state.slow, params, updates)
    updates = jax.tree.map(lambda s, p, u: jnp.where(back, s - p, u), slow, params, updates)
    return updates, LookaheadState(inner, slow, step)

  return optax.GradientTransformation(init, update)


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
