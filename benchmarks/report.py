"""The page and the README's section, made from the files of results."""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks import growth, rivals, step, targets
from benchmarks.shapes import OTHERS, SHAPES, TARGETED

Row = dict[str, Any]
_SIX = [shape.name for shape in TARGETED]
_REST = [shape.name for shape in OTHERS]
_SITTINGS = (
  "Measured in more than one sitting on this machine, with the same kernels; the commit is that of "
  "the last one. Each ratio is of one sitting."
)
_FEW = 7  # rounds, below which their number is shown
BEGIN, END = "<!-- speed: made by python -m benchmarks report -->", "<!-- end of speed -->"


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
  """A table in Markdown."""
  rule = ["---"] * len(head)
  return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *body))


def _by(rows: Iterable[Row], mode: str) -> dict[tuple[str, str], Row]:
  return {(row["rival"], row["shape"]): row for row in rows if row["mode"] == mode}


def _grid(rows: Sequence[Row], mode: str, names: Sequence[str], cell: Callable[[Row], str]) -> str:
  """Rivals against shapes; empty where nothing was measured."""
  by = _by(rows, mode)
  order = [*rivals.JAX_RIVALS, *rivals.TORCH_RIVALS]
  body = [
    [rival, *(cell(by[rival, name]) if (rival, name) in by else "" for name in names)]
    for rival in order
    if any((rival, name) in by for name in names)
  ]
  return table(["", *names], body)


def _ratio(row: Row) -> str:
  if "skipped" in row:
    return "-"
  few = f", {row['rounds']} rounds" if row["rounds"] < _FEW else ""
  return f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f}{few})"


def times(rows: Sequence[Row], mode: str, names: Sequence[str]) -> str:
  """Ratios of medians, and the spread of the ratio from round to round."""
  return _grid(rows, mode, names, _ratio)


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
    goal = goals.get(rival)
    mine = [r for r in by if r["rival"] == rival and "ratio" in r]
    extra = max((r["temp_bytes"] - r["baseline_temp_bytes"]) / r["out_bytes"] for r in mine)
    fits = goal is None or all(r["temp_bytes"] <= targets.allowed_bytes(goal, r) for r in mine)
    allowed = "" if goal is None else f"{goal.outputs} outputs"
    if goal is not None and goal.inputs:
      allowed += f" + {goal.inputs} inputs"
    body.append(
      [
        rival,
        f"{mean:.2f}",
        f"{worst:.2f}",
        "" if goal is None else f"{goal.mean:.2f} / {goal.worst:.2f}",
        f"{extra:.2f} outputs" + ("" if fits else " (more than allowed)"),
        allowed,
      ]
    )
  head = ["", "time, mean", "worst", "target", "scratch beyond a convolution's, most", "target"]
  return table(head, body)


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


def steps(rows: Sequence[Row]) -> str:
  """Ratios of a step of training to that of the convolutional twin."""
  body = [
    [
      row["network"],
      row["replaced"],
      row["kernel"],
      f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
      f"{goal:.2f}" if (goal := step.TARGETS.get((row["network"], row["kernel"]))) else "",
    ]
    for row in rows
  ]
  return table(["network", "kervolutions", "kernel", "time of a step", "target"], body)


def checkouts(rows: Sequence[Row]) -> str:
  """Means over the shapes of this checkout's time over another's, with their 95 % intervals."""
  body = [
    [
      r["rival"],
      r["mode"],
      str(r["shapes"]),
      f"{r['ratio']:.3f}",
      f"{r['low']:.3f}",
      f"{r['high']:.3f}",
    ]
    for r in rows
  ]
  return table(["", "mode", "shapes", "over the other checkout's time", "2.5 %", "97.5 %"], body)


def engine(rows: Sequence[Row]) -> str:
  """Steps a second of a training run and of a bare loop."""
  body = [
    [
      row["preset"],
      f"{row['per_second']:.3g}",
      f"{row['baseline_per_second']:.3g}",
      f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})",
    ]
    for row in rows
  ]
  return table(["preset", "steps a second", "bare loop", "ratio"], body)


def compilation(rows: Sequence[Row]) -> str:
  """Compile times beside a convolutional layer's."""
  body = [[r["kernel"], f"{r['ratio']:.1f}", f"{r['seconds']:.2f}", str(r["loops"])] for r in rows]
  base = [f"{r['baseline_seconds']:.2f}" for r in rows[:1]] + [
    str(r["baseline_loops"]) for r in rows[:1]
  ]
  head = ["", "ratio", "seconds", "fused loops"]
  return table(head, [["convolution", "1.0", *base], *body])


