"""Kervolutional layers for Flax linen."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kerv_jax._flax import forms
from kerv_jax._flax.constraints import to_raw
from kerv_jax._flax.learnable import (
  CUBIC,
  learnable_names,
  require_fits,
  require_options,
  with_parameters,
)
from kerv_jax.kernels import Kernel
from kerv_jax.kernels.builtin import is_convolution
from kerv_jax.kernels.fields import Constraint
from kerv_jax.kervolution import kerv_general_dilated


def _as_it_is(key: Array, value: Array) -> Array:
  """The initializer of hyperparameters that leaves them at their value."""
  del key
  return value


def learned_operator(
  module: Any,
  kernel_fn: Kernel,
  names: Sequence[str],
  per_feature: bool,
  init: Callable[..., Any] = _as_it_is,
) -> forms.Operator:
  """What a linen layer calls in place of ``lax.conv_general_dilated``.

  Args:
    module: the layer, within its ``__call__``; the learnable hyperparameters are its parameters.
    kernel_fn: the kernel function, with the initial values.
    names: the learnable hyperparameters.
    per_feature: whether each has one value per output feature.
    init: as ``hyperparameter_init`` of :class:`KervConv`.

  Returns:
    ``kerv_general_dilated`` with the current hyperparameters.
  """

  def parameter(name: str, start: np.ndarray, constraint: Constraint) -> Array:
    def make(key: Array) -> Any:
      if module.has_variable("params", name):  # Flax asks for the shape alone
        return jnp.zeros(start.shape, module.param_dtype)
      return init(key, to_raw(start, constraint, module.param_dtype))

    try:
      return module.param(name, make)
    except flax.errors.ScopeParamNotFoundError as error:
      error.add_note(
        f"`{name}` is a learnable hyperparameter of {kernel_fn!r}.  The variables are those of a "
        "layer that does not learn it, such as a convolution: take it from `init`, and all else "
        "from them, or leave it out of `learnable`."
      )
      raise

  features = module.features if per_feature else None
  current = with_parameters(kernel_fn, names, features, parameter)
  return jax.tree_util.Partial(kerv_general_dilated, kernel_fn=current)


class KernelLayer:
  """What the layers have in common: a kernel function, and hyperparameters that learn."""

  features: int
  param_dtype: Any
  kernel_fn: Kernel
  learnable: bool | Sequence[str]
  per_feature: bool
  hyperparameter_init: Callable[..., Any]

  def _check_kernel_fn(self) -> None:
    """Checks the fields of this class, before anything is traced."""
    names = require_options(
      self.kernel_fn,
      self.learnable,
      self.per_feature,
      lambda name: name in ("kernel", "bias") or hasattr(type(self), name),
    )
    if not isinstance(self.learnable, bool):
      self.learnable = names
    if not callable(self.hyperparameter_init):
      raise TypeError(
        "`hyperparameter_init` must be a function of (key, value), got "
        f"{self.hyperparameter_init!r}"
      )
    require_fits(self.kernel_fn, names, self.features, self.param_dtype)

  @property
  def learnable_names(self) -> tuple[str, ...]:
    """Names of the hyperparameters that are parameters of the module."""
    return learnable_names(self.kernel_fn, self.learnable)

  def _operator(self) -> forms.Operator:
    """``kerv_general_dilated`` with the current hyperparameters, within ``__call__``."""
    return learned_operator(
      self, self.kernel_fn, self.learnable_names, self.per_feature, self.hyperparameter_init
    )


class KervConv(KernelLayer, nn.Conv):
  """``flax.linen.Conv`` with a kernel function in place of the inner product.

  ``KervConv(16, (3, 3))`` is cubic: ``kernel_fn`` is ``Polynomial(degree=3, balance=1.0)`` unless
  another is given.  Every option of ``nn.Conv`` is inherited, as are its parameters: ``kernel`` of
  shape ``(*kernel_size, in_features // feature_group_count, features)`` and ``bias`` of shape
  (features,), so a checkpoint of a convolution loads.  ``conv_general_dilated`` and
  ``conv_general_dilated_cls`` are no options: this layer is that choice.

  The parameter of a learnable hyperparameter has the hyperparameter's name and shape (), or
  (features,) if ``per_feature``.  One that must be positive is stored as ``r`` with value
  ``softplus(r)``, never below 1e-9, so no step of an optimizer can make it negative (one that takes
  it all the way down leaves it there: its gradient is 0); :func:`hyperparameters` reads the plain
  values back.

  Attributes:
    features: number of output features.
    kernel_size: the window: one size for each spatial dimension, or an integer for one.
    strides: steps of the window along each spatial dimension; an integer for all, None for 1.
    padding: "SAME", "VALID", "CIRCULAR" (periodic), "REFLECT" (mirrored), "CAUSAL" (only on the
      left, for one spatial dimension), an integer for all sides, or a pair (low, high) for each
      dimension.  Zeros are data for a distance: a padded tap adds ``|0 - w|``.
    input_dilation: spacing of the input's elements, with zeros between them; an integer for all
      dimensions or one for each.
    kernel_dilation: spacing of the window's taps; an integer for all dimensions or one for each.
    feature_group_count: number of groups of features: each group of output features sees only its
      group of input features.
    use_bias: whether a bias is added, outside the kernel function.
    mask: factors for the weights, of their shape, such as 0 and 1; None for none.
    dtype: of the computation; None promotes that of the inputs and parameters.
    param_dtype: of the parameters, those of learnable hyperparameters included.
    precision: of the products; None is the backend's default for inner products, and
      ``jax.lax.Precision.HIGHEST`` for squared distances, which cancel.
    kernel_init: initializer of the weights.
    bias_init: initializer of the bias.
    promote_dtype: function that brings inputs and parameters to one dtype.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values; the default is the
      cubic polynomial.
    learnable: True makes every hyperparameter of ``kernel_fn`` a parameter, a tuple such as
      ``("balance",)`` those that it names, inner kernels' by path, such as ``"terms_0_gamma"``.
    per_feature: one learnable value per output feature instead of one for all.
    hyperparameter_init: called with a random key and the value that the parameter of a learnable
      hyperparameter starts from, returns that parameter; to shard those ``per_feature`` over a mesh
      axis: ``nn.with_partitioning(lambda key, value: value, ("model",))``.
    name: of the module, and so of its part of the variables.

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

  kernel_fn: Kernel = CUBIC
  learnable: bool | Sequence[str] = False
  per_feature: bool = False
  hyperparameter_init: Callable[..., Any] = _as_it_is
  # The operator is this class's own, so neither is a field here.
  conv_general_dilated: ClassVar[Any] = None
  conv_general_dilated_cls: ClassVar[Any]  # pyright: ignore[reportRedeclaration]

  def __post_init__(self) -> None:
    """Checks the fields of this class, before anything is traced."""
    self._require_groups(f"the {self.features} output `features`", self.features)
    self._check_kernel_fn()
    super().__post_init__()

  @nn.nowrap
  def _require_groups(self, what: str, number: int) -> None:
    forms.require_groups(self.feature_group_count, what, number)

  @nn.nowrap  # the checks are no call of their own to interceptors, summaries and scopes
  def __call__(self, inputs: Array) -> Array:
    """Applies the kervolution.

    Args:
      inputs: shape ``(*batch, *space, in_features)``, as for ``flax.linen.Conv``: any number of
        batch dimensions, none included.

    Returns:
      Shape ``(*batch, *out_space, features)``.
    """
    forms.require_space(inputs, self.kernel_size)
    channels = jnp.shape(inputs)[-1]
    self._require_groups(f"the {channels} features of `inputs`", channels)
    return super().__call__(inputs)

  @nn.nowrap
  def conv_general_dilated_cls(self) -> Any:  # pyright: ignore
    """The operator that ``nn.Conv`` calls, with the current hyperparameters."""
    return self._operator()


class _OverDilatedInput(KernelLayer, nn.ConvTranspose):
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

  Like :class:`KervConv` it is cubic unless it is given a ``kernel_fn``.
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
    features: number of output features.
    kernel_size: the window: one size for each spatial dimension, or an integer for one.
    strides: spacing of the input's elements, and so the factor by which the output is larger.
    padding: "SAME", "VALID", an integer, or a pair (low, high) for each dimension: of the
      dilated input; "CIRCULAR" continues it periodically, and the output is ``strides`` times as
      large as the input.
    kernel_dilation: spacing of the window's taps; an integer for all dimensions or one for each.
    use_bias: whether a bias is added, outside the kernel function.
    mask: factors for the weights, of their shape, such as 0 and 1; None for none.
    dtype: of the computation; None promotes that of the inputs and parameters.
    param_dtype: of the parameters, those of learnable hyperparameters included.
    precision: of the products; None is the backend's default for inner products, and
      ``jax.lax.Precision.HIGHEST`` for squared distances, which cancel.
    kernel_init: initializer of the weights.
    bias_init: initializer of the bias.
    transpose_kernel: whether the window is turned around and the weights have shape
      ``(*kernel_size, features, in_features)``.
    promote_dtype: function that brings inputs and parameters to one dtype.
    preferred_element_type: dtype of the result of the kervolution; None for that of its operands.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values; the default is the
      cubic polynomial.
    learnable: True makes every hyperparameter of ``kernel_fn`` a parameter, a tuple such as
      ``("balance",)`` those that it names, inner kernels' by path, such as ``"terms_0_gamma"``.
    per_feature: one learnable value per output feature instead of one for all.
    hyperparameter_init: called with a random key and the value that the parameter of a learnable
      hyperparameter starts from, returns that parameter; to shard those ``per_feature`` over a mesh
      axis: ``nn.with_partitioning(lambda key, value: value, ("model",))``.
    name: of the module, and so of its part of the variables.

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

  kernel_fn: Kernel = CUBIC
  learnable: bool | Sequence[str] = False
  per_feature: bool = False
  hyperparameter_init: Callable[..., Any] = _as_it_is

  def __post_init__(self) -> None:
    """Checks the fields of this class, before anything is traced."""
    self._check_kernel_fn()
    super().__post_init__()

  @nn.nowrap  # so that interceptors, summaries and scopes see one call, whichever it is
  def __call__(self, inputs: Array) -> Array:
    """Applies the transposed kervolution.

    Args:
      inputs: shape ``(*batch, *space, in_features)``, of any number of batch dimensions, or none.

    Returns:
      Shape ``(*batch, *out_space, features)``.
    """
    forms.require_space(inputs, self.kernel_size)
    if is_convolution(self.kernel_fn):
      return nn.ConvTranspose.__call__(self, inputs)
    return super().__call__(inputs)


class KervDense(KernelLayer, nn.Dense):
  """``flax.linen.Dense`` with a kernel function in place of the inner product.

  Like :class:`KervConv` it is cubic unless it is given a ``kernel_fn``.
  Output feature o of an input x is ``kappa(x, kernel[:, o]) + bias[o]``: the case of a window of
  one, as an idea that needs no windows.  With ``Gaussian`` it is a layer of radial basis functions,
  with ``-L2(squared=True)`` one of nearest prototypes, with ``Cosine`` a normalized classifier.
  With ``Linear()`` it is ``nn.Dense`` bit for bit.  ``dot_general`` and ``dot_general_cls`` are no
  options: this layer is that choice.

  Attributes:
    features: number of output features.
    use_bias: whether a bias is added, outside the kernel function.
    dtype: of the computation; None promotes that of the inputs and parameters.
    param_dtype: of the parameters, those of learnable hyperparameters included.
    precision: of the products; None is the backend's default for inner products, and
      ``jax.lax.Precision.HIGHEST`` for squared distances, which cancel.
    kernel_init: initializer of the weights.
    bias_init: initializer of the bias.
    promote_dtype: function that brings inputs and parameters to one dtype.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values; the default is the
      cubic polynomial.
    learnable: True makes every hyperparameter of ``kernel_fn`` a parameter, a tuple such as
      ``("balance",)`` those that it names, inner kernels' by path, such as ``"terms_0_gamma"``.
    per_feature: one learnable value per output feature instead of one for all.
    hyperparameter_init: called with a random key and the value that the parameter of a learnable
      hyperparameter starts from, returns that parameter; to shard those ``per_feature`` over a mesh
      axis: ``nn.with_partitioning(lambda key, value: value, ("model",))``.
    name: of the module, and so of its part of the variables.

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

  kernel_fn: Kernel = CUBIC
  learnable: bool | Sequence[str] = False
  per_feature: bool = False
  hyperparameter_init: Callable[..., Any] = _as_it_is
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
    if is_convolution(self.kernel_fn):
      return lax.dot_general
    return forms.dense_product(self._operator())
