"""Transposed and dense kervolution for Flax NNX."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jax import Array, lax

from kerv_jax import _forms
from kerv_jax._kernel import Kernel
from kerv_jax._nnx_layer import Kervolutional
from kerv_jax.kernels import Linear, Polynomial
from kerv_jax.kervolution import kerv_general_dilated

_CUBIC = Polynomial()


class KervConvTranspose(nnx.ConvTranspose, Kervolutional):
  """``flax.nnx.ConvTranspose`` with a kernel function in place of the inner product.

  A kervolution of stride 1 over the dilated input, whose inserted zeros are data for a distance
  kernel: :class:`kerv_jax.nn.KervConvTranspose` has the definition and what follows from it.  From
  the same weights the two compute the same; with ``Linear()`` it is ``nnx.ConvTranspose`` bit for
  bit.  Hyperparameters learn as those of :class:`kerv_jax.nnx.KervConv`.

  Args:
    in_features: number of input features.
    out_features: number of output features.
    kernel_size: the window, an integer or a sequence of them.
    strides: as of ``nnx.ConvTranspose``.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values.
    learnable: as of :class:`kerv_jax.nnx.KervConv`.
    per_feature: likewise.
    rngs: for the initial weights.
    **options: the others of ``nnx.ConvTranspose``.

  Raises:
    TypeError: for a ``kernel_fn``, ``learnable`` or ``per_feature`` of the wrong type.
    ValueError: as :class:`kerv_jax.nnx.KervConv`; and, on call, for inputs that do not fit.

  Example:
    >>> import jax
    >>> from flax import nnx
    >>> from kerv_jax import kernels
    >>> from kerv_jax.nnx import KervConvTranspose
    >>> layer = KervConvTranspose(
    ...   3, 8, (4, 4), strides=(2, 2), kernel_fn=kernels.Polynomial(2), rngs=nnx.Rngs(0)
    ... )
    >>> layer(jax.random.normal(jax.random.key(0), (2, 5, 6, 3))).shape
    (2, 10, 12, 8)
  """

  def __init__(
    self,
    in_features: int,
    out_features: int,
    kernel_size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    *,
    kernel_fn: Kernel = _CUBIC,
    learnable: bool | Sequence[str] = False,
    per_feature: bool = False,
    rngs: nnx.Rngs,
    **options: Any,
  ) -> None:
    super().__init__(in_features, out_features, kernel_size, strides, rngs=rngs, **options)
    self.start(kernel_fn, learnable, per_feature)

  def __call__(self, inputs: Array) -> Array:
    """Applies the transposed kervolution.

    Args:
      inputs: shape (*batch, *space, in_features): any number of batch dimensions, none included.

    Returns:
      Shape (*batch, *out_space, out_features).
    """
    _forms.require_space(inputs, self.kernel_size)
    if type(self.kernel_spec.kernel_fn) is Linear:
      return super().__call__(inputs)
    kernel = _forms.masked(self.kernel[...], self.mask)
    bias = None if self.bias is None else self.bias[...]
    x, w, bias = self.promote_dtype((inputs, kernel, bias), dtype=self.dtype)
    return _forms.with_bias(_forms.over_dilated_input(_operator(self), self, x, w), bias)


class KervDense(nnx.Linear, Kervolutional):
  """``flax.nnx.Linear`` with a kernel function in place of the inner product.

  Output feature o of an input x is ``kappa(x, kernel[:, o]) + bias[o]``, as of
  :class:`kerv_jax.nn.KervDense`, whose name it has.  With ``Linear()`` it is ``nnx.Linear`` bit for
  bit.  Hyperparameters learn as those of :class:`kerv_jax.nnx.KervConv`.

  Args:
    in_features: number of input features.
    out_features: number of output features.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values.
    learnable: as of :class:`kerv_jax.nnx.KervConv`.
    per_feature: likewise.
    rngs: for the initial weights.
    **options: the others of ``nnx.Linear``, but ``dot_general``: this layer is that choice.

  Raises:
    TypeError: for a ``kernel_fn``, ``learnable`` or ``per_feature`` of the wrong type.
    ValueError: as :class:`kerv_jax.nnx.KervConv`.

  Example:
    >>> import jax
    >>> from flax import nnx
    >>> from kerv_jax import kernels
    >>> from kerv_jax.nnx import KervDense
    >>> layer = KervDense(32, 10, kernel_fn=kernels.Gaussian(0.1), learnable=True, rngs=nnx.Rngs(0))
    >>> layer(jax.random.normal(jax.random.key(0), (4, 32))).shape
    (4, 10)
    >>> sorted(nnx.state(layer, nnx.Param))
    ['bias', 'gamma', 'kernel']
  """

  def __init__(
    self,
    in_features: int,
    out_features: int,
    *,
    kernel_fn: Kernel = _CUBIC,
    learnable: bool | Sequence[str] = False,
    per_feature: bool = False,
    rngs: nnx.Rngs,
    **options: Any,
  ) -> None:
    if "dot_general" in options:
      raise TypeError("KervDense has no `dot_general`: `kernel_fn` makes it")
    super().__init__(in_features, out_features, rngs=rngs, **options)
    self.start(kernel_fn, learnable, per_feature)

  def dot_general(self, *args: Any, out_sharding: Any = None, **options: Any) -> Array:
    """What ``nnx.Linear`` calls, in place of ``lax.dot_general``, with its arguments."""
    if type(self.kernel_spec.kernel_fn) is Linear:
      return lax.dot_general(*args, out_sharding=out_sharding, **options)
    out = _forms.dense_product(_operator(self))(*args, **options)
    return out if out_sharding is None else jax.sharding.reshard(out, out_sharding)


def _operator(layer: Any) -> _forms.Operator:
  return functools.partial(kerv_general_dilated, kernel_fn=layer.kernel_fn)