def slopes(rows: Sequence[Row]) -> str:
  """Exponents of time and memory."""
  found = {(row["what"], row["rival"]): row for row in growth.slopes(rows)}
  names = (rivals.BASELINE, *growth.RIVALS)
  body = [
    [
      what,
      *(
        f"{found[what, name]['time']:.2f} / {found[what, name]['memory']:.2f}"
        if (what, name) in found
        else ""
        for name in names
      ),
    ]
    for what in growth.SIZES
  ]
  return table(["", *names], body)


def checks(rows: Sequence[Row]) -> str:
  """Largest errors of each kernel and type."""
  worst: dict[tuple[str, str, float], Row] = {}
  for row in rows:
    key = row["kernel"], row["dtype"], row["bound"]
    if key not in worst or row["error"] > worst[key]["error"]:
      worst[key] = row
  body = [
    [kernel, dtype, row["case"], f"{row['error']:.1e}", f"{bound:g}", "yes" if row["ok"] else "NO"]
    for (kernel, dtype, bound), row in worst.items()
  ]
  return table(["kernel", "type", "worst case", "error", "bound", "holds"], body)


def _where(result: dict[str, Any]) -> str:
  versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
  return (
    f"`{result['command']}` on {result['device']}, {result['cores']} cores; Python "
    f"{result['python']}, {versions}; commit {result['commit']}."
  )


def _operator_page(result: dict[str, Any]) -> list[str]:
  rows, peaks, rates = result["rows"], result.get("peaks", []), result["limits"]
  where = _where(result)
  parts = [
    f"## The operator on {result['device']}",
    where,
    *([_SITTINGS] if "--resume" in result["command"] else []),
    "Time of a rival over that of `lax.conv_general_dilated`, which is timed right beside it, "
    "round by round: the ratio of the medians, and in brackets the 10th and 90th percentile of the "
    "ratio in a round, and the number of rounds where it is small. A dash is what could not run; "
    "the file says why.",
    "### Targets: forward + backward, the six shapes",
    summary(rows),
  ]
  missed = targets.failures(rows, peaks, noise=1.0)
  if missed:
    parts += ["Missed:", "\n".join(f"- {line}" for line in missed)]
  else:
    parts.append("Every target that was measured is met.")
  parts.append(
    "A kernel cannot take less than the convolution in it, neither time nor memory: where unfold "
    "and broadcast take less than 20 times what a convolution takes, no such kernel is 20 times as "
    "good. L1, without a convolution in it, would have to be as fast as one there. The baseline is "
    "XLA's convolution: on the LeNet shapes, and in groups, it is far from the best there is "
    "(beside it PyTorch's), which flatters every kernel there, and L1 most. Compile times have a "
    "target of 1.5, see below. Where every feature is a group, the norms of a distance are as "
    "large as its output, and it takes more scratch memory than above."
  )
  for mode in ("forward + backward", "forward"):
    for names in (_SIX, _REST):
      shown = [name for name in names if any(r["shape"] == name for r in rows)]
      if any(row["mode"] == mode and row["shape"] in shown for row in rows):
        what = "the six shapes" if names is _SIX else "other shapes"
        parts += [f"### Time: {mode}, {what}", times(rows, mode, shown)]
  if any(row["rival"] in rivals.TORCH_RIVALS and "ratio" in row for row in rows):
    parts += [
      "### How many times as long, and how many times the memory, PyTorch takes by unfold and "
      "broadcast",
      against_torch(rows, peaks),
    ]
  parts += [
    "### Memory, forward + backward, in MB: the compiler's scratch / resident at the peak of a run",
    "The first without what the CPU compiler's YNN fusion hides; the second in a fresh process, "
    "beyond what was resident before the run, results included; for small shapes that is mostly "
    "what the library itself sets up on its first run.",
    memory(rows, peaks, [name for name in SHAPES if any(r["shape"] == name for r in rows)]),
    "### Share of the machine's limits, forward + backward, in percent: operations / bytes",
    f"Of {rates['flops_per_second'] / 1e9:.0f} GFLOP/s (a square matrix product) and "
    f"{rates['bytes_per_second'] / 1e9:.1f} GB/s (adding one to an array in place, of 128 MiB). As "
    "the compiler counts, without the YNN fusion, so that bytes that a fusion keeps in the caches "
    "count too; the body of a loop counts once, so that L1, Laplacian and patches do more than is "
    "shown.",
    limits(rows, rates, _SIX),
  ]
  if result.get("compile"):
    parts += [
      "### Compilation of one layer, forward + backward (64x32x32x16, 3x3, 16 features)",
      "The compiler makes each fused loop by itself, at about the same cost; a convolution is one "
      "call of a library; a function that follows it, such as tanh, may already take as long. A "
      "distance needs loops for the norms and for the sum that takes over "
      "where the expansion cancels, forward and backward, so its layer cannot compile in 1.5 times "
      "a convolution's time; a layer that is called twice with one shape compiles twice.",
      compilation(result["compile"]),
    ]
  return parts


