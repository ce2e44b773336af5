"""The command `depth`: what becomes of activations and gradients, and the page about it."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments import UsageError
from experiments.common.environment import environment
from experiments.common.files import write_atomically
from experiments.depth import assumption, networks, page, stacks
from experiments.depth.kernels import KERNELS, NETWORKS

DEPTHS = (4, 8, 16, 32)
STACKS = (
  ("deep", True, False),
  ("default", False, False),
  ("default", True, False),
  ("in range", True, False),
  ("deep", False, False),
  ("deep", True, True),
)
"""Ways to make the layers, whether batch normalization follows, and whether a ReLU comes before."""
PARTS = ("stacks", "networks", "assumption")


@dataclasses.dataclass(frozen=True)
class DepthCommand:
  """Measure activations and gradients of deep networks of kervolutions, at the start of training.

  What has rows of all --depths and --seeds in the files of --out is not measured again, other rows
  of the same are replaced; `--parts` without a name makes the page alone.
  """

  parts: Annotated[tuple[str, ...], tyro.conf.arg(metavar="|".join(PARTS))] = PARTS
  """What to measure: plain stacks, whole networks, what the initializer assumes."""
  kernels: tuple[str, ...] = tuple(KERNELS)
  """Kernel functions of the stacks and networks."""
  depths: tuple[int, ...] = DEPTHS
  """Layers of the stacks."""
  seeds: int = 3
  """Number of seeds, from 0."""
  out: str = "results/depth/start"
  """Folder of the rows; the page is beside it."""


def run(command: DepthCommand) -> int:
  """Does `python -m experiments depth`.

  Args:
    command: options that were given.

  Returns:
    The exit code.

  Raises:
    UsageError: if an option will not do.
  """
  for option, given, known in (
    ("parts", command.parts, PARTS),
    ("kernels", command.kernels, KERNELS),
  ):
    if unknown := [name for name in given if name not in known]:
      raise UsageError(f"`--{option}` must be of {', '.join(known)}, got {unknown}")
  if not command.kernels:
    raise UsageError(f"`--kernels` must be of {', '.join(KERNELS)}, got none")
  if command.seeds < 1:
    raise UsageError(f"`--seeds` must be at least 1, got {command.seeds}")
  if not command.depths or min(command.depths) < 2:
    raise UsageError(f"`--depths` must be at least 2 each, got {list(command.depths)}")
  out = Path(command.out)
  out.mkdir(parents=True, exist_ok=True)
  for part in command.parts:
    file = out / f"{part}.json"
    content = read(file)
    for key, measured in _plan(part, command):
      there = [row for row in content["rows"] if {name: row[name] for name in key} == key]
      if _complete(there, command.depths if part == "stacks" else (), command.seeds):
        continue
      print(part, *key.values(), flush=True)
      made = [{**key, **row} for row in measured()]
      content["rows"] = [row for row in content["rows"] if row not in there] + made
      content["environment"] = environment()
      _write(file, content)
  write_atomically(
    out.with_suffix(".md"), page.page({name: read(out / f"{name}.json") for name in PARTS})
  )
  print(f"page: {out.with_suffix('.md')}")
  return 0


def _complete(rows: Sequence[dict[str, Any]], depths: Sequence[int], seeds: int) -> bool:
  """Whether rows are of all depths and seeds."""
  wanted = {str(depth) for depth in depths}
  measured = {row["seed"] for row in rows if not wanted or row["gradient"].keys() >= wanted}
  return measured >= set(range(seeds))


def _plan(
  part: str, command: DepthCommand
) -> Iterator[tuple[dict[str, Any], Callable[[], Sequence[dict[str, Any]]]]]:
  """Yields what tells measurements apart, and the function that makes the rows of one."""
  seeds = command.seeds
  if part == "assumption":
    yield {}, lambda: assumption.measure(seeds=seeds)
  elif part == "networks":
    kernels = [name for name in NETWORKS if name in command.kernels]
    pairs = [("convolution", "default"), *itertools.product(kernels, ("default", "deep"))]
    for name, (kernel, way) in itertools.product(networks.NETWORKS, pairs):
      key = {"network": name, "kernel": kernel, "way": way}
      yield (
        key,
        lambda name=name, kernel=kernel, way=way: networks.measure(name, kernel, way, seeds=seeds),
      )
  else:
    plain = [
      ("convolution", "default", *each) for each in ((False, False), (True, False), (True, True))
    ]
    pairs = [(kernel, *each) for each in STACKS for kernel in command.kernels]
    for kernel, way, norm, relu in [*plain, *pairs]:
      key = {"kernel": kernel, "way": way, "norm": norm, "relu": relu}
      yield key, lambda key=key: stacks.measure(depths=command.depths, seeds=seeds, **key)


def read(file: Path) -> dict[str, Any]:
  """Returns what a file of rows says; no rows if there is no such file.

  Args:
    file: the file.
  """
  return json.loads(file.read_text()) if file.is_file() else {"rows": []}


def _write(file: Path, content: dict[str, Any]) -> None:
  """Writes rows, one a line."""
  rows = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in content["rows"])
  about = json.dumps(content["environment"])
  write_atomically(file, f'{{\n  "environment": {about},\n  "rows": [\n{rows}\n  ]\n}}\n')
