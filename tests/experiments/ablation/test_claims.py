"""Rules that turn rows into verdicts, on rows whose verdict is known."""

import dataclasses

import numpy as np
import pytest

from experiments.ablation import plan
from experiments.ablation.arms import ARMS
from experiments.ablation.claims import OURS, PAPER, Claim, find, verdicts
from experiments.ablation.evidence import Evidence
from experiments.ablation.protocol import MNIST, Protocol, Training, identity
from experiments.ablation.reading import common, early_error, steps_to
from experiments.ablation.rows import Rows
from experiments.ablation.rules import RULES
from experiments.ablation.study import CONFIRM, FRESH, KNNS, MAIN, STUDIES
from tests.experiments.ablation.rows import fill, training

PAPERS = Protocol(data=MNIST)
NOISE = np.array([[0.00, 0.02, -0.01], [0.01, -0.02, 0.0], [-0.02, 0.01, 0.01], [0.0, 0.01, 0.02]])


def evidence(tmp_path, protocol=PAPERS, **networks):
  """Of networks at 0.003: what their runs have, seed by seed, by the network's name."""
  rows, made = Rows(tmp_path, protocol), []
  for arm, runs in networks.items():
    for seed, run in enumerate(runs):
      made.append(rows.row(Training(arm.replace("_", "-"), seed), training(**run)))
  return Evidence({row["id"]: row for row in made}, protocol)


def with_errors(**factors):
  """Runs with some factor of a common error, which scatter a little."""
  return {
    arm: [{"steps": None, "error": factor * float(np.exp(noise))} for noise in NOISE[place % 4]]
    for place, (arm, factor) in enumerate(factors.items())
  }


def with_steps(**steps):
  return {arm: [{"steps": each} for each in runs] for arm, runs in steps.items()}


def with_accuracies(**values):
  return {
    arm: [{"accuracy": value + 0.005 * noise} for noise in NOISE[place % 4]]
    for place, (arm, value) in enumerate(values.items())
  }


def claim(rule, ours="polynomial", theirs="cnn", **more):
  others = (theirs,) if isinstance(theirs, str) else theirs
  first = (ours,) if isinstance(ours, str) else ours
  return Claim("text", rule, more.pop("study", "kernels"), first, others, **more)


def word(claim, evidence):
  return verdicts([claim], evidence)[claim][0].split("**")[1:2]


@pytest.mark.parametrize(
  ("factor", "verdict"),
  [(0.5, "holds"), (0.9, "holds"), (1.0, "does not hold"), (1.5, "does not hold")],
)
def test_fewer_errors(tmp_path, factor, verdict):
  found = evidence(tmp_path, **with_errors(cnn=1.0, polynomial=factor, l1=1.2))
  assert word(claim("errors"), found) == [verdict]
  finding = find(claim("errors"), found, tuned=False)
  assert finding.ends[0] < 1 / factor < finding.ends[1]


def test_what_scatters_is_undecided(tmp_path):
  runs = with_errors(cnn=1.0, polynomial=0.8)
  for run, factor in zip(runs["polynomial"], (0.6, 1.0, 1.4), strict=True):
    run["error"] *= factor
  assert word(claim("errors"), evidence(tmp_path, **runs)) == ["undecided"]


@pytest.mark.parametrize(
  ("factor", "verdict"),
  [(1.0, "holds"), (1.1, "holds"), (0.6, "does not hold"), (1.6, "does not hold")],
)
def test_learning_alike(tmp_path, factor, verdict):
  found = evidence(tmp_path, **with_errors(cnn=1.0, polynomial=factor * 0.6, l1=0.6, l2=0.7))
  assert word(claim("errors", "polynomial", "l1", mode="alike"), found) == [verdict]
  assert word(claim("errors", "l1", "polynomial", mode="alike"), found) == [verdict]


@pytest.mark.parametrize(
  ("fast", "slow", "verdict"),
  [
    ((1000, 1000, 1200), (2000, 2200, 2200), "holds"),
    ((1600, 1600, 1800), (2000, 2000, 2200), "holds, but not twice"),
    ((2000, 2200, 2000), (2000, 2000, 2200), "undecided"),
    ((3600, 3200, 3400), (2000, 2000, 2200), "does not hold"),
    ((1000, None, 1000), (3800, 3800, 3800), "does not hold"),
    ((None, None, None), (3800, None, 3800), "does not hold"),
    ((1000, 1000, 1000), (None, 3800, None), "undecided"),
  ],
)
def test_faster(tmp_path, fast, slow, verdict):
  found = evidence(tmp_path, **with_steps(cnn=slow, polynomial=fast, l1=(2000, 2200, 2400)))
  assert word(claim("steps", factor=2), found) == [verdict]


