"""Where the modules of an NNX model are."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from flax import nnx

_MOST_PATHS = 32  # of one module: shared references can make exponentially many


def modules(model: Any, kind: type) -> list[tuple[list[str], Any]]:
  """Modules of a kind with all their paths, the shortest first, in the order of the attributes."""
  paths: dict[int, list[str]] = {}
  found: dict[int, Any] = {}
  queue: deque[tuple[tuple[str, ...], frozenset[int], Any]] = deque([((), frozenset(), model)])
  while queue:
    path, above, node = queue.popleft()
    known = paths.setdefault(id(node), [])
    if id(node) in above or len(known) == _MOST_PATHS:
      continue
    known.append("/".join(path))
    if isinstance(node, kind):
      found[id(node)] = node
    below = above | {id(node)}
    queue.extend(((*path, key), below, child) for key, child in _children(node))
  return [(paths[key], module) for key, module in found.items()]


def _children(node: Any) -> Iterator[tuple[str, Any]]:
  """What a module or a container holds, but for variables and arrays, by attribute or index."""
  if isinstance(node, nnx.Pytree):
    for key, child in nnx.iter_children(node, graph=True):
      if not isinstance(child, nnx.Variable):
        yield str(key), child
    containers = {key: value for key, value in vars(node).items() if not key.startswith("_pytree")}
  else:
    containers = {"": node}
  for key, value in containers.items():
    if isinstance(value, list | tuple | dict):
      pairs = value.items() if isinstance(value, dict) else enumerate(value)
      for inner, child in pairs:
        if isinstance(child, nnx.Pytree | list | tuple | dict):
          yield f"{key}/{inner}".lstrip("/"), child
