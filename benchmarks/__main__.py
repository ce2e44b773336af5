"""The command line: `python -m benchmarks --help`. Needs jax, flax and optax; engine more."""

import argparse
import dataclasses
import importlib
import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from benchmarks import (
  accuracy,
  checkouts,
  compilation,
  layer_tables,
  layers,
  report,
  tables,
  targets,
)
from benchmarks.measure import busy, limits
from benchmarks.results import Results, collect, load
from benchmarks.shapes import SHAPES
from benchmarks.worker import HERE
from experiments import UsageError
from experiments.common.files import write_atomically
from experiments.common.markdown import Part

FOLDER = pathlib.Path("results/speed")
_GPU_COMPILE = "what XLA would have H100s do, compiled on any machine; see gpu-compile --help"
_TABLES: dict[str, Callable[..., str]] = {
  "step": tables.steps,
  "growth": tables.slopes,
  "engine": tables.engine,
  "correctness": tables.checks,
  "questions": tables.questions,
  "rivals": tables.yat,
}
"""Of the benchmarks that are a module, with `rows`, `label`, QUICK and `failures`."""
_MODULES = {"rivals": "yat"}
"""The modules that do not have the name of their command."""


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
  commands = parser.add_subparsers(dest="command", required=True)

  def add(name: str, text: str, *, file: bool = False) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    default = f"{FOLDER}/{name}-BACKEND.json, or none where only a part is measured"
    text = f"file to write; default {default if file else 'none'}"
    command.add_argument("--out", type=pathlib.Path, help=text)
    return command

  def add_check(command: argparse.ArgumentParser) -> None:
    text = f"exit with 1 if a target is missed, times by more than {targets.NOISE}"
    command.add_argument("--check", action="store_true", help=text)

  def add_names(
    command: argparse.ArgumentParser, name: str, every: Sequence[str], default: Sequence[str]
  ) -> None:
    text = f"default: {', '.join(default)}"
    options: dict[str, Any] = {"nargs": "+", "metavar": "NAME", "choices": [*every], "help": text}
    command.add_argument(f"--{name}", **options)

  plan = layers.Plan()
  command = add("operator", "time and memory of every kernel beside convolution", file=True)
  command.add_argument("--quick", action="store_true", help="few of everything, a minute if idle")
  for name in ("shapes", "rivals", "modes"):
    add_names(command, name, getattr(plan, name), getattr(plan, name))
  command.add_argument("--rounds", type=int, help=f"of a comparison; default {plan.rounds}")
  text = f"after which a comparison stops early; default {plan.seconds:g}"
  command.add_argument("--seconds", type=float, help=text)
  text = "leave out resident memory, which needs a fresh process for each rival"
  command.add_argument("--no-peak", action="store_true", help=text)
  command.add_argument("--no-compile", action="store_true", help="leave out compile times")
  text = "keep what is in the file, and measure the rest"
  command.add_argument("--resume", action="store_true", help=text)
  add_check(command)
  for name, text, quick in (
    ("step", "time of a step of training beside the convolutional twin's", "LeNet-5, few rounds"),
    ("growth", "how time and memory grow with each size of a layer", "few sizes and rounds"),
    ("questions", "other ways to compute distances on this device", "one shape, few rounds"),
    ("engine", "steps a second of a training run beside a bare loop's", "LeNet-5, few rounds"),
    ("rivals", "YAT layers of the package nmn beside the same kernel here", "a shape, few rounds"),
  ):
    command = add(name, text, file=True)
    command.add_argument("--quick", action="store_true", help=quick)
    add_check(command)
  command = add("correctness", "values and gradients here against float64 on the host", file=True)
  command.set_defaults(quick=False, check=True)

  command = add("compare", "time of every kernel over that of another checkout, in turns")
  text = "folder of the other checkout, which this one's time is divided by"
  command.add_argument("--against", type=_checkout, required=True, metavar="FOLDER", help=text)
  for name, every in (("shapes", SHAPES), ("rivals", checkouts.RIVALS), ("modes", plan.modes)):
    add_names(command, name, [*every], checkouts.DEFAULTS[name])
  command.add_argument("--rounds", type=int, help="of a pair of processes; default 25")
  text = "after which a pair of processes stops early; default 4"
  command.add_argument("--seconds", type=float, help=text)
  text = "pairs of processes for each rival and shape; default 2"
  command.add_argument("--launches", type=int, help=text)
  text = "exit with 1 if a kernel's mean may, within 95 %%, be more than this"
  command.add_argument("--at-most", type=float, metavar="RATIO", help=text)

  command = add("compile", "time to compile and to run a layer over a convolution's")
  text = "checkouts to compare, in turns; default this one"
  options: dict[str, Any] = {"nargs": "+", "type": _checkout, "metavar": "FOLDER"}
  command.add_argument("--libraries", help=text, default=[HERE], **options)
  add_names(command, "kernels", tuple(compilation.KERNELS), tuple(compilation.KERNELS))
  text = f"of the layer; default {compilation.SHAPE}"
  command.add_argument("--shape", choices=[*SHAPES], metavar="NAME", help=text)
  command.add_argument("--rounds", type=int, help="of compilations; default 3")

  commands.add_parser("gpu-compile", help=_GPU_COMPILE, add_help=False)
  command = add("accuracy", "table of errors of the squared distance")
  command.set_defaults(out=pathlib.Path("docs/accuracy.md"))
  text = "page and README section from the files of results"
  command = commands.add_parser("report", help=text, description=text)
  command.add_argument("--folder", type=pathlib.Path, default=FOLDER)
  command.add_argument("--readme", type=pathlib.Path, help="file to put the section into")
  return parser


