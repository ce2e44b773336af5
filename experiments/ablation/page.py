"""The page of a study, and the README's part, made from the rows and from page.md."""

import collections
import os
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments import UsageError
from experiments.ablation import plots, tables
from experiments.ablation.claims import OURS, PAPER, Claim, find, verdicts
from experiments.ablation.evidence import Evidence
from experiments.ablation.perform import PACKAGES
from experiments.ablation.report import OTHER_TITLE, PAGE, TITLE, ReportCommand, check_page
from experiments.ablation.rows import Rows
from experiments.ablation.rules import RULES, rules_digest
from experiments.ablation.study import FRESH, KNNS, STUDIES
from experiments.common.files import write_atomically
from experiments.common.markdown import Part, table

BEGIN = "<!-- mnist: made by python -m experiments report -->"
END = "<!-- end of mnist -->"
PLOT = "convergence.png"
ABOUT_PAPER = ("reaches", "robust", "masked")  # rules that other data have no use for
Verdicts = Mapping[Claim, tuple[str, str]]


def page(evidence: Evidence, name: str, drawn: Sequence[str]) -> str:
  """Returns the page of a data set of this name, with the plots that there are."""
  papers, words = evidence.protocol.is_papers(), verdicts((*PAPER, *OURS), evidence)
  trained = [name for name, told in STUDIES.items() if not told.looks]
  parts = {
    study: tables.trainings(evidence, study) if _runs(evidence, study) else "" for study in trained
  } | {
    "title": TITLE if papers else OTHER_TITLE.format(name),
    "answer": answer(evidence, words),
    "verdicts": _verdicts(words, papers),
    "confirmed": _confirmed(evidence) if papers else "",
    "rules": _rules(papers),
    "scatter": tables.scatter(evidence),
    "same": tables.same(evidence),
    "fgsm": tables.attacks(evidence) if papers else "",
    "filters": tables.alike(evidence),
    "searches": tables.searches(evidence),
    "transfer": tables.under_attack(evidence),
    "missing": _missing(evidence, papers),
    "machines": _machines(evidence),
  }
  parts |= _numbers(evidence)
  text = "% all\n" + Path(__file__).with_name("page.md").read_text(encoding="utf-8")
  blocks = re.split(r"^% (.*)\n", text, flags=re.MULTILINE)[1:]
  wanted = {"all": "all", "mnist": "mnist" * papers} | parts
  kept = [block for key, block in zip(blocks[::2], blocks[1::2], strict=True) if wanted[key]]
  named = {key.replace("-", "_"): value for key, value in parts.items()}
  filled = string.Template("".join(kept)).substitute(named)
  filled = re.sub(r"!\[.*\]\((.*)\)\n", lambda match: match[0] * (match[1] in drawn), filled)
  filled = re.sub(r"(?<=[^\n|])\n(?! *[-|#!]|\n)", " ", re.sub(r"\n +", "\n", filled))
  return re.sub(r"\n{3,}", "\n\n", filled).strip() + "\n"


def write(command: ReportCommand) -> int:
  """Makes page and plots and, of the paper's own protocol, the README's part; returns 0.

  Raises:
    UsageError: if there are no rows, or the README has no place for its part.
  """
  folder = Path(command.out)
  rows = Rows(folder)
  evidence = Evidence(rows.all(), rows.protocol)
  if not evidence.rows:
    raise UsageError(f"there are no rows in {command.out!r}: `python -m experiments ablation all`")
  check_page(folder)
  place = command.place() if rows.protocol.is_papers() else None
  part = None if place is None else Part(Path(place), BEGIN, END)
  drawn = plots.draw(evidence, folder)
  write_atomically(folder / PAGE, page(evidence, rows.name(), drawn))
  print(f"{len(evidence.rows)} rows: wrote {PAGE}, {', '.join(drawn) or 'no plots'} in {folder}")
  if part is not None:
    part.write(readme_section(evidence, os.path.relpath(folder, part.file.parent)))
    print(f'the part between the comments "mnist" of {part.file} is new too')
  return 0


def readme_section(evidence: Evidence, folder: str) -> str:
  """Returns the README's part: the answer, five claims, one plot, a link to the page's folder."""
  words = verdicts((*PAPER, *OURS), evidence)
  body = [[claim.text, claim.says, *words[claim]] for claim in PAPER if claim.main]
  parts = [
    answer(evidence, words),
    table(["LeNet-5 on MNIST", "the paper says", "at 0.003", "tuned"], body),
    f"![Test error by epoch]({folder}/{PLOT})",
    f"What the numbers are, and all else: [{folder}]({folder}/README.md).",
  ]
  return "\n\n".join(parts)


def answer(evidence: Evidence, words: Verdicts) -> str:
  """Returns what the study says, in two sentences."""
  main, fewer, better = OURS[:3]
  paper, tuned = (find(main, evidence, own) for own in (False, True))
  if paper is None or tuned is None or paper.missing or tuned.missing:
    return "There are too few runs for an answer."
  said = {"makes fewer errors": fewer, "is more accurate": better}
  shown = [what for what, claim in said.items() if words[claim][1].startswith("**holds")]
  then = f"one of {len(KNNS)} kervolutional networks {' and '.join(shown)}"
  if not shown:
    then = f"none of {len(KNNS)} kervolutional networks is measurably better"
  return (
    f"At the paper's learning rate a CNN makes {paper.numbers} times the errors of its polynomial "
    f"twin in the first three epochs; once each has a rate of its own, {tuned.numbers} times. Then "
    f"{then} than the CNN."
  )


