"""The command that makes the page of a study from its rows."""

import dataclasses
import re
from pathlib import Path

from experiments import UsageError

PAGE = "README.md"
TITLE = "The paper's MNIST section, reproduced and questioned"
OTHER_TITLE = "LeNet-5 on {}, with convolution and with kervolution"
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


def check_page(folder: str | Path) -> None:
  """Checks that a page of a study would be written over nothing but an earlier one.

  Args:
    folder: Folder of the rows.

  Raises:
    UsageError: If there is another text under its name.
  """
  file = Path(folder) / PAGE
  titles = "|".join(re.escape(title).replace(r"\{\}", ".*") for title in (TITLE, OTHER_TITLE))
  if file.exists() and not re.match(f"# ({titles})\n", file.read_text(errors="replace")):
    raise UsageError(
      f"`--out` must be a folder for a study, got {str(folder)!r}, whose {PAGE} is no page of one "
      "and would be lost"
    )
