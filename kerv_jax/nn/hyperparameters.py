"""The learned hyperparameters of a linen model, as plain values."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
from flax.core import meta

from kerv_jax._flax.learnable import plain_values
from kerv_jax.kernels import Kernel
from kerv_jax.nn.layers import KernelLayer
from kerv_jax.nn.rules import rule_of
from kerv_jax.nn.tracing import trace


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
    >>> from kerv_jax.nn import KervConv, hyperparameters
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
      rule = module if isinstance(module, KernelLayer) else rule_of(module)
    if rule is not None and rule.learnable_names:
      layers[context.module.path] = (rule.kernel_fn, rule.learnable_names)
    return call(*call_args, **call_kwargs)

  with nn.intercept_methods(record):
    trace(model.apply, variables, *args, **kwargs)
  result: dict[str, Any] = {}
  for path, (kernel_fn, names) in layers.items():
    params, target = meta.unbox(variables["params"]), result
    for part in path:
      params, target = params[part], target.setdefault(part, {})
    target.update(plain_values(params, kernel_fn, names))
  return result
