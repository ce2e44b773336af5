"""What makes a linen module kervolutional: a subclass of its class that knows what to replace."""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
from jax.core import Tracer

from kerv_jax._flax import selection
from kerv_jax.nn.interception import Run, running
from kerv_jax.nn.rules import Owner, Rule, mark
from kerv_jax.nn.tracing import trace

_HEADER = ("path", "layer", "kernel function", "learnable")


class Kervolved:
  """Mixed into the class of a kervolutional module, see :func:`kervolved_class`.

  Attributes:
    kerv_base: the class of the model as it was.
    kerv_rules: what is replaced by what; the first rule that chooses a convolution has it.
    kerv_owner: the rules, for the scopes of the modules.
  """

  kerv_base: ClassVar[Any]
  kerv_rules: ClassVar[tuple[Rule, ...]]
  kerv_owner: ClassVar[Owner]

  @functools.wraps(nn.Module.init_with_output)
  def init_with_output(self, *args: Any, **kwargs: Any) -> Any:
    """As of any module."""
    return self._init(kwargs.get("method"), *args, **kwargs)

  def _init(self, asked: Any, *args: Any, **kwargs: Any) -> Any:
    """``init_with_output``, for which a method was asked or, as None, none."""
    with running(_owner_of(self)) as run:
      result = super().init_with_output(*args, **kwargs)  # pyright: ignore
    if asked in (None, "__call__"):  # else the parameters of another method may be to come
      run.finish(result[1])
    self._remember(run)
    return result

  @functools.wraps(nn.Module.apply)
  def apply(self, variables: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """As of any module."""
    with running(_owner_of(self)) as run:
      result = super().apply(variables, *args, **kwargs)  # pyright: ignore
    run.finish(variables)
    self._remember(run)
    return result

  def _remember(self, run: Run) -> None:
    """For a summary without inputs."""
    found, chosen, apart = vars(self).setdefault("kerv_seen", ({}, {}, set()))
    found.update(run.found)
    chosen.update(run.chosen)
    apart.update(run.apart)

  def summary(self, *args: Any, rngs: Any = None, **kwargs: Any) -> str:
    """A table of the convolutions that are kervolutions now.

    Args:
      *args: what ``model.apply(variables, ...)`` is called with: the inputs, or their shapes as
        ``jax.ShapeDtypeStruct``; nothing is computed.  None of these: what calls of ``init`` and
        ``apply`` have replaced.
      rngs: as of ``init``; None is a key each for parameters and dropout.
      **kwargs: likewise, such as ``train=False``, or ``method``.

    Returns:
      The table, with path, layer, kernel function and learnable hyperparameters of each.

    Raises:
      ValueError: without arguments before this object has run, or if all it ran was in the cache
        of ``nn.jit``.
    """
    if args or kwargs:
      if rngs is None:
        rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
      run = functools.partial(self._init, kwargs.get("method"))
      trace(run, rngs, *args, **kwargs)
    found, chosen, apart = vars(self).get("kerv_seen", ({}, {}, set()))
    if not found:
      raise ValueError(
        "`summary` needs the inputs, such as `summary(x)`: no convolution has been called yet "
        "through this object, but for what nn.jit had cached"
      )
    rows = list(chosen.values())
    count = f"{len(rows)} of {len(found)} convolutions"
    return f"{selection.table(rows, _HEADER)}\n{count}{selection.out_of_reach(apart)}"

  def __repr__(self) -> str:
    chosen = ", ".join(
      f"{rule.kernel_fn!r} where {', '.join(map(selection.describe, rule.where))}"
      for rule in self.kerv_rules
    )
    return f"{super().__repr__()}  # kervolved: {chosen}"

  def __reduce_ex__(self, protocol: Any) -> Any:
    reduced: Any = super().__reduce_ex__(protocol)
    if "kerv_rules" in vars(type(self)) and len(reduced[1]) == 1:  # the class has no name to go by
      return (_blank, (self.kerv_base, self.kerv_rules), *reduced[2:])
    return reduced


def _blank(base: type, rules: tuple[Rule, ...]) -> Any:
  """An object without state: what unpickling starts from."""
  return object.__new__(kervolved_class(base, rules))


def kervolved_class(base: type, rules: tuple[Rule, ...]) -> Any:
  """The subclass of a module's class whose instances are kervolutional.

  Args:
    base: the class.
    rules: what is replaced by what.

  Returns:
    A class with the fields and the name of ``base``, and so the same automatic names.
  """
  try:
    leaves = jax.tree.leaves([rule.kernel_fn for rule in rules])
    if not any(isinstance(leaf, Tracer) for leaf in leaves):
      return _cached_class(base, rules)
  except TypeError:  # a predicate or a class that is not hashable
    pass
  return _cached_class.__wrapped__(base, rules)


@functools.lru_cache(maxsize=1024)
def _cached_class(base: Any, rules: tuple[Rule, ...]) -> Any:
  namespace = {name: _running(member) for name, member in _members(base)}
  namespace |= {
    # As Flax and the class have them: a dataclass would write its own.
    **{name: getattr(base, name) for name in ("__init__", "__eq__", "__hash__")},
    **{name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")},
    "kerv_base": base,
    "kerv_rules": rules,
    "kerv_owner": Owner(rules),
  }
  cls = type(base)(base.__name__, (Kervolved, base), namespace)
  # Flax assigns the scope when a module is bound; whatever is below is pushed from it.
  cls.scope = property(lambda self: vars(self).get("scope"), _set_scope)
  return cls


def _set_scope(self: Any, scope: Any) -> None:
  vars(self)["scope"] = scope
  if scope is not None:
    mark(scope, _owner_of(self))


def _owner_of(module: Any) -> Owner:
  """The rules of the module's class or, of a lifted one, of what that is made from."""
  return next(vars(cls)["kerv_owner"] for cls in type(module).__mro__ if "kerv_owner" in vars(cls))


def _members(base: Any) -> Iterator[tuple[str, Any]]:
  """The methods and properties that the class of a model adds to ``nn.Module``."""
  fields = {field.name for field in dataclasses.fields(base)}
  for name in dir(base):
    own = name == "__call__" or not (name.startswith("__") or hasattr(nn.Module, name))
    if not own or name in fields:
      continue
    member = inspect.getattr_static(base, name)
    member = getattr(member, "wrapped", member)  # Flax has a descriptor around every other
    scope = hasattr(member, "compact_name_scope")  # which Flax looks for on the class
    kinds = types.FunctionType | property | functools.cached_property
    if isinstance(member, kinds) and not scope:
      yield name, member


def _running(member: Any) -> Any:
  """A method, or property, during which convolutions are replaced."""
  if isinstance(member, property):
    # The getter alone: what sets or deletes an attribute runs no layer.
    getter = member.fget and _running_method(member.fget)
    return property(getter, member.fset, member.fdel, member.__doc__)
  if isinstance(member, functools.cached_property):
    return functools.cached_property(_running_method(member.func))
  return nn.nowrap(_running_method(member))  # no call of its own to Flax


def _running_method(method: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(method, updated=())
  def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.scope is None:
      return method(self, *args, **kwargs)
    with running(_owner_of(self)) as run:
      result = method(self, *args, **kwargs)
    if inspect.isgenerator(result):
      return _in_steps(self, result, run)
    # While parameters are being made, those of another method may be to come.
    if not self.is_initializing():
      run.finish(self.variables)
    return result

  return wrapper


def _in_steps(
  module: Any, generator: Generator[Any, Any, Any], run: Run
) -> Generator[Any, Any, Any]:
  """A generator whose steps are a run each; what is between them is none of the model's."""
  step = functools.partial(next, generator)
  while True:
    with running(run.owner, run):
      try:
        value = step()
      except StopIteration as end:
        result = end.value
        break
    try:
      sent = yield value
    except GeneratorExit:
      generator.close()
      raise
    except BaseException as error:
      step = functools.partial(generator.throw, error)
    else:
      step = functools.partial(generator.send, sent)
  if not module.is_initializing():
    run.finish(module.variables)
  return result
