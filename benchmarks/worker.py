"""One rival in a process of its own: `python -m benchmarks.worker SPEC`.

Says on its first line how much memory one run needed at most beyond what was there before. Then,
for each line of its input, it runs as many times as the line says and answers with an empty line,
or, where the line is "compile", compiles from nothing and says how many seconds that took and how
many fused loops there are. It imports PyTorch only for a rival there.
"""

import ctypes
import dataclasses
import functools
import gc
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.shapes import Shape

HERE = pathlib.Path(__file__).parents[1]
"""Folder of this checkout."""


class Worker:
  """A rival in a process of its own.

  Args:
    rival: of `benchmarks.rivals`.
    shape: of the layer.
    backward: whether the gradients are taken as well.
    library: folder that `kerv_jax` is imported from; None is wherever Python finds it.

  Raises:
    RuntimeError: where an answer is waited for, with the end of its error output, if the process
      fails. The first is that of `peak_bytes`, so that several can start at once.
  """

  def __init__(
    self, rival: str, shape: Shape, *, backward: bool, library: pathlib.Path | None = None
  ):
    where = None if library is None else str(library.resolve())
    spec = json.dumps(
      {"rival": rival, "backward": backward, "library": where, **dataclasses.asdict(shape)}
    )
    self._process = subprocess.Popen(
      [sys.executable, "-m", "benchmarks.worker", spec],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  @functools.cached_property
  def peak_bytes(self) -> int | None:
    """Resident memory of one run, at its peak, beyond what was there before.

    It is None where the system does not tell.
    """
    return json.loads(self._answer())

  def __call__(self, number: int) -> None:
    """Runs the rival so many times."""
    self._ask(str(number))

  def compile(self) -> tuple[float, int]:
    """Compiles the rival from nothing; seconds and the number of its fused loops."""
    seconds, loops = json.loads(self._ask("compile"))
    return seconds, loops

  def __enter__(self) -> "Worker":
    return self

  def __exit__(self, *error: object) -> None:
    self._process.kill()
    self._process.communicate()

  def _ask(self, line: str) -> str:
    _ = self.peak_bytes  # the first answer
    assert self._process.stdin is not None
    self._process.stdin.write(f"{line}\n")
    self._process.stdin.flush()
    return self._answer()

  def _answer(self) -> str:
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if not line:
      error = self._process.communicate()[1][-2000:]
      raise RuntimeError(
        f"a benchmark's process ended with exit code {self._process.returncode}: {error}"
      )
    return line


def _resident(field: str) -> int | None:
  """A field of this process's memory, in bytes, on Linux."""
  try:
    with open("/proc/self/status") as status:
      lines = dict(line.split(":", 1) for line in status)
    return 1024 * int(lines[field].split()[0])
  except (OSError, KeyError):
    return None


def _peak(call: Callable[[int], Any]) -> int | None:
  """Memory at the peak of one run beyond what was there before."""
  gc.collect()
  try:
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free would be used again, and not be seen
    with open("/proc/self/clear_refs", "w") as refs:
      refs.write("5")  # the peak so far is forgotten
  except OSError:
    return None
  before = _resident("VmRSS")
  call(1)
  peak = _resident("VmHWM")
  return None if before is None or peak is None else max(0, peak - before)


def _rival(
  spec: dict[str, Any],
) -> tuple[Callable[[int], Any], Callable[[], tuple[float, int]] | None]:
  """The rival, ready to run, and what compiles it again, if that can be."""
  rival, backward, library = (spec.pop(key) for key in ("rival", "backward", "library"))
  fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.items()}
  shape = Shape(**fields)
  if rival.startswith("PyTorch"):
    from benchmarks.torch_rivals import layer as torch_layer

    return torch_layer(rival, shape, backward=backward), None
  import_from(None if library is None else pathlib.Path(library))
  from benchmarks import measure, rivals

  function = rivals.program(rivals.layer(rival, shape), backward=backward)
  operands = shape.operands()
  call = measure.compiled(function, *operands).call
  return call, lambda: measure.compile_from_nothing(function, *operands)


def import_from(library: pathlib.Path | None) -> None:
  """Imports `kerv_jax` from a folder, and nothing else of this repository.

  Args:
    library: the folder; None is wherever Python finds it.

  Raises:
    ImportError: if it comes from somewhere else, as where it is imported already.
  """
  if library is None:
    return
  sys.path.insert(0, str(library.resolve()))
  import kerv_jax

  found = pathlib.Path(kerv_jax.__file__).parents[1]
  sys.path.remove(str(library.resolve()))
  if found != library.resolve():
    raise ImportError(f"kerv_jax was imported from {found}, not from {library}")


def main() -> None:
  """Serves one rival."""
  call, compile_again = _rival(json.loads(sys.argv[1]))
  print(json.dumps(_peak(call)), flush=True)
  for line in sys.stdin:
    if line.strip() == "compile":
      assert compile_again is not None, "a rival in PyTorch is not compiled"
      print(json.dumps(compile_again()), flush=True)
    else:
      call(int(line))
      print(flush=True)


if __name__ == "__main__":
  main()