def test_too_few_seeds_leave_a_claim_open(tmp_path):
  runs = with_steps(cnn=(2000, 2000, 2000), polynomial=(1000, 1000))
  words = verdicts([claim("steps")], evidence(tmp_path, **runs))
  assert [*words.values()] == [("open: 2 of 3 seeds", "open: 0 of 3 seeds")]


@pytest.mark.parametrize("rule", ["errors", "steps", "accuracy", "loss"])
def test_a_run_that_diverged_decides_for_nobody(tmp_path, rule):
  runs = with_steps(cnn=(2000,) * 3, l1=(1000,) * 3)
  for run in runs["l1"][:2]:  # though the second had reached the target
    run |= {"accuracy": None, "diverged_at": 3000, "final_loss": None}
  found = evidence(tmp_path, **runs)
  assert word(claim(rule, "l1", "cnn"), found) == ["does not hold"]
  assert word(claim(rule, "cnn", "l1"), found) == ["undecided"]
  assert "L1" in find(claim(rule, "cnn", "l1"), found, tuned=False).numbers


@pytest.mark.parametrize(
  ("value", "more", "as_good"),
  [
    (0.9950, "holds", "holds"),
    (0.9905, "holds", "holds"),
    (0.9880, "does not hold", "does not hold"),
  ],
)
def test_accuracies(tmp_path, value, more, as_good):
  found = evidence(tmp_path, **with_accuracies(cnn=0.99, polynomial=value, l1=0.98))
  assert word(claim("accuracy"), found) == [more]
  assert word(claim("accuracy", mode="as"), found) == [as_good]


@pytest.mark.parametrize(
  ("value", "mode", "verdict"),
  [
    (0.9915, "more", "holds"),
    (0.9990, "more", "does not hold"),
    (0.9800, "more", "holds"),
    (0.9800, "alike", "does not hold"),
    (0.9905, "alike", "holds"),
  ],
)
def test_an_accuracy_of_the_paper_is_one_run(tmp_path, value, mode, verdict):
  found = evidence(tmp_path, **with_accuracies(cnn=0.99, l1=0.99, l2=0.985))
  assert word(claim("reaches", "l1", (), value=value, mode=mode), found) == [verdict]


def test_every_some_and_each(tmp_path):
  runs = with_errors(cnn=1.0, polynomial=0.5, l1=0.6, l2=1.4)
  found = evidence(tmp_path, **runs)
  knns = ("polynomial", "l1", "l2")
  assert word(claim("errors", knns, over="some"), found) == ["holds"]
  assert word(claim("errors", knns), found) == ["does not hold"]
  assert word(claim("errors", knns[:2]), found) == ["holds"]
  assert find(claim("errors", knns[:2]), found, False).numbers.startswith("at worst L1 1.6")
  assert find(claim("errors", knns, over="some"), found, False).numbers.startswith("at best poly")
  pairs = claim("errors", ("polynomial", "l1"), ("l1", "l2"), over="each")
  assert word(pairs, found) == ["holds"]  # though L1 makes no fewer errors than itself
  single, both = (find(claim("errors", k, over="some"), found, False) for k in (knns[:1], knns[:2]))
  np.testing.assert_allclose(both.yes, 2 * min(single.yes, both.yes / 2))


def test_networks_that_differ_less_than_others(tmp_path):
  narrow = dict.fromkeys(("polynomial-2-0.5", "polynomial-2-1", "polynomial-2-2"), 0.5)
  wide = {"cnn": 1.0, "gaussian": 0.2, "l1": 0.05, "l2": 0.6}
  found = evidence(tmp_path, **with_errors(**narrow, **wide))
  names = {"study": "hyperparameters"}
  assert word(claim("spread", tuple(narrow), tuple(wide), **names), found) == ["holds"]
  assert word(claim("spread", tuple(wide), tuple(narrow), **names), found) == ["does not hold"]


def test_many_verdicts_are_corrected_together(tmp_path):
  runs = with_errors(cnn=1.0, polynomial=0.93, l1=1.0)
  for arm, accuracies in {"cnn": (0.98, 0.99, 0.985), "l1": (0.99, 0.98, 0.99)}.items():
    for run, accuracy in zip(runs[arm], accuracies, strict=True):
      run["accuracy"] = accuracy
  found, about = evidence(tmp_path, **runs), claim("errors")
  assert word(about, found) == ["holds"]
  open_ = [dataclasses.replace(claim("accuracy", "l1"), text=str(n)) for n in range(400)]
  words = verdicts([about, *open_], found)
  assert words[open_[0]][0].startswith("**undecided**")
  assert words[about][0].startswith("**undecided**\\*")


