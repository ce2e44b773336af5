"""What replaces the operator of a linen convolution."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax

from kerv_jax import _choice, _constraints
from kerv_jax._kernel import Kernel
from kerv_jax._learnable import require_options, require_start, with_parameters
from kerv_jax.kervolution import kerv_general_dilated, require_per_feature


@dataclasses.dataclass(frozen=True)
class Rule:
  """What one call of ``kervolve`` asks for.

  Attributes:
    kernel_fn: the kernel function.
    where: what it chooses convolutions by.
    learnable: as it was given, then the names.
    per_feature: whether a learnable hyperparameter has a value per output feature.
    learnable_names: the learnable hyperparameters.
  """

  kernel_fn: Kernel
  where: tuple[str | _choice.Predicate, ...]
  learnable: bool | Sequence[str]
  per_feature: bool
  learnable_names: tuple[str, ...] = dataclasses.field(init=False)

  def __post_init__(self) -> None:
    names = require_options(
      self.kernel_fn,
      self.learnable,
      self.per_feature,
      lambda name: name in ("kernel", "bias") or hasattr(nn.Conv, name),
    )
    object.__setattr__(self, "learnable", names)
    object.__setattr__(self, "learnable_names", names)


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

  def parameter(name: str, start: Any, constraint: _constraints.Constraint) -> jax.Array:
    def make(key: Any) -> jax.Array:
      return _constraints.to_raw(start, constraint, module.param_dtype)

    return module.param(name, make)

  features = module.features if per_feature else None
  current = with_parameters(kernel_fn, names, features, parameter)
  return functools.partial(kerv_general_dilated, kernel_fn=current)


class Operator:
  """The ``conv_general_dilated_cls`` of a chosen convolution while it is called.

  Equal if the rules are, so that transformations which compare modules trace no more often.
  """

  def __init__(self, module: nn.Conv, rule: Rule, note: Callable[[], None]) -> None:
    self.module, self.rule, self.note = module, rule, note

  def __call__(self) -> Callable[..., jax.Array]:
    self.note()
    module, rule = self.module, self.rule
    require_per_feature(rule.kernel_fn, module.features)
    require_start(rule.kernel_fn, rule.learnable_names, module.param_dtype)
    return operator(module, rule.kernel_fn, rule.learnable_names, rule.per_feature)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Operator) and self.rule == other.rule

  def __hash__(self) -> int:
    return hash(self.rule)
