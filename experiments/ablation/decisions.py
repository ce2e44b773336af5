"""From the rows to verdicts: which runs a claim is about, and the rule for them."""

from collections.abc import Callable

from experiments.ablation import robustness
from experiments.ablation.arms import ARMS
from experiments.ablation.evidence import Evidence
from experiments.ablation.rules import (
  Runs,
  faster,
  fewer_errors,
  lead_shrinks,
  more_accurate,
  shared_level,
)
from experiments.ablation.studies import ATTACKED
from experiments.ablation.summary import CONFIDENCE
from experiments.ablation.verdicts import Answer, Finding, Verdict, alone, at_both_rates, some

Decision = Callable[[Evidence], Verdict]
"""Of a claim."""


def is_faster(study: str, fast: str, slow: str, factor: float) -> Decision:
  """Whether a network reaches the target sooner, by the paper's protocol and with tuned rates.

  Args:
    study: whose runs by the paper's protocol are compared.
    fast: name of the network that is said to be faster.
    slow: name of the other one.
    factor: by which it is said to be; 1 is any.
  """

  def rule(fast: Runs, slow: Runs) -> Finding:
    return faster(fast, slow, factor)

  return _at_both_rates(rule, study, fast, slow)


def has_fewer_errors(study: str, ours: str, theirs: str) -> Decision:
  """Whether a network makes fewer errors in the first epochs, by both protocols.

  Args:
    study: whose runs by the paper's protocol are compared.
    ours: name of the network that is said to be better.
    theirs: name of the other one.
  """
  return _at_both_rates(fewer_errors, study, ours, theirs)


def loses_its_lead(study: str, ours: str, theirs: str) -> Decision:
  """Whether a network's lead is smaller with tuned rates.

  Args:
    study: whose runs by the paper's protocol are compared.
    ours: name of the network.
    theirs: name of the one that it is ahead of.
  """

  def decide(evidence: Evidence) -> Verdict:
    paper, tuned = (
      (evidence.runs(each, ours), evidence.runs(each, theirs)) for each in (study, "tuned")
    )
    return alone(lead_shrinks(paper, tuned))

  return decide


def is_more_accurate(study: str, ours: str, theirs: str) -> Decision:
  """Whether a network is more accurate, by the paper's protocol and with tuned rates.

  Args:
    study: whose runs by the paper's protocol are compared.
    ours: name of the network that is said to be better.
    theirs: name of the other one.
  """
  return _at_both_rates(more_accurate, study, ours, theirs)


def at_paper_rate(
  rule: Callable[..., Finding], study: str, arms: tuple[str, ...], *numbers: float
) -> Decision:
  """By the paper's protocol alone.

  Args:
    rule: for the runs of each network and the numbers.
    study: whose runs they are.
    arms: names of the networks.
    numbers: that the rule takes.
  """
  return lambda evidence: alone(rule(*(evidence.runs(study, arm) for arm in arms), *numbers))


def some_network(rule: Callable[[Runs, Runs, float], Finding], arms: tuple[str, ...]) -> Decision:
  """Whether something is true of one of several networks, with tuned rates, beside the CNN.

  Args:
    rule: for the runs of a network and of the CNN, and the level of the interval.
    arms: names of the networks.
  """

  def decide(evidence: Evidence) -> Verdict:
    cnn = evidence.runs("tuned", "cnn")

    def findings(level: float) -> dict[str, Finding]:
      return {
        ARMS[arm].label: _tuned(evidence, arm, lambda runs: rule(runs, cnn, level)) for arm in arms
      }

    return alone(some(findings(shared_level(len(arms))), findings(CONFIDENCE)))

  return decide


def is_more_robust(arm: str) -> Decision:
  """Whether a network is more robust to FGSM than the CNN.

  Args:
    arm: name of the network.
  """
  return lambda evidence: alone(robustness.more_robust(_attacks(evidence), arm))


def is_more_robust_to_pgd(arm: str) -> Decision:
  """Whether a network is more robust to PGD than the CNN.

  Args:
    arm: name of the network.
  """
  return lambda evidence: alone(
    robustness.more_robust_to_pgd(_attacks(evidence), arm, robustness.PGD_EPSILON)
  )


def is_masked(arm: str) -> Decision:
  """Whether a network's gradients are masked.

  Args:
    arm: name of the network.
  """
  return lambda evidence: alone(robustness.masked(_attacks(evidence), arm))


def _at_both_rates(
  rule: Callable[[Runs, Runs], Finding], study: str, ours: str, theirs: str
) -> Decision:
  def decide(evidence: Evidence) -> Verdict:
    paper = rule(evidence.runs(study, ours), evidence.runs(study, theirs))
    return at_both_rates(
      paper, _tuned(evidence, ours, lambda runs: rule(runs, evidence.runs("tuned", theirs)))
    )

  return decide


def _tuned(evidence: Evidence, arm: str, rule: Callable[[Runs], Finding]) -> Finding:
  """Of a network at its own learning rate, if it has any."""
  if evidence.diverges(arm):
    return Finding(Answer.NO, "it diverges at every learning rate")
  return rule(evidence.runs("tuned", arm))


def _attacks(evidence: Evidence) -> robustness.Attacks:
  return {arm: evidence.attacks(arm) for arm in ATTACKED}
