"""Tables about one layer of every kernel: rivals against shapes."""

from collections.abc import Callable, Iterable, Sequence

from benchmarks import rivals, targets
from benchmarks.shapes import OTHERS, SHAPES, TARGETED
from benchmarks.tables import Row, table

_SIX = [shape.name for shape in TARGETED]
_FEW = 7  # rounds, below which their number is shown


def every(rows: Sequence[Row], peaks: Sequence[Row], rates: dict[str, float]) -> dict[str, str]:
  """All tables, by their names in the text of the page.

  Args:
    rows: of the times.
    peaks: of resident memory.
    rates: of the machine, see `measure.Limits`.
  """
  there = [name for name in SHAPES if any(row["shape"] == name for row in rows)]
  groups = {"six": _SIX, "others": [shape.name for shape in OTHERS]}
  names = {group: [n for n in shapes if n in there] for group, shapes in groups.items()}
  modes = {"both": targets.MODE, "forward": "forward"}
  compared = any(r["rival"] in rivals.TORCH_RIVALS and "ratio" in r for r in rows)
  return {
    **{f"{m}_{g}": times(rows, modes[m], names[g]) for m in modes for g in groups},
    "summary": summary(rows),
    "additive": additive(rows),
    "against_torch": against_torch(rows, peaks) if compared else "",
    "memory": memory(rows, peaks, there),
    "limits": limits(rows, rates, _SIX),
  }


def _grid(rows: Iterable[Row], mode: str, names: Sequence[str], cell: Callable[[Row], str]) -> str:
  """Rivals against shapes; an empty cell where nothing was measured."""
  by = {(row["rival"], row["shape"]): row for row in rows if row["mode"] == mode}
  return table(
    ["", *names],
    (
      [rival, *(cell(by[rival, name]) if (rival, name) in by else "" for name in names)]
      for rival in (*rivals.JAX_RIVALS, *rivals.TORCH_RIVALS)
      if any((rival, name) in by for name in names)
    ),
  )


def missing(rows: Sequence[Row], peaks: Sequence[Row]) -> list[str]:
  """Lines that say why figures are missing.

  Args:
    rows: of the times.
    peaks: of resident memory.
  """
  reasons = {row["rival"]: row["skipped"] for row in rows if "skipped" in row}
  lines = [f"\n-: not measured. {rival}: {why}" for rival, why in reasons.items()]
  if not peaks:
    lines.append(
      "\n?: resident memory was not measured; it takes a fresh process for each figure, on a CPU, "
      "without --quick and --no-peak"
    )
  return lines


def times(rows: Sequence[Row], mode: str, names: Sequence[str]) -> str:
  """Ratios of medians, and the spread of the ratio from round to round."""

  def cell(row: Row) -> str:
    if "skipped" in row:
      return "-"
    few = f", {row['rounds']} rounds" if row["rounds"] < _FEW else ""
    return f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f}{few})"

  return _grid(rows, mode, names, cell)


def summary(rows: Sequence[Row]) -> str:
  """Each kernel's mean and worst ratio beside its target, forward and backward, six shapes."""
  goals = {kernel: target for target in targets.TARGETS for kernel in target.kernels}
  by = [r for r in rows if r["mode"] == targets.MODE and r["shape"] in _SIX]
  body = []
  for rival in (f"{rivals.BASELINE} + ReLU", *rivals.KERNELS):
    found = targets.ratios(rows, rival)
    if not found:
      continue
    mean, worst = targets.geometric_mean(found.values()), max(found.values())
    mine = [r for r in by if r["rival"] == rival and "ratio" in r]
    extra = max((r["temp_bytes"] - r["baseline_temp_bytes"]) / r["out_bytes"] for r in mine)
    goal, scratch = goals.get(rival), f"{extra:.2f} outputs"
    if goal is None:
      body.append([rival, f"{mean:.2f}", f"{worst:.2f}", "", scratch, ""])
      continue
    if any(r["temp_bytes"] > targets.allowed_bytes(goal, r) for r in mine):
      scratch += " (more than allowed)"
    inputs = f" + {goal.inputs} inputs" if goal.inputs else ""
    aim = f"{goal.mean:.2f} / {goal.worst:.2f}"
    allowed = f"{goal.outputs} outputs{inputs}"
    body.append([rival, f"{mean:.2f}", f"{worst:.2f}", aim, scratch, allowed])
  head = ["", "time, mean", "worst", "target", "scratch beyond a convolution's, most", "target"]
  return table(head, body)


