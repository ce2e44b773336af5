"""What XLA would have H100s do for layers and for steps of training; compiled, never run.

`python -m benchmarks gpu-compile` starts this in a process of its own, in which JAX looks for no
GPU: `python -m benchmarks.gpu_compile --help`.
"""

import argparse
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import gpu_program
from benchmarks.results import Results, collect, load
from benchmarks.worker import import_from

OUT = pathlib.Path("results/speed/gpu-compile-h100.json")
NEVER_RUN = "NVIDIA H100 80GB HBM3 (compiled for, never run)"
MOST_LAUNCHES = 100
"""Of an absolute distance, forward and backward."""
Row = dict[str, Any]


def failures(layers: Sequence[Row], steps: Sequence[Row]) -> list[str]:
  """What is not as it should be.

  Args:
    layers: rows of `gpu_cases.layers`.
    steps: rows of `gpu_cases.steps`.

  Returns:
    A line for each miss: absolute distances in more launches or more memory than they may have;
    collectives that a convolution does not have; more memory on several GPUs than on one; and in a
    step, a transfer to the host or a state that is not donated.
  """
  found = []
  by = {(r["shape"], r["kernel"], r["devices"], r["mode"]): r for r in layers}
  for (shape, kernel, devices, mode), row in by.items():
    what = f"{kernel}, {shape}, {devices} GPUs, {mode}"
    if kernel in ("L1", "Laplacian") and mode != "forward":
      if row["launches"] > MOST_LAUNCHES:
        found.append(f"{what}: {row['launches']} launches; at most {MOST_LAUNCHES}")
      allowed = 4 * row["out_bytes"] + 3 * row["in_bytes"]
      if row["temp_bytes"] > allowed:
        found.append(f"{what}: {row['temp_bytes']:,} bytes of scratch memory; at most {allowed:,}")
    found += _collectives(what, row, by.get((shape, "convolution", devices, mode)))
    one = by.get((shape, kernel, 1, mode))
    if one and row["temp_bytes"] > 1.1 * max(one["temp_bytes"], row["out_bytes"]):
      found.append(
        f"{what}: {row['temp_bytes']:,} bytes of scratch memory each; one: {one['temp_bytes']:,}"
      )
  steps_by = {(r["network"], r["stem"], r["dtype"], r["devices"]): r for r in steps}
  for (network, stem, dtype, devices), row in steps_by.items():
    what = f"step of {network}, {stem}, {dtype}, {devices} GPUs"
    found += _collectives(what, row, steps_by.get((network, "convolution", dtype, devices)))
    if row["host_transfers"]:
      found.append(f"{what}: {row['host_transfers']} transfers to or from the host")
    if row["alias_bytes"] < row["state_bytes"]:
      found.append(f"{what}: {row['alias_bytes']:,} of {row['state_bytes']:,} bytes donated")
  return found


def _collectives(what: str, row: Row, twin: Row | None) -> list[str]:
  """A line for each kind of collective that there are more of than in the convolutional twin."""
  if twin is None:
    return []
  more = {k: n for k, n in row["collectives"].items() if n > twin["collectives"].get(k, 0)}
  return [
    f"{what}: {n} {k}; a convolution has {twin['collectives'].get(k, 0)}" for k, n in more.items()
  ]


def _library() -> argparse.ArgumentParser:
  """The option that is read before the library is imported."""
  command = argparse.ArgumentParser(add_help=False)
  text = "folder that kerv_jax is imported from; default this checkout"
  command.add_argument("--library", type=pathlib.Path, metavar="FOLDER", help=text)
  return command


def _parser(every: dict[str, list[str]]) -> argparse.ArgumentParser:
  command = argparse.ArgumentParser(
    "python -m benchmarks gpu-compile", description=__doc__, parents=[_library()]
  )
  for name, values in every.items():
    text = f"default all of: {', '.join(values)}"
    options: dict[str, Any] = {"nargs": "*", "metavar": "NAME", "choices": values, "help": text}
    command.add_argument(f"--{name}", **options)
  text = f"file to write; default {OUT}, or none for a part or another library"
  command.add_argument("--out", type=pathlib.Path, help=text)
  text = "keep what is in the file, and compile the rest"
  command.add_argument("--resume", action="store_true", help=text)
  command.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
  return command


def main(argv: Sequence[str] | None = None) -> int:
  """Compiles everything and writes the rows one by one.

  Args:
    argv: arguments; None is those of this process.

  Returns:
    The exit code: 0, also where it is skipped because the packages are not there; 1 if a bound is
    missed; 2 for input that will not do.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  if reason := gpu_program.missing():
    print(f"skipped: {reason}")
    return 0
  library = _library().parse_known_args(argv)[0].library
  import_from(library)
  from benchmarks import gpu_cases as cases
  from benchmarks import tables

  shapes = [shape.name for shape in cases.LAYERS]
  every = {"shapes": shapes, "kernels": [*cases.KERNELS], "networks": [*cases.NETWORKS]}
  args = _parser(every).parse_args(argv)
  chosen = {k: v if getattr(args, k) is None else getattr(args, k) for k, v in every.items()}
  out = args.out or (OUT if chosen == every and library is None else None)
  before = load([out]).get(out.stem, {}) if args.resume and out else {}
  layers, steps = before.get("layers", []), before.get("steps", [])
  command = shlex.join(["python", "-m", "benchmarks", "gpu-compile", *argv])
  results = Results(out, command, backend="gpu", device=NEVER_RUN)
  results.set(layers=layers, steps=steps)
  found = cases.layers(chosen["shapes"], chosen["kernels"], layers)
  layers = collect(found, results, _label, entry="layers", done=layers)
  found = cases.steps(chosen["networks"], steps)
  steps = collect(found, results, _label, entry="steps", done=steps)
  print(f"\n{NEVER_RUN}\n\n{tables.gpu_layers(layers)}\n\n{tables.gpu_steps(steps)}")
  missed = failures(layers, steps) if args.check else []
  for line in missed:
    print(f"missed: {line}", file=sys.stderr)
  return int(bool(missed))


def _label(row: Row) -> str:
  name = ", ".join(str(value) for value in [*row.values()][:4])
  return f"{name}: {row['launches']} launches, {row['collectives']}, {row['temp_bytes']:,} bytes"


if __name__ == "__main__":
  sys.exit(main())
