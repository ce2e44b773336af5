"""From the rows to verdicts: which runs a claim is about, and the rule for them."""

from collections.abc import Callable

from experiments.ablation import robustness
from experiments.ablation.accuracies import more_accurate
from experiments.ablation.arms import ARMS
from experiments.ablation.evidence import Evidence
from experiments.ablation.runs import Runs, diverged
from experiments.ablation.speeds import faster, fewer_errors, lead_shrinks
from experiments.ablation.study import ATTACKED
from experiments.ablation.summary import CONFIDENCE, shared_level
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
    paper = evidence.runs(study, ours), evidence.runs(study, theirs)
    finding = _tuned(evidence, ours, theirs, lambda *tuned: lead_shrinks(paper, tuned))
    gone = evidence.diverges(ours)
    return alone(Finding(Answer.UNDECIDED, finding.numbers) if gone else finding)

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
    def findings(level: float) -> dict[str, Finding]:
      def at_level(ours: Runs, cnn: Runs) -> Finding:
        return rule(ours, cnn, level)

      return {ARMS[arm].label: _tuned(evidence, arm, "cnn", at_level) for arm in arms}

    level = shared_level(len(arms))
    return alone(some(findings(level), findings(CONFIDENCE), f"intervals of {100 * level:.1f} %"))

  return decide


def is_more_robust(arm: str) -> Decision:
  """Whether a network is more robust to FGSM than the CNN.

  Args:
    arm: name of the network.
  """
  return _attacked(arm, lambda attacks: robustness.more_robust(attacks, arm))


def is_more_robust_to_pgd(arm: str) -> Decision:
  """Whether a network is more robust to PGD than the CNN.

  Args:
    arm: name of the network.
  """
  return _attacked(
    arm, lambda attacks: robustness.more_robust_to_pgd(attacks, arm, robustness.PGD_EPSILON)
  )


def is_masked(arm: str) -> Decision:
  """Whether a network's gradients are masked.

  Args:
    arm: name of the network.
  """
  return _attacked(arm, lambda attacks: robustness.masked(attacks, arm))


def _at_both_rates(
  rule: Callable[[Runs, Runs], Finding], study: str, ours: str, theirs: str
) -> Decision:
  def decide(evidence: Evidence) -> Verdict:
    paper = rule(evidence.runs(study, ours), evidence.runs(study, theirs))
    return at_both_rates(paper, _tuned(evidence, ours, theirs, rule))

  return decide


def _tuned(
  evidence: Evidence, ours: str, theirs: str, rule: Callable[[Runs, Runs], Finding]
) -> Finding:
  """Of two networks at their own learning rates, if they have any."""
  for arm, answer in ((ours, Answer.NO), (theirs, Answer.UNDECIDED)):
    if evidence.diverges(arm):
      return Finding(answer, f"{ARMS[arm].label} diverges at every learning rate")
  return rule(evidence.runs("tuned", ours), evidence.runs("tuned", theirs))


def _attacked(arm: str, rule: Callable[[robustness.Attacks], Finding]) -> Decision:
  """Of attacks on networks of which none diverged."""

  def decide(evidence: Evidence) -> Verdict:
    lost = [name for name in ATTACKED if diverged(evidence.at_paper_rate(name))]
    if lost:
      answer = Answer.NO if arm in lost else Answer.UNDECIDED
      text = f"a run of {', '.join(ARMS[name].label for name in lost)} diverged"
      return alone(Finding(answer, text))
    return alone(rule({name: evidence.attacks(name) for name in ATTACKED}))

  return decide
