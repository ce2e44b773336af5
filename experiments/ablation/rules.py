"""Whether statements are true of some runs, by rules that are written down here."""

import math
from collections.abc import Mapping, Sequence

from experiments.ablation.arms import ARMS
from experiments.ablation.evidence import FEWEST
from experiments.ablation.rows import Row
from experiments.ablation.speed import common, early_error, steps_to_target
from experiments.ablation.summary import CONFIDENCE, Summary, difference, ratio
from experiments.ablation.verdicts import Answer, Finding

NEARLY, NO_FASTER, NO_BETTER = 0.9, 1.1, 0.001
"""Parts of a claimed factor that will do, quotients of steps or errors that are none, and
differences of accuracy that are none."""
ALIKE = 1.25
"""Quotient of the early errors of networks that learn alike."""
POWER = 0.005
"""Runs that scatter further than this say nothing about a figure of the paper."""

Runs = Mapping[int, Row]
"""Rows of one arm, by seed."""


def faster(fast: Runs, slow: Runs, factor: float, level: float = CONFIDENCE) -> Finding:
  """Whether one network reaches the target in fewer steps than another, by a factor.

  Decided by the 95 % interval of the quotient of steps, slow over fast, seed by seed, which has
  room for the steps between evaluations.  Yes if it lies above the root of the factor and its
  middle is the factor but for a tenth, or more.  No if it lies below the factor, or below 1.1 where
  the factor is 1; and if a run of the first network does not reach the target.  Where one of the
  other does not, the quotient is only known to be larger than with its last step, and no interval
  says no.

  Args:
    fast: runs of the network that is said to be faster.
    slow: runs of the other one.
    factor: by which it is said to be; 1 is any.
    level: of the interval.
  """
  seeds, early = _comparable(fast, slow)
  if early:
    return early
  never = [sum(steps_to_target(runs[seed]) is None for seed in seeds) for runs in (fast, slow)]
  if never[0]:
    text = f"{_name(fast)} does not reach 98 % in {never[0]} of {len(seeds)} runs"
    return Finding(Answer.NO, text + f", {_name(slow)} in {never[1]}")
  whole = max(runs[seed]["curve"]["steps"][-1] for runs in (fast, slow) for seed in seeds)
  above, below = ([steps_to_target(runs[seed]) or whole for seed in seeds] for runs in (slow, fast))
  blur = math.hypot(*(_grain(runs, seeds) for runs in (fast, slow)))
  quotient = ratio(above, below, blur, level)
  yes = quotient.low > math.sqrt(factor) and quotient.mean >= NEARLY * factor
  text = f"{_name(fast)} {'at least ' if never[1] else ''}{_times(quotient)} as fast as "
  text += _name(slow)
  if never[1]:
    text += f", which does not reach 98 % in {never[1]} of {len(seeds)} runs"
  no = not never[1] and quotient.high < max(factor, NO_FASTER)
  return Finding(_answer(yes, no), text)


def fewer_errors(ours: Runs, theirs: Runs, level: float = CONFIDENCE) -> Finding:
  """Whether one network makes fewer errors than another in the first epochs, see `early_error`.

  Yes if the 95 % interval of the quotient of errors, theirs over ours, seed by seed, lies above 1;
  no if it lies below 1.1.

  Args:
    ours: runs of the network that is said to be better.
    theirs: runs of the other one.
    level: of the interval.
  """
  seeds, early = _comparable(ours, theirs)
  if early:
    return early
  quotient = _lead(ours, theirs, seeds, level)
  text = f"{_name(theirs)} makes {_times(quotient)} as many errors as {_name(ours)}"
  return Finding(_answer(quotient.low > 1, quotient.high < NO_FASTER), text)


