"""Kervolutional layers for Flax linen."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kerv_jax._flax import forms
from kerv_jax._flax.constraints import to_raw
from kerv_jax._flax.learnable import (
  learnable_names,
  require_options,
  require_start,
  with_parameters,
)
from kerv_jax.kernels import Kernel, Linear, Polynomial
from kerv_jax.kernels.pytree import Constraint
from kerv_jax.kervolution import kerv_general_dilated, require_per_feature


def operator(
  module: Any, kernel_fn: Kernel, names: Sequence[str], per_feature: bool
) -> Callable[..., jax.Array]:
  """What a linen layer calls in place of ``lax.conv_general_dilated``.

  Args:
    module: the layer, within its ``__call__``; the learnable hyperparameters are its parameters.
    kernel_fn: the kernel function, with the initial values.
    names: the learnable hyperparameters.
    per_feature: whether each has one value per output feature.

  Returns:
    A function with the arguments of ``lax.conv_general_dilated``.
  """

  def parameter(name: str, start: Any, constraint: Constraint) -> jax.Array:
    def make(key: Any) -> jax.Array:
      if module.has_variable("params", name):  # Flax asks for the shape alone
        return jnp.zeros(start.shape, module.param_dtype)
      return to_raw(start, constraint, module.param_dtype)

    return module.param(name, make)

  features = module.features if per_feature else None
  current = with_parameters(kernel_fn, names, features, parameter)
  return jax.tree_util.Partial(kerv_general_dilated, kernel_fn=current)


class Kervolutional:
  """Mixin of the linen layers with fields ``kernel_fn``, ``learnable`` and ``per_feature``."""

  features: int
  param_dtype: Any
  kernel_fn: Kernel
  learnable: bool | Sequence[str]
  per_feature: bool

  def _check_kernel_fn(self) -> None:
    """Checks the three fields, before anything is traced; for the end of ``__post_init__``."""
    names = require_options(
      self.kernel_fn,
      self.learnable,
      self.per_feature,
      lambda name: name in ("kernel", "bias") or hasattr(type(self), name),
    )
    if not isinstance(self.learnable, bool):
      self.learnable = names
    require_per_feature(self.kernel_fn, self.features)
    require_start(self.kernel_fn, names, self.param_dtype)

  @property
  def learnable_names(self) -> tuple[str, ...]:
    """Names of the hyperparameters that are parameters of the module."""
    return learnable_names(self.kernel_fn, self.learnable)

  def _operator(self: Any) -> Callable[..., Array]:
    """``kerv_general_dilated`` with the current hyperparameters, within ``__call__``."""
    return operator(self, self.kernel_fn, self.learnable_names, self.per_feature)


class KervConv(Kervolutional, nn.Conv):
  """``flax.linen.Conv`` with a kernel function in place of the inner product.

  Every option of ``nn.Conv`` is inherited, as are its parameters: ``kernel`` of shape
  (*kernel_size, in_features // feature_group_count, features) and ``bias`` of shape (features,),
  so a checkpoint of a convolution loads.  The bias is added outside the kernel function.

  The parameter of a learnable hyperparameter has the hyperparameter's name and shape (), or
  (features,) if ``per_feature``.  One that must be positive is stored as ``r`` with value
  ``softplus(r)``, never below 1e-9, so no optimiser step can make it negative (one that takes it
  all the way down leaves it there: its gradient is 0); :func:`hyperparameters` reads the plain
  values back.

  Attributes:
    kernel_fn: the kernel function, with the hyperparameters' (initial) values.
    learnable: True makes every hyperparameter of ``kernel_fn`` a parameter of the module, a tuple
      such as ``("balance",)`` those it names; those of inner kernels of a sum or product are named
      by path, such as ``"terms_0_gamma"``.
    per_feature: one learnable value per output feature instead of one for all.
    features, kernel_size, and the rest: as in ``flax.linen.Conv``, except that there is no
      ``conv_general_dilated`` and no ``conv_general_dilated_cls``: this layer is that choice.

  Raises:
    TypeError: for a ``kernel_fn``, ``learnable`` or ``per_feature`` of the wrong type.
    ValueError: for a ``learnable`` name that the kernel does not have or the layer uses itself, a
      learnable hyperparameter whose initial value is too near 0 or too large for ``param_dtype``,
      hyperparameters of other shapes than () and (features,), groups that do not divide the
      features; and, on call, inputs and options that do not fit together.

  Example:
    >>> import jax
    >>> from kerv_jax import kernels
    >>> from kerv_jax.nn import KervConv
    >>> layer = KervConv(16, (3, 3), kernel_fn=kernels.Gaussian(0.05), learnable=True)
    >>> x = jax.random.normal(jax.random.key(0), (8, 32, 32, 3))
    >>> variables = layer.init(jax.random.key(1), x)
    >>> jax.tree.map(lambda p: p.shape, variables["params"])
    {'bias': (16,), 'gamma': (), 'kernel': (3, 3, 3, 16)}
    >>> layer.apply(variables, x).shape
    (8, 32, 32, 16)

  Reference:
    Wang et al., "Kervolutional Neural Networks", CVPR 2019; learnable hyperparameters: section
    3.4.
  """

  kernel_fn: Kernel = Polynomial()
  learnable: bool | Sequence[str] = False
  per_feature: bool = False
  # The operator is this class's own, so neither is a field here.
  conv_general_dilated: ClassVar[Any] = None
  conv_general_dilated_cls: ClassVar[Any]  # pyright: ignore[reportRedeclaration]

  def __post_init__(self) -> None:
    """Checks the fields of this class, before anything is traced."""
    self._require_groups_divide("output `features`", self.features)
    self._check_kernel_fn()
    super().__post_init__()

  @nn.nowrap
  def _require_groups_divide(self, what: str, number: int) -> None:
    groups = self.feature_group_count
    if groups < 1 or number % groups:
      raise ValueError(f"`feature_group_count` must divide the {number} {what}, got {groups}")

  @nn.nowrap  # the checks are no call of their own to interceptors, summaries and scopes
  def __call__(self, inputs: Array) -> Array:
    """Applies the kervolution.

    Args:
      inputs: shape (*batch, *space, in_features), as for ``flax.linen.Conv``: any number of batch
        dimensions, none included.

    Returns:
      Shape (*batch, *out_space, features).
    """
    kernel_size = np.atleast_1d(self.kernel_size)
    if jnp.ndim(inputs) < len(kernel_size) + 1:
      raise ValueError(
        f"`inputs` must have shape (*batch, *space, in_features) with {len(kernel_size)} spatial "
        f"dimensions for `kernel_size` {self.kernel_size}, got shape {jnp.shape(inputs)}"
      )
    self._require_groups_divide("features of `inputs`", jnp.shape(inputs)[-1])
    return super().__call__(inputs)

  @nn.nowrap
  def conv_general_dilated_cls(self) -> Any:  # pyright: ignore
    """The operator that ``nn.Conv`` calls, with the current hyperparameters."""
    return self._operator()


class _OverDilatedInput(Kervolutional, nn.ConvTranspose):
  """``nn.ConvTranspose`` by its definition as a kervolution."""

  @nn.compact
  def __call__(self, inputs: Array) -> Array:
    window, channels = np.atleast_1d(self.kernel_size).tolist(), inputs.shape[-1]
    ends = (self.features, channels) if self.transpose_kernel else (channels, self.features)
    kernel = self.param("kernel", self.kernel_init, (*window, *ends), self.param_dtype)
    kernel, bias = forms.masked(kernel, self.mask), None
    if self.use_bias:
      bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype)
    x, w, bias = self.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
    assert x is not None
    assert w is not None
    y = forms.over_dilated_input(self._operator(), self, x, w)
    return forms.with_bias(y, bias)


class KervConvTranspose(_OverDilatedInput):
  r"""``flax.linen.ConvTranspose`` with a kernel function in place of the inner product.

  ``nn.ConvTranspose`` is a convolution of stride 1 over the *dilated* input, which has
  ``stride - 1`` zeros after each element.  This is the kervolution of stride 1 over that same
  input, padded as there; with ``Linear()`` it is ``nn.ConvTranspose`` bit for bit.

  .. math:: \mathrm{out}_{n, p, o} = \kappa(\tilde x_{n, p}, w_o)

  where :math:`\tilde x_{n, p}` is the patch of the dilated and padded input at output position p.
  It is not the transpose (the gradient) of a kervolution, which is none, nor a kervolution of an
  interpolated input.  An inserted zero is data, as a padded one is: for a function of the inner
  product it adds nothing, but for a distance kernel its tap contributes ``|0 - w|``.  Of a window's
  taps only one in ``prod(strides)`` meets an element of the input, so the values of a distance
  kernel are mostly the filter's own norm on the other taps, which differ from one phase of the
  output to the next: expect a checkerboard, learned away or not.  A window that the strides do not
  divide adds another.

  Attributes:
    kernel_fn: the kernel function, with the hyperparameters' (initial) values.
    learnable: as of :class:`kerv_jax.nn.KervConv`.
    per_feature: likewise.
    features, kernel_size, and the rest: as in ``flax.linen.ConvTranspose``, with the parameters
      ``kernel``, shape (*kernel_size, in_features, features), or (*kernel_size, features,
      in_features) if ``transpose_kernel``, and ``bias``, shape (features,).  ``padding``
      "CIRCULAR" continues the dilated input periodically, and the output is ``strides`` times as
      large as the input.

  Raises:
    TypeError: for a ``kernel_fn``, ``learnable`` or ``per_feature`` of the wrong type.
    ValueError: as :class:`kerv_jax.nn.KervConv`; and, on call, for inputs that do not fit.

  Example:
    >>> import jax
    >>> from kerv_jax import kernels
    >>> from kerv_jax.nn import KervConvTranspose
    >>> layer = KervConvTranspose(8, (4, 4), strides=(2, 2), kernel_fn=kernels.Polynomial(2))
    >>> x = jax.random.normal(jax.random.key(0), (2, 5, 6, 3))
    >>> variables = layer.init(jax.random.key(1), x)
    >>> jax.tree.map(lambda p: p.shape, variables["params"])
    {'bias': (8,), 'kernel': (4, 4, 3, 8)}
    >>> layer.apply(variables, x).shape
    (2, 10, 12, 8)
  """

  kernel_fn: Kernel = Polynomial()
  learnable: bool | Sequence[str] = False
  per_feature: bool = False

  def __post_init__(self) -> None:
    """Checks the fields of this class, before anything is traced."""
    self._check_kernel_fn()
    super().__post_init__()

  @nn.nowrap  # so that interceptors, summaries and scopes see one call, whichever it is
  def __call__(self, inputs: Array) -> Array:
    """Applies the transposed kervolution.

    Args:
      inputs: shape (*batch, *space, in_features): any number of batch dimensions, none included.

    Returns:
      Shape (*batch, *out_space, features).
    """
    forms.require_space(inputs, self.kernel_size)
    if type(self.kernel_fn) is Linear:
      return nn.ConvTranspose.__call__(self, inputs)
    return super().__call__(inputs)


class KervDense(Kervolutional, nn.Dense):
  """``flax.linen.Dense`` with a kernel function in place of the inner product.

  Output feature o of an input x is ``kappa(x, kernel[:, o]) + bias[o]``: the case of a window of
  one, as an idea that needs no windows.  With ``Gaussian`` it is a layer of radial basis functions,
  with ``-L2(squared=True)`` one of nearest prototypes, with ``Cosine`` a normalised classifier.
  With ``Linear()`` it is ``nn.Dense`` bit for bit.

  Attributes:
    kernel_fn: the kernel function, with the hyperparameters' (initial) values.
    learnable: as of :class:`kerv_jax.nn.KervConv`.
    per_feature: likewise.
    features, use_bias, and the rest: as in ``flax.linen.Dense``, with the parameters ``kernel``,
      shape (in_features, features), and ``bias``, shape (features,), except that there is no
      ``dot_general`` and no ``dot_general_cls``: this layer is that choice.

  Raises:
    TypeError: for a ``kernel_fn``, ``learnable`` or ``per_feature`` of the wrong type.
    ValueError: as :class:`kerv_jax.nn.KervConv`.

  Example:
    >>> import jax
    >>> from kerv_jax import kernels
    >>> from kerv_jax.nn import KervDense
    >>> layer = KervDense(10, kernel_fn=kernels.Gaussian(0.1), learnable=True, per_feature=True)
    >>> x = jax.random.normal(jax.random.key(0), (4, 32))
    >>> variables = layer.init(jax.random.key(1), x)
    >>> jax.tree.map(lambda p: p.shape, variables["params"])
    {'bias': (10,), 'gamma': (10,), 'kernel': (32, 10)}
    >>> layer.apply(variables, x).shape
    (4, 10)
  """

  kernel_fn: Kernel = Polynomial()
  learnable: bool | Sequence[str] = False
  per_feature: bool = False
  # The product is this class's own, so neither is a field here.
  dot_general: ClassVar[Any] = None
  dot_general_cls: ClassVar[Any]  # pyright: ignore[reportRedeclaration]

  def __post_init__(self) -> None:
    """Checks the fields of this class, before anything is traced."""
    self._check_kernel_fn()
    super().__post_init__()

  @nn.nowrap
  def dot_general_cls(self) -> Callable[..., Array]:  # pyright: ignore
    """The product that ``nn.Dense`` calls, with the current hyperparameters."""
    if type(self.kernel_fn) is Linear:
      return lax.dot_general
    return forms.dense_product(self._operator())
