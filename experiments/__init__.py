"""Runnable experiments with kervolution: `python -m experiments --help`."""


class UsageError(ValueError):
  """Something that the user gave and can mend: its message is shown, and no traceback."""
