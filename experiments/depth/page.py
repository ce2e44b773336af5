"""The page about the start of training, made of the rows."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.common.markdown import table
from experiments.depth.kernels import KERNELS

Row = Mapping[str, Any]
DEPTH = 16
"""Of the stacks that the goal is for."""
LEFT, SIZES, GRADIENTS = 0.3, (0.3, 3.0), (0.1, 10.0)
"""The goal: what must be left of the variation, and the ranges of sizes and gradients."""

_HEAD = """# Networks of kervolutions at the start of training

Made by `python -m experiments depth`. What to do, and why: [docs/deep.md](../../docs/deep.md);
what comes of training such networks: `python -m experiments study depth`.

Plain stacks are 3x3 layers of 16 features, zero padded, on 8 normal inputs of 8x8; each cell is the
median of {seeds}. *Size*: standard deviation of what leaves the kernel function, over that of the
first layer, of the layer whose ratio is farthest from 1. *Apart*: the part of the root mean square
that is left once the mean of each feature, and then the mean over features at each position, are
subtracted; the least over layers (0: every feature says the same). *Gradient*: norm of the gradient
with respect to the filters of layer 2, over that of the last layer, for a random cotangent. "-":
not a finite number, or 0 over 0."""

_GOAL = f"""The goal at depth {DEPTH}, for every seed: sizes within {SIZES[0]:g} to {SIZES[1]:g}, at
least {LEFT:g} left of the variation over positions, and apart, and gradients within
{GRADIENTS[0]:g} to {GRADIENTS[1]:g}. Recipe: `kerv_jax.models.deep` of the kernel that is shown,
and batch normalization. The default is a `KervConv` with neither."""

_PARTS = f"""What each part does, at depth {DEPTH}: gradient, and apart. *In range*: filters and
width as `deep` has them, without the standardization over features. BN: batch normalization."""

_RELU = f"""A ReLU before each layer takes the inputs out of the assumption, and lets gradients grow
towards the first layers, for convolutions as well; gradient at depth {DEPTH}, with batch
normalization. So a plain stack of kervolutions should have none: they are nonlinear without."""

_ASSUMED = """`for_kernel` assumes independent inputs of mean 0 and variance 1. Variance of inner
products, and mean distances, over what they are then (1 where the assumption holds):"""

_NETWORKS = """Every convolution kervolved, the ReLUs and batch normalization of the network as they
are, normal images, random classes. *Size* and *apart* as above, apart after batch normalization;
*gradient*: filters of the second layer over those of the last one. Filters of the default are the
network's, of variance 2 / fan-out. *Misses*: what of the goal of the stacks the recipe misses in
any seed, and of the convolution itself. A residual network adds up its blocks, so that sizes
differ with any layer in it."""
_NO_STACKS = f"There are no stacks of {DEPTH} layers yet: `--depths {DEPTH}` makes them."


def page(contents: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns the page.

  Args:
    contents: of the files of rows, by name of the part.
  """
  seeds = {row["seed"] for content in contents.values() for row in content["rows"]}
  parts = [_HEAD.format(seeds="1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds")]
  stacks = [row for row in contents["stacks"]["rows"] if str(DEPTH) in row["gradient"]]
  if contents["stacks"]["rows"] and not stacks:
    parts += [f"## Stacks\n\n{_NO_STACKS}"]
  if stacks:
    parts += [f"## Stacks\n\n{_GOAL}", _answer(stacks), _verdict(stacks)]
    parts += [f"The recipe by depth, gradient:\n\n{_by_depth(stacks)}"]
    parts += [f"## What does it\n\n{_PARTS}", _ways(stacks)]
    parts += [f"## Where it fails\n\n{_RELU}", _relu(stacks)]
  if contents["assumption"]["rows"]:
    parts += [_ASSUMED, _assumption(contents["assumption"]["rows"])]
  if contents["networks"]["rows"]:
    parts += [f"## Residual networks\n\n{_NETWORKS}", _networks(contents["networks"]["rows"])]
  about = next((c["environment"] for c in contents.values() if c["rows"]), None)
  if about:
    versions = ", ".join(f"{name} {text}" for name, text in about["versions"].items() if text)
    parts.append(f"Measured on {about['device']}, {versions}; commit {about['commit']}.")
  return "\n\n".join(parts) + "\n"


def size(row: Row, depth: int) -> float:
  """Returns the size of the layer that is farthest from the first one's, over that one."""
  first, *others = row["raw"][:depth]
  if first is None or None in others or 0 in (first, *others):
    return math.nan if first != 0 and None in others else 0.0
  return max((other / first for other in others), key=lambda ratio: abs(math.log(ratio)))


def least(row: Row, figure: str, depth: int) -> float:
  """Returns the least of a figure over the layers."""
  values = row[figure][:depth]
  return math.nan if None in values else min(values)


def gradient(row: Row, depth: int) -> float:
  """Returns the gradient of layer 2 over that of the last one."""
  return _ratio(row["gradient"][str(depth)])


def reaches(row: Row) -> bool:
  """Whether a stack is within the goal."""
  return not _missed(row, DEPTH, gradient(row, DEPTH))


def _missed(row: Row, depth: int, ratio: float) -> list[str]:
  """What of the goal a stack or a network of so many layers misses, given that of gradients."""
  kept = {
    "size": SIZES[0] <= size(row, depth) <= SIZES[1],
    "apart": all(least(row, figure, depth) >= LEFT for figure in ("positions", "features")),
    "gradient": GRADIENTS[0] <= ratio <= GRADIENTS[1],
  }
  return [name for name, fits in kept.items() if not fits]


