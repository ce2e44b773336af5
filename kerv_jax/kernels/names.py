"""What hyperparameters are called, as parameters of a layer and everywhere else.

A name is the path to the hyperparameter inside the kernel function, joined by ``_``, such as
``terms_0_inner_gamma``.  It holds neither ``.``, which would not come back from
``flatten_dict(sep=".")``, nor ``kernel``, by which ``nn.WeightNorm`` and masks find the weights.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import jax

_OLD = re.compile(r"((terms|parts)\.\d+\.|kernel\.)+\w+")  # such as "terms.0.kernel.gamma"

_Tree = TypeVar("_Tree")


def current_name(name: str) -> str:
  """Returns today's name of a hyperparameter.

  Args:
    name: today's name, or that of version 0.1, such as ``"terms.0.kernel.gamma"``.

  Returns:
    The name of today, such as ``"terms_0_inner_gamma"``.
  """
  if not _OLD.fullmatch(name):
    return name
  return "_".join("inner" if part == "kernel" else part for part in name.split("."))


def with_current_names(tree: _Tree) -> _Tree:
  """Returns parameters from version 0.1 under the names that hyperparameters have today.

  Version 0.1 joined the path to a hyperparameter by ``.`` and called the kernel inside ``-k`` and
  ``2.0 * k`` ``kernel``: what was ``terms.0.kernel.gamma`` is ``terms_0_inner_gamma`` now.
  ``learnable`` and ``with_hyperparameters`` take the old names too; a checkpoint needs this.

  Args:
    tree: variables of linen, an ``nnx.State``, the state of an optimizer, or any other tree with
      mappings in it, which may be flat with tuples for keys.

  Returns:
    The same tree with other keys; one without old names is as it was.

  Example:
    >>> from kerv_jax import kernels
    >>> old = {"params": {"stem": {"kernel": 0.5, "terms.1.kernel.gamma": 0.1}}}
    >>> kernels.with_current_names(old)
    {'params': {'stem': {'kernel': 0.5, 'terms_1_inner_gamma': 0.1}}}
  """
  return jax.tree.map(_renamed, tree, is_leaf=lambda node: isinstance(node, Mapping))


def _renamed(node: Any) -> Any:
  if not isinstance(node, Mapping):
    return node
  make: Any = type(node)
  return make({_current_key(key): with_current_names(value) for key, value in node.items()})


def _current_key(key: Any) -> Any:
  if isinstance(key, tuple):
    return tuple(map(_current_key, key))
  return current_name(key) if isinstance(key, str) else key


def require_allowed(owner: str, names: Iterable[str], children: Iterable[str]) -> None:
  """Raises an error unless the names that a class gives make good names of hyperparameters.

  Args:
    owner: the class's name, for the message.
    names: of its hyperparameters, and ``children``.
    children: the names by which the kernels inside it are known.

  Raises:
    TypeError: for a name with ``kernel`` in it, or one that the hyperparameters of a kernel inside
      may have too.
  """
  names = tuple(names)
  for name in names:
    if "kernel" in name:
      raise TypeError(
        f"hyperparameter `{name}` of {owner} must not have 'kernel' in its name, by which "
        "nn.WeightNorm and masks of optimizers find the weights of a layer"
      )
    for child in children:
      if name.startswith(f"{child}_"):
        raise TypeError(
          f"`{name}` of {owner} must not begin with `{child}_`, as the names of the "
          f"hyperparameters inside `{child}` do"
        )
