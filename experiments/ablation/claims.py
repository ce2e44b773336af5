"""What is judged, by rules.toml: from rows to numbers, and from numbers to verdicts."""

import dataclasses
import itertools
import math
from collections.abc import Iterable

import numpy as np
from scipy import stats

from experiments.ablation.arms import ARMS
from experiments.ablation.evidence import MEASURES, Evidence
from experiments.ablation.rules import FEWEST, RULES
from experiments.ablation.study import FEW, MAIN, Rates
from experiments.common.statistics import CONFIDENCE, Estimate, adjusted


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement that rows can decide, see rules.toml."""

  text: str
  rule: str  # a measure, "reaches" or "spread"
  study: str  # in whose table its networks are compared
  ours: tuple[str, ...]  # networks of which it is said
  theirs: tuple[str, ...] = ()  # networks that they are compared with
  says: str = ""  # what the paper says, and where
  mode: str = "more"  # or "alike", or "as"
  over: str = "every"  # pair, "some", or "each" with the one at its place
  value: float | None = None  # an accuracy of the paper
  factor: float | None = None  # by which the paper says that a network is faster
  main: bool = False  # whether the README repeats it


@dataclasses.dataclass(frozen=True)
class Finding:
  """What rows say of a claim at one learning rate."""

  numbers: str
  yes: float = math.nan  # p-value of the hypothesis that it does not hold; NaN without runs
  no: float = math.nan  # p-value of the hypothesis that it holds
  ends: tuple[float, float] = (math.nan, math.nan)  # of the interval

  @property
  def holds(self) -> bool:
    """Whether the claim holds, if anything is decided; where both could be said, it does."""
    return 2 * self.yes < 1 - CONFIDENCE or self.yes < self.no

  @property
  def p_value(self) -> float:
    """Two-sided, of what would be said."""
    return min(2 * (self.yes if self.holds else self.no), 1.0)

  @property
  def missing(self) -> bool:
    """Whether there are too few runs to decide anything."""
    return math.isnan(self.yes)


def _read(name: str) -> tuple[Claim, ...]:
  named = ("ours", "theirs")
  return tuple(
    Claim(**claim | {key: tuple(claim.get(key, ())) for key in named}) for claim in RULES[name]
  )


PAPER, OURS = _read("paper"), _read("ours")


def find(claim: Claim, evidence: Evidence, tuned: bool) -> Finding | None:
  """Returns what rows say of a claim at 0.003 or at own rates; None if not asked there."""
  measured = MEASURES.get(claim.rule)
  rates: Rates = evidence.best_rates(claim.rule) if tuned and measured else "paper"
  named, more = {*claim.ours, *claim.theirs}, FEW if rates == "early" else ()
  if tuned and not (measured and measured.kind == "training" and named <= {*MAIN, *more}):
    return None
  if claim.rule == "spread":
    return _spread(claim, evidence)
  if claim.rule == "reaches":
    return _reaches(claim, evidence)
  each = zip(claim.ours, claim.theirs, strict=False)
  pairs = list(each if claim.over == "each" else itertools.product(claim.ours, claim.theirs))
  found = [_compare(claim, evidence, *pair, rates) for pair in pairs]
  if len(found) == 1:
    return found[0]
  if missing := [each for each in found if each.missing]:
    return missing[0]
  yes, no = [each.yes for each in found], [each.no for each in found]

  def least(p_values: list[float]) -> float:
    return min(len(p_values) * min(p_values), 1.0)

  if claim.over == "some":
    said, how, p_values = found[int(np.argmin(yes))], "best", (least(yes), max(no))
  else:
    said, how, p_values = found[int(np.argmax(yes))], "worst", (max(yes), least(no))
  return Finding(f"at {how} {said.numbers}", *p_values, said.ends)


def _compare(claim: Claim, evidence: Evidence, ours: str, theirs: str, rates: Rates) -> Finding:
  """Of two networks."""
  name, measure = claim.rule, MEASURES[claim.rule]
  both = [evidence.measured(arm, name, rates) for arm in (ours, theirs)]
  for arm, no in ((ours, 0.0), (theirs, 1.0)):
    if evidence.never(arm, rates):
      return Finding(f"{ARMS[arm].label} diverges at every learning rate", 1.0, no)
  seeds = both[0].keys() & both[1].keys()
  if len(seeds) < FEWEST:
    return Finding(f"{len(seeds)} of {FEWEST} seeds")
  for arm, values, no in zip((ours, theirs), both, (0.0, 1.0), strict=True):
    if lost := list(values.values()).count(None):
      what = f"misses {100 * evidence.target:.4g} %" if name == "steps" else "has none"
      return Finding(f"{ARMS[arm].label} {what} in {lost} of {len(values)} runs", 1.0, no)
  layout = evidence.layout(claim.study, name, rates)
  assert layout is not None
  more, less = (theirs, ours) if measure.quotient else (ours, theirs)
  estimate = layout.contrast(more, less)
  rule = RULES["robust" if measure.kind == "attack" else name]
  negligible = math.log(rule["negligible"]) if measure.quotient else rule["negligible"]
  if claim.mode == "alike":
    bound = math.log(rule["alike"])
    yes = max(estimate.above(-bound), estimate.below(bound))
    no = min(estimate.above(bound), estimate.below(-bound))
  elif claim.mode == "as":
    yes, no = estimate.above(-negligible), estimate.below(-negligible)
  else:
    yes, no = estimate.above(0.0), estimate.below(negligible)
  label = f"{ARMS[ours].label} " if len({*claim.ours, *claim.theirs}) > 2 else ""
  return Finding(
    label + told(estimate, measure.quotient), yes, no, ends(estimate, measure.quotient)
  )


def _reaches(claim: Claim, evidence: Evidence) -> Finding:
  """Whether a network has an accuracy of the paper."""
  (arm,) = claim.ours
  values = evidence.measured(arm, "accuracy")
  if len(values) < FEWEST:
    return Finding(f"{len(values)} of {FEWEST} seeds")
  if None in values.values():
    return Finding("diverged", 1.0, 0.0)
  layout = evidence.layout(claim.study, "accuracy", "paper")
  assert layout is not None
  assert claim.value is not None
  mean, slack = layout.level(arm), RULES["reaches"]["slack"]
  run = Estimate(mean.value, mean.error * math.sqrt(len(values) + 1), mean.df)  # one more
  yes, no = mean.above(claim.value - slack), run.below(claim.value)
  if claim.mode == "alike":
    yes, no = max(yes, mean.below(claim.value + slack)), min(no, run.above(claim.value))
  low, high = mean.interval
  return Finding(f"{100 * mean.value:.2f} % [{100 * low:.2f}, {100 * high:.2f}]", yes, no)


def _spread(claim: Claim, evidence: Evidence) -> Finding:
  """Whether networks differ less from each other than others do, in the errors of epochs 1 to 3."""
  variances, df = [], []
  for arms in (claim.theirs, claim.ours):
    found = [list(evidence.measured(arm, "errors").values()) for arm in arms]
    if any(len(values) < FEWEST for values in found):
      return Finding(f"fewer than {FEWEST} seeds")
    if any(None in values for values in found):
      return Finding("a run diverged", 1.0, 1.0)
    variances.append(np.var([np.mean(np.log(np.array(v, float))) for v in found], ddof=1))
    df.append(len(arms) - 1)
  quotient = variances[0] / max(variances[1], 1e-12)
  tail = (1 + CONFIDENCE) / 2
  low = math.sqrt(quotient / stats.f.ppf(tail, *df))
  high = math.sqrt(quotient * stats.f.ppf(tail, *reversed(df)))
  text = f"kernels scatter {math.sqrt(quotient):.2f} [{low:.2f}, {high:.2f}] times as much"
  return Finding(text, float(stats.f.sf(quotient, *df)), float(stats.f.cdf(quotient / 1.21, *df)))


def ends(estimate: Estimate, quotient: bool) -> tuple[float, float]:
  """Returns both ends of an interval, as factors or as they are."""
  low, high = estimate.interval
  return (math.exp(low), math.exp(high)) if quotient else (low, high)


def told(estimate: Estimate, quotient: bool) -> str:
  """A quotient, or a difference in points, with its interval."""
  low, high = ends(estimate, quotient)
  if quotient:
    return f"{math.exp(estimate.value):.2f} [{low:.2f}, {high:.2f}]"
  return f"{100 * estimate.value:+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}]"


def verdicts(claims: Iterable[Claim], evidence: Evidence) -> dict[Claim, tuple[str, str]]:
  """Verdicts at the paper's rate and at each network's own, in words, corrected together."""
  cells = [(claim, tuned) for claim in claims for tuned in (False, True)]
  found = {cell: find(cell[0], evidence, cell[1]) for cell in cells}
  decided = {cell: each.p_value for cell, each in found.items() if each and not each.missing}
  corrected = dict(zip(decided, adjusted(list(decided.values())), strict=True))
  words = {cell: _word(cell[0], each, corrected.get(cell)) for cell, each in found.items()}
  return {claim: (words[claim, False], words[claim, True]) for claim, _ in cells}


def _word(claim: Claim, finding: Finding | None, p_value: float | None) -> str:
  if finding is None:
    return ""
  if p_value is None:
    return f"open: {finding.numbers}"
  word = "holds" if finding.holds else "does not hold"
  if p_value >= 1 - CONFIDENCE:
    word = "undecided"
  elif word == "holds" and claim.factor and finding.ends[1] < claim.factor:
    word = "holds, but not twice"
  star = "\\*" * (word == "undecided" and finding.p_value < 1 - CONFIDENCE)
  return f"**{word}**{star}: {finding.numbers}"
