"""The command line of the measurements."""

import tyro

from benchmarks.accuracy import accuracy


def main() -> None:
  """Runs the measurement that is named on the command line."""
  tyro.extras.subcommand_cli_from_dict(
    {"accuracy": accuracy}, prog="python -m benchmarks", description=__doc__
  )


if __name__ == "__main__":
  main()
