"""What XLA makes of a program on NVIDIA H100s, read on a machine without a GPU.

Nothing runs: the compiler is told what an H100 is (`h100.txtpb`) and leaves behind what a GPU would
be told to do. That it compiles, collectives, libraries' targets and their precision, loops with
their trip counts, conditionals and memory to its order are as on the machine; the libraries' own
workspace is not known, and nothing is tuned. Needs the packages of the extra `gpu-compile` and, in
this process, JAX_PLATFORMS=cpu.
"""

import collections
import concurrent.futures
import importlib.util
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

NEEDED = ("jax_cuda13_plugin", "nvidia.cu13")
"""Modules of the extra `gpu-compile`."""
_SPEC = pathlib.Path(__file__).with_name("h100.txtpb")
_COLLECTIVES = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
_TO_THE_HOST = r" (?:infeed|outfeed|send|recv)\(|\{[^{}]*S\(5\)[^{}]*\} copy-start\("
_NO_LAUNCH = ("kSequential", "kCommandBuffer", "kConditional", "kWhile")


def missing() -> str | None:
  """Why no program can be compiled here; None if one can."""
  for name in NEEDED:
    try:
      found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
      found = None
    if found is None:
      return f"no module {name}: needs the extra 'gpu-compile' (pip install '.[gpu-compile]')"
  return None


def mesh(devices: int, axis: str = "batch") -> Mesh:
  """So many H100s of one host, none of which is there.

  Args:
    devices: how many.
    axis: its name.
  """
  topology = topologies.get_topology_desc(
    platform="cuda", target_config=_SPEC.read_text(), topology=f"1x1x{devices}"
  )
  return Mesh(np.array(topology.devices), (axis,))


def compiled(
  function: Callable[..., Any],
  arguments: Sequence[Any],
  *,
  out_shardings: Any = None,
  donate: Sequence[int] = (),
  options: dict[str, Any] | None = None,
  registers: bool = False,
) -> dict[str, Any]:
  """Compiles a function for the devices that the shardings of its arguments name.

  Args:
    function: to compile.
    arguments: shapes with types and shardings.
    out_shardings: of the results; None leaves them to the compiler.
    donate: numbers of the arguments whose buffers may be used again.
    options: of the compiler.
    registers: whether to assemble every kernel once more to learn of its registers.

  Returns:
    "launches" of kernels and copies, a loop's as often as it runs and those of a conditional's
    dearest branch; "host_waits", the conditionals and loops for which the host waits until the
    device has told it how to go on; "conditionals"; "collectives" and library "calls" by name;
    "host_transfers"; "temp_bytes", "peak_bytes" and, of what is donated, "alias_bytes"; with
    `registers`, the most that a kernel has, "registers", and the bytes spilled by all, "spills".
  """
  shardings = {} if out_shardings is None else {"out_shardings": out_shardings}
  lowered = jax.jit(function, donate_argnums=tuple(donate), **shardings).lower(*arguments)
  with tempfile.TemporaryDirectory() as folder:
    dump = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True, "xla_dump_hlo_module_re": ".*"}
    program = lowered.compile({**dump, **(options or {})})
    found = read(program.as_text() or "", pathlib.Path(folder))
    if registers:
      found |= _registers(pathlib.Path(folder))
  memory = program.memory_analysis()
  assert memory is not None  # that it does not tell is for other backends
  return found | {
    "temp_bytes": memory.temp_size_in_bytes,
    "peak_bytes": memory.peak_memory_in_bytes,
    "alias_bytes": memory.alias_size_in_bytes,
  }


def read(text: str, folder: pathlib.Path) -> dict[str, Any]:
  """Counts what a compiled program does.

  Args:
    text: the program's, after optimization.
    folder: that the compiler wrote what it knows into.

  Returns:
    See `compiled`.
  """
  (sequence,) = folder.glob("*.thunk_sequence.txt")
  for grouped in folder.glob("*.thunk_sequence_after_thunk_passes.txt"):
    sequence = grouped  # written where steps were gathered into CUDA graphs
  (metadata,) = folder.glob("*.thunk_metadata.txt")
  named = re.findall(r'profile_annotation: "([^"]*)"\s+thunk_id: (\d+)', metadata.read_text())
  names = {int(number): name for name, number in named}
  trips = dict(re.findall(r'%?([\w.\-]+) = .* while\(.*"known_trip_count":\{"n":"(\d+)"', text))
  trips = {number: int(trips[name]) for number, name in names.items() if name in trips}
  steps = steps_of(sequence.read_text())
  return {
    "launches": launches(steps, trips),
    "host_waits": host_waits(steps, trips),
    "conditionals": len(re.findall(r" conditional\(", text)),
    "trips": sorted(trips.values(), reverse=True),
    "collectives": dict(collections.Counter(re.findall(rf" ({_COLLECTIVES})(?:-start)?\(", text))),
    "calls": dict(collections.Counter(map(_call, re.findall(r".*custom_call_target=.*", text)))),
    "host_transfers": len(re.findall(_TO_THE_HOST, text)),
  }