def additive(rows: Sequence[Row]) -> str:
  """Each additive kernel beside L1 and its own term, and its targets; six shapes."""
  body = []
  for rival, kernel in rivals.ADDITIVE.items():
    if found := targets.additive(rows, rival):
      times, outputs = ([getattr(f, field) for f in found] for field in ("time", "outputs"))
      mean, worst = targets.geometric_mean(times), max(times)
      most = targets.PAIRS[kernel.reduction]
      scratch = [f"{max(outputs):.2f} outputs", f"{targets.PAIRS_OUTPUTS} output"]
      body.append([rival, kernel.reduction, f"{mean:.2f}", f"{worst:.2f}", f"{most:.2f}", *scratch])
  head = ["", "reduction", "time, mean", "worst", "target", "scratch beyond L1's, most", "target"]
  return table(head, body) if body else ""


def means(rows: Sequence[Row]) -> str:
  """Each kernel's mean and worst ratio, forward and backward, six shapes, for the README."""
  body = []
  for rival in (f"{rivals.BASELINE} + ReLU", *rivals.KERNELS, *rivals.ADDITIVE):
    if found := targets.ratios(rows, rival):
      worst = max(found, key=lambda name: found[name])
      mean = targets.geometric_mean(found.values())
      body.append([rival, f"{mean:.2f}", f"{found[worst]:.2f} ({worst})"])
  return table(["", "geometric mean", "worst"], body)


def memory(rows: Sequence[Row], peaks: Sequence[Row], names: Sequence[str]) -> str:
  """Scratch memory that the compiler plans, and resident memory at the peak, in MB."""
  plans: dict[tuple[str, str], int] = {}
  for row in rows:
    if row["mode"] == targets.MODE and "temp_bytes" in row:
      plans[row["rival"], row["shape"]] = row["temp_bytes"]
      plans[rivals.BASELINE, row["shape"]] = row["baseline_temp_bytes"]
  resident = {(row["rival"], row["shape"]): row["peak_bytes"] for row in peaks}

  def cell(rival: str, name: str) -> str:
    sizes = [found.get((rival, name)) for found in (plans, resident)]
    shown = ["?" if size is None else f"{size / 1e6:.1f}" for size in sizes]
    return "-" if shown == ["?", "?"] else " / ".join(shown)

  order = (rivals.BASELINE, *rivals.JAX_RIVALS, *rivals.TORCH_RIVALS)
  body = ([rival, *(cell(rival, name) for name in names)] for rival in order)
  return table(["", *names], (row for row in body if set(row[1:]) != {"-"}))


def limits(rows: Sequence[Row], rates: dict[str, float], names: Sequence[str]) -> str:
  """Achieved share of the machine's matrix product and of its bandwidth, in percent."""

  def cell(row: Row) -> str:
    if "flops" not in row:
      return "-"
    operations = row["flops"] / row["milliseconds"] / 1e-3 / rates["flops_per_second"]
    moved = row["bytes_accessed"] / row["milliseconds"] / 1e-3 / rates["bytes_per_second"]
    return f"{100 * operations:.0f} / {100 * moved:.0f}"

  kept = [row for row in rows if row["rival"] in rivals.JAX_RIVALS]
  return _grid(kept, targets.MODE, names, cell)


def against_torch(rows: Sequence[Row], peaks: Sequence[Row]) -> str:
  """How many times as long, and as much memory, unfold and broadcast takes in PyTorch."""
  body = []
  for kernel in rivals.BROADCAST:
    cells = []
    for shape in TARGETED:
      factors = targets.against_torch(rows, peaks, shape.name, kernel)
      shown = [f"{factors[what]:.0f}" if what in factors else "?" for what in ("time", "memory")]
      cells.append(" / ".join(shown) if factors else "-")
    body.append([kernel, *cells])
  return table(["", *(shape.name for shape in TARGETED)], body)
