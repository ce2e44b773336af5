"""The page and the README's section: the texts of `pages/`, filled from the files of results.

A text has names such as $table for what is measured. A paragraph whose name has nothing to show is
left out, and so is a section that has names, but nothing to show for any of them.
"""

import pathlib
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import layer_tables, rivals, step, tables, targets

Result = dict[str, Any]
Values = dict[str, str]
BEGIN, END = "<!-- speed: made by python -m benchmarks report -->", "<!-- end of speed -->"
_PAGES = pathlib.Path(__file__).with_name("pages")
_BACKENDS = ("cpu", "gpu", "h100")
_SITTINGS = (
  "Measured in more than one sitting on this machine, with the same kernels; the commit is that of "
  "the last one. Each ratio is of one sitting."
)


def fill(text: str, values: Mapping[str, str]) -> str:
  """A text with its names filled in.

  Args:
    text: paragraphs, in sections that begin with a heading.
    values: by name; an empty one has nothing to show.

  Returns:
    The text without what has nothing to show.

  Raises:
    KeyError: for a name without a value.
  """
  kept: list[str] = []
  for section in re.split(r"\n\n(?=#)", text.strip()):
    paragraphs = section.split("\n\n")
    named = {p: string.Template(p).get_identifiers() for p in paragraphs if p[0] != "#"}
    shown = {p for p, names in named.items() if all(values[name] for name in names)}
    if any(named.values()) and not any(named[p] for p in shown):
      continue
    kept += [string.Template(p).substitute(values) for p in paragraphs if p[0] == "#" or p in shown]
  return "\n\n".join(kept)


def _where(result: Result) -> str:
  """Where and with what it was measured; older files have Python's version beside the others."""
  versions = {"python": result.get("python"), **result["versions"]}
  python = versions.pop("python")
  others = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
  return (
    f"`{result['command']}` on {result['device']}, {result['cores']} cores; Python {python}, "
    f"{others}; commit {result['commit']}."
  )


def _layers(result: Result) -> Values:
  rows, peaks, rates = result["rows"], result.get("peaks", []), result["limits"]
  missed = targets.failures(rows, peaks, noise=1.0)
  listed = "Missed:\n\n" + "\n".join(f"- {line}" for line in missed)
  return {
    **layer_tables.every(rows, peaks, rates),
    "sittings": _SITTINGS if "--resume" in result["command"] else "",
    "missed": listed if missed else "Every target that was measured is met.",
    "gigaflops": f"{rates['flops_per_second'] / 1e9:.0f}",
    "gigabytes": f"{rates['bytes_per_second'] / 1e9:.1f}",
    "compilation": tables.compilation(result.get("compile", [])),
  }


_VALUES: dict[str, Callable[[Result], Values]] = {
  "operator": _layers,
  "step": lambda result: {"table": tables.steps(result["rows"])},
  "engine": lambda result: {"table": tables.engine(result["rows"])},
  "growth": lambda result: {"table": tables.slopes(result["rows"])},
  "correctness": lambda result: {"table": tables.checks(result["rows"])},
  "questions": lambda result: {"table": tables.questions(result["rows"])},
  "rivals": lambda result: {"table": tables.yat(result["rows"])},
  "gpu-compile": lambda result: {
    "layers": tables.gpu_layers(result["layers"]),
    "steps": tables.gpu_steps(result["steps"]),
  },
}
"""By the kind of a file of results, which is also the name of its text, what to fill in."""


def page(results: dict[str, Result]) -> str:
  """The page of results.

  Args:
    results: files by name, see `results.load`.

  Returns:
    Markdown.
  """
  parts = [(_PAGES / "page.md").read_text().strip()]
  for backend in _BACKENDS:
    for kind, values in _VALUES.items():
      if found := results.get(f"{kind}-{backend}"):
        filled = {"device": found["device"], "where": _where(found), **values(found)}
        parts.append(fill((_PAGES / f"{kind}.md").read_text(), filled))
  return "\n\n".join(parts) + "\n"


def section(results: dict[str, Result]) -> str:
  """The README's section: ratios on CPU.

  Args:
    results: files by name; "operator-cpu" must be among them.

  Returns:
    Markdown.
  """
  layers, training = results["operator-cpu"], results.get("step-cpu", {"rows": []})
  factors = [
    targets.against_torch(layers["rows"], [], shape, kernel).get("time")
    for shape in targets.TORCH_SHAPES
    for kernel in rivals.BROADCAST
  ]
  known = [factor for factor in factors if factor is not None]
  values = {
    "cores": str(layers["cores"]),
    "jax": layers["versions"]["jax"],
    "means": layer_tables.means(layers["rows"]),
    "torch": f"{min(known):.0f} to {max(known):.0f}" if known else "",
    "steps": ", ".join(
      f"{row['network']} with {row['kernel']} ({row['replaced']}) {row['ratio']:.2f}"
      for row in training["rows"]
      if (row["network"], row["kernel"]) in step.TARGETS
    ),
  }
  return fill((_PAGES / "readme.md").read_text(), values)
