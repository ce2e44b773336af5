"""Rows of results as tables in Markdown: those with a line for a row."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks import growth, rivals, step
from experiments.common import markdown

Row = dict[str, Any]
_SPREAD = "{ratio:.2f} ({low:.2f} to {high:.2f})"


def table(head: Iterable[str], body: Iterable[Sequence[str]]) -> str:
  """A table in Markdown.

  Args:
    head: of the columns.
    body: the cells of each line.

  Returns:
    The table; nothing where there is no line.
  """
  lines = [*body]
  return markdown.table([*head], lines) if lines else ""


def columns(rows: Iterable[Row], cells: Mapping[str, str | Callable[[Row], str]]) -> str:
  """A table with a line for each row.

  Args:
    rows: what the lines are about.
    cells: for each head, a format of the row's fields, or a function of the row.

  Returns:
    Markdown.
  """

  def cell(how: str | Callable[[Row], str], row: Row) -> str:
    return how.format_map(row) if isinstance(how, str) else how(row)

  return table(cells, ([cell(how, row) for how in cells.values()] for row in rows))


def steps(rows: Sequence[Row]) -> str:
  """Ratios of a step of training to that of the convolutional twin."""

  def target(row: Row) -> str:
    goal = step.TARGETS.get((row["network"], row["kernel"]))
    return f"{goal:.2f}" if goal else ""

  cells = {"network": "{network}", "kervolutions": "{replaced}", "kernel": "{kernel}"}
  return columns(rows, {**cells, "time of a step": _SPREAD, "target": target})


def engine(rows: Sequence[Row]) -> str:
  """Steps a second of a training run and of a bare loop."""
  rates = {"steps a second": "{per_second:.3g}", "bare loop": "{baseline_per_second:.3g}"}
  ratio = "{ratio:.3f} ({low:.3f} to {high:.3f})"
  return columns(rows, {"preset": "{preset}", **rates, "ratio": ratio})


def compilation(rows: Sequence[Row]) -> str:
  """Compile times beside a convolutional layer's."""
  base = [
    {
      "kernel": rivals.BASELINE,
      "library": "",
      "ratio": 1.0,
      "time_ratio": 1.0,
      "seconds": row["baseline_seconds"],
      "loops": row["baseline_loops"],
    }
    for row in rows[:1]
  ]
  times = {"ratio": "{ratio:.1f}", "seconds": "{seconds:.2f}", "fused loops": "{loops}"}
  runs = {"runs in": "{time_ratio:.2f}"} if all("time_ratio" in row for row in rows) else {}
  several = len({row.get("library") for row in rows}) > 1
  return columns(
    [*base, *rows], {"": "{kernel}", **({"of": "{library}"} if several else {}), **times, **runs}
  )


def slopes(rows: Sequence[Row]) -> str:
  """Exponents of time and memory."""
  found = {(row["what"], row["rival"]): row for row in growth.slopes(rows)}

  def cell(what: str, name: str) -> str:
    row = found.get((what, name))
    return "" if row is None else f"{row['time']:.2f} / {row['memory']:.2f}"

  names = (rivals.BASELINE, *growth.RIVALS)
  return table(["", *names], ([w, *(cell(w, name) for name in names)] for w in growth.SIZES))


def checks(rows: Sequence[Row]) -> str:
  """Largest errors of each kernel and type."""
  worst: dict[tuple[str, str, float], Row] = {}
  for row in rows:
    key = row["kernel"], row["dtype"], row["bound"]
    if key not in worst or row["error"] > worst[key]["error"]:
      worst[key] = row
  cells = {"kernel": "{kernel}", "type": "{dtype}", "worst case": "{case}"}
  bounds = {"error": "{error:.1e}", "bound": "{bound:g}"}
  holds = {"holds": lambda row: "yes" if row["ok"] else "NO"}
  return columns(worst.values(), {**cells, **bounds, **holds})


def questions(rows: Sequence[Row]) -> str:
  """Times of other ways to compute distances, and their errors."""

  def error(row: Row) -> str:
    return f"{row['error']:.1e}" if "error" in row else ""

  cells = {"layer": "{shape}", "": "{way}", "devices": "{devices}", "time": _SPREAD}
  return columns(rows, {**cells, "error": error})


def yat(rows: Sequence[Row]) -> str:
  """Time, memory and error of a kernel here and in another package."""

  def of(field: str, how: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: how(row[field]) if field in row else ""

  megabytes, error = (lambda value: f"{value / 1e6:.1f}"), (lambda value: f"{value:.1e}")
  cells = {
    "": "{case}",
    "time over its": lambda row: _SPREAD.format_map(row) if "ratio" in row else "",
    "scratch, MB": of("temp_bytes", megabytes),
    "its": of("baseline_temp_bytes", megabytes),
    "error": of("error", error),
    "its error": of("baseline_error", error),
    "gradient error": of("gradient_error", error),
    "its gradient error": of("baseline_gradient_error", error),
  }
  return columns([row for row in rows if "skipped" not in row], cells)


def checkouts(means: Sequence[Row]) -> str:
  """Means over the shapes of this checkout's time over another's, with their 95 % intervals."""
  cells = {"": "{rival}", "mode": "{mode}", "shapes": "{shapes}"}
  ratio = {"over the other's time": "{ratio:.3f}", "2.5 %": "{low:.3f}", "97.5 %": "{high:.3f}"}
  return columns(means, {**cells, **ratio})


def _counts(field: str) -> Callable[[Row], str]:
  """How many of each name."""
  return lambda row: ", ".join(f"{n} {name.lstrip('_')}" for name, n in row[field].items())


def _megabytes(*fields: str) -> Callable[[Row], str]:
  return lambda row: " of ".join(f"{row[field] / 1e6:.1f}" for field in fields)


def gpu_layers(rows: Sequence[Row]) -> str:
  """What H100s would be told to do for layers."""
  forward = {
    (row["shape"], row["kernel"], row["devices"]): row["launches"]
    for row in rows
    if row["mode"] == "forward"
  }

  def launches(row: Row) -> str:
    alone = forward.get((row["shape"], row["kernel"], row["devices"]), "?")
    return f"{alone} / {row['launches']}"

  def registers(row: Row) -> str:
    return f"{row['registers']} / {row['spills']}" if "registers" in row else ""

  return columns(
    [row for row in rows if row["mode"] != "forward"],
    {
      "layer": "{shape}",
      "": "{kernel}",
      "GPUs": "{devices}",
      "launches": launches,
      "host waits": "{host_waits}",
      "collectives": _counts("collectives"),
      "scratch, MB": _megabytes("temp_bytes"),
      "libraries' targets": _counts("calls"),
      "registers / bytes spilled": registers,
    },
  )


def gpu_steps(rows: Sequence[Row]) -> str:
  """What H100s would be told to do for steps of training."""
  return columns(
    rows,
    {
      "network": "{network}",
      "stem": "{stem}",
      "type": "{dtype}",
      "GPUs": "{devices}",
      "launches": "{launches}",
      "host waits": "{host_waits}",
      "collectives": _counts("collectives"),
      "peak, MB": _megabytes("peak_bytes"),
      "donated, MB": _megabytes("alias_bytes", "state_bytes"),
      "host transfers": "{host_transfers}",
    },
  )
