"""Rules about how fast networks learn."""

import math
from collections.abc import Sequence

from experiments.ablation.runs import (
  Runs,
  accuracies,
  bracket,
  comparable,
  decided,
  label,
  points,
)
from experiments.ablation.speed import Reading, common, early_error, every, steps_to_target
from experiments.ablation.summary import CONFIDENCE, Summary, difference, ratio
from experiments.ablation.verdicts import Answer, Finding

NEARLY, NO_FASTER = 0.9, 1.1
"""Part of a claimed factor that will do, and quotients that are none."""
ALIKE = 1.25
"""Quotient of the early errors of networks that learn alike."""


def faster(fast: Runs, slow: Runs, factor: float, level: float = CONFIDENCE) -> Finding:
  """Whether one network reaches the target in fewer steps than another, by a factor.

  Decided by the 95 % interval of the quotient of steps, slow over fast, seed by seed, which has
  room for the steps between evaluations.  Yes if it lies above the root of the factor, its middle
  is the factor but for a tenth, or more, and its upper end not below the factor.  Else no if it
  lies below the factor, or below 1.1 where the factor is 1; and if the first network does not reach
  the target in as many runs as the other one, or more.  Where only the other one does not, the
  quotient is only known to be larger than with its last step, and no interval says no.

  All that is looked at twice: at the evaluations that all epochs have, whose numbers are told, and
  at all of them, of which the first epoch has more. What they say differently is undecided.

  Args:
    fast: runs of the network that is said to be faster.
    slow: runs of the other one.
    factor: by which it is said to be; 1 is any.
    level: of the interval.
  """
  seeds, early = comparable(fast, slow)
  if early:
    return early
  few, all_ = (_faster(fast, slow, seeds, factor, level, reading) for reading in (common, every))
  if few.answer is all_.answer:
    return few
  return Finding(Answer.UNDECIDED, f"{few.numbers} (by all evaluations {all_.numbers})")


def fewer_errors(ours: Runs, theirs: Runs, level: float = CONFIDENCE) -> Finding:
  """Whether one network makes fewer errors than another in the first epochs, see `early_error`.

  Yes if the 95 % interval of the quotient of errors, theirs over ours, seed by seed, lies above 1;
  else no if it lies below 1.1.

  Args:
    ours: runs of the network that is said to be better.
    theirs: runs of the other one.
    level: of the interval.
  """
  seeds, early = comparable(ours, theirs)
  if early:
    return early
  quotient = _lead(ours, theirs, seeds, level)
  text = f"{label(theirs)} makes {_times(quotient)} as many errors as {label(ours)}"
  return Finding(decided(quotient.low > 1, quotient.high < NO_FASTER), text)


def lead_shrinks(paper: tuple[Runs, Runs], tuned: tuple[Runs, Runs]) -> Finding:
  """Whether a network's lead in the first epochs is smaller once both have their own learning rate.

  Yes if there is a lead by the paper's protocol, as `fewer_errors` tells, and the 95 % interval of
  the quotient of leads, each a quotient of errors, seed by seed, lies above 1; else no if one of
  both intervals lies below 1.1.

  Args:
    paper: runs of the network and of the other one, by the paper's protocol.
    tuned: of the same networks, with their own rates.
  """
  seeds = sorted(set.intersection(*(set(runs) for runs in (*paper, *tuned))))
  for pair in (paper, tuned):
    _, early = comparable(*({seed: runs[seed] for seed in seeds} for runs in pair))
    if early:
      answer = Answer.MISSING if early.answer is Answer.MISSING else Answer.UNDECIDED
      return Finding(answer, early.numbers)
  above, below = ([_quotient(*pair, seed) for seed in seeds] for pair in (paper, tuned))
  shrinks = ratio(above, below)
  leads = [_lead(*pair, seeds) for pair in (paper, tuned)]
  yes = leads[0].low > 1 and shrinks.low > 1
  no = leads[0].high < NO_FASTER or shrinks.high < NO_FASTER
  errors = [
    f"{label(before)} {_error(before, seeds)} -> {_error(after, seeds)}"
    for before, after in zip(paper, tuned, strict=True)
  ]
  text = "" if leads[0].high >= 1 else "no lead: "
  text += f"errors {' %, '.join(errors)} %; lead {bracket(leads[0])} -> {bracket(leads[1])}, "
  return Finding(decided(yes, no), text + f"shrinks by a factor of {bracket(shrinks)}")


