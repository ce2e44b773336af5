"""The loop over batches: a step for each of them, or a score, and the clock."""

import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import jax
import numpy as np

from experiments.data import Batch, Picks
from experiments.engine.layout import Layout
from experiments.engine.programs import Programs
from experiments.engine.step import TrainState

LoopName = Literal["python", "scan"]
Batches = Iterable[Batch | Picks]

_AHEAD = 4  # steps that the host is ahead of the device: it need not wait, and can soon stop


class Loop:
  """Takes a step for each of some batches, or sums up scores of them.

  Args:
    step: a function from a state and a batch to the next state and the loss.
    score: a function from a state and a batch to sums over the batch.
    layout: devices that share a batch.
    programs: keeper of the compiled functions.
    name: way in which several steps are run: "scan" as one `jax.lax.scan`, for picks alone,
      "python" as a loop over a compiled step. A convolution inside a scan takes three to four times
      as long on CPU, and a dispatch per step leaves a GPU idle, so None is "python" on CPU and
      "scan" elsewhere.
  """

  def __init__(
    self,
    step: Callable[[TrainState, Any], tuple[TrainState, jax.Array]],
    score: Callable[[TrainState, Any], tuple[jax.Array, ...]],
    layout: Layout,
    programs: Programs,
    name: LoopName | None = None,
  ):
    self.step, self.score = step, score
    self.layout, self.programs = layout, programs
    self.name: LoopName = name or ("python" if jax.default_backend() == "cpu" else "scan")

  def steps(
    self, state: TrainState, batches: Batches, stop: Callable[[], bool] = lambda: False
  ) -> tuple[TrainState, np.ndarray, float]:
    """Takes one step for each batch, as it comes.

    Args:
      state: state to start from; its buffers are reused, so it cannot be used again.
      batches: the batches; no more of them are taken than steps.
      stop: function that is asked after each step of a loop in Python; True ends the loop.

    Returns:
      The state after the steps, the loss before each of them, and the seconds they took, without
      compilation but waiting for data included.
    """
    if self.name == "scan":
      return self._scan(state, batches)
    losses: list[jax.Array] = []
    compiled, start = self.programs.compile_seconds, time.perf_counter()
    program = None
    for batch in map(self._place, batches):
      program = program or self._training_program(self.step, state, batch)
      state, loss = program(state, batch)
      losses.append(loss)
      if len(losses) > _AHEAD:
        losses[-_AHEAD].block_until_ready()
      if stop():
        break
    jax.block_until_ready(state)
    seconds = time.perf_counter() - start - (self.programs.compile_seconds - compiled)
    return state, np.asarray(jax.device_get(losses)), seconds

  def sums(self, state: TrainState, batches: Batches) -> np.ndarray:
    """Sums up the scores of batches.

    Args:
      state: the state that has the parameters.
      batches: the batches, at least one.

    Returns:
      The sum over all batches of what the score gives, in float64.
    """
    program, totals = None, []
    for batch in map(self._place, batches):
      program = program or self.programs.compiled(self.score, state, batch)
      totals.append(program(state, batch))
    return np.asarray(jax.device_get(totals), np.float64).sum(axis=0)

  def _scan(self, state: TrainState, batches: Batches) -> tuple[TrainState, np.ndarray, float]:
    """Takes the steps as one program, over picks from one set."""

    def scan(state: TrainState, batch: Picks) -> tuple[TrainState, jax.Array]:
      return jax.lax.scan(
        lambda state, ids: self.step(state, batch._replace(ids=ids)), state, batch.ids
      )

    first, *rest = batches
    assert isinstance(first, Picks)
    order = np.stack([first.ids, *(batch.ids for batch in rest)])
    batch = first._replace(ids=self.layout.put(order, self.layout.batches))
    program = self._training_program(scan, state, batch)
    start = time.perf_counter()
    state, losses = program(state, batch)
    jax.block_until_ready(state)
    return state, np.asarray(losses), time.perf_counter() - start

  def _place(self, batch: Batch | Picks) -> Batch | Picks:
    """Returns the batch where the devices find it."""
    if isinstance(batch, Batch):
      return jax.tree.map(self.layout.put_rows, batch)
    ids, mask = jax.tree.map(
      lambda rows: self.layout.put(rows, self.layout.batch), (batch.ids, batch.mask)
    )
    return batch._replace(ids=ids, mask=mask)

  def _training_program(
    self, function: Callable[..., Any], state: TrainState, batch: Batch | Picks
  ) -> Callable[..., Any]:
    """Returns the compiled function, which reuses the state's buffers and keeps its places."""
    options: dict[str, Any] = {"donate_argnums": 0}
    if self.layout.size > 1:
      shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
      options["out_shardings"] = shardings, self.layout.replicated
    return self.programs.compiled(function, state, batch, **options)
