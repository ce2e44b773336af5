"""What happens while a method of a kervolutional linen module runs.

An interceptor gives each chosen ``nn.Conv`` another ``conv_general_dilated_cls`` while it is
called.  What belongs to the module is told by a flag of its scope, which Flax hands down to the
scopes below, through lifted transformations too; so neither another model that is applied within,
nor a cached trace of ``nn.jit`` (whose key has the flags in it), is mistaken for a part of it.
"""

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import freeze, meta
from flax.traverse_util import flatten_dict

from kerv_jax._flax import selection
from kerv_jax._flax.learnable import require_options, require_start
from kerv_jax.kernels import Kernel
from kerv_jax.kervolution import require_per_feature
from kerv_jax.nn.layers import operator

_FLAG = "kerv_jax"
_Hits = set[tuple[int, int]]
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


class Operator:
  """The ``conv_general_dilated_cls`` of a chosen convolution while it is called.

  Equal if the rules are, so that transformations which compare modules trace no more often.
  """

  def __init__(self, module: nn.Conv, rule: Rule, note: Callable[[], None]) -> None:
    self.module, self.rule, self.note = module, rule, note

  def __call__(self) -> Callable[..., jax.Array]:
    """The operator, for ``nn.Conv``, which asks for it at each call."""
    self.note()
    module, rule = self.module, self.rule
    require_per_feature(rule.kernel_fn, module.features)
    require_start(rule.kernel_fn, rule.learnable_names, module.param_dtype)
    return operator(module, rule.kernel_fn, rule.learnable_names, rule.per_feature)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Operator) and self.rule == other.rule

  def __hash__(self) -> int:
    return hash(self.rule)


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


class Run:
  """What is seen while the outermost method of a kervolutional module runs.

  Attributes:
    owner: the rules of that module's class.
    outermost: False for a method that another one calls, which has nothing to say in the end.
    modules: paths of all modules called, within it.
    found: descriptions of the convolutions by path, those that are chosen among them.
    already: paths of the layers that are kervolutions without it.
    chosen: rows of the table of what was changed, by path.
    used: rule and entry of its ``where`` that have chosen a convolution.
  """

  def __init__(self, owner: Owner, outermost: bool) -> None:
    self.owner, self.outermost = owner, outermost
    self.modules: set[str] = set()
    self.found: dict[str, str] = {}
    self.already: set[str] = set()
    self.chosen: dict[str, tuple[str, ...]] = {}
    self.used: _Hits = set()

  def note(self, path: str, module: Any, rule: Rule | None, hits: _Hits | None) -> None:
    """Notes a convolution.

    Args:
      path: its path.
      module: the convolution.
      rule: what makes it a kervolution, if anything.
      hits: which rules and entries of their ``where`` choose it; None if it is a kervolution
        already.
    """
    if hits is None:
      self.already.add(path)
      return
    text = selection.layer_text(module, module.features)
    self.found[path] = text
    self.used |= hits
    if rule is not None:
      names = ", ".join(rule.learnable_names) or "-"
      self.chosen[path] = (path, text, repr(rule.kernel_fn), names)

  def finish(self, variables: Mapping[str, Any]) -> None:
    """Raises an error for what has chosen nothing, unless it may mean what has not run.

    Args:
      variables: those of the module; who has parameters but was not called has not run.

    Raises:
      ValueError: if an entry of ``where`` chooses no convolution.
    """
    if not self.outermost:
      return
    unused = [
      entry
      for i, rule in enumerate(self.owner.rules)
      for j, entry in enumerate(rule.where)
      if (i, j) not in self.used
    ]
    if unused:
      idle = _filters(variables.get("params", {})) - self.modules
      for entry in unused:
        if not any(not isinstance(entry, str) or selection.matches(entry, p, None) for p in idle):
          already = sorted(self.already | self.chosen.keys())
          left = {path: text for path, text in self.found.items() if path not in self.chosen}
          raise ValueError(selection.nothing_chosen(entry, left, already))


class _State(threading.local):
  """Of one thread."""

  def __init__(self) -> None:
    self.runs: list[Run] = []
    self.asked: set[tuple[str, ...]] = set()  # paths of convolutions that asked for their operator


_state = _State()
_known: set[type] = set()  # classes of convolutions that have asked for one


def _filters(params: Any) -> set[str]:
  """Paths of the modules whose ``kernel`` has the rank of a convolution's."""
  flat: dict[Any, Any] = flatten_dict(meta.unbox(dict(params)))
  return {
    "/".join(map(str, key[:-1]))
    for key, leaf in flat.items()
    if key[-1] == "kernel" and jnp.ndim(leaf) >= 3
  }