def alike(ours: Runs, theirs: Runs) -> Finding:
  """Whether two networks learn alike in the first epochs.

  Yes if all final weights are the same, bit for bit, or if the 95 % interval of the quotient of
  errors, as in `fewer_errors`, is within a factor of 1.25; no if it is outside of that.

  Args:
    ours: runs of one network.
    theirs: runs of the other one.
  """
  seeds, early = comparable(ours, theirs)
  if early:
    return early
  if all(ours[seed]["weights"] == theirs[seed]["weights"] for seed in seeds):
    text = f"the same weights in the end, bit for bit, in {len(seeds)} of {len(seeds)} runs"
    return Finding(Answer.YES, text)
  quotient = _lead(ours, theirs, seeds)
  gap = difference(accuracies(ours, seeds), accuracies(theirs, seeds))
  yes = quotient.low >= 1 / ALIKE and quotient.high <= ALIKE
  no = quotient.low > ALIKE or quotient.high < 1 / ALIKE
  text = f"{label(theirs)} makes {_times(quotient)} as many errors as {label(ours)}; in the end "
  return Finding(decided(yes, no), text + points(ours, gap))


def _lead(ours: Runs, theirs: Runs, seeds: Sequence[int], level: float = CONFIDENCE) -> Summary:
  """Quotients of errors in the first epochs."""
  quotients = [_quotient(ours, theirs, seed) for seed in seeds]
  return ratio(quotients, [1.0] * len(seeds), level=level)


def _quotient(ours: Runs, theirs: Runs, seed: int) -> float:
  return (early_error(theirs[seed]) or math.nan) / (early_error(ours[seed]) or math.nan)


def _faster(
  fast: Runs, slow: Runs, seeds: Sequence[int], factor: float, level: float, reading: Reading
) -> Finding:
  """As `faster`, at these evaluations."""
  fast_steps, slow_steps = (
    [steps_to_target(runs[seed], reading) for seed in seeds] for runs in (fast, slow)
  )
  never = fast_steps.count(None), slow_steps.count(None)
  if never[0]:
    text = f"{label(fast)} does not reach 98 % in {never[0]} of {len(seeds)} runs"
    answer = Answer.NO if never[0] >= never[1] else Answer.UNDECIDED
    return Finding(answer, text + f", {label(slow)} in {never[1]}")
  whole = max(runs[seed]["curve"]["steps"][-1] for runs in (fast, slow) for seed in seeds)
  above, below = ([steps or whole for steps in each] for each in (slow_steps, fast_steps))
  blur = math.hypot(*(_grain(runs, seeds, reading) for runs in (fast, slow)))
  quotient = ratio(above, below, blur, level)
  yes = (
    quotient.low > math.sqrt(factor)
    and quotient.mean >= NEARLY * factor
    and quotient.high >= factor
  )
  text = f"{label(fast)} {'at least ' if never[1] else ''}{_times(quotient)} as fast as "
  text += label(slow)
  if never[1]:
    text += f", which does not reach 98 % in {never[1]} of {len(seeds)} runs"
  no = not never[1] and quotient.high < max(factor, NO_FASTER)
  return Finding(decided(yes, no), text)


def _grain(runs: Runs, seeds: Sequence[int], reading: Reading) -> float:
  """Standard deviation of the logarithm of steps, for they are known but for an interval."""
  variances = []
  for seed in seeds:
    if steps := steps_to_target(runs[seed], reading):
      before = max((step for step in reading(runs[seed]) if step < steps), default=0)
      variances.append(((steps - before) / steps) ** 2 / 12)
  return math.sqrt(sum(variances) / len(seeds))


def _error(runs: Runs, seeds: Sequence[int]) -> str:
  """The mean early error, in percent."""
  return f"{100 * sum(early_error(runs[seed]) or 0.0 for seed in seeds) / len(seeds):.2f}"


def _times(quotient: Summary) -> str:
  return f"{quotient.mean:.2f} times [{quotient.low:.2f}, {quotient.high:.2f}]"
