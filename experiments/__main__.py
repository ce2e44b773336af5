"""The command line: `python -m experiments --help`."""

import os
import shlex
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
  """Runs an experiment.

  Args:
    argv: arguments after `python -m experiments`; None is those of this process.

  Returns:
    The exit code: 0, 2 for input that will not do, 130 if interrupted; of training, see
    `experiments.cli.EXIT_CODES`. Options that cannot be parsed, and `--help`, exit by themselves.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  try:
    import tyro

    from experiments import UsageError, cli, demo
    from experiments.ablation import command as ablation
  except ModuleNotFoundError as error:
    print(f"error: {error}; experiments need: pip install '.[experiments]'", file=sys.stderr)
    return 2
  try:
    if argv[:1] == ["train"]:  # its options have the defaults of a preset
      return cli.train_command(argv[1:])
    command = tyro.extras.subcommand_cli_from_dict(
      {
        "demo": demo.DemoConfig,
        "train": cli.TrainCommand,
        "list": cli.ListCommand,
        "eval": cli.EvalCommand,
        "ablation": ablation.AblationCommand,
        "report": ablation.ReportCommand,
      },
      prog="python -m experiments",
      description="Experiments with kervolution; `python -m experiments demo` is where to start.",
      args=argv,
    )
    if isinstance(command, cli.ListCommand):
      return cli.list_command(command)
    if isinstance(command, cli.EvalCommand):
      return cli.eval_command(command)
    if isinstance(command, ablation.AblationCommand):
      return ablation.run(command)
    if isinstance(command, ablation.ReportCommand):
      from experiments.ablation import report  # imports matplotlib

      return report.run(command)
    assert isinstance(command, demo.DemoConfig)
    demo.run(command, shlex.join(["python", "-m", "experiments", *argv]))
  except UsageError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except BrokenPipeError:  # as in `... --help | head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141
  except KeyboardInterrupt:
    kept = {"train": "checkpoints are kept", "ablation": "rows are kept"}.get(
      "".join(argv[:1]), "nothing written"
    )
    print(f"interrupted; {kept}", file=sys.stderr)
    return 130
  return 0


if __name__ == "__main__":
  sys.exit(main())
