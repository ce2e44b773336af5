"""Weight initializers: PyTorch's defaults, which the paper's results depend on.

The authors trained with PyTorch's default initialization, and kernel functions feel the scale of
their filters: a LeNet-5 with polynomial kervolution in both layers learns MNIST from it, and gives
NaN from Flax's default (LeCun normal).
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["torch_bias_init", "torch_kernel_init"]


def torch_kernel_init(key: jax.Array, shape: Sequence[int], dtype: Any = None) -> jax.Array:
  """PyTorch's default initializer for the weights of a convolution or a dense layer.

  ``w ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in))`` with ``fan_in = prod(shape[:-1])``, the number of
  inputs that one output sees; for a grouped convolution, ``prod(window) * in_features / groups``.
  PyTorch writes it as ``kaiming_uniform_(a=sqrt(5))``, whose gain is ``sqrt(2 / (1 + 5))`` and
  whose bound is ``sqrt(3) * gain / sqrt(fan_in)``.

  It is the initializer itself: pass it, do not call it.

  Args:
    key: a PRNG key.
    shape: of the weights, in Flax's layout: ``(*window, in_features / groups, out_features)`` for
      a convolution, ``(in_features, out_features)`` for a dense layer. A transposed convolution
      is out of scope: PyTorch counts its fan-in over the output features.
    dtype: a real floating dtype; None is JAX's default float.

  Returns:
    The weights, of that shape and dtype.

  Raises:
    ValueError: if ``shape`` has fewer than two axes, or no inputs.
    TypeError: if ``dtype`` is not a real floating dtype.

  Example:
    >>> import flax.linen as nn, jax, jax.numpy as jnp
    >>> from kerv_jax.initializers import torch_bias_init, torch_kernel_init
    >>> fan_in = 5 * 5 * 3
    >>> conv = nn.Conv(
    ...   16, (5, 5), kernel_init=torch_kernel_init, bias_init=torch_bias_init(fan_in)
    ... )
    >>> params = conv.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"]
    >>> all(bool(jnp.abs(p).max() <= fan_in**-0.5) for p in params.values())
    True

  References:
    ``reset_parameters`` in PyTorch's ``torch/nn/modules/conv.py`` and ``linear.py``.
    He, Zhang, Ren, Sun, "Delving Deep into Rectifiers", ICCV 2015.
  """
  if len(shape) < 2:
    raise ValueError(
      "`shape` must be (*window, in_features, out_features) or (in_features, out_features), got "
      f"{tuple(shape)}; for a bias, use `torch_bias_init(fan_in)`"
    )
  fan_in = math.prod(shape[:-1])
  if fan_in < 1:
    raise ValueError(f"`shape` must have at least one input per output, got {tuple(shape)}")
  return _uniform(key, shape, dtype, 1 / math.sqrt(fan_in))


def torch_bias_init(fan_in: int) -> Callable[..., jax.Array]:
  """PyTorch's default initializer for the bias of a convolution or a dense layer.

  ``b ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in))``, with the ``fan_in`` of the layer's weights. The shape
  of a bias does not show it, so it is an argument.

  Args:
    fan_in: inputs that one output sees: ``prod(window) * in_features / groups`` for a convolution,
      ``in_features`` for a dense layer.

  Returns:
    An initializer ``(key, shape, dtype=None) -> bias``. It raises a TypeError if ``dtype`` is not
    a real floating dtype.

  Raises:
    TypeError: if ``fan_in`` is not an integer.
    ValueError: if ``fan_in`` is less than 1.

  Example:
    >>> import jax
    >>> from kerv_jax.initializers import torch_bias_init
    >>> bias = torch_bias_init(25)(jax.random.key(0), (6,))
    >>> bias.shape, bool(abs(bias).max() <= 1 / 5)
    ((6,), True)

  References:
    ``reset_parameters`` in PyTorch's ``torch/nn/modules/conv.py`` and ``linear.py``.
  """
  try:
    count = operator.index(fan_in)
  except TypeError:
    raise TypeError(f"`fan_in` must be an integer, got {fan_in!r}") from None
  if count < 1:
    raise ValueError(f"`fan_in` must be at least 1, got {fan_in}")

  def init(key: jax.Array, shape: Sequence[int], dtype: Any = None) -> jax.Array:
    return _uniform(key, shape, dtype, 1 / math.sqrt(count))

  return init


def _uniform(key: jax.Array, shape: Sequence[int], dtype: Any, bound: float) -> jax.Array:
  """Draws from U(-bound, bound)."""
  if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
    raise TypeError(f"`dtype` must be a real floating dtype, got {jnp.dtype(dtype).name}")
  return jax.random.uniform(key, tuple(shape), dtype, minval=-bound, maxval=bound)
