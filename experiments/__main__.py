"""The command line: `python -m experiments --help`."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from experiments import UsageError, failures

_KEPT = {
  "train": "checkpoints are kept",
  "ablation": "rows are kept",
  "cifar": "rows are kept",
  "study": "rows are kept",
  "depth": "rows are kept",
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs an experiment; what goes wrong becomes a line and an exit code here, and nowhere else.

  Args:
    argv: arguments after `python -m experiments`; None is those of this process.

  Returns:
    The exit code: 0; 130 if interrupted; 141 if who reads the output went away; of failures, see
    `experiments.failures`. Options that cannot be parsed, and `--help`, exit by themselves.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  failures.open_streams()
  try:
    with failures.output():
      return _run(argv)
  except KeyboardInterrupt:
    print(f"interrupted; {_KEPT.get(''.join(argv[:1]), 'nothing written')}", file=sys.stderr)
    return 130
  except Exception as error:
    known = failures.told(error)
    if known is None:
      raise
    code, line = known
    if line:
      print(f"error: {line}", file=sys.stderr, flush=True)
    return code


def _run(argv: Sequence[str]) -> int:
  """Does what the command says, and returns the exit code."""
  try:
    import tyro

    from experiments import cli, curves, demo, inference
    from experiments.ablation import command as ablation
    from experiments.cifar import command as cifar
    from experiments.depth import command as depth
    from experiments.studies import command as studies
  except ModuleNotFoundError as error:
    raise UsageError(f"{error}; experiments need: pip install '.[experiments]'") from error
  except ValueError as error:  # JAX reads its variables of the environment
    raise UsageError(f"JAX cannot be imported: {error}") from error
  if argv[:1] == ["train"]:  # its options have the defaults of a preset
    return cli.train_command(argv[1:])

  def show(command: Any) -> int:
    demo.run(command, shlex.join(["python", "-m", "experiments", *argv]))
    return 0

  def report(command: Any) -> int:
    from experiments.ablation import page  # imports matplotlib

    return page.write(command)

  commands: dict[str, tuple[type, Callable[[Any], int]]] = {
    "demo": (demo.DemoConfig, show),
    "train": (cli.TrainCommand, lambda _: cli.train_command([])),
    "list": (cli.ListCommand, cli.list_command),
    "eval": (cli.EvalCommand, cli.eval_command),
    "plot": (curves.PlotCommand, curves.plot_command),
    "compare": (curves.CompareCommand, curves.compare_command),
    "predict": (inference.PredictCommand, inference.predict_command),
    "export": (inference.ExportCommand, inference.export_command),
    "ablation": (ablation.AblationCommand, ablation.run),
    "cifar": (cifar.CifarCommand, cifar.run),
    "study": (studies.StudyCommand, studies.run),
    "depth": (depth.DepthCommand, depth.run),
    "report": (ablation.ReportCommand, report),
  }
  command = tyro.extras.subcommand_cli_from_dict(
    {name: form for name, (form, _) in commands.items()},
    prog="python -m experiments",
    description="Experiments with kervolution; `python -m experiments demo` is where to start.",
    args=argv,
  )
  return dict(commands.values())[type(command)](command)


def _leave(code: int) -> None:
  """Ends this process with a code, at once where threads or other processes would be waited for."""
  if code in failures.AT_ONCE:
    with contextlib.suppress(OSError):
      sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
  sys.exit(code)


if __name__ == "__main__":
  _leave(main())