def page(results: dict[str, dict[str, Any]]) -> str:
  """The page of results.

  Args:
    results: files by name, see `results.load`.

  Returns:
    Markdown.
  """
  parts = [
    "# Speed and memory",
    "Made by `python -m benchmarks report` from the JSON files beside it.",
  ]
  for backend in ("cpu", "gpu"):
    if f"operator-{backend}" in results:
      parts += _operator_page(results[f"operator-{backend}"])
    if found := results.get(f"step-{backend}"):
      parts += [
        f"## A step of training on {found['device']}",
        _where(found),
        "Over the step of the same network with convolutions, timed right beside it.",
        steps(found["rows"]),
      ]
    if found := results.get(f"engine-{backend}"):
      parts += [
        f"## A training run on {found['device']}",
        _where(found),
        "Steps a second of `python -m experiments train`, losses and progress included, evaluation "
        "and checkpoints not, over those of the same step jitted and called in a bare loop; the "
        "median of the ratios, round by round, and their 10th and 90th percentile. Target: 0.95.",
        engine(found["rows"]),
      ]
    if found := results.get(f"growth-{backend}"):
      parts += [
        f"## Growth on {found['device']}",
        _where(found),
        "Exponent with which time / scratch memory grow in one size, forward + backward: 1 is "
        "linear. The rest is as in 8x32x32x16 -> 16, 3x3.",
        slopes(found["rows"]),
      ]
    if found := results.get(f"correctness-{backend}"):
      parts += [
        f"## Values and gradients on {found['device']}",
        _where(found),
        "Largest error against float64 on the host, over the largest value unless it says "
        "relative.",
        checks(found["rows"]),
      ]
  return "\n\n".join(parts) + "\n"


def section(results: dict[str, dict[str, Any]]) -> str:
  """The README's section: ratios on CPU."""
  operator, training = results["operator-cpu"], results.get("step-cpu")
  rows = operator["rows"]
  body = []
  for rival in (f"{rivals.BASELINE} + ReLU", *rivals.KERNELS):
    found = targets.ratios(rows, rival)
    if not found:
      continue
    worst = max(found, key=lambda name: found[name])
    body.append(
      [rival, f"{targets.geometric_mean(found.values()):.2f}", f"{found[worst]:.2f} ({worst})"]
    )
  parts = [
    "Time of a layer, forward and backward, over that of `lax.conv_general_dilated` in the same "
    f"run, over six shapes from LeNet to ResNet-50 ({operator['cores']} CPU cores, jax "
    f"{operator['versions']['jax']}):",
    table(["", "geometric mean", "worst"], body),
  ]
  factors = [
    targets.against_torch(rows, [], shape, kernel).get("time")
    for shape in targets.TORCH_SHAPES
    for kernel in rivals.BROADCAST
  ]
  known = [factor for factor in factors if factor is not None]
  if known:
    parts.append(
      "The same kernels in PyTorch by unfold and broadcast, as other implementations compute them, "
      f"take {min(known):.0f} to {max(known):.0f} times as long as here, on the CIFAR and ResNet "
      "shapes."
    )
  if training:
    cells = [
      f"{row['network']} with {row['kernel']} ({row['replaced']}) {row['ratio']:.2f}"
      for row in training["rows"]
      if (row["network"], row["kernel"]) in step.TARGETS
    ]
    parts.append(f"A step of training over that of the convolutional twin: {', '.join(cells)}.")
  parts.append(
    "The baseline is XLA's convolution, which is slow on the LeNet shapes. Targets, what misses "
    "them, memory, limits, growth and compile times: [results/speed](results/speed/README.md), by "
    "`python -m benchmarks operator`, `step` and `growth`."
  )
  return "\n\n".join(parts)


def insert(readme: pathlib.Path, text: str) -> None:
  """Puts a text between the marks of a README.

  Args:
    readme: the file.
    text: for the place between the marks.

  Raises:
    ValueError: if the marks are not there.
  """
  content = readme.read_text()
  if content.count(BEGIN) != 1 or content.count(END) != 1:
    raise ValueError(f"{readme} must have the lines {BEGIN!r} and {END!r}, once each")
  before, rest = content.split(BEGIN)
  after = rest.split(END)[1]
  readme.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
