"""Kervolutional layers for Flax NNX."""

import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array, lax

from kerv_jax._flax import forms
from kerv_jax._flax.constraints import to_raw
from kerv_jax._flax.learnable import require_options, require_start, with_parameters
from kerv_jax.kernels import Kernel, Linear, Polynomial
from kerv_jax.kernels.pytree import Constraint
from kerv_jax.kervolution import kerv_general_dilated, require_per_feature

_CUBIC = Polynomial()


class _Constant:
  """A kernel function that is structure to NNX: compared by value, never split or updated."""

  def __init__(self, kernel_fn: Kernel, names: tuple[str, ...], per_feature: bool) -> None:
    self.kernel_fn, self.names, self.per_feature = kernel_fn, names, per_feature

  def _key(self) -> tuple[Any, ...]:
    return self.kernel_fn, self.names, self.per_feature

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Constant) and self._key() == other._key()

  def __hash__(self) -> int:
    return hash(self._key())

  def __repr__(self) -> str:
    return repr(self.kernel_fn)


class _Asking(threading.local):
  """Classes of convolutions that have asked for a kervolution, in this thread."""

  def __init__(self) -> None:
    self.classes: set[type] = set()


asking = _Asking()


class Kervolutional:
  """Mixin of the NNX layers with a kernel function and hyperparameters that learn."""

  __slots__ = ()  # with that, and as a second base, a convolution can become one in place

  def start(
    self: Any, kernel_fn: Kernel, learnable: Any, per_feature: Any, lead: tuple[int, ...] = ()
  ) -> None:
    """Takes the kernel function and makes the parameters of its learnable hyperparameters.

    Args:
      kernel_fn: as of :class:`KervConv`.
      learnable: likewise.
      per_feature: likewise.
      lead: shape in front of that of the parameters, of a layer that `nnx.vmap` has stacked.
    """
    own = vars(self).get("conv_general_dilated", lax.conv_general_dilated)
    if own is not lax.conv_general_dilated:
      raise ValueError(
        "`conv_general_dilated` must be that of jax.lax, which the kernel function takes the place "
        f"of, got {own!r}"
      )
    for operator in ("conv_general_dilated", "dot_general"):
      if operator in vars(self):
        delattr(self, operator)  # in favour of the class's method
    taken = {*vars(self), *dir(type(self))}
    names = require_options(kernel_fn, learnable, per_feature, taken.__contains__)
    require_per_feature(kernel_fn, self.out_features)
    require_start(kernel_fn, names, self.param_dtype)
    self.kernel_spec = _Constant(kernel_fn, names, per_feature)

    def parameter(name: str, start: Any, constraint: Constraint) -> Array:
      start = np.broadcast_to(start, lead + start.shape)
      raw = to_raw(start, constraint, self.param_dtype)
      setattr(self, name, nnx.Param(raw))
      return raw

    features = self.out_features if per_feature else None
    with_parameters(kernel_fn, names, features, parameter)

  @property
  def kernel_fn(self: Any) -> Kernel:
    """The kernel function with the hyperparameters' current values."""
    spec = self.kernel_spec
    return with_parameters(
      spec.kernel_fn, spec.names, None, lambda name, start, constraint: getattr(self, name)[...]
    )


class Kervolution(Kervolutional):
  """What makes a subclass of ``nnx.Conv`` a kervolution: its operator."""

  __slots__ = ()

  def conv_general_dilated(self, *args: Any, **options: Any) -> Array:
    """What ``nnx.Conv`` calls, in place of ``lax.conv_general_dilated``, with its arguments."""
    asking.classes.add(type(self))
    return kerv_general_dilated(*args, **options, kernel_fn=self.kernel_fn)


