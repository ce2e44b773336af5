"""Linen models of others, made kervolutional without touching their code."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import flax.linen as nn

from kerv_jax._flax import selection
from kerv_jax.kernels import Kernel
from kerv_jax.nn.kervolved import Kervolved, kervolved_class
from kerv_jax.nn.rules import Rule

_Model = TypeVar("_Model", bound=nn.Module)


def kervolve(
  model: _Model,
  kernel_fn: Kernel,
  where: selection.Where = "*",
  *,
  learnable: bool | Sequence[str] = False,
  per_feature: bool = False,
) -> _Model:
  """Turns convolutions of a linen model into kervolutions, without touching its code.

  The result is the same model but for the operator of the chosen ``flax.linen.Conv``: the same
  attributes, methods and parameter tree, with the learnable hyperparameters beside the ``kernel``
  they belong to, as in :class:`kerv_jax.nn.KervConv`.  So weights of the CNN load, and with
  :class:`kerv_jax.kernels.Linear` the output is the CNN's, bit for bit.

  Chosen are ``nn.Conv`` and its subclasses, called anywhere within a method or a property of the
  model, lifted transformations such as ``nn.scan`` and ``nn.remat`` included;
  ``nn.ConvTranspose``, ``nn.ConvLocal`` and kervolutions are not convolutions here.  What runs
  outside of the model's methods is what it was: a submodule taken out of it, as in
  ``model.bind(variables).stem(x)``, a function given to ``nn.apply``, an operator such as ``@``,
  and what a method leaves for later, such as a closure.  So is a convolution that a method runs by
  its own ``apply``, with variables made there, as Wav2Vec2 does for its weight normalization:
  ``summary`` and errors name it as out of reach.  So is a module that was handed in from
  outside and belongs to another, which is the one to kervolve.

  To put different kernel functions into different layers, kervolve twice: what is a kervolution
  already stays as it is.

  Args:
    model: any linen module that is not bound, even a single ``nn.Conv``; within the method of a
      module, one made in ``setup`` or with ``parent=None``.
    kernel_fn: the kernel function, with the hyperparameters' (initial) values.
    where: a path within the model as Flax writes it, such as ``"stem"`` or ``"blocks_0/conv"``;
      a glob over paths, such as ``"blocks_*/conv"``, whose ``*`` stands for any characters, ``/``
      too; a function called with the ``nn.Conv``, such as ``lambda m: m.kernel_size == (3, 3)``;
      or a list of these.  The default is every convolution.
    learnable: which hyperparameters become parameters: True, False or names.
    per_feature: one learnable value per output feature instead of one for all.

  Returns:
    The kervolutional model.  Beyond the model's methods it has ``summary(*args, **kwargs)``, a
    table of what was changed as a string: with what ``model.apply(variables, ...)`` takes after
    the variables, nothing being computed, or without arguments after a call of ``init`` or
    ``apply``.  That ``where`` or a part of it chooses nothing can be known only when the model
    runs: ``init``, ``apply`` and ``summary`` then raise a ValueError that lists the convolutions
    (but not ``init`` and ``summary`` of another method than ``__call__``: parameters of more may
    be to come; ``apply`` takes it that the variables are all there are).

  Raises:
    TypeError: for an argument of the wrong type.
    ValueError: for a bound model, a ``learnable`` name that the kernel does not have, or an empty
      list; and, when the model runs, for what fits no layer.

  Example:
    Fine-tuning a CNN as a KNN, from the CNN's weights.

    >>> import jax, jax.numpy as jnp
    >>> from flax import linen as nn
    >>> from kerv_jax import kernels
    >>> from kerv_jax.nn import kervolve
    >>> cnn = nn.Sequential([
    ...   nn.Conv(8, (3, 3)), nn.relu, nn.Conv(8, (3, 3)), lambda x: x.mean((1, 2)), nn.Dense(1)
    ... ])
    >>> x = jax.random.normal(jax.random.key(0), (16, 8, 8, 3))
    >>> y = x[:, :, :, 0].std((1, 2))[:, None]
    >>> variables = cnn.init(jax.random.key(1), x)  # a checkpoint
    >>> knn = kervolve(cnn, kernels.Sigmoid(), where="layers_0", learnable=True)
    >>> print(knn.summary(x))
    path      layer                 kernel function                 learnable
    --------  --------------------  ------------------------------  -------------
    layers_0  Conv 3x3, 8 features  Sigmoid(scale=1.0, offset=0.0)  scale, offset
    1 of 2 convolutions
    >>> params = knn.init(jax.random.key(2), x)["params"]  # the CNN's tree, and hyperparameters
    >>> for layer, weights in variables["params"].items():
    ...   params[layer] |= weights
    >>> @jax.jit
    ... def step(params):
    ...   loss = lambda params: jnp.mean((knn.apply({"params": params}, x) - y) ** 2)
    ...   value, gradient = jax.value_and_grad(loss)(params)
    ...   return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value
    >>> params, first = step(params)
    >>> for _ in range(20):
    ...   params, last = step(params)
    >>> bool(last < 0.5 * first)
    True

  Reference:
    Wang et al., "Kervolutional Neural Networks", CVPR 2019: "the convolutional layers of all
    existing networks can be directly or partially replaced".
  """
  if not isinstance(model, nn.Module):
    hint = "kerv_jax.nnx.kervolve is for those of flax.nnx"
    if isinstance(getattr(model, "module", None), nn.Module):  # as in those of transformers
      hint = "it holds one: pass `model.module`"
    raise TypeError(f"`model` must be a flax.linen.Module, got {type(model)}; {hint}")
  if model.scope is not None:
    raise ValueError(
      f"`model` must not be bound, got {type(model).__name__} at path {model.scope.path}: kervolve "
      "what `bind` was called on; within a module, make it with parent=None or in `setup`"
    )
  rule = Rule(kernel_fn, selection.entries(where), learnable, per_feature)
  base, rules = type(model), (rule,)
  if isinstance(model, Kervolved):
    base, rules = model.kerv_base, (*model.kerv_rules, rule)
  fields = {
    field.name: getattr(model, field.name)
    for field in dataclasses.fields(model)
    if field.init and field.name != "parent"  # as of any module made here
  }
  return kervolved_class(base, rules)(**fields)
