"""The page of the MNIST section, and the README's part, made from the rows."""

from collections.abc import Iterable, Sequence

import numpy as np

from experiments.ablation import alikeness, tables, texts
from experiments.ablation.claims import PAPER, Claim
from experiments.ablation.evidence import Evidence, by_arm
from experiments.ablation.protocol import Protocol
from experiments.ablation.questions import QUESTIONS
from experiments.ablation.robustness import PGD_EPSILON
from experiments.ablation.rows import Row
from experiments.ablation.study import ORDER, STUDIES, TUNED, study_of
from experiments.ablation.verdicts import Outcome

BEGIN = "<!-- mnist: made by python -m experiments report -->"
END = "<!-- end of mnist -->"
BOTH_RATES = f"{STUDIES['kernels'].plot}.png"


def page(evidence: Evidence, protocol: Protocol, plots: Sequence[str]) -> str:
  """The page.

  Args:
    evidence: of the rows.
    protocol: of the rows.
    plots: names of the files that there are.
  """
  parts = [
    "# The paper's MNIST section, reproduced and questioned",
    texts.OPENING,
    _main(evidence, QUESTIONS),
    "## Method",
    method(evidence, protocol),
    "## Verdicts",
    verdicts(evidence, protocol),
    texts.RULES,
  ]
  if missing := _missing(evidence):
    parts += ["## Missing runs", missing]
  for name, study in STUDIES.items():
    parts += [f"## {study.title}", study.text, *_section(evidence, name)]
    plot = f"{study.plot or name}.png"
    if plot in plots:
      title = "Test error by epoch, at both rates" if study.plot else study.title
      parts.append(f"![{title}]({plot})")
  return "\n\n".join(part for part in parts if part) + "\n"


def readme_section(
  evidence: Evidence, protocol: Protocol, folder: str, plots: Sequence[str]
) -> str:
  """The README's part: the main table and one plot.

  Args:
    evidence: of the rows.
    protocol: of the rows.
    folder: of the page, from the README.
    plots: names of the files that there are.
  """
  head = [
    "network",
    "accuracy at 0.003, %",
    "steps to 98 %",
    "own rate",
    "accuracy at it, %",
    "steps to 98 %",
  ]
  body, numbers = [], set()
  for arm in TUNED:
    paper, tuned = evidence.runs(study_of(arm), arm), evidence.runs("tuned", arm)
    if not paper and not tuned:
      continue
    numbers |= {len(paper), len(tuned)} - {0}
    rate = evidence.rate("tuned", arm)
    cells = [tables.ARMS[arm].label]
    cells += [tables.accuracy(paper), tables.steps(paper, interval=False)] if paper else ["", ""]
    cells.append("" if rate is None else f"{rate:g}")
    cells += [tables.accuracy(tuned), tables.steps(tuned, interval=False)] if tuned else ["", ""]
    body.append(cells)
  parts = [
    texts.README.format(seeds=_range(numbers)),
    tables.table(head, body),
  ]
  if BOTH_RATES in plots:
    parts.append(f"![Test error by epoch]({folder}/{BOTH_RATES})")
  parts.append(_main(evidence, (*(PAPER if protocol.is_papers() else ()), *QUESTIONS)))
  parts.append(f"All studies, attacks, controls and verdicts: [{folder}]({folder}/README.md).")
  return "\n\n".join(part for part in parts if part)


def _main(evidence: Evidence, claims: Iterable[Claim]) -> str:
  """The main ones of some claims, as far as they are decided."""
  return "\n".join(
    f"- {claim.text} **{verdict.outcome.value.capitalize()}** ({verdict.numbers})."
    for claim in claims
    if claim.main
    for verdict in [claim.decide(evidence)]
    if verdict.outcome is not Outcome.OPEN
  )


