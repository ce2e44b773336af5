"""The command that makes the page of a study from its rows."""

import dataclasses
from pathlib import Path

RESULTS = "results/mnist"
"""Folder of the rows of the paper's own protocol."""


@dataclasses.dataclass(frozen=True)
class ReportCommand:
  """Make the page of a study, its plots, and of MNIST the README's part, from the rows."""

  out: str = RESULTS
  """Folder of the rows, where page and plots go."""
  readme: str | None = None
  """File with the part between the comments "mnist", of the paper's own protocol alone; if not
  given, README.md where --out is not given either, and none otherwise."""

  def place(self) -> str | None:
    """Returns the file with the part; None leaves every file as it is."""
    return self.readme or ("README.md" if Path(self.out) == Path(RESULTS) else None)