class KervConv(nnx.Conv, Kervolution):
  """``flax.nnx.Conv`` with a kernel function in place of the inner product.

  Every option of ``nnx.Conv`` is inherited, as are its parameters ``kernel`` and ``bias``; the
  bias is added outside the kernel function.  From the same weights it computes what
  :class:`kerv_jax.nn.KervConv` does, whose parameters have the same names, shapes and values: a
  learnable hyperparameter is an ``nnx.Param`` of its own name, of shape () or (out_features,), and
  one that must be positive is stored as ``r`` with value ``softplus(r)``.  ``kernel_fn`` has the
  plain values.

  Args:
    in_features: number of input features.
    out_features: number of output features.
    kernel_size: the window, an integer or a sequence of them.
    strides: as of ``nnx.Conv``.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values.
    learnable: True makes every hyperparameter of ``kernel_fn`` a parameter of the module, a tuple
      such as ``("balance",)`` those it names; those of inner kernels of a sum or product are named
      by path, such as ``"terms_0_gamma"``.
    per_feature: one learnable value per output feature instead of one for all.
    rngs: for the initial weights.
    **options: the others of ``nnx.Conv``, but ``conv_general_dilated``: this layer is that choice.

  Raises:
    TypeError: for a ``kernel_fn``, ``learnable`` or ``per_feature`` of the wrong type.
    ValueError: for a ``learnable`` name that the kernel does not have or the layer uses itself, a
      learnable hyperparameter whose initial value is too near 0 or too large for ``param_dtype``,
      or hyperparameters of other shapes than () and (out_features,).

  Example:
    >>> import jax
    >>> from flax import nnx
    >>> from kerv_jax import kernels
    >>> from kerv_jax import nnx as kerv_nnx
    >>> kernel_fn = kernels.Gaussian(0.05)
    >>> layer = kerv_nnx.KervConv(
    ...   3, 16, (3, 3), kernel_fn=kernel_fn, learnable=True, rngs=nnx.Rngs(0)
    ... )
    >>> layer(jax.random.normal(jax.random.key(0), (8, 32, 32, 3))).shape
    (8, 32, 32, 16)
    >>> sorted(nnx.state(layer, nnx.Param))
    ['bias', 'gamma', 'kernel']
    >>> print(f"{layer.kernel_fn.gamma:.3f}")
    0.050

  Reference:
    Wang et al., "Kervolutional Neural Networks", CVPR 2019; learnable hyperparameters: section
    3.4.
  """

  def __init__(
    self,
    in_features: int,
    out_features: int,
    kernel_size: int | Sequence[int],
    strides: int | Sequence[int] | None = 1,
    *,
    kernel_fn: Kernel = _CUBIC,
    learnable: bool | Sequence[str] = False,
    per_feature: bool = False,
    rngs: nnx.Rngs,
    **options: Any,
  ) -> None:
    if "conv_general_dilated" in options:
      raise TypeError("KervConv has no `conv_general_dilated`: `kernel_fn` makes it")
    groups = options.get("feature_group_count", 1)
    for name, number in (("in_features", in_features), ("out_features", out_features)):
      if groups < 1 or number % groups:
        raise ValueError(f"`feature_group_count` must divide `{name}` {number}, got {groups}")
    super().__init__(in_features, out_features, kernel_size, strides, rngs=rngs, **options)
    self.start(kernel_fn, learnable, per_feature)


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
    forms.require_space(inputs, self.kernel_size)
    if type(self.kernel_spec.kernel_fn) is Linear:
      return super().__call__(inputs)
    kernel = forms.masked(self.kernel[...], self.mask)
    bias = None if self.bias is None else self.bias[...]
    x, w, bias = self.promote_dtype((inputs, kernel, bias), dtype=self.dtype)
    return forms.with_bias(forms.over_dilated_input(_operator(self), self, x, w), bias)


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

  def dot_general(self, *args: Any, **options: Any) -> Array:
    """What ``nnx.Linear`` calls, in place of ``lax.dot_general``, with its arguments."""
    if type(self.kernel_spec.kernel_fn) is Linear:
      return lax.dot_general(*args, **options)
    return forms.dense_product(_operator(self))(*args, **options)


def _operator(layer: Any) -> forms.Operator:
  return jax.tree_util.Partial(kerv_general_dilated, kernel_fn=layer.kernel_fn)
