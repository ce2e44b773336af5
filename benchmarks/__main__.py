"""The command line: `python -m benchmarks --help`. Needs jax, flax and optax; engine more."""

import argparse
import dataclasses
import pathlib
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from benchmarks import (
  accuracy,
  checkouts,
  compilation,
  correctness,
  growth,
  operator,
  report,
  step,
  targets,
)
from benchmarks.measure import limits
from benchmarks.results import Results, load
from benchmarks.shapes import SHAPES, TARGETED

FOLDER = pathlib.Path("results/speed")


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
  commands = parser.add_subparsers(dest="command", required=True)

  def add(name: str, text: str, *, out: bool = True) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    if out:
      file = f"{FOLDER}/{name}-BACKEND.json"
      text = f"file to write; default {file}, or none where only a part is measured"
      command.add_argument("--out", type=pathlib.Path, help=text)
    return command

  def add_check(command: argparse.ArgumentParser) -> None:
    text = f"exit with 1 if a target is missed, times by more than {targets.NOISE}"
    command.add_argument("--check", action="store_true", help=text)

  plan = operator.Plan()
  command = add("operator", "time and memory of the operator's kernels beside convolution")
  command.add_argument("--quick", action="store_true", help="few of everything, under a minute")
  for name, values in (("shapes", SHAPES), ("rivals", plan.rivals), ("modes", plan.modes)):
    text = f"default all of: {', '.join(values)}"
    command.add_argument(f"--{name}", nargs="+", choices=[*values], metavar="NAME", help=text)
  command.add_argument("--rounds", type=int, help=f"of a comparison; default {plan.rounds}")
  text = f"after which a comparison stops early; default {plan.seconds:g}"
  command.add_argument("--seconds", type=float, help=text)
  text = "leave out resident memory, which needs a fresh process for each rival"
  command.add_argument("--no-peak", action="store_true", help=text)
  command.add_argument("--no-compile", action="store_true", help="leave out compile times")
  text = "keep what is in the file, and measure the rest"
  command.add_argument("--resume", action="store_true", help=text)
  add_check(command)
  command = add("step", "time of a step of training beside that of the convolutional twin")
  command.add_argument("--quick", action="store_true", help="LeNet-5 only, few rounds")
  add_check(command)
  text = "time of the operator's kernels over that of another checkout, in turns"
  command = add("compare", text, out=False)
  text = "folder of the other checkout, which this one's time is divided by"
  command.add_argument("--against", type=_checkout, required=True, metavar="FOLDER", help=text)
  for name, values, default in (
    ("shapes", SHAPES, [shape.name for shape in TARGETED]),
    ("rivals", checkouts.RIVALS, checkouts.RIVALS),
    ("modes", plan.modes, ["forward + backward"]),
  ):
    text = f"default: {', '.join(default)}"
    options: dict[str, Any] = {"nargs": "+", "metavar": "NAME", "default": default}
    command.add_argument(f"--{name}", choices=[*values], help=text, **options)
  command.add_argument("--rounds", type=int, default=25, help="of a pair of processes; default 25")
  text = "after which a pair of processes stops early; default 4"
  command.add_argument("--seconds", type=float, default=4.0, help=text)
  text = "pairs of processes for each rival and shape; default 2"
  command.add_argument("--launches", type=int, default=2, help=text)
  command.add_argument("--out", type=pathlib.Path, help="file to write")
  text = "exit with 1 if a kernel's mean may, within 95 %%, be more than this"
  command.add_argument("--at-most", type=float, metavar="RATIO", help=text)
  command = add("growth", "how time and memory grow with each size of a layer")
  command.add_argument("--quick", action="store_true", help="few sizes, kernels and rounds")
  command = add("engine", "steps a second of a training run beside those of a bare loop")
  command.add_argument("--quick", action="store_true", help="LeNet-5 only, few rounds")
  add_check(command)
  add("correctness", "values and gradients on this device against float64 on the host")
  command = add("accuracy", "table of errors of the squared distance, docs/accuracy.md", out=False)
  command.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs/accuracy.md"))
  command = add("report", "page and README section from the files of results", out=False)
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
  parser = _parser()
  args = parser.parse_args(argv)
  if getattr(args, "rounds", None) is not None and args.rounds < 3:
    parser.error(f"argument --rounds: must be at least 3, got {args.rounds}")
  if getattr(args, "launches", 1) < 1:
    parser.error(f"argument --launches: must be at least 1, got {args.launches}")
  if args.command == "accuracy":
    accuracy.accuracy(args.out)
    return 0
  if args.command == "report":
    return _report(args.folder, args.readme)
  partial = any(getattr(args, name, None) for name in ("quick", "shapes", "rivals", "modes"))
  if (
    args.out is None and not partial and args.command != "compare"
  ):  # a part must not replace the whole
    args.out = FOLDER / f"{args.command}-{jax.default_backend()}.json"
  if args.out is None and getattr(args, "resume", False):
    parser.error("argument --resume: needs --out where only a part is measured")
  results = Results(args.out, shlex.join(["python", "-m", "benchmarks", *argv]))
  run = {
    "operator": _operator,
    "step": _step,
    "growth": _growth,
    "compare": _compare,
    "engine": _engine,
    "correctness": _correctness,
  }
  failures = run[args.command](args, results)
  print(f"\nwritten to {args.out}" if args.out else "\nnot written: a part, and no --out")
  for failure in failures:
    print(f"missed: {failure}", file=sys.stderr)
  return int(bool(failures))


