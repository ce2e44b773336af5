"""Which convolutions of a kervolutional linen model are replaced by what.

What belongs to the model is told by a flag of its scope, which Flax hands down to the scopes below,
through lifted transformations too; so neither another model that is applied within, nor a cached
trace of ``nn.jit`` (whose key has the flags in it), is mistaken for a part of it.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
from flax.core import freeze

from kerv_jax._flax import selection
from kerv_jax._flax.learnable import require_options
from kerv_jax.kernels import Kernel

_FLAG = "kerv_jax"
_numbers = itertools.count()


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
  where: tuple[str | selection.Predicate, ...]
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


class Owner:
  """The rules of a kervolutional class, as scopes carry them.

  Not a tuple or a dataclass, and hashed by a number that is given only once: ``nn.jit`` tells
  traces apart by a hash of what is in such a thing, where floats such as -1 and -2 are the same.

  Attributes:
    rules: what is replaced by what.
  """

  def __init__(self, rules: tuple[Rule, ...]) -> None:
    self.rules, self._hash = rules, hash((_FLAG, next(_numbers)))

  def __hash__(self) -> int:
    return self._hash


def mark(scope: Any, owner: Owner) -> None:
  """Flags a scope, and so those that will be below, as that of a kervolutional module.

  Args:
    scope: a Flax scope.
    owner: the rules of the module's class.
  """
  flag, others = (owner, scope.path), scope.flags.get(_FLAG, ())
  if flag not in others:
    scope.flags = freeze({**scope.flags, _FLAG: (*others, flag)})


class Choice(NamedTuple):
  """What one kervolutional model around a convolution makes of it.

  Attributes:
    owner: the rules of the model's class.
    path: the convolution's path within the model.
    rule: the rule that replaces the convolution; None if none of them does.
    entries: numbers of the rule and of those entries of its ``where`` that choose it.
    taken: whether a model further inside has made it a kervolution, so that no rule was asked.
  """

  owner: Owner
  path: str
  rule: Rule | None = None
  entries: frozenset[tuple[int, int]] = frozenset()
  taken: bool = False


def models_around(module: Any) -> Iterator[tuple[Owner, str]]:
  """The kervolutional models that a module is a part of, from the outside.

  Args:
    module: any module.

  Yields:
    The rules of each, and the module's path within it.
  """
  if module.scope is not None:
    for owner, root in module.scope.flags.get(_FLAG, ()):
      yield owner, "/".join(module.scope.path[len(root) :])


def is_convolution(module: Any) -> bool:
  """Whether it is an ``nn.Conv`` that leaves its operator open, as a KervConv does not."""
  if not isinstance(module, nn.Conv):
    return False
  return "conv_general_dilated_cls" in {field.name for field in dataclasses.fields(module)}


def choices(module: Any) -> Iterator[Choice]:
  """What each kervolutional model around a convolution makes of it, from the inside.

  Args:
    module: any module; of what is no convolution, nothing is yielded.
  """
  if not is_convolution(module):
    return
  taken = False
  for owner, path in reversed(list(models_around(module))):
    if taken:
      yield Choice(owner, path, taken=True)
      continue
    choice = _choice(owner, path, module)
    taken = choice.rule is not None
    yield choice


def _choice(owner: Owner, path: str, module: Any) -> Choice:
  """What the first rule that chooses a convolution makes of it."""
  for i, rule in enumerate(owner.rules):
    hits = {(i, j) for j, e in enumerate(rule.where) if selection.matches(e, path, module)}
    if hits:
      return Choice(owner, path, rule, frozenset(hits))
  return Choice(owner, path)


def rule_of(module: nn.Module) -> Rule | None:
  """The rule that makes a module a kervolution; None if none does.

  Args:
    module: a bound module.

  Returns:
    The rule of the innermost kervolutional module around it that chooses it.
  """
  return next((choice.rule for choice in choices(module) if choice.rule is not None), None)
