"""Immutable dataclasses that are pytrees: what a kernel function is to Python and to JAX."""

import dataclasses
import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Self, TypeVar, cast, dataclass_transform

import jax
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.tree_util import GetAttrKey

from kerv_jax.kernels.fields import (
  Constraint,
  Hyperparameter,
  called,
  checked,
  child,
  hyperparameter,
  kind_of,
  static,
)
from kerv_jax.kernels.names import current_name, require_allowed

_AnyNode = TypeVar("_AnyNode", bound="Node")


@dataclass_transform(frozen_default=True, field_specifiers=(hyperparameter, static, child))
class Node:
  """Base class: every subclass becomes a frozen dataclass and a registered pytree.

  Values are checked by the constructor only, never when JAX rebuilds the object, whose leaves may
  then be gradients, tracers or placeholders.
  """

  def __init_subclass__(cls, **kwargs: Any) -> None:
    super().__init_subclass__(**kwargs)
    dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(cast(Any, cls))
    dynamic = tuple(f.name for f in fields if kind_of(f) != "static")
    fixed = tuple(f.name for f in fields if kind_of(f) == "static")
    require_allowed(
      cls.__name__,
      [called(f) for f in fields if kind_of(f) != "static"],
      [called(f) for f in fields if kind_of(f) == "child"],
    )

    def flatten_with_keys(node: Any) -> tuple[tuple, tuple]:
      pairs = tuple((GetAttrKey(name), getattr(node, name)) for name in dynamic)
      return pairs, tuple(getattr(node, name) for name in fixed)

    def flatten(node: Any) -> tuple[tuple, tuple]:
      return tuple(getattr(node, n) for n in dynamic), tuple(getattr(node, n) for n in fixed)

    def unflatten(aux: tuple, children: Any) -> Any:
      node = object.__new__(cls)
      for name, value in (*zip(dynamic, children, strict=True), *zip(fixed, aux, strict=True)):
        object.__setattr__(node, name, value)
      return node

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

  def __post_init__(self) -> None:
    """Checks and normalizes the hyperparameters; a subclass that adds checks calls it first."""
    for field in dataclasses.fields(cast(Any, self)):
      if kind_of(field) == "leaf":
        value = checked(field.name, getattr(self, field.name), field.metadata["constraint"])
        object.__setattr__(self, field.name, value)
      elif kind_of(field) == "static" and not isinstance(getattr(self, field.name), Hashable):
        raise TypeError(f"`{field.name}` must be hashable, got {getattr(self, field.name)!r}")

  def _require_integer(self, name: str, *, minimum: int) -> None:
    value = getattr(self, name)
    try:
      if isinstance(value, bool):
        raise TypeError
      integer = operator.index(value)
    except TypeError:
      raise TypeError(f"`{name}` must be an integer >= {minimum}, got {value!r}") from None
    if integer < minimum:
      raise ValueError(f"`{name}` must be an integer >= {minimum}, got {value!r}")
    object.__setattr__(self, name, integer)

  def hyperparameters(self) -> dict[str, Hyperparameter]:
    """The leaves by name; those of inner kernels by path, such as ``"terms_0_gamma"``."""
    return {name: value for name, (value, _) in _walk(self)}

  def constraints(self) -> dict[str, Constraint]:
    """The constraint of each hyperparameter, by the same names."""
    return {name: constraint for name, (_, constraint) in _walk(self)}

  def with_hyperparameters(self, values: Mapping[str, Any]) -> Self:
    """A copy with other values.

    Args:
      values: new values by the names of :meth:`hyperparameters`; those left out stay.

    Returns:
      An object of the same structure.

    Raises:
      ValueError: if there is no hyperparameter of that name, or a value is not allowed.
    """
    constraints = self.constraints()
    values = {current_name(name): value for name, value in values.items()}
    for name in values:
      if name not in constraints:
        raise ValueError(
          f"no hyperparameter {name!r} in {self!r}; it has {sorted(constraints) or 'none'}"
        )
    return self._with_leaves(
      {name: checked(name, value, constraints[name]) for name, value in values.items()}
    )

  def _with_leaves(self, values: Mapping[str, Any]) -> Self:
    """The same without a check: what an optimizer has made of a value is not an argument."""
    leaves, tree = jax.tree_util.tree_flatten(self)
    names = self.constraints()
    new = [values.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(tree, new)

  def _key(self) -> tuple:
    leaves, tree = jax.tree_util.tree_flatten(self)
    return tree, tuple(_leaf_key(leaf) for leaf in leaves)

  def __eq__(self, other: object) -> bool:
    return type(self) is type(other) and self._key() == cast(Node, other)._key()

  def __hash__(self) -> int:
    return hash(self._key())


def map_leaves(function: Callable[[Any], Any], node: _AnyNode) -> _AnyNode:
  """Applies a function to the hyperparameters, once to those that are the same.

  Args:
    function: of a leaf.
    node: the object.

  Returns:
    An object of the same structure, in which what was equal numbers, or one array, is one object.
  """
  done: dict[Any, Any] = {}

  def once(leaf: Any) -> Any:
    key = leaf if isinstance(leaf, float) else id(leaf)
    key = type(leaf), key
    if key not in done:
      done[key] = function(leaf)
    return done[key]

  return jax.tree.map(once, node)


def _walk(node: Any) -> list[tuple[str, tuple[Any, Constraint]]]:
  """Name, value and constraint of every leaf, in the order of the pytree."""
  found: list[tuple[str, tuple[Any, Constraint]]] = []
  for field in dataclasses.fields(node):
    value = getattr(node, field.name)
    if kind_of(field) == "leaf":
      found.append((field.name, (value, field.metadata["constraint"])))
    elif kind_of(field) == "child":
      items = enumerate(value) if isinstance(value, tuple) else [(None, value)]
      for index, item in items:
        prefix = called(field) if index is None else f"{called(field)}_{index}"
        found += [(f"{prefix}_{name}", rest) for name, rest in _walk(item)]
  return found


def _leaf_key(leaf: Any) -> Hashable:
  """What stands for a leaf's value in comparisons; a value not known yet equals only itself."""
  if isinstance(leaf, Tracer):
    return id(leaf)
  if isinstance(leaf, (np.ndarray, Array)):
    array = np.asarray(leaf)
    return array.shape, str(array.dtype), array.tobytes()
  return leaf
