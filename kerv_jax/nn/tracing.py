"""Running a linen model for what there is to see, not for its results."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
from flax.core import freeze

_FLAG = "kerv_jax_traced"
_numbers = itertools.count()


def trace(run: Callable[..., Any], *args: Any, method: Any = None, **kwargs: Any) -> None:
  """Runs a linen model, with every module called and nothing computed.

  What ``nn.jit`` has traced before, it does not call again: here it does, since a flag of the
  scopes, which Flax hands down and has in the key of its traces, is another one each time.

  Args:
    run: ``init`` or ``apply`` of the model, or the like; its result is of no interest.
    *args: of the call; a ``jax.ShapeDtypeStruct`` in place of an array will do.
    method: which method it runs, as there.
    **kwargs: like ``args``.
  """
  number = next(_numbers)

  def flagged(module: Any, *args: Any, **kwargs: Any) -> Any:
    module.scope.flags = freeze({**module.scope.flags, _FLAG: number})
    if callable(method):
      return getattr(method, "__func__", method)(module, *args, **kwargs)
    return getattr(module, method or "__call__")(*args, **kwargs)

  leaves, structure = jax.tree.flatten((args, kwargs))
  shapes = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)}

  def call(arrays: dict[int, Any]) -> None:
    filled = [arrays.get(i, leaf) for i, leaf in enumerate(leaves)]
    args, kwargs = structure.unflatten(filled)
    run(*args, method=flagged, **kwargs)

  jax.eval_shape(call, shapes)