def _runs(evidence: Evidence, study: str) -> bool:
  """Whether there are runs of a study's own networks."""
  told, early = STUDIES[study], evidence.measured
  if told.stop_after:
    rates = told.rates
    return any(set(early(a, "errors", rates)) - set(evidence.runs(a, rates)) for a in told.arms)
  return any(evidence.runs(arm, told.rates) for arm in told.arms)


def _verdicts(words: Verdicts, papers: bool) -> str:
  """The tables of verdicts; of other data, without the paper's figures, on what has been run."""
  if papers:
    theirs = [[claim.text, claim.says, *words[claim]] for claim in PAPER]
    ours = [[claim.text, *words[claim]] for claim in OURS]
    first = table(["MNIST", "paper says", "at 0.003", "tuned"], theirs)
    second = table(["", "at 0.003", "tuned"], ours)
    return f"{first}\n\nWhat the paper does not ask:\n\n{second}"
  body = [
    [claim.text, *cells]
    for claim, cells in words.items()
    if claim.value is None and any(cell and not cell.startswith("open") for cell in cells)
  ]
  return table(["statement", "at 0.003", "tuned"], body)


def _confirmed(evidence: Evidence) -> str:
  """Verdicts on fresh seeds alone beside those on the seeds that the rules were chosen with."""
  then, now = (
    verdicts((*PAPER, *OURS), Evidence(evidence.rows, evidence.protocol, seeds))
    for seeds in (lambda seed: seed < FRESH, lambda seed: seed >= FRESH)
  )
  body = [
    [claim.text, rate, old, new]
    for claim in then
    for rate, old, new in zip(("0.003", "tuned"), then[claim], now[claim], strict=True)
    if new and not new.startswith("open")
  ]
  if not body:
    return "There are none yet: `python -m experiments ablation confirm` makes them."
  decided = [row for row in body if "hold" in row[2].split(":")[0]]
  same = sum(row[2].split(":")[0] == row[3].split(":")[0] for row in decided)
  fresh = [row for row in evidence.rows.values() if row["spec"]["seed"] >= FRESH]
  under = sum(row["environment"].get("rules") == rules_digest() for row in fresh)
  return (
    f"Of {len(decided)} verdicts that seeds 0 to {FRESH - 1} decide, fresh ones confirm {same}; "
    f"{under} of {len(fresh)} fresh rows were made under these rules ({rules_digest()}).\n\n"
    + table(["claim", "rate", f"seeds 0 to {FRESH - 1}", f"from {FRESH} on"], body)
  )


def _rules(papers: bool) -> str:
  """The sentences of the rules, with the rows that were there when each was chosen."""
  return "\n".join(
    f"- {' '.join(rule['text'].split()).format(**(RULES | rule))} (After {rule['after']} rows.)"
    for name, rule in RULES.items()
    if isinstance(rule, dict) and (papers or name not in ABOUT_PAPER)
  )


def _numbers(evidence: Evidence) -> dict[str, str]:
  """What the text of the page says of the protocol."""
  protocol = evidence.protocol
  whole = [row for row in evidence.rows.values() if row["kind"] == "training"]
  whole = [row for row in whole if not row["spec"]["search"] and "stop_after" not in row["spec"]]
  spent = [row["cpu_seconds"] for row in whole if "together" not in row["environment"]]
  right = [row["accuracy"] or 0.5 for row in evidence.runs("cnn", "tuned").values()] or [0.5]
  images, share = protocol.test_examples or 10_000, float(np.mean(right))
  third = "" if protocol.target else ", the CNN's mean accuracy at a third of its training"
  return {
    "batch": str(protocol.batch_size),
    "drops": f"{protocol.epochs / 2:g} and {0.75 * protocol.epochs:g} of {protocol.epochs}",
    "training": str(protocol.train_examples or "all"),
    "test": str(protocol.test_examples or "all"),
    "seeds": ", ".join(map(str, evidence.seeds)),
    "minutes": f"{np.median(spent) / 60:.1f}" if spent else "?",
    "images": f"{images:,}",
    "error": f"{100 * (share * (1 - share) / images) ** 0.5:.2f}",
    "target": f"{100 * evidence.target:.4g} %{third}",
    "fresh": str(FRESH),
  }


def _missing(evidence: Evidence, papers: bool) -> str:
  """How many runs of the fewest seeds have no row, by study and network."""
  lines = ""
  for study in STUDIES:
    lost = collections.Counter(spec.arm for spec in evidence.missing(study))
    if lost and (papers or _runs(evidence, study)):
      lines += f"- {study}: {', '.join(f'{number} of {arm}' for arm, number in lost.items())}\n"
  return lines and f"### Missing runs\n\n{lines}"


def _machines(evidence: Evidence) -> str:
  """Where rows were made, and with what."""
  places = collections.defaultdict(list)
  for row in evidence.rows.values():
    where = row["environment"]
    parts = [where["device"], f"{where['threads']} thread", f"Python {where['python']}"]
    parts += [f"{name} {where[name]}" for name in PACKAGES]
    parts += [f"{where['together']} runs at once"] if "together" in where else []
    places[", ".join(parts)].append((where["commit"] or "none")[:12])
  return "\n".join(
    f"- {len(commits)} rows: {key}; commits {', '.join(sorted(set(commits)))}"
    for key, commits in sorted(places.items())
  )