def _call(line: str) -> str:
  """A library's target, and the precision asked for if it is not the default."""
  target = re.findall(r'custom_call_target="([^"]*)"', line)[0]
  precision = re.findall(r"operand_precision=\{(\w+)", line)
  return " ".join([target, *(p for p in precision if p != "default")])


class Step:
  """One thing that a GPU is told to do.

  Attributes:
    number: in the program.
    kind: such as kCustomKernel, kConvolution, kWhile.
    parts: what is inside of it: by name, such as body or true_branch, steps.
  """

  def __init__(self, number: int, kind: str):
    self.number, self.kind = number, kind
    self.parts: dict[str, list[Step]] = {}


def steps_of(text: str) -> list[Step]:
  """The steps of a program, each with those inside of it.

  Args:
    text: the compiler's list of them, in which what is inside is indented.
  """
  root = Step(-1, "kSequential")
  stack: list[tuple[int, Step]] = [(-1, root)]
  labels: dict[int, str] = {}
  label = ""
  for line in text.splitlines():
    found = re.match(r"^( *)(\d+): (k\w+)", line)
    if not found:
      label = line.strip().rstrip(":") or label
      continue
    indent = len(found[1])
    while stack[-1][0] >= indent:
      stack.pop()
    labels[indent], label = label or labels.get(indent, ""), ""
    step = Step(int(found[2]), found[3])
    stack[-1][1].parts.setdefault(labels[indent], []).append(step)
    stack.append((indent, step))
  return [step for part in root.parts.values() for step in part]


def launches(steps: Sequence[Step], trips: dict[int, int]) -> int:
  """Kernels and copies that are launched.

  Args:
    steps: of the program.
    trips: for a loop's number, how often it runs; a loop that is not there counts once.
  """
  total = 0
  for step in steps:
    inside = {name: launches(part, trips) for name, part in step.parts.items()}
    if step.kind == "kConditional":
      total += max(inside.values(), default=0)
    elif step.kind == "kWhile" and step.number in trips:
      total += trips[step.number] * inside["body"]
    else:
      total += sum(inside.values())
    total += step.kind not in _NO_LAUNCH and not step.kind.endswith("Done")
  return total


def host_waits(steps: Sequence[Step], trips: dict[int, int]) -> int:
  """How often the host waits for the device to tell it how to go on; never inside a CUDA graph.

  Args:
    steps: of the program.
    trips: for a loop's number, how often it runs; the host waits for one that is not there.
  """
  total = 0
  for step in steps:
    if step.kind == "kCommandBuffer":
      continue
    times = trips.get(step.number, 1)
    inside = [host_waits(part, trips) for part in step.parts.values()]
    total += max(inside, default=0) if step.kind == "kConditional" else times * sum(inside)
    total += step.kind == "kConditional" or (step.kind == "kWhile" and step.number not in trips)
  return total


def _registers(folder: pathlib.Path) -> dict[str, int]:
  """The most registers of a kernel, and bytes spilled by all of them, as the assembler says."""
  import nvidia.cu13  # pyright: ignore[reportMissingImports]

  assembler = pathlib.Path(next(iter(nvidia.cu13.__path__))) / "bin/ptxas"

  def told(file: pathlib.Path) -> str:
    command = [assembler, "-v", "-arch=sm_90a", "-o", file.with_suffix(".cubin"), file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr + done.stdout  # of what is linked later, the assembler says nothing

  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    text = "\n".join(pool.map(told, sorted(folder.glob("*.ptx"))))
  registers = [int(n) for n in re.findall(r"Used (\d+) registers", text)]
  spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", text)]
  return {"registers": max(registers, default=0), "spills": sum(spills)}