def _checkout(text: str) -> pathlib.Path:
  """A folder that holds the library."""
  if not (pathlib.Path(text) / "kerv_jax/__init__.py").is_file():
    raise argparse.ArgumentTypeError(f"must be a checkout with a folder kerv_jax, got {text!r}")
  return pathlib.Path(text)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a benchmark.

  Args:
    argv: arguments after `python -m benchmarks`; None is those of this process.

  Returns:
    The exit code: 0; 1 if a check fails; 2 for input that will not do.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  if argv[:1] == ["gpu-compile"]:  # in a process of its own, which looks for no GPU
    command = [sys.executable, "-m", "benchmarks.gpu_compile", *argv[1:]]
    return subprocess.run(
      command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=False
    ).returncode
  parser = _parser()
  args = parser.parse_args(argv)
  for name, least in (("rounds", 3), ("launches", 1)):
    if (given := getattr(args, name, None)) is not None and given < least:
      parser.error(f"argument --{name}: must be at least {least}, got {given}")
  if args.command == "accuracy":
    accuracy.accuracy(args.out)
    return 0
  if args.command == "report":
    return _report(args.folder, args.readme)
  partial = any(getattr(args, name, None) for name in ("quick", "shapes", "rivals", "modes"))
  kept = args.command == "operator" or args.command in _TABLES
  if args.out is None and kept and not partial:  # a part must not replace the whole
    args.out = FOLDER / f"{args.command}-{jax.default_backend()}.json"
  if args.out is None and getattr(args, "resume", False):
    parser.error("argument --resume: needs --out where only a part is measured")
  results = Results(args.out, shlex.join(["python", "-m", "benchmarks", *argv]))
  run = {"operator": _layers, "compare": _compare, "compile": _compile}.get(args.command, _module)
  if warning := busy():
    print(f"note: {warning}", file=sys.stderr)
  failures = run(args, results)
  if warning:
    print(f"\nnote: when this began, {warning}", file=sys.stderr)
  print(f"\nwritten to {args.out}" if args.out else "\nnot written: a part, and no --out")
  for failure in failures:
    print(f"missed: {failure}", file=sys.stderr)
  return int(bool(failures))


def _given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
  """The options that were given."""
  return {name: value for name in names if (value := getattr(args, name)) is not None}


def _layers(args: argparse.Namespace, results: Results) -> list[str]:
  plan = layers.QUICK if args.quick else layers.Plan()
  before = load([args.out]).get(args.out.stem, {}) if args.resume else {}
  given = _given(args, "shapes", "rivals", "modes", "rounds", "seconds")
  plan = dataclasses.replace(plan, **given)
  rates = limits()
  results.set(limits=dataclasses.asdict(rates))
  done = before.get("rows", [])
  rows = collect(layers.rows(plan, done), results, layers.label, done=done)
  if not (args.quick or args.no_compile):
    results.set(compile=before.get("compile") or list(compilation.rows()))
    print("\n" + tables.compilation(results.content["compile"]))
  peaks: list[dict[str, Any]] = []
  if jax.default_backend() == "cpu" and not (args.quick or args.no_peak):
    done, entry = before.get("peaks", []), "peaks"
    found = layers.peaks(rows, done)
    peaks = collect(found, results, layers.peak_label, entry=entry, done=done)
  for mode in plan.modes:
    times = layer_tables.times(rows, mode, plan.shapes)
    print(f"\n{mode}: time over that of a convolution\n\n{times}")
  if targets.MODE in plan.modes:
    print(f"\nscratch / peak memory, MB\n\n{layer_tables.memory(rows, peaks, plan.shapes)}")
    shares = layer_tables.limits(rows, results.content["limits"], plan.shapes)
    print(f"\nshare of the machine's operations / bytes, %\n\n{shares}")
    print(f"\nsix shapes, forward + backward\n\n{layer_tables.summary(rows)}")
    if additive := layer_tables.additive(rows):
      print(f"\nadditive kernels beside L1\n\n{additive}")
  for line in layer_tables.missing(rows, peaks):
    print(line)
  return targets.failures(rows, peaks) if args.check else []


def _module(args: argparse.Namespace, results: Results) -> list[str]:
  name = _MODULES.get(args.command, args.command)
  module = importlib.import_module(f"benchmarks.{name}")  # engine needs what others do not
  rows = collect(module.rows(**(module.QUICK if args.quick else {})), results, module.label)
  print(f"\n{_TABLES[args.command](rows)}")
  return module.failures(rows, targets.NOISE) if args.check else []


def _compare(args: argparse.Namespace, results: Results) -> list[str]:
  given = _given(args, "shapes", "rivals", "modes", "rounds", "seconds", "launches")
  rows = collect(checkouts.rows(args.against, **given), results, checkouts.label)
  results.set(means=checkouts.means(rows))
  print(f"\n{tables.checkouts(results.content['means'])}")
  return [] if args.at_most is None else checkouts.failures(rows, args.at_most)


def _compile(args: argparse.Namespace, results: Results) -> list[str]:
  found = compilation.rows(args.libraries, **_given(args, "kernels", "shape", "rounds"))
  print("\n" + tables.compilation(collect(found, results, compilation.label)))
  return []


def _report(folder: pathlib.Path, readme: pathlib.Path | None) -> int:
  results = load(sorted(folder.glob("*.json")))
  if not results or (readme is not None and "operator-cpu" not in results):
    wanted = "operator-cpu.json" if results else "files of results"
    print(f"error: `--folder` must hold {wanted}, got {str(folder)!r}", file=sys.stderr)
    return 2
  try:
    part = None if readme is None else Part(readme, report.BEGIN, report.END)
  except UsageError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  write_atomically(folder / "README.md", report.page(results))
  print(f"written to {folder / 'README.md'}")
  if part is not None:
    part.write(report.section(results))
    print(f"written to {readme}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
