"""Markdown that programs write: tables, and parts of a page between two comments."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments import UsageError
from experiments.common.files import write_atomically


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
  """Returns a table in Markdown.

  Args:
    head: headings of the columns.
    body: cells, row by row.
  """
  rule = ["---"] * len(head)
  return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *body))


def filled(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
  """Returns a table in Markdown without the rows and columns that are empty.

  Args:
    head: Headings of the columns.
    body: Cells, row by row; a row is empty if it has nothing after its first cell.

  Returns:
    The table; "" if no row is left.
  """
  rows = [row for row in body if any(row[1:])]
  keep = [place for place in range(len(head)) if any(row[place] for row in rows)]
  cells = [[row[place] for place in keep] for row in (head, *rows)]
  return table(cells[0], cells[1:]) if rows else ""


class Part:
  """A part of a page that a program makes, between two comments that somebody put there.

  Args:
    file: the page.
    begin: the comment before the part.
    end: the comment after it.
    option: name of the option that errors give the file.

  Raises:
    UsageError: if the file cannot be read, or does not have each comment once and in this order.
  """

  def __init__(self, file: Path, begin: str, end: str, *, option: str = "--readme"):
    self.file, self.begin, self.end, self.option = file, begin, end, option
    self._around()

  def write(self, text: str) -> None:
    """Puts a text in the place of the part, and leaves the rest of the file as it is.

    Args:
      text: the new part, without the comments.

    Raises:
      UsageError: if the comments are no longer there.
    """
    before, after = self._around()
    write_atomically(self.file, f"{before}{self.begin}\n\n{text}\n\n{self.end}{after}")

  def _around(self) -> tuple[str, str]:
    """Returns what stands before and after the comments."""
    file, begin, end = str(self.file), self.begin, self.end
    try:
      text = self.file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
      raise UsageError(f"`{self.option}` must be a file to read, got {file!r}: {error}") from None
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if text.count(begin) != 1 or text.count(end) != 1 or end in before:
      raise UsageError(
        f"`{self.option}` must have one line {begin!r} and after it one {end!r}, got {file!r}"
      )
    return before, after
