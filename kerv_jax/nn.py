"""Kervolutional layers for Flax linen, and models of others made kervolutional."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array

from kerv_jax._dense import KervDense
from kerv_jax._kernel import Kernel
from kerv_jax._kervolve import kervolve
from kerv_jax._layer import Kervolutional
from kerv_jax._learnable import plain_values
from kerv_jax._runs import rule_of
from kerv_jax._traced import trace
from kerv_jax._transpose import KervConvTranspose
from kerv_jax.kernels import Polynomial

__all__ = ["KervConv", "KervConvTranspose", "KervDense", "hyperparameters", "kervolve"]


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
      by path, such as ``"terms.0.gamma"``.
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


def hyperparameters(
  model: nn.Module, variables: Mapping[str, Any], *args: Any, **kwargs: Any
) -> dict[str, Any]:
  """Reads the learned hyperparameters of a model back as plain values.

  Args:
    model: a linen module, or a single layer of this module.
    variables: its variables, ``{"params": ...}``.
    *args: what ``model.apply(variables, ...)`` is called with: the inputs, or their shapes as
      ``jax.ShapeDtypeStruct``; nothing is computed.
    **kwargs: likewise, such as ``train=False``, or ``rngs`` and ``mutable`` for a model that needs
      them.

  Returns:
    Nested dictionaries along the modules' path as in ``variables["params"]``, with the value of
    each learnable hyperparameter by name; {} if there is none.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from kerv_jax import kernels
    >>> layer = KervConv(4, (3, 3), kernel_fn=kernels.Polynomial(balance=2.0), learnable=True)
    >>> x = jnp.ones((1, 8, 8, 3))
    >>> variables = layer.init(jax.random.key(0), x)
    >>> float(hyperparameters(layer, variables, x)["balance"])
    2.0
  """
  layers: dict[tuple[str, ...], tuple[Kernel, tuple[str, ...]]] = {}

  def record(call: Any, call_args: Any, call_kwargs: Any, context: Any) -> Any:
    module, rule = context.module, None
    # A lifted layer, such as nn.remat(KervConv), makes another call first, which has no path yet.
    if context.method_name == "__call__":
      rule = module if isinstance(module, Kervolutional) else rule_of(module)
    if rule is not None and rule.learnable_names:
      layers[context.module.path] = (rule.kernel_fn, rule.learnable_names)
    return call(*call_args, **call_kwargs)

  with nn.intercept_methods(record):
    trace(model.apply, variables, *args, **kwargs)
  result: dict[str, Any] = {}
  for path, (kernel_fn, names) in layers.items():
    params, target = variables["params"], result
    for part in path:
      params, target = params[part], target.setdefault(part, {})
    target.update(plain_values(params, kernel_fn, names))
  return result
