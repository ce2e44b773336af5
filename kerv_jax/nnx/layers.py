"""Kervolutional layers for Flax NNX."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes, linear
from jax import Array, lax

from kerv_jax._flax import forms
from kerv_jax._flax.constraints import to_raw
from kerv_jax._flax.learnable import CUBIC, require_fits, require_options, with_parameters
from kerv_jax.kernels import Kernel
from kerv_jax.kernels.builtin import is_convolution
from kerv_jax.kernels.fields import Constraint
from kerv_jax.kervolution import kerv_general_dilated

Padding = str | int | Sequence[int | tuple[int, int]]
_NONE: Mapping[str, Any] = types.MappingProxyType({})


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
    if not self.names:
      return repr(self.kernel_fn)
    constraints = self.kernel_fn.constraints()
    raw = ", ".join(f"`{name}`" for name in self.names if constraints[name] != "any")
    below = f"; {raw} below raw, by its value in `kernel_fn`" if raw else ""
    return f"{self.kernel_fn!r} at first{below}"


class KernelLayer:
  """Mixin of the NNX layers with a kernel function and hyperparameters that learn."""

  __slots__ = ()  # with that, and as a second base, a convolution can become one in place

  def set_kernel_fn(
    self: Any,
    kernel_fn: Kernel,
    learnable: Any,
    per_feature: Any,
    metadata: Mapping[str, Any] = _NONE,
    lead: tuple[int, ...] = (),
  ) -> None:
    """Takes the kernel function and makes the parameters of its learnable hyperparameters.

    Args:
      kernel_fn: as of :class:`KervConv`.
      learnable: likewise.
      per_feature: likewise.
      metadata: likewise ``hyperparameter_metadata``.
      lead: shape in front of that of the parameters, of a layer that ``nnx.vmap`` has stacked.
    """
    own = vars(self).get("conv_general_dilated", lax.conv_general_dilated)
    if own is not lax.conv_general_dilated:
      raise ValueError(
        "`conv_general_dilated` must be that of jax.lax, which the kernel function takes the place "
        f"of, got {own!r}"
      )
    for operator in ("conv_general_dilated", "dot_general"):
      if operator in vars(self):
        delattr(self, operator)  # in favor of the class's method
    taken = {*vars(self), *dir(type(self))}
    names = require_options(kernel_fn, learnable, per_feature, taken.__contains__)
    require_fits(kernel_fn, names, self.out_features, self.param_dtype)
    self.kernel_spec = _Constant(kernel_fn, names, per_feature)

    def parameter(name: str, start: Any, constraint: Constraint) -> Array:
      start = np.broadcast_to(start, lead + start.shape)
      raw = to_raw(start, constraint, self.param_dtype)
      setattr(self, name, nnx.Param(raw, **(metadata if per_feature else {})))
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

  def _operator(self) -> forms.Operator:
    """``kerv_general_dilated`` with the current hyperparameters."""
    return jax.tree_util.Partial(kerv_general_dilated, kernel_fn=self.kernel_fn)


class KernelConv(KernelLayer):
  """What makes a subclass of ``nnx.Conv`` a kervolution: its operator."""

  __slots__ = ()

  def conv_general_dilated(self, *args: Any, **options: Any) -> Array:
    """What ``nnx.Conv`` calls, in place of ``lax.conv_general_dilated``, with its arguments."""
    return self._operator()(*args, **options)


class KervConv(nnx.Conv, KernelConv):
  """``flax.nnx.Conv`` with a kernel function in place of the inner product.

  ``KervConv(3, 16, (3, 3), rngs=rngs)`` is cubic: ``kernel_fn`` is ``Polynomial(degree=3,
  balance=1.0)`` unless another is given.  Every option of ``nnx.Conv`` is there but
  ``conv_general_dilated``, which this layer is a choice of, as are its parameters ``kernel`` and
  ``bias``.  From the same weights it computes what
  :class:`kerv_jax.nn.KervConv` does, whose parameters have the same names, shapes and values: a
  learnable hyperparameter is an ``nnx.Param`` of its own name, of shape () or (out_features,), and
  one that must be positive is stored as ``r`` with value ``softplus(r)``.  ``kernel_fn`` has the
  plain values.

  Args:
    in_features: number of input features.
    out_features: number of output features.
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
    preferred_element_type: dtype of the result of the kervolution; None for that of its operands.
    rngs: for the initial weights.
    kernel_metadata: of the ``nnx.Param`` of the weights, such as ``out_sharding``.
    bias_metadata: of the ``nnx.Param`` of the bias, such as ``out_sharding``.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values; the default is the
      cubic polynomial.
    learnable: True makes every hyperparameter of ``kernel_fn`` a parameter, a tuple such as
      ``("balance",)`` those that it names, inner kernels' by path, such as ``"terms_0_gamma"``.
    per_feature: one learnable value per output feature instead of one for all.
    hyperparameter_metadata: of the ``nnx.Param`` of the learnable hyperparameters, where these are
      ``per_feature``.

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
    padding: Padding = "SAME",
    input_dilation: int | Sequence[int] | None = 1,
    kernel_dilation: int | Sequence[int] | None = 1,
    feature_group_count: int = 1,
    use_bias: bool = True,
    mask: Array | None = None,
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
    precision: Any = None,
    kernel_init: Callable[..., Any] = linear.default_kernel_init,
    bias_init: Callable[..., Any] = linear.default_bias_init,
    promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
    preferred_element_type: Any = None,
    rngs: nnx.Rngs,
    kernel_metadata: Mapping[str, Any] = _NONE,
    bias_metadata: Mapping[str, Any] = _NONE,
    kernel_fn: Kernel = CUBIC,
    learnable: bool | Sequence[str] = False,
    per_feature: bool = False,
    hyperparameter_metadata: Mapping[str, Any] = _NONE,
  ) -> None:
    for what, number in (("in_features", in_features), ("out_features", out_features)):
      forms.require_groups(feature_group_count, f"`{what}` {number}", number)
    super().__init__(
      in_features,
      out_features,
      kernel_size,
      strides,
      padding=padding,
      input_dilation=input_dilation,
      kernel_dilation=kernel_dilation,
      feature_group_count=feature_group_count,
      use_bias=use_bias,
      mask=mask,
      dtype=dtype,
      param_dtype=param_dtype,
      precision=precision,
      kernel_init=kernel_init,
      bias_init=bias_init,
      promote_dtype=promote_dtype,
      preferred_element_type=preferred_element_type,
      rngs=rngs,
      kernel_metadata=kernel_metadata,
      bias_metadata=bias_metadata,
    )
    self.set_kernel_fn(kernel_fn, learnable, per_feature, hyperparameter_metadata)


