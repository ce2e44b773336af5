"""Transposed kervolution for Flax linen."""

from collections.abc import Sequence

import flax.linen as nn
import numpy as np
from jax import Array

from kerv_jax import _forms
from kerv_jax._kernel import Kernel
from kerv_jax._layer import Kervolutional
from kerv_jax.kernels import Linear, Polynomial


class _OverDilatedInput(Kervolutional, nn.ConvTranspose):
  """``nn.ConvTranspose`` by its definition as a kervolution."""

  @nn.compact
  def __call__(self, inputs: Array) -> Array:
    window, channels = np.atleast_1d(self.kernel_size).tolist(), inputs.shape[-1]
    ends = (self.features, channels) if self.transpose_kernel else (channels, self.features)
    kernel = self.param("kernel", self.kernel_init, (*window, *ends), self.param_dtype)
    kernel, bias = _forms.masked(kernel, self.mask), None
    if self.use_bias:
      bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype)
    x, w, bias = self.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
    assert x is not None
    assert w is not None
    y = _forms.over_dilated_input(self._operator(), self, x, w)
    return _forms.with_bias(y, bias)


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
    _forms.require_space(inputs, self.kernel_size)
    if type(self.kernel_fn) is Linear:
      return nn.ConvTranspose.__call__(self, inputs)
    return super().__call__(inputs)
