"""Time side by side, memory, work, and the limits of the machine."""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Call = Callable[[int], None]
"""Runs something so many times, one after another, to the end."""

_SAMPLE_SECONDS = 0.003  # a sample repeats what is timed until it takes about this long
_REST_SECONDS = 0.002  # between samples: threads of the one before may still spin
_NO_YNN_FUSION: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": ""}


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A rival's time beside the baseline's, alternating round by round.

  Attributes:
    milliseconds: median of the rival's.
    baseline_milliseconds: median of the baseline's.
    ratio: of the two.
    low: 10th percentile of the ratio in a round.
    high: 90th percentile.
    rounds: how many.
  """

  milliseconds: float
  baseline_milliseconds: float
  ratio: float
  low: float
  high: float
  rounds: int

  def row(self) -> dict[str, float | int]:
    """Its fields to four digits."""
    fields = dataclasses.asdict(self).items()
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in fields}


def spread(row: dict[str, Any], digits: int = 2) -> str:
  """The ratio of a row, and its ends, for a line about it."""
  ratio, low, high = (f"{row[key]:.{digits}f}" for key in ("ratio", "low", "high"))
  return f"{ratio} [{low}, {high}]"


def compare(rival: Call, baseline: Call, *, rounds: int, seconds: float) -> Comparison:
  """Times a rival right beside a baseline.

  Args:
    rival: is called once to warm up.
    baseline: likewise.
    rounds: of one sample each, in an order that alternates; at least 3.
    seconds: to stop after, once there are 3 rounds.

  Returns:
    The medians, their ratio and its spread.
  """
  pairs = paired(rival, baseline, rounds=rounds, seconds=seconds)
  mine, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
  tenths = statistics.quantiles([a / b for a, b in pairs], n=10, method="inclusive")
  return Comparison(1e3 * mine, 1e3 * theirs, mine / theirs, tenths[0], tenths[-1], len(pairs))


def paired(
  rival: Call, baseline: Call, *, rounds: int, seconds: float
) -> list[tuple[float, float]]:
  """Times a rival right beside a baseline, see `compare`.

  Returns:
    The seconds that one run of each took, round by round.
  """
  repeats = {call: _repeats(call) for call in (rival, baseline)}
  pairs: list[tuple[float, float]] = []
  start = time.perf_counter()
  while len(pairs) < rounds and (len(pairs) < 3 or time.perf_counter() - start <= seconds):
    order = (baseline, rival) if len(pairs) % 2 else (rival, baseline)
    times = {}
    for call in order:
      time.sleep(_REST_SECONDS)
      times[call] = _seconds(call, repeats[call])
    pairs.append((times[rival], times[baseline]))
  return pairs


def _repeats(call: Call) -> int:
  """How many runs make a sample."""
  call(1)
  return max(1, round(_SAMPLE_SECONDS / max(_seconds(call, 1), 1e-6)))


def _seconds(call: Call, number: int) -> float:
  """What one of so many runs takes."""
  start = time.perf_counter()
  call(number)
  return (time.perf_counter() - start) / number


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled program and what the compiler says of it.

  Attributes:
    call: runs it with the arguments that it was compiled for.
    compile_seconds: of tracing, lowering and compiling.
    temp_bytes: scratch memory, without what the CPU compiler's YNN fusion hides.
    flops: that the compiler counts; a loop's body counts once.
    bytes_accessed: likewise.
  """

  call: Call
  compile_seconds: float
  temp_bytes: int
  flops: float
  bytes_accessed: float


def compiled(function: Callable[..., Any], *arguments: Any) -> Program:
  """Compiles a function.

  Args:
    function: to be compiled.
    arguments: it is called with, on the device.

  Returns:
    The program.
  """
  start = time.perf_counter()
  lowered = jax.jit(lambda *args: function(*args)).lower(*arguments)
  program = lowered.compile()
  seconds = time.perf_counter() - start
  on_cpu = jax.default_backend() == "cpu"
  analysed = lowered.compile(compiler_options=_NO_YNN_FUSION) if on_cpu else program
  memory, cost = analysed.memory_analysis(), analysed.cost_analysis() or {}
  assert memory is not None  # both CPU and GPU tell

  def call(number: int) -> None:
    result = None
    for _ in range(number):
      result = program(*arguments)
      if on_cpu:  # where runs that do not wait for each other could overlap
        jax.block_until_ready(result)
    jax.block_until_ready(result)

  return Program(
    call,
    compile_seconds=seconds,
    temp_bytes=memory.temp_size_in_bytes,
    flops=float(cost.get("flops", 0)),
    bytes_accessed=float(cost.get("bytes accessed", 0)),
  )


def compile_from_nothing(function: Callable[..., Any], *arguments: Any) -> tuple[float, int]:
  """Traces, lowers and compiles a function as if for the first time.

  Args:
    function: to be compiled.
    arguments: it is called with.

  Returns:
    Seconds, and how many fused loops the compiler made machine code for.
  """
  jax.clear_caches()
  start = time.perf_counter()
  program = jax.jit(lambda *args: function(*args)).lower(*arguments).compile()
  seconds = time.perf_counter() - start
  return seconds, (program.as_text() or "").count(" fusion(")


@dataclasses.dataclass(frozen=True)
class Limits:
  """What the device does at best.

  Attributes:
    flops_per_second: of a square matrix product in float32, at the default precision.
    bytes_per_second: read and written by adding one to an array in place.
  """

  flops_per_second: float
  bytes_per_second: float


def busy() -> str | None:
  """Returns a line if others compute on this machine; None if they do not, or it does not tell."""
  cores = os.cpu_count() or 1
  try:
    load = os.getloadavg()[0]
  except (AttributeError, OSError):
    return None
  if load <= 0.5 * cores:
    return None
  return (
    f"this machine is busy: a load of {load:.1f} on {cores} cores in the last minute. Ratios, "
    "which are timed side by side, scatter more, and all of it takes longer"
  )


def limits() -> Limits:
  """Measures them; about a second."""
  size = 2048 if jax.default_backend() == "cpu" else 8192
  number = 2**25 if jax.default_backend() == "cpu" else 2**28

  def ones(*shape: int) -> Array:
    return jax.device_put(jnp.ones(shape, jnp.float32))

  product = compiled(lambda a, b: lax.dot(a, b), ones(size, size), ones(size, size))
  # In place: a new array would be timed with the faults of its pages.
  add = jax.jit(lambda a: a + 1, donate_argnums=0)
  array = ones(number)

  def in_place(runs: int) -> None:
    nonlocal array
    for _ in range(runs):
      array = add(array)
    jax.block_until_ready(array)

  return Limits(2 * size**3 / _fastest(product.call), 2 * 4 * number / _fastest(in_place))


def _fastest(call: Call) -> float:
  """The least of ten times, in seconds."""
  call(1)
  return min(_seconds(call, 1) for _ in range(10))
