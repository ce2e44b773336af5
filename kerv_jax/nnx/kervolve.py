"""NNX models of others, made kervolutional."""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
from flax import nnx
from jax.core import Tracer

from kerv_jax._flax import selection
from kerv_jax._flax.learnable import require_options
from kerv_jax.kernels import Kernel
from kerv_jax.nnx.interception import kervolved_class
from kerv_jax.nnx.layers import KernelConv, KernelLayer
from kerv_jax.nnx.traversal import modules

_Model = TypeVar("_Model", bound=nnx.Module)


def kervolve(
  model: _Model,
  kernel_fn: Kernel,
  where: selection.Where = "*",
  *,
  learnable: bool | Sequence[str] = False,
  per_feature: bool = False,
) -> _Model:
  """A copy of an NNX model in which convolutions are kervolutions.

  Chosen are ``nnx.Conv`` and its subclasses.  In the copy they are :class:`KervConv` (or, of a
  subclass, one with its name and methods) with the same weights; a module that is shared is shared
  in the copy, a kervolution too.  The copy shares nothing with the original (but an attribute that
  Python cannot copy, such as a device), which stays as it is; with
  :class:`kerv_jax.kernels.Linear` it computes the same, bit for bit.

  Args:
    model: any ``nnx.Module``, even a single ``nnx.Conv``.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values.
    where: a path of attributes and indices from the model on, such as ``"c1"`` or
      ``"blocks/0/conv"``; a glob over paths, such as ``"blocks/*/conv"``, whose ``*`` stands for
      any characters, ``/`` too; a function called with the ``nnx.Conv``, such as
      ``lambda m: m.kernel_size == (3, 3)``; or a list of these.  The default is every convolution.
    learnable: which hyperparameters become parameters: True, False or names.
    per_feature: one learnable value per output feature instead of one for all.

  Returns:
    The kervolutional copy.

  Raises:
    TypeError: for an argument of the wrong type.
    ValueError: if ``where`` or an entry of it chooses no convolution, with a list of those there
      are; for options that do not fit, as of :class:`KervConv`.

  Example:
    Fine-tuning a CNN as a KNN.

    >>> import jax, jax.numpy as jnp
    >>> from flax import nnx
    >>> from kerv_jax import kernels
    >>> from kerv_jax import nnx as kerv_nnx
    >>> rngs = nnx.Rngs(0)
    >>> cnn = nnx.Sequential(  # with weights from a checkpoint
    ...   nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.relu, nnx.Conv(8, 8, (3, 3), rngs=rngs),
    ...   lambda x: x.mean((1, 2)), nnx.Linear(8, 1, rngs=rngs),
    ... )
    >>> knn = kerv_nnx.kervolve(cnn, kernels.Sigmoid(), where="layers/0", learnable=True)
    >>> print(kerv_nnx.summary(knn))
    path      layer                     kernel function                 learnable
    --------  ------------------------  ------------------------------  -------------
    layers/0  KervConv 3x3, 8 features  Sigmoid(scale=1.0, offset=0.0)  scale, offset
    >>> x = jax.random.normal(jax.random.key(0), (16, 8, 8, 3))
    >>> y = x[:, :, :, 0].std((1, 2))[:, None]
    >>> @nnx.jit
    ... def step(model):
    ...   loss, gradient = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    ...   params = nnx.state(model, nnx.Param)
    ...   nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient))
    ...   return loss
    >>> losses = [step(knn) for _ in range(20)]
    >>> bool(losses[-1] < 0.5 * losses[0])
    True

  Reference:
    Wang et al., "Kervolutional Neural Networks", CVPR 2019: "the convolutional layers of all
    existing networks can be directly or partially replaced".
  """
  if not isinstance(model, nnx.Module):
    raise TypeError(
      f"`model` must be a flax.nnx.Module, got {type(model)}; kerv_jax.nn.kervolve is for those of "
      "flax.linen"
    )
  entries = selection.entries(where)
  require_options(kernel_fn, learnable, per_feature, lambda name: False)
  result = _copied(model)
  layers = modules(result, nnx.Conv)
  left = [(paths, m) for paths, m in layers if not isinstance(m, KernelConv)]
  chosen: dict[int, Any] = {}
  for entry in entries:
    hits = [m for paths, m in left if any(selection.matches(entry, path, m) for path in paths)]
    if not hits:
      found = {paths[0]: selection.layer_text(m, m.out_features) for paths, m in left}
      already = [paths[0] for paths, m in layers if isinstance(m, KernelConv)]
      raise ValueError(selection.nothing_chosen(entry, found, already))
    chosen |= {id(m): m for m in hits}
  for layer in chosen.values():
    object.__setattr__(layer, "__class__", kervolved_class(type(layer)))
    shape = layer.kernel.shape  # of abstract weights too; nnx.vmap has stacked them on the front
    lead = shape[: len(shape) - len(layer.kernel_shape)]
    layer.set_kernel_fn(kernel_fn, learnable, per_feature, lead=lead)
  return result


def _copied(model: Any) -> Any:
  """A deep copy, but for attributes that have none, such as a device, a lock or a Python module."""
  shared: dict[int, Any] = {}
  for _, node in modules(model, nnx.Pytree):
    for value in vars(node).values():
      if not isinstance(value, nnx.Pytree | nnx.Variable | jax.Array | list | tuple | dict):
        try:
          copy.deepcopy(value)
        except TypeError:  # it cannot be pickled, says Python
          shared[id(value)] = value
  graphdef, state = nnx.split(model, graph=True)  # as of nnx.Pytree, which forgets what is shared
  state = jax.tree.map(lambda x: x if isinstance(x, Tracer) else copy.deepcopy(x), state)
  return nnx.merge(copy.deepcopy(graphdef, shared), state)


def summary(model: nnx.Module) -> str:
  """Makes a table of the kervolutional layers of a model.

  Args:
    model: any ``nnx.Module``.

  Returns:
    Lines with path, layer, kernel function (with the initial values) and learnable hyperparameters.

  Example:
    >>> from flax import nnx
    >>> from kerv_jax import kernels
    >>> from kerv_jax.nnx import KervDense, summary
    >>> print(summary(KervDense(8, 4, kernel_fn=kernels.L2(), rngs=nnx.Rngs(0))))
    path                layer                  kernel function  learnable
    ------------------  ---------------------  ---------------  ---------
    (the model itself)  KervDense, 4 features  L2()             -
  """
  rows = [
    (
      ", ".join(paths) or "(the model itself)",
      selection.layer_text(layer, layer.out_features),
      repr(layer.kernel_spec.kernel_fn),
      ", ".join(layer.kernel_spec.names) or "-",
    )
    for paths, layer in modules(model, KernelLayer)
  ]
  return selection.table(rows, ("path", "layer", "kernel function", "learnable"))