@contextlib.contextmanager
def running(owner: Owner, begun: Run | None = None) -> Iterator[Run]:
  """Replaces convolutions of the kervolutional modules of a class, and notes what it sees.

  Args:
    owner: the rules of the class.
    begun: what has been noted before, in a run that goes on here.

  Yields:
    What is noted; not the outermost within another of the same class.
  """
  if any(run.owner is owner for run in _state.runs):
    yield Run(owner, outermost=False)
    return
  run = Run(owner, outermost=True) if begun is None else begun
  _state.runs.append(run)
  try:
    with nn.intercept_methods(_intercept):
      yield run
  finally:
    _state.runs.remove(run)


def _is_convolution(module: Any) -> bool:
  """Whether it is an ``nn.Conv`` that leaves its operator open, as a KervConv does not."""
  if not isinstance(module, nn.Conv):
    return False
  return "conv_general_dilated_cls" in {field.name for field in dataclasses.fields(module)}


def rule_of(module: nn.Module) -> Rule | None:
  """The rule that makes a module a kervolution; None if none does.

  Args:
    module: a bound module.

  Returns:
    The rule of the innermost kervolutional module around it that chooses it.
  """
  return next((rule for _, _, rule, _ in _choices(module) if rule is not None), None)


def _choices(module: Any) -> Iterator[tuple[Owner, str, Rule | None, _Hits | None]]:
  """What each kervolutional module around a convolution makes of it, from the inside.

  Yields its owner, the convolution's path within it, the rule that applies, and which rules and
  entries of their ``where`` say so; None for what one further inside has made a kervolution.
  """
  if module.scope is None or not _is_convolution(module):
    return
  taken = False
  for owner, root in reversed(module.scope.flags.get(_FLAG, ())):
    path = "/".join(module.scope.path[len(root) :])
    if taken:
      yield owner, path, None, None
      continue
    for i, rule in enumerate(owner.rules):
      hits = {(i, j) for j, e in enumerate(rule.where) if selection.matches(e, path, module)}
      if hits:
        taken = True
        yield owner, path, rule, hits
        break
    else:
      yield owner, path, None, set()


def _intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
  """Gives a chosen convolution its operator, for this call."""
  module, chosen = context.module, None
  for run, path in _watching(module):
    run.modules.add(path)
    if isinstance(module, nn.Conv) and not _is_convolution(module):
      run.note(path, module, None, None)
  if context.method_name == "__call__":
    for owner, path, rule, hits in _choices(module):
      for run in (run for run in _state.runs if run.owner is owner):
        run.note(path, module, rule, hits)
      chosen = chosen or rule
  if chosen is None:
    return call(*args, **kwargs)
  return _with_operator(module, chosen, lambda: call(*args, **kwargs))


def _watching(module: Any) -> Iterator[tuple[Run, str]]:
  """Each run that a module is a part of, and the module's path within."""
  if module.scope is None:
    return
  for owner, root in module.scope.flags.get(_FLAG, ()):
    for run in _state.runs:
      if run.owner is owner:
        yield run, "/".join(module.scope.path[len(root) :])


def _with_operator(module: Any, rule: Rule, call: Callable[[], Any]) -> Any:
  before, path = module.conv_general_dilated_cls, module.scope.path
  ours = isinstance(before, Operator)  # a method of a subclass that calls that of its parent
  if not ours and (before is not None or module.conv_general_dilated is not None):
    raise ValueError(
      f"the convolution at {'/'.join(path)!r} cannot be replaced: it has an "
      "operator of its own, `conv_general_dilated`, which a kernel function would discard"
    )
  operator = Operator(module, rule, lambda: _state.asked.add(path))
  object.__setattr__(module, "conv_general_dilated_cls", operator)
  around, _state.asked = _state.asked, set()
  try:
    result = call()
  finally:
    object.__setattr__(module, "conv_general_dilated_cls", before)
    asked, _state.asked = _state.asked, around | _state.asked
  # A lifted class, such as that of nn.jit, may have been traced before: then it has asked then.
  if path in asked:
    _known.add(type(module))
  elif type(module) not in _known:
    raise ValueError(
      f"the convolution of {type(module).__name__} at {'/'.join(path)!r} cannot be "
      "replaced: it does not call its `conv_general_dilated_cls` as flax.linen.Conv does"
    )
  return result