def _collect(
  rows: Iterable[dict[str, Any]],
  results: Results,
  label: Any,
  *,
  entry: str = "rows",
  done: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
  """Rows as they come: printed and written one by one."""
  found = [*done]
  results.set(**{entry: found})
  start = time.perf_counter()
  for row in rows:
    found.append(row)
    results.set(**{entry: found})
    print(f"{time.perf_counter() - start:6.1f} s  {label(row)}", flush=True)
  return found


def _ratio(row: dict[str, Any]) -> str:
  return f"{row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _peak(row: dict[str, Any]) -> str:
  peak = row["peak_bytes"]
  size = "unknown" if peak is None else f"{peak / 1e6:.1f} MB"
  return f"{row['shape']}, {row['rival']}: resident at the peak {size}"


def _operator(args: argparse.Namespace, results: Results) -> list[str]:
  plan = operator.QUICK if args.quick else operator.Plan()
  before = load([args.out]).get(args.out.stem, {}) if args.resume else {}
  given = {name: getattr(args, name) for name in ("shapes", "rivals", "modes", "rounds", "seconds")}
  plan = dataclasses.replace(plan, **{k: v for k, v in given.items() if v is not None})
  rates = limits()
  results.set(limits=dataclasses.asdict(rates))
  done = before.get("rows", [])
  rows = _collect(operator.rows(plan, done), results, operator.label, done=done)
  if not (args.quick or args.no_compile):
    results.set(compile=before.get("compile") or list(compilation.rows()))
    print("\n" + report.compilation(results.content["compile"]))
  peaks: list[dict[str, Any]] = []
  if jax.default_backend() == "cpu" and not (args.quick or args.no_peak):
    done = before.get("peaks", [])
    peaks = _collect(operator.peaks(rows, done), results, _peak, entry="peaks", done=done)
  for mode in plan.modes:
    print(f"\n{mode}: time over that of a convolution\n\n{report.times(rows, mode, plan.shapes)}")
  if targets.MODE in plan.modes:
    print(f"\nscratch / peak memory, MB\n\n{report.memory(rows, peaks, plan.shapes)}")
    shares = report.limits(rows, results.content["limits"], plan.shapes)
    print(f"\nshare of the machine's operations / bytes, %\n\n{shares}")
    print(f"\nsix shapes, forward + backward\n\n{report.summary(rows)}")
  return targets.failures(rows, peaks) if args.check else []


def _step(args: argparse.Namespace, results: Results) -> list[str]:
  quick = {"networks": ("LeNet-5",), "rounds": 15, "seconds": 4.0} if args.quick else {}
  rows = _collect(
    step.rows(**quick), results, lambda r: f"{r['network']}, {r['kernel']}: {_ratio(r)}"
  )
  print(f"\n{report.steps(rows)}")
  return step.failures(rows, targets.NOISE) if args.check else []


def _growth(args: argparse.Namespace, results: Results) -> list[str]:
  quick: dict[str, Any] = {}
  if args.quick:
    quick = {"rounds": 3, "seconds": 0.3, "rivals": growth.RIVALS[:2], "sizes": 2}
  rows = _collect(
    growth.rows(**quick),
    results,
    lambda r: f"{r['what']} {r['size']}, {r['rival']}: {_ratio(r)}",
  )
  print(f"\n{report.slopes(rows)}")
  return []


def _compare(args: argparse.Namespace, results: Results) -> list[str]:
  names = ("shapes", "rivals", "modes", "rounds", "seconds", "launches")
  options = {name: getattr(args, name) for name in names}
  rows = _collect(
    checkouts.rows(args.against, **options),
    results,
    lambda r: f"{r['rival']}, {r['mode']}, {r['shape']}: {_ratio(r)}",
  )
  results.set(means=checkouts.means(rows))
  print(f"\n{report.checkouts(results.content['means'])}")
  return [] if args.at_most is None else checkouts.failures(rows, args.at_most)


def _engine(args: argparse.Namespace, results: Results) -> list[str]:
  from benchmarks import engine  # the experiments' packages, which the rest does not need

  quick = {"names": engine.PRESETS[:1], "rounds": 3, "seconds": 0.5} if args.quick else {}
  rows = _collect(engine.rows(**quick), results, lambda r: f"{r['preset']}: {_ratio(r)}")
  print(f"\n{report.engine(rows)}")
  return engine.failures(rows, targets.NOISE) if args.check else []


def _correctness(args: argparse.Namespace, results: Results) -> list[str]:
  del args
  rows = _collect(
    correctness.rows(),
    results,
    lambda r: f"{r['kernel']}, {r['dtype']}, {r['case']}: {r['error']:.1e} of {r['bound']:g}",
  )
  print(f"\n{report.checks(rows)}")
  return [
    f"{r['kernel']}, {r['dtype']}, {r['case']}: error {r['error']:.1e}, at most {r['bound']:g}"
    for r in rows
    if not r["ok"]
  ]


def _report(folder: pathlib.Path, readme: pathlib.Path | None) -> int:
  results = load(sorted(folder.glob("*.json")))
  if not results or (readme is not None and "operator-cpu" not in results):
    wanted = "operator-cpu.json" if results else "files of results"
    print(f"error: `--folder` must hold {wanted}, got {str(folder)!r}", file=sys.stderr)
    return 2
  page = folder / "README.md"
  page.write_text(report.page(results))
  print(f"written to {page}")
  if readme is not None:
    report.insert(readme, report.section(results))
    print(f"written to {readme}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
