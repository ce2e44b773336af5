"""The command line: `python -m experiments --help`."""

import shlex
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
  """Runs an experiment.

  Args:
    argv: arguments after `python -m experiments`; None is those of this process.

  Returns:
    The exit code: 0, 2 for input that will not do, 130 if interrupted. Options that cannot be
    parsed, and `--help`, exit by themselves.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  try:
    import tyro

    from experiments import UsageError, demo
  except ModuleNotFoundError as error:
    print(f"error: {error}; experiments need: pip install 'kerv_jax[experiments]'", file=sys.stderr)
    return 2
  config = tyro.extras.subcommand_cli_from_dict(
    {"demo": demo.DemoConfig},
    prog="python -m experiments",
    description="Experiments with kervolution. `python -m experiments demo` is the place to start.",
    args=argv,
  )
  try:
    demo.run(config, shlex.join(["python", "-m", "experiments", *argv]))
  except UsageError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("interrupted; nothing written", file=sys.stderr)
    return 130
  return 0


if __name__ == "__main__":
  sys.exit(main())