def _ratio(values: Sequence[float | None]) -> float:
  second, last = values[1], values[-1]
  return second / last if second is not None and last else math.nan


def _number(values: Sequence[float]) -> str:
  """The median with two digits; a dash where it is no number; nothing where nothing is known."""
  if not values:
    return ""
  middle = statistics.median([math.inf if math.isnan(value) else value for value in values])
  return f"{middle:.2g}" if math.isfinite(middle) else "-"


def _of(rows: Sequence[Row], **wanted: Any) -> list[Row]:
  return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _kernels(rows: Sequence[Row]) -> list[str]:
  return list(dict.fromkeys(row["kernel"] for row in rows if row["kernel"] in KERNELS))


_ORDER = (
  ("default", False),
  ("default", True),
  ("in range", True),
  ("deep", False),
  ("deep", True),
)
_RECIPE = {"way": "deep", "norm": True, "relu": False}
_MEASURES: tuple[Callable[[Row], float], ...] = (
  lambda row: size(row, DEPTH),
  lambda row: least(row, "features", DEPTH),
  lambda row: gradient(row, DEPTH),
)


def _answer(rows: Sequence[Row]) -> str:
  body = []
  for name in _kernels(rows):
    ways = (_of(rows, kernel=name, way="default", norm=False), _of(rows, kernel=name, **_RECIPE))
    cells = [_number([of(row) for row in found]) for found in ways for of in _MEASURES]
    goal = "yes" if ways[1] and all(map(reaches, ways[1])) else "no"
    body.append([name, f"`{KERNELS[name].deep}`", *cells, goal])
  head = ["kernel", "`deep` of", "default: size", "apart", "gradient"]
  return table([*head, "recipe: size", "apart", "gradient", "goal"], body)


def _verdict(rows: Sequence[Row]) -> str:
  missed = [n for n in _kernels(rows) if not all(map(reaches, _of(rows, kernel=n, **_RECIPE)))]
  return (
    f"Out of reach with this recipe: {', '.join(missed)}."
    if missed
    else "In a plain stack every kernel reaches it with its recipe."
  )


def _by_depth(rows: Sequence[Row]) -> str:
  depths = sorted({int(depth) for row in rows for depth in row["gradient"]})
  body = []
  for name in _kernels(rows):
    found = _of(rows, kernel=name, **_RECIPE)
    known = [[row for row in found if str(depth) in row["gradient"]] for depth in depths]
    pairs = zip(known, depths, strict=True)
    body.append([name, *(_number([gradient(row, depth) for row in each]) for each, depth in pairs)])
  return table(["kernel", *map(str, depths)], body)


def _ways(rows: Sequence[Row]) -> str:
  ways = sorted({(row["way"], row["norm"]) for row in rows}, key=lambda each: _ORDER.index(each))
  body = []
  for name in ["convolution", *_kernels(rows)]:
    cells = [name]
    for way, norm in ways:
      found = _of(rows, kernel=name, way=way, norm=norm, relu=False)
      shown = [_number([of(row) for row in found]) for of in reversed(_MEASURES[1:])]
      cells.append(", ".join(filter(None, shown)))
    body.append(cells)
  return table(["kernel", *(f"{way}{', BN' if norm else ''}" for way, norm in ways)], body)


def _relu(rows: Sequence[Row]) -> str:
  body = []
  for name in ["convolution", *_kernels(rows)]:
    way = "default" if name == "convolution" else "deep"
    found = [_of(rows, kernel=name, way=way, norm=True, relu=relu) for relu in (False, True)]
    body.append([name, *(_number([gradient(row, DEPTH) for row in each]) for each in found)])
  return table(["kernel", "without", "with ReLU"], body)


def _assumption(rows: Sequence[Row]) -> str:
  body = []
  for inputs, fan_in in dict.fromkeys((row["inputs"], row["fan_in"]) for row in rows):
    found = _of(rows, inputs=inputs, fan_in=fan_in)
    names = ("product", "squared", "absolute")
    body.append([inputs, str(fan_in), *(_number([row[name] for row in found]) for name in names)])
  return table(["inputs", "fan-in", "product", "squared distance", "absolute distance"], body)


def _networks(rows: Sequence[Row]) -> str:
  body = []
  for network, kernel in dict.fromkeys((row["network"], row["kernel"]) for row in rows):
    cells, missed = [network, kernel], dict[str, None]()
    for way in ("default", "deep"):
      found = _of(rows, network=network, kernel=kernel, way=way)
      if way == "deep" or kernel == "convolution":
        for row in found:
          missed |= dict.fromkeys(_missed(row, len(row["layers"]), _ratio(row["gradient"])))
      depths = [len(row["layers"]) for row in found]
      cells += [
        _number([size(row, depth) for row, depth in zip(found, depths, strict=True)]),
        _number([least(row, "features", depth) for row, depth in zip(found, depths, strict=True)]),
        _number([_ratio(row["gradient"]) for row in found]),
      ]
    body.append([*cells, ", ".join(missed)])
  head = ["network", "kernel", "default: size", "apart", "gradient"]
  return table([*head, "recipe: size", "apart", "gradient", "misses"], body)