class KervConvTranspose(nnx.ConvTranspose, KernelLayer):
  """``flax.nnx.ConvTranspose`` with a kernel function in place of the inner product.

  Like :class:`KervConv` it is cubic unless it is given a ``kernel_fn``.
  A kervolution of stride 1 over the dilated input, whose inserted zeros are data for a distance
  kernel: :class:`kerv_jax.nn.KervConvTranspose` has the definition and what follows from it.  From
  the same weights the two compute the same; with ``Linear()`` it is ``nnx.ConvTranspose`` bit for
  bit.  Hyperparameters learn as those of :class:`kerv_jax.nnx.KervConv`.

  Args:
    in_features: number of input features.
    out_features: number of output features.
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
      ``(*kernel_size, out_features, in_features)``.
    promote_dtype: function that brings inputs and parameters to one dtype.
    preferred_element_type: dtype of the result of the kervolution; None for that of its operands.
    rngs: for the initial weights.
    kernel_metadata: of the ``nnx.Param`` of the weights, such as ``out_sharding``.
    bias_metadata: of the ``nnx.Param`` of the bias, such as ``out_sharding``.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values; the default is the
      cubic polynomial.
    learnable: True makes every hyperparameter of ``kernel_fn`` a parameter, a tuple such as
      ``("balance",)`` those that it names, inner kernels' by path, such as ``"terms_0_gamma"``.
    per_feature: one learnable value per output feature instead of one for all.
    hyperparameter_metadata: of the ``nnx.Param`` of the learnable hyperparameters, where these are
      ``per_feature``.

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
    padding: Padding = "SAME",
    kernel_dilation: int | Sequence[int] | None = None,
    use_bias: bool = True,
    mask: Array | None = None,
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
    precision: Any = None,
    kernel_init: Callable[..., Any] = linear.default_kernel_init,
    bias_init: Callable[..., Any] = linear.default_bias_init,
    transpose_kernel: bool = False,
    promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
    preferred_element_type: Any = None,
    rngs: nnx.Rngs,
    kernel_metadata: Mapping[str, Any] = _NONE,
    bias_metadata: Mapping[str, Any] = _NONE,
    kernel_fn: Kernel = CUBIC,
    learnable: bool | Sequence[str] = False,
    per_feature: bool = False,
    hyperparameter_metadata: Mapping[str, Any] = _NONE,
  ) -> None:
    super().__init__(
      in_features,
      out_features,
      kernel_size,
      strides,
      padding=padding,
      kernel_dilation=kernel_dilation,
      use_bias=use_bias,
      mask=mask,
      dtype=dtype,
      param_dtype=param_dtype,
      precision=precision,
      kernel_init=kernel_init,
      bias_init=bias_init,
      transpose_kernel=transpose_kernel,
      promote_dtype=promote_dtype,
      preferred_element_type=preferred_element_type,
      rngs=rngs,
      kernel_metadata=kernel_metadata,
      bias_metadata=bias_metadata,
    )
    self.set_kernel_fn(kernel_fn, learnable, per_feature, hyperparameter_metadata)

  def __call__(self, inputs: Array) -> Array:
    """Applies the transposed kervolution.

    Args:
      inputs: shape ``(*batch, *space, in_features)``, of any number of batch dimensions, or none.

    Returns:
      Shape ``(*batch, *out_space, out_features)``.
    """
    forms.require_space(inputs, self.kernel_size)
    if is_convolution(self.kernel_spec.kernel_fn):
      return super().__call__(inputs)
    kernel = forms.masked(self.kernel[...], self.mask)
    bias = None if self.bias is None else self.bias[...]
    x, w, bias = self.promote_dtype((inputs, kernel, bias), dtype=self.dtype)
    return forms.with_bias(forms.over_dilated_input(self._operator(), self, x, w), bias)


class KervDense(nnx.Linear, KernelLayer):
  """``flax.nnx.Linear`` with a kernel function in place of the inner product.

  Like :class:`KervConv` it is cubic unless it is given a ``kernel_fn``.
  Output feature o of an input x is ``kappa(x, kernel[:, o]) + bias[o]``, as of
  :class:`kerv_jax.nn.KervDense`, whose name it has; there is no
  ``dot_general``, as this layer is that choice.  With ``Linear()`` it is ``nnx.Linear`` bit for
  bit.  Hyperparameters learn as those of :class:`kerv_jax.nnx.KervConv`.

  Args:
    in_features: number of input features.
    out_features: number of output features.
    use_bias: whether a bias is added, outside the kernel function.
    dtype: of the computation; None promotes that of the inputs and parameters.
    param_dtype: of the parameters, those of learnable hyperparameters included.
    precision: of the products; None is the backend's default for inner products, and
      ``jax.lax.Precision.HIGHEST`` for squared distances, which cancel.
    kernel_init: initializer of the weights.
    bias_init: initializer of the bias.
    promote_dtype: function that brings inputs and parameters to one dtype.
    preferred_element_type: dtype of the result of the kervolution; None for that of its operands.
    rngs: for the initial weights.
    kernel_metadata: of the ``nnx.Param`` of the weights, such as ``out_sharding``.
    bias_metadata: of the ``nnx.Param`` of the bias, such as ``out_sharding``.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values; the default is the
      cubic polynomial.
    learnable: True makes every hyperparameter of ``kernel_fn`` a parameter, a tuple such as
      ``("balance",)`` those that it names, inner kernels' by path, such as ``"terms_0_gamma"``.
    per_feature: one learnable value per output feature instead of one for all.
    hyperparameter_metadata: of the ``nnx.Param`` of the learnable hyperparameters, where these are
      ``per_feature``.

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
    use_bias: bool = True,
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
    precision: Any = None,
    kernel_init: Callable[..., Any] = linear.default_kernel_init,
    bias_init: Callable[..., Any] = linear.default_bias_init,
    promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
    preferred_element_type: Any = None,
    rngs: nnx.Rngs,
    kernel_metadata: Mapping[str, Any] = _NONE,
    bias_metadata: Mapping[str, Any] = _NONE,
    kernel_fn: Kernel = CUBIC,
    learnable: bool | Sequence[str] = False,
    per_feature: bool = False,
    hyperparameter_metadata: Mapping[str, Any] = _NONE,
  ) -> None:
    super().__init__(
      in_features,
      out_features,
      use_bias=use_bias,
      dtype=dtype,
      param_dtype=param_dtype,
      precision=precision,
      kernel_init=kernel_init,
      bias_init=bias_init,
      promote_dtype=promote_dtype,
      preferred_element_type=preferred_element_type,
      rngs=rngs,
      kernel_metadata=kernel_metadata,
      bias_metadata=bias_metadata,
    )
    self.set_kernel_fn(kernel_fn, learnable, per_feature, hyperparameter_metadata)

  def dot_general(self, *args: Any, **options: Any) -> Array:
    """What ``nnx.Linear`` calls, in place of ``lax.dot_general``, with its arguments."""
    if is_convolution(self.kernel_spec.kernel_fn):
      return lax.dot_general(*args, **options)
    return forms.dense_product(self._operator())(*args, **options)