def test_runs_are_looked_at_equally_often():
  row = training(steps=1000)
  often = training(steps=1000)
  often["curve"] = {
    "steps": sorted([*often["curve"]["steps"], 250, 300, 3900]),
    "accuracy": [0.1, 0.1, 0.99, 0.99, *often["curve"]["accuracy"][2:], 0.99],
  }
  assert often["curve"]["steps"][:5] == [0, 200, 250, 300, 400]
  assert common(often).keys() == common(row).keys() == set(range(200, 4001, 200))
  assert steps_to(often, 0.98) == 1000
  assert steps_to(training(steps=None), 0.98) is None


def test_the_early_error_is_a_geometric_mean_over_three_epochs():
  row = training(steps=1000)  # an error of 0.9 at 4 evaluations and 0.02 at 14
  np.testing.assert_allclose(early_error(row), (0.9**4 * 0.02**14) ** (1 / 18))
  assert early_error(row | {"diverged_at": 5}) is None


def test_every_claim_is_decided_by_complete_rows_and_by_no_others(tmp_path):
  complete = Evidence(fill(Rows(tmp_path, PAPERS)).all(), PAPERS)
  words = verdicts((*PAPER, *OURS), complete)
  assert not [claim for claim, (paper, _) in words.items() if paper.startswith("open")]
  assert not any(complete.missing(study) for study in STUDIES if not study.startswith("early"))
  empty = verdicts((*PAPER, *OURS), Evidence({}, PAPERS))
  assert all(paper.startswith("open") for paper, _ in empty.values())


@pytest.mark.parametrize("arm", MAIN)
def test_a_network_that_no_learning_rate_is_good_for_leaves_no_claim_open(tmp_path, arm):
  folder = fill(Rows(tmp_path, PAPERS))
  rows = folder.all()
  for rate in plan.GRIDS["tuned"][0]:
    spec = Training(arm, 0, rate, search=True)
    rows[identity(spec)] = folder.row(spec, training(None, final_loss=None))
  found = Evidence(rows, PAPERS)
  assert not any(tuned.startswith("open") for _, tuned in verdicts((*PAPER, *OURS), found).values())
  about = claim("accuracy", arm, "l1" if arm != "l1" else "cnn")
  text = f"{ARMS[arm].label} diverges at every learning rate"
  assert verdicts([about], found)[about][1] == f"**does not hold**: {text}"


def test_claims_name_networks_of_their_study():
  for each in (*PAPER, *OURS):
    named = {*each.ours, *each.theirs}
    assert named <= ARMS.keys()
    if each.rule not in ("spread", "pgd", "fgsm"):
      assert named <= {*STUDIES[each.study].all_arms} | ({*MAIN} if named <= {*MAIN} else set())
    assert each.rule in ("reaches", "spread", "fgsm", "pgd") or each.rule in RULES
  assert set(next(c for c in OURS if c.over == "some").ours) == set(KNNS)
  assert sum(c.main for c in PAPER) == 5


def test_tuned_claims_are_about_runs_at_the_chosen_rates(tmp_path):
  def change(spec):
    factor = {"polynomial": 0.5}.get(spec.arm, 1.0) if spec.rate == 0.003 else 1.0
    return {"steps": None, "error": factor}

  rows = fill(Rows(tmp_path, PAPERS), change=change)
  about = claim("errors")
  paper, tuned = verdicts([about], Evidence(rows.all(), PAPERS))[about]
  assert paper.startswith("**holds**: 2.00")
  assert tuned.startswith("**does not hold**: 1.00")
  assert find(claim("errors", "power-inside", "cnn"), Evidence(rows.all(), PAPERS), True) is None

  # Rates that are chosen for the early error are taken for it once there are runs at them.
  def early(spec):
    if spec.stop_after is None:
      return change(spec)
    best = {"polynomial": 0.018}.get(spec.arm, 0.0056)
    worse = 1 + abs(np.log(spec.rate / best)) / 10
    return {
      "steps": None,
      "error": worse * {"polynomial": 0.25, "power-inside": 0.25}.get(spec.arm, 0.5),
    }

  fill(rows, studies=("early-tuned",), change=early)
  found = Evidence(rows.all(), PAPERS)
  assert (found.rate("polynomial", "early"), found.rate("cnn", "early")) == (0.018, 0.0056)
  assert verdicts([about], found)[about][1].startswith("**holds**: 2.00")
  assert verdicts([claim("accuracy")], found)  # whose rates are as before
  assert found.best_rates("accuracy") == "tuned"
  inside = find(claim("errors", "power-inside", "cnn", study="authors"), found, True)
  assert inside is not None
  assert inside.numbers.startswith("2.00")