def lead_shrinks(paper: tuple[Runs, Runs], tuned: tuple[Runs, Runs]) -> Finding:
  """Whether a network's lead in the first epochs is smaller once both have their own learning rate.

  Yes if the 95 % interval of the quotient of leads, each a quotient of errors as in `fewer_errors`,
  seed by seed, lies above 1; no if it lies below 1.1.

  Args:
    paper: runs of the network and of the other one, by the paper's protocol.
    tuned: of the same networks, with their own rates.
  """
  seeds = sorted(set.intersection(*(set(runs) for runs in (*paper, *tuned))))
  for pair in (paper, tuned):
    _, early = _comparable(*({seed: runs[seed] for seed in seeds} for runs in pair))
    if early:
      return early
  above, below = ([_quotient(*pair, seed) for seed in seeds] for pair in (paper, tuned))
  shrinks = ratio(above, below)
  leads = [_lead(*pair, seeds) for pair in (paper, tuned)]
  text = (
    f"{_name(paper[1])} makes {leads[0].mean:.2f} times as many errors as {_name(paper[0])} by "
  )
  text += f"the paper's protocol, {leads[1].mean:.2f} times with tuned rates: a quotient of "
  return Finding(_answer(shrinks.low > 1, shrinks.high < NO_FASTER), text + _bracket(shrinks))


def more_accurate(ours: Runs, theirs: Runs, level: float = CONFIDENCE) -> Finding:
  """Whether one network has a higher final accuracy than another.

  Yes if the 95 % interval of the difference, seed by seed, lies above 0; no if it lies below 0.1
  points, ten of the 10,000 test images.

  Args:
    ours: runs of the network that is said to be better.
    theirs: runs of the other one.
    level: of the interval.
  """
  seeds, early = _comparable(ours, theirs)
  if early:
    return early
  gap = difference(_accuracies(ours, seeds), _accuracies(theirs, seeds), level)
  return Finding(_answer(gap.low > 0, gap.high < NO_BETTER), _points(ours, gap))


def not_worse(ours: Runs, theirs: Runs) -> Finding:
  """Whether one network's final accuracy is not below another's, but for 0.1 points.

  Yes if the 95 % interval of the difference, seed by seed, lies above that; no if it lies below.

  Args:
    ours: runs of the network that is said to be as good.
    theirs: runs of the other one.
  """
  seeds, early = _comparable(ours, theirs)
  if early:
    return early
  gap = difference(_accuracies(ours, seeds), _accuracies(theirs, seeds))
  return Finding(_answer(gap.low >= -NO_BETTER, gap.high < -NO_BETTER), _points(ours, gap))


def alike(ours: Runs, theirs: Runs) -> Finding:
  """Whether two networks learn alike in the first epochs.

  Yes if all final weights are the same, bit for bit, or if the 95 % interval of the quotient of
  errors, as in `fewer_errors`, is within a factor of 1.25; no if it is outside of that.

  Args:
    ours: runs of one network.
    theirs: runs of the other one.
  """
  seeds, early = _comparable(ours, theirs)
  if early:
    return early
  if all(ours[seed]["weights"] == theirs[seed]["weights"] for seed in seeds):
    text = f"the same weights in the end, bit for bit, in {len(seeds)} of {len(seeds)} runs"
    return Finding(Answer.YES, text)
  quotient = _lead(ours, theirs, seeds)
  gap = difference(_accuracies(ours, seeds), _accuracies(theirs, seeds))
  yes = quotient.low >= 1 / ALIKE and quotient.high <= ALIKE
  no = quotient.low > ALIKE or quotient.high < 1 / ALIKE
  text = f"{_name(theirs)} makes {_times(quotient)} as many errors as {_name(ours)}; in the end "
  return Finding(_answer(yes, no), text + _points(ours, gap))


def reaches(runs: Runs, accuracy: float) -> Finding:
  """Whether a network has the accuracy that the paper gives for one run, or a higher one.

  Yes if the mean of ours is not lower, or if the paper's is within the interval in which one more
  run of ours falls with a probability of 95 %, and that is narrower than half a point to each side.
  No if it lies above the interval, or if a run diverged.

  Args:
    runs: of the network.
    accuracy: the paper's.
  """
  return _value(runs, accuracy, at_least=True)


