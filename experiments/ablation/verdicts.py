"""What becomes of a claim: answers about some runs, and verdicts from answers."""

import dataclasses
import enum
from collections.abc import Mapping


class Answer(enum.Enum):
  """Whether a statement is true of some runs."""

  YES = "yes"
  NO = "no"
  UNDECIDED = "undecided"
  MISSING = "missing"


class Outcome(enum.Enum):
  """What becomes of a claim."""

  HOLDS = "holds"
  PAPER_ONLY = "holds only at the paper's learning rate"
  TUNED_ONLY = "holds only at tuned learning rates"
  FAILS = "does not hold"
  PAPER_AT_LEAST = "holds at the paper's learning rate, undecided at tuned ones"
  TUNED_AT_LEAST = "undecided at the paper's learning rate, holds at tuned ones"
  NOT_PAPER = "does not hold at the paper's learning rate, undecided at tuned ones"
  NOT_TUNED = "undecided at the paper's learning rate, does not hold at tuned ones"
  UNDECIDED = "undecided"
  OPEN = "open: runs are missing"


@dataclasses.dataclass(frozen=True)
class Finding:
  """Whether a statement is true of some runs.

  Attributes:
    answer: whether it is; missing is less than the fewest seeds, undecided too few for what they
      differ by.
    numbers: that decide it.
  """

  answer: Answer
  numbers: str


@dataclasses.dataclass(frozen=True)
class Verdict:
  """On a claim.

  Attributes:
    outcome: what becomes of it.
    numbers: that decide it.
  """

  outcome: Outcome
  numbers: str


def alone(finding: Finding) -> Verdict:
  """The verdict on a claim that is about one learning rate.

  Args:
    finding: about it.
  """
  outcomes = {
    Answer.YES: Outcome.HOLDS,
    Answer.NO: Outcome.FAILS,
    Answer.UNDECIDED: Outcome.UNDECIDED,
    Answer.MISSING: Outcome.OPEN,
  }
  return Verdict(outcomes[finding.answer], finding.numbers)


def at_both_rates(paper: Finding, tuned: Finding) -> Verdict:
  """The verdict on a claim that is looked at twice.

  Args:
    paper: about the runs by the paper's protocol.
    tuned: about those with each network's own learning rate.
  """
  outcomes = {
    (Answer.YES, Answer.YES): Outcome.HOLDS,
    (Answer.YES, Answer.NO): Outcome.PAPER_ONLY,
    (Answer.NO, Answer.YES): Outcome.TUNED_ONLY,
    (Answer.NO, Answer.NO): Outcome.FAILS,
    (Answer.YES, Answer.UNDECIDED): Outcome.PAPER_AT_LEAST,
    (Answer.UNDECIDED, Answer.YES): Outcome.TUNED_AT_LEAST,
    (Answer.NO, Answer.UNDECIDED): Outcome.NOT_PAPER,
    (Answer.UNDECIDED, Answer.NO): Outcome.NOT_TUNED,
  }
  answers = paper.answer, tuned.answer
  outcome = outcomes.get(answers, Outcome.UNDECIDED)
  if Answer.MISSING in answers:
    outcome = Outcome.OPEN
  texts = [f"{each.answer.value}, {each.numbers}" for each in (paper, tuned)]
  return Verdict(outcome, f"paper's rate: {texts[0]}; tuned: {texts[1]}")


def some(strict: Mapping[str, Finding], each: Mapping[str, Finding], note: str) -> Finding:
  """Whether a statement is true of one of several networks.

  Args:
    strict: by the network's name, from intervals whose level allows for their number, see
      `summary.shared_level`: one of them says yes.
    each: from intervals of the usual level: it takes all of them to say no.
    note: what the numbers of the first are.
  """
  named = {
    answer: [name for name, finding in strict.items() if finding.answer is answer]
    for answer in Answer
  }
  if missing := named[Answer.MISSING]:
    return Finding(Answer.MISSING, f"without {', '.join(missing)}")
  if true := named[Answer.YES]:
    return Finding(Answer.YES, f"{'; '.join(strict[name].numbers for name in true)} ({note})")
  if open_ := [name for name in each if each[name].answer is not Answer.NO]:
    texts = "; ".join(strict[name].numbers for name in open_)
    return Finding(Answer.UNDECIDED, f"{texts} ({note})")
  return Finding(Answer.NO, f"none of {', '.join(each)}")