def method(evidence: Evidence, protocol: Protocol) -> str:
  """What was run, and where.

  Args:
    evidence: of the rows.
    protocol: of the rows.
  """
  runs = [row for row in evidence.rows.values() if row["spec"].get("search") is False]
  text = texts.PROTOCOL.format(
    seeds=_seeds_by_study(evidence) + (" (some runs are missing, see below)" * _lacking(evidence)),
    cost=_cost(runs),
    batch_size=protocol.batch_size,
    first=protocol.epochs / 2,
    second=0.75 * protocol.epochs,
    epochs=protocol.epochs,
    train=protocol.train_examples or "all",
    test=protocol.test_examples or "all",
  )
  places = {}
  for row in evidence.rows.values():
    where = row["environment"]
    parts = [where["device"], f"{where['threads']} thread", f"Python {where['python']}"]
    parts += [f"{name} {where[name]}" for name in ("jax", "jaxlib", "flax", "optax", "numpy")]
    parts += [f"{where['together']} runs at once"] if "together" in where else []
    key = ", ".join(parts)
    places.setdefault(key, []).append((where["commit"] or "none")[:12])
  lines = [
    f"- Machine of {len(commits)} rows: {key}; commits {', '.join(sorted(set(commits)))}"
    for key, commits in sorted(places.items())
  ]
  return "\n".join([text, *lines])


def _cost(runs: Iterable[Row]) -> str:
  """What a run takes, of those made one by one."""
  spent = [row["cpu_seconds"] for row in runs if "together" not in row["environment"]]
  if not spent:
    return ""
  return f", for a run takes {np.median(spent) / 60:.1f} minutes of a core (the median)"


def _lacking(evidence: Evidence) -> bool:
  return any(evidence.missing(study) for study in STUDIES)


def _seeds_by_study(evidence: Evidence) -> str:
  """How many seeds, and where."""
  studies: dict[int, list[str]] = {}
  for study in ORDER:
    studies.setdefault(len(evidence.wanted_seeds(study)), []).append(study)
  most, *fewer = sorted(studies, reverse=True)
  if not fewer:
    return f"{_seeds(most)} of each network"
  texts = [f"{_seeds(most)} of each network in {', '.join(studies[most])}"]
  return ", ".join([*texts, *(f"{number} in {', '.join(studies[number])}" for number in fewer)])


def _range(numbers: Iterable[int]) -> str:
  """From the fewest to the most seeds."""
  low, high = min(numbers, default=0), max(numbers, default=0)
  return _seeds(low) if low == high else f"{low} to {_seeds(high)}"


def _seeds(number: int) -> str:
  return f"{number} seed" + ("s" if number != 1 else "")


def verdicts(evidence: Evidence, protocol: Protocol) -> str:
  """The tables of all claims, those of the paper first.

  Args:
    evidence: of the rows.
    protocol: of the rows.
  """

  def cells(claim: Claim, *source: str) -> list[str]:
    verdict = claim.decide(evidence)
    return [claim.text, *source, f"**{verdict.outcome.value}**", verdict.numbers]

  theirs = texts.OTHER_PROTOCOL
  if protocol.is_papers():
    body = [cells(claim, claim.source) for claim in PAPER]
    theirs = tables.table(["claim", "source", "verdict", "numbers"], body)
  ours = [cells(claim) for claim in QUESTIONS]
  parts = [
    "### What the paper says",
    theirs,
    "### What it leaves open",
    tables.table(["statement", "verdict", "numbers"], ours),
    "### How they are made",
  ]
  return "\n\n".join(parts)


def _section(evidence: Evidence, study: str) -> list[str]:
  """Tables of a study."""
  if STUDIES[study].looks == "attacks":
    parts = [tables.table_1(evidence)]
    parts += [tables.attacked(evidence, kind) for kind in ("fgsm", "pgd")]
    parts += [tables.transfer(evidence, kind, PGD_EPSILON) for kind in ("fgsm", "pgd")]
    if parts[-1]:
      parts.insert(3, texts.TRANSFER)
    return parts
  if STUDIES[study].looks == "filters":
    return [alikeness.sentence(evidence)]
  parts = [tables.trainings(evidence, study)]
  if STUDIES[study].tuned:
    parts.append(tables.searches(evidence))
  return parts


def _missing(evidence: Evidence) -> str:
  """Runs without a row, by study and arm."""
  lines = []
  for study in ORDER:
    if words := by_arm(evidence.missing(study)):
      named = "; ".join(f"{arm}: {', '.join(texts)}" for arm, texts in words.items())
      lines.append(f"- {study}: {named}")
  return "\n".join(lines)