def test_runs_that_were_stopped_count_for_the_first_epochs_alone(tmp_path):
  rows = fill(Rows(tmp_path, PAPERS), studies=("kernels",))
  before = Evidence(rows.all(), PAPERS)
  stopped = plan.todo("early", ("cnn",), range(5), rows.all())
  assert [(spec.seed, spec.stop_after) for spec in stopped] == [(3, 3), (4, 3)]  # no whole run
  rows.add(rows.row(spec, training(0.97, error=0.5)) for spec in stopped)
  after = Evidence(rows.all(), PAPERS)
  assert list(after.measured("cnn", "errors")) == [0, 1, 2, 3, 4]
  assert after.measured("cnn", "accuracy") == before.measured("cnn", "accuracy")


def test_seeds_can_be_looked_at_by_themselves(tmp_path):
  rows = fill(Rows(tmp_path, PAPERS), seeds=range(6), studies=("kernels", "tuned"))
  fresh = Evidence(rows.all(), PAPERS, lambda seed: seed >= FRESH)
  assert list(fresh.runs("cnn")) == list(fresh.runs("cnn", "tuned")) == [3, 4, 5]
  assert fresh.rate("cnn", "tuned") == 0.03  # which seed 0 chose


def test_the_grid_goes_on_while_the_best_is_at_its_edge():
  def rows(accuracy, rates):
    runs = [Training("cnn", 0, rate, search=True) for rate in rates]
    made = {identity(run): training(accuracy(run.rate)) for run in runs}
    return {name: row | {"spec": {}} for name, row in made.items()}

  def known(rows):
    return [run.rate for run in plan.searches("cnn", rows)]

  grid = plan.GRIDS["tuned"][0]
  assert known({}) == list(grid)
  middle = rows(lambda rate: 0.9 - abs(np.log10(rate / 0.03)) / 10, grid)
  assert known(middle) == list(grid)
  assert plan.rate_of("cnn", middle, "tuned") == 0.03
  rising = rows(lambda rate: 0.5 + rate / 10, grid)
  assert known(rising) == [*grid, 1.0]
  assert plan.rate_of("cnn", rising, "tuned") is None  # until the run at 1.0 is there
  rising |= rows(lambda rate: 0.3, (1.0,))
  assert plan.rate_of("cnn", rising, "tuned") == 0.3
  falling = rows(lambda rate: 0.9 - rate, (0.0003, *grid))
  assert known(falling) == [0.0001, 0.0003, *grid]
  assert plan.rate_of("cnn", rows(lambda rate: None, grid), "tuned") is None  # all diverged


def test_of_equal_accuracies_the_lower_loss_is_chosen():
  runs = [Training("cnn", 0, rate, search=True) for rate in (0.01, 0.03)]
  rows = {
    identity(run): training(0.99, final_loss=loss) | {"spec": {}}
    for run, loss in zip(runs, (0.04, 0.05), strict=True)
  }
  assert plan.best_rate(runs, rows) == 0.01


def test_stages_of_a_study():
  searches = plan.todo("tuned", ("cnn",), (0, 1), {})
  assert [spec.rate for spec in searches] == list(plan.GRIDS["tuned"][0])
  rows = {
    identity(spec): training(0.9 - abs(np.log10(spec.rate / 0.1))) | {"spec": {}}
    for spec in searches
  }
  final = plan.todo("tuned", ("cnn",), (0, 1), rows)
  assert final[len(searches) :] == [Training("cnn", 0, 0.1), Training("cnn", 1, 0.1)]
  trainings = plan.todo("fgsm", ("cnn", "l1", "l2"), (0,), {})
  assert {(spec.arm, spec.seed) for spec in trainings} == {
    (arm, seed) for arm in ("cnn", "l1", "l2") for seed in (0, 1)
  }
  rows = {identity(spec): training() for spec in trainings}
  attacks = plan.todo("fgsm", ("cnn",), (0,), rows)[2:]
  assert attacks == [plan.attack("cnn", 0)]
  assert plan.attack("cnn", 0).target_seed == 1
  # Networks that diverged are left alone, here one that images would be shown to.
  rows[identity(Training("l2", 1))] = training(None, None)
  assert plan.todo("fgsm", ("cnn", "l1", "l2"), (0,), rows) == trainings


def test_studies_and_stages_name_networks():
  for study in STUDIES.values():
    assert {
      *study.all_arms,
      *(arm for arms in study.panels.values() for arm in arms),
    } <= ARMS.keys()
  for name, arms, seeds in CONFIRM:
    assert set(arms) <= set(STUDIES[name].arms)
    assert max(seeds) >= FRESH
  grids = [sorted([*grid, *below, *above]) for grid, below, above in plan.GRIDS.values()]
  np.testing.assert_allclose(np.diff(np.log10(grids[0])), 0.5, atol=0.03)
  np.testing.assert_allclose(np.diff(np.log10(grids[1])), 0.25, atol=0.03)
