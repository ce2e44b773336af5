"""What happens while a method of a kervolutional linen model runs.

An interceptor gives each chosen ``nn.Conv`` another ``conv_general_dilated_cls`` while it is
called, and notes what there is, for the summary and for errors.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.core import meta
from flax.traverse_util import flatten_dict

from kerv_jax._flax import forms, selection
from kerv_jax._flax.learnable import require_fits
from kerv_jax.nn.layers import learned_operator
from kerv_jax.nn.rules import Choice, Owner, Rule, choices, is_convolution, models_around


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
    apart: descriptions of convolutions that are of no model, since their own ``apply`` was called.
  """

  def __init__(self, owner: Owner, outermost: bool) -> None:
    self.owner, self.outermost = owner, outermost
    self.modules: set[str] = set()
    self.found: dict[str, str] = {}
    self.already: set[str] = set()
    self.chosen: dict[str, tuple[str, ...]] = {}
    self.used: set[tuple[int, int]] = set()
    self.apart: set[str] = set()

  def note(self, module: Any, choice: Choice) -> None:
    """Notes a convolution, and what becomes of it.

    Args:
      module: the convolution.
      choice: what the model makes of it.
    """
    if choice.taken:
      self.already.add(choice.path)
      return
    text = selection.layer_text(module, module.features)
    self.found[choice.path] = text
    self.used |= choice.entries
    if choice.rule is not None:
      names = ", ".join(choice.rule.learnable_names) or "-"
      self.chosen[choice.path] = (choice.path, text, repr(choice.rule.kernel_fn), names)

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
          raise ValueError(selection.nothing_chosen(entry, left, already, self.apart))


class _Running(threading.local):
  """The runs of one thread, the outermost first."""

  def __init__(self) -> None:
    self.runs: list[Run] = []


_running = _Running()


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
  if any(run.owner is owner for run in _running.runs):
    yield Run(owner, outermost=False)
    return
  run = Run(owner, outermost=True) if begun is None else begun
  _running.runs.append(run)
  try:
    with nn.intercept_methods(_intercept):
      yield run
  finally:
    _running.runs.remove(run)


def _intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
  """Notes a module, and gives a chosen convolution its operator for this call."""
  module, rule = context.module, None
  for owner, path in models_around(module):
    for run in _runs_of(owner):
      run.modules.add(path)
      if isinstance(module, nn.Conv) and not is_convolution(module):
        run.note(module, Choice(owner, path, taken=True))
  if context.method_name == "__call__":
    if is_convolution(module) and not any(models_around(module)):
      for run in _running.runs:
        run.apart.add(selection.layer_text(module, module.features))
    for choice in choices(module):
      rule = rule or choice.rule
      for run in _runs_of(choice.owner):
        run.note(module, choice)
  if rule is None:
    return call(*args, **kwargs)
  return _replaced(module, rule, lambda: call(*args, **kwargs))


def _runs_of(owner: Owner) -> list[Run]:
  return [run for run in _running.runs if run.owner is owner]


class Replacement:
  """The ``conv_general_dilated_cls`` of a chosen convolution while it is called.

  Equal if the rules are, so that transformations which compare modules trace no more often.

  Attributes:
    module: the convolution.
    rule: what it becomes.
    around: that of the module that this one has been made from, as a lifted one is, or a method
      of a subclass that calls that of its parent.
  """

  def __init__(self, module: Any, rule: Rule, around: "Replacement | None") -> None:
    self.module, self.rule, self.around = module, rule, around

  def __call__(self) -> forms.Operator:
    """The operator, for ``nn.Conv``, which asks for it at each call."""
    replacement: Replacement | None = self
    while replacement is not None:
      _asking.add(type(replacement.module))
      replacement = replacement.around
    module, rule = self.module, self.rule
    require_fits(rule.kernel_fn, rule.learnable_names, module.features, module.param_dtype)
    return learned_operator(module, rule.kernel_fn, rule.learnable_names, rule.per_feature)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Replacement) and self.rule == other.rule

  def __hash__(self) -> int:
    return hash(self.rule)


_asking: set[type] = set()  # classes of convolutions that have asked for their operator


def _replaced(module: Any, rule: Rule, call: Callable[[], Any]) -> Any:
  """A call of a convolution as a kervolution."""
  before, path = module.conv_general_dilated_cls, module.scope.path
  around = before if isinstance(before, Replacement) else None
  if around is None and (before is not None or module.conv_general_dilated is not None):
    raise ValueError(
      f"the convolution at {'/'.join(path)!r} cannot be replaced: it has an "
      "operator of its own, `conv_general_dilated`, which a kernel function would discard"
    )
  object.__setattr__(module, "conv_general_dilated_cls", Replacement(module, rule, around))
  try:
    result = call()
  finally:
    object.__setattr__(module, "conv_general_dilated_cls", before)
  # What nn.jit has cached asks no more, but has asked when it was traced.
  if type(module) not in _asking:
    raise ValueError(
      f"the convolution of {type(module).__name__} at {'/'.join(path)!r} cannot be "
      "replaced: it does not call its `conv_general_dilated_cls` as flax.linen.Conv does"
    )
  return result