def has(runs: Runs, accuracy: float) -> Finding:
  """Whether a network has the accuracy that the paper gives for one run.

  As `reaches`, but neither lower nor higher.

  Args:
    runs: of the network.
    accuracy: the paper's.
  """
  return _value(runs, accuracy, at_least=False)


def shared_level(number: int) -> float:
  """The level of each of several intervals of which all hold with 95 % (Bonferroni).

  Args:
    number: of intervals.
  """
  return 1 - (1 - CONFIDENCE) / number


def _value(runs: Runs, accuracy: float, *, at_least: bool) -> Finding:
  if len(runs) < FEWEST:
    return _too_few(len(runs))
  seeds = sorted(runs)
  if _diverged(runs, seeds):
    return Finding(Answer.NO, "a run diverged")
  summary = Summary.of(_accuracies(runs, seeds))
  low, high = summary.next_run()
  text = f"{100 * summary.mean:.2f} %, another run in [{100 * low:.2f}, {100 * min(high, 1):.2f}]"
  no = accuracy > high or (not at_least and accuracy < low)
  yes = high - summary.mean <= POWER or (at_least and summary.mean >= accuracy)
  return Finding(_answer(yes and not no, no), text)


def _comparable(ours: Runs, theirs: Runs) -> tuple[list[int], Finding | None]:
  """Seeds that both have, and what can be said at once where runs are missing or diverged."""
  seeds = sorted(ours.keys() & theirs.keys())
  if len(seeds) < FEWEST:
    return seeds, _too_few(len(seeds))
  for runs, answer in ((ours, Answer.NO), (theirs, Answer.UNDECIDED)):
    if lost := _diverged(runs, seeds):
      text = f"{_name(runs)} diverged in {lost} of {len(seeds)} runs"
      return seeds, Finding(answer, text)
  return seeds, None


def _lead(ours: Runs, theirs: Runs, seeds: Sequence[int], level: float = CONFIDENCE) -> Summary:
  """Quotients of errors in the first epochs."""
  quotients = [_quotient(ours, theirs, seed) for seed in seeds]
  return ratio(quotients, [1.0] * len(seeds), level=level)


def _quotient(ours: Runs, theirs: Runs, seed: int) -> float:
  return (early_error(theirs[seed]) or math.nan) / (early_error(ours[seed]) or math.nan)


def _answer(yes: bool, no: bool) -> Answer:
  """What is decided, if anything is."""
  if yes:
    return Answer.YES
  return Answer.NO if no else Answer.UNDECIDED


def _diverged(runs: Runs, seeds: Sequence[int]) -> int:
  return sum(runs[seed]["diverged_at"] is not None for seed in seeds)


def _grain(runs: Runs, seeds: Sequence[int]) -> float:
  """Standard deviation of the logarithm of steps, for they are known but for an interval."""
  variances = []
  for seed in seeds:
    if steps := steps_to_target(runs[seed]):
      before = max((step for step in common(runs[seed]) if step < steps), default=0)
      variances.append(((steps - before) / steps) ** 2 / 12)
  return math.sqrt(sum(variances) / len(seeds))


def _accuracies(runs: Runs, seeds: Sequence[int]) -> list[float]:
  return [runs[seed]["accuracy"] for seed in seeds]


def _too_few(number: int) -> Finding:
  return Finding(Answer.MISSING, f"{number} of at least {FEWEST} seeds")


def _name(runs: Runs) -> str:
  """What the network is called."""
  return ARMS[next(iter(runs.values()))["spec"]["arm"]].label


def _times(quotient: Summary) -> str:
  return f"{quotient.mean:.2f} times [{quotient.low:.2f}, {quotient.high:.2f}]"


def _bracket(quotient: Summary) -> str:
  return f"{quotient.mean:.2f} [{quotient.low:.2f}, {quotient.high:.2f}]"


def _points(ours: Runs, gap: Summary) -> str:
  """A difference in words."""
  low, high = (f"{100 * end:+.2f}" for end in (gap.low, gap.high))
  return f"{_name(ours)} {100 * gap.mean:+.2f} points [{low}, {high}]"
