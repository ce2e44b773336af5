"""Rules that turn rows into verdicts, on rows whose verdict is known."""

import math

import numpy as np
import pytest

from experiments.ablation import plan, robustness, speed
from experiments.ablation.accuracies import has, more_accurate, not_worse, reaches
from experiments.ablation.arms import ARMS
from experiments.ablation.claims import PAPER
from experiments.ablation.evidence import Evidence, by_arm
from experiments.ablation.protocol import Protocol, Training, identity
from experiments.ablation.questions import QUESTIONS
from experiments.ablation.rows import Rows
from experiments.ablation.speeds import alike, faster, fewer_errors, lead_shrinks
from experiments.ablation.study import ATTACKED, STUDIES, TUNED
from experiments.ablation.summary import Summary, difference, ratio, shared_level
from experiments.ablation.verdicts import Answer, Finding, Outcome, alone, at_both_rates, some
from tests.experiments.ablation.rows import attack, fill, training

YES, NO, UNDECIDED, MISSING = Answer
CLAIMS = (*PAPER, *QUESTIONS)


def runs(values, name="steps", arm="cnn", **more):
  """Rows by seed whose steps or accuracy, say, are these."""
  return {
    seed: training(**{name: value}, **more) | {"spec": {"arm": arm}}
    for seed, value in enumerate(values)
  }


def test_intervals_are_students():
  summary = Summary.of([1.0, 2.0, 4.0])  # t(0.975, 2) = 4.30265
  half = 4.302653 * np.std([1, 2, 4], ddof=1) / 3**0.5
  np.testing.assert_allclose(
    (summary.mean, summary.low, summary.high), (7 / 3, 7 / 3 - half, 7 / 3 + half), rtol=1e-6
  )
  low, high = summary.next_run()
  np.testing.assert_allclose(
    high - low, 2 * half * 2, rtol=1e-6
  )  # sqrt(1 + 1/3) is twice 1/sqrt(3)
  assert math.isnan(Summary.of([1.0]).low)


def test_ratios_and_differences_are_of_pairs():
  quotient = ratio([200.0, 600.0, 60.0], [100.0, 300.0, 30.0])
  np.testing.assert_allclose((quotient.low, quotient.mean, quotient.high), 2.0)
  wider = ratio([200.0, 600.0, 60.0], [100.0, 300.0, 30.0], blur=0.1)
  np.testing.assert_allclose(wider.high, 2 * math.exp(4.302653 * 0.1 / 3**0.5), rtol=1e-6)
  gap = difference([0.5, 0.7, 0.9], [0.4, 0.6, 0.8])
  np.testing.assert_allclose((gap.mean, gap.sd), (0.1, 0.0), atol=1e-12)


@pytest.mark.parametrize(
  ("fast", "slow", "factor", "answer"),
  [
    ((1000, 1000, 1200), (2000, 2000, 2200), 2.0, YES),
    ((1000, 1000, 1000), (3800, 3800, 4000), 2.0, YES),  # more than claimed
    ((1000, 1000, 1000), (1200, 2000, 3600), 2.0, UNDECIDED),  # the middle is 2, but anything goes
    ((2000, 2000, 2000), (3600, 3600, 3600), 2.0, NO),  # nearly, and surely not more
    ((2000, 2000, 2000), (2600, 2600, 2600), 2.0, NO),  # faster, but not twice as fast
    ((2000, 2000, 2000), (2600, 3400, 4200), 2.0, UNDECIDED),  # faster, perhaps twice as fast
    ((2000, 2000, 2000), (3200, 3200, 3200), 1.0, YES),
    ((2000, 2000, 2000), (2200, 1800, 2000), 1.0, UNDECIDED),
    ((3200, 3200, 3200), (2000, 2000, 2000), 1.0, NO),
    ((1000, None, 1000), (3800, 3800, 3800), 1.0, NO),  # not every run gets there
    ((1000, 1000, 1000), (None, None, None), 2.0, YES),
    ((3000, 3000, 3000), (None, None, None), 2.0, UNDECIDED),  # at least 1.3 times as fast
    ((None, None, None), (None, None, None), 1.0, NO),
    ((1000, None, 1000), (None, None, None), 1.0, UNDECIDED),  # the other one is worse still
    ((1000, 1000), (2000, 2000), 2.0, MISSING),
  ],
)
def test_faster(fast, slow, factor, answer):
  assert faster(runs(fast), runs(slow), factor).answer is answer


def test_numbers_name_the_networks():
  knn, cnn = runs((1000,) * 3, arm="polynomial"), runs((2000,) * 3)
  text = faster(knn, cnn, 1.0).numbers
  assert text.startswith("polynomial 2.00 times [")
  assert text.endswith("] as fast as CNN")
  never = faster(knn, runs((None,) * 3), 1.0).numbers
  assert never.startswith("polynomial at least 4.00 times [")
  assert "CNN, which does not reach 98 % in 3 of 3 runs" in never


@pytest.mark.parametrize(
  "rule",
  [lambda ours, theirs: faster(ours, theirs, 1.0), fewer_errors, more_accurate, not_worse, alike],
)
def test_a_run_that_diverged_decides_for_nobody(rule):
  good, lost = runs((1000,) * 3), runs((2000,) * 3, arm="l1")
  for seed in (0, 1):  # though the second had reached the target
    lost[seed] |= {"accuracy": None, "diverged_at": 3000}
  assert rule(lost, good) == Finding(NO, "L1 diverged in 2 of 3 runs")
  assert rule(good, lost) == Finding(UNDECIDED, "L1 diverged in 2 of 3 runs")


def test_seeds_that_only_one_network_has_do_not_count():
  fast, slow = runs((1000, 1000, 1000, 1000)), runs((2000, 2000, 2000, 2000))
  del fast[0], slow[3]
  finding = faster(fast, slow, 2.0)
  assert finding.answer is MISSING
  assert "2 of at least 3 seeds" in finding.numbers


def test_steps_are_known_but_for_the_time_between_evaluations():
  # 1.1 times as many, in every run: one evaluation apart
  assert faster(runs((2000,) * 3), runs((2200,) * 3), 1.0).answer is UNDECIDED


def test_runs_are_looked_at_equally_often():
  row = training(steps=1000)
  often = training(steps=1000)
  often["curve"] = {
    "steps": sorted([*often["curve"]["steps"], 250, 300, 3900]),
    "accuracy": [0.1, 0.1, 0.99, 0.99, *often["curve"]["accuracy"][2:], 0.99],
  }
  assert often["curve"]["steps"][:5] == [0, 200, 250, 300, 400]
  assert speed.common(often).keys() == speed.common(row).keys() == set(range(200, 4001, 200))
  assert speed.steps_to_target(often) == 1000
  assert speed.epochs_to_target(often) == 1000 / 1200
  assert speed.steps_to_target(training(steps=None)) is None


def test_what_all_evaluations_say_differently_is_undecided():
  fast, slow = runs((2000,) * 3, arm="polynomial"), runs((3200,) * 3)
  assert faster(fast, slow, 1.0).answer is YES
  for row in slow.values():  # they touch 98 % where others are not looked at
    row["curve"] = {
      "steps": sorted([*row["curve"]["steps"], 250]),
      "accuracy": [*row["curve"]["accuracy"][:2], 0.98, *row["curve"]["accuracy"][2:]],
    }
  finding = faster(fast, slow, 1.0)
  assert finding.answer is UNDECIDED
  assert finding.numbers.startswith("polynomial 1.60 times [")
  assert "(by all evaluations polynomial 0.13 times [" in finding.numbers


def test_the_early_error_is_a_geometric_mean_over_three_epochs():
  row = training(steps=1000)  # an error of 0.9 at 4 evaluations and 0.02 at 14
  np.testing.assert_allclose(speed.early_error(row), (0.9**4 * 0.02**14) ** (1 / 18))
  assert speed.early_error(row | {"diverged_at": 5}) is None


@pytest.mark.parametrize(
  ("errors", "answer"),
  [
    ((0.5, 0.5, 0.55), YES),
    ((0.95, 0.97, 0.96), YES),
    ((1.0, 1.0, 1.01), NO),
    ((1.5, 1.6, 1.5), NO),
    ((0.6, 1.0, 0.8), UNDECIDED),
    ((0.5, 0.5), MISSING),
  ],
)
def test_fewer_errors(errors, answer):
  ours = runs(errors, "error", steps=None, arm="polynomial")
  theirs = runs((1.0,) * 3, "error", steps=None)
  assert fewer_errors(ours, theirs).answer is answer


def test_a_lead_is_compared_at_both_rates():
  def pair(ours, theirs):
    return tuple(runs(errors, "error", steps=None) for errors in (ours, theirs))

  ahead, level = pair((0.5, 0.4, 0.5), (1.0, 0.8, 1.0)), pair((0.5, 0.52, 0.5), (0.5, 0.5, 0.52))
  finding = lead_shrinks(ahead, level)
  assert finding.answer is YES
  assert "errors CNN" in finding.numbers
  assert "; lead 2.00 [2.00, 2.00] -> 1.00 [" in finding.numbers
  assert lead_shrinks(level, ahead).answer is NO  # there is no lead that could
  assert lead_shrinks(ahead, ahead).answer is NO  # it stays as it is
  behind, further = pair((1.0, 0.9, 1.0), (0.5, 0.45, 0.5)), pair((1.0, 0.9, 1.0), (0.3, 0.3, 0.3))
  assert lead_shrinks(behind, further).answer is NO
  assert lead_shrinks(ahead, pair((0.5, 0.5), (0.5, 0.5))).answer is MISSING
  for place in (0, 1):
    lost = pair((0.5, 0.52, 0.5), (0.5, 0.5, 0.52))
    lost[place][1] |= {"accuracy": None, "diverged_at": 3000}
    assert lead_shrinks(ahead, lost) == Finding(UNDECIDED, "CNN diverged in 1 of 3 runs")


@pytest.mark.parametrize(
  ("ours", "theirs", "answer"),
  [
    ((0.991, 0.992, 0.993), (0.989, 0.990, 0.991), YES),
    ((0.991, 0.985, 0.993), (0.989, 0.990, 0.991), UNDECIDED),
    ((0.9895, 0.9905, 0.9915), (0.989, 0.990, 0.991), YES),
    ((0.989, 0.990, 0.991), (0.9895, 0.9905, 0.9915), NO),
    ((0.991, 0.992), (0.989, 0.990), MISSING),
  ],
)
def test_more_accurate(ours, theirs, answer):
  assert more_accurate(runs(ours, "accuracy"), runs(theirs, "accuracy")).answer is answer


@pytest.mark.parametrize(
  ("ours", "answer"),
  [
    ((0.9895, 0.9896, 0.9894), YES),  # at most 0.06 points less
    ((0.9940, 0.9950, 0.9945), YES),
    ((0.9850, 0.9860, 0.9855), NO),
    ((0.9850, 0.9951, 0.9903), UNDECIDED),
  ],
)
def test_not_worse(ours, answer):
  assert not_worse(runs(ours, "accuracy"), runs((0.99,) * 3, "accuracy")).answer is answer


@pytest.mark.parametrize(
  ("errors", "answer"),
  [
    ((0.98, 1.0, 1.02), YES),
    ((0.7, 0.7, 0.71), NO),
    ((1.3, 1.31, 1.3), NO),
    ((0.7, 1.0, 1.3), UNDECIDED),
  ],
)
def test_networks_learn_alike_within_a_factor(errors, answer):
  ours = runs(errors, "error", steps=None, accuracy=0.991)
  theirs = runs((1.0,) * 3, "error", steps=None)
  assert alike(ours, theirs).answer is answer
  assert alike(theirs, ours).answer is answer
  same = alike(theirs, theirs)
  assert same == Finding(YES, "the same weights in the end, bit for bit, in 3 of 3 runs")


def test_an_accuracy_of_the_paper_is_one_run():
  ours = runs((0.9910, 0.9911, 0.9912), "accuracy")  # the mean 0.9911, another run 0.9906 to 0.9916
  values = 0.98, 0.9915, 0.9928, 0.9940  # 0.9911 is within 0.2 points of the first three but one
  assert [reaches(ours, value).answer for value in values] == [YES, YES, YES, NO]
  assert [has(ours, value).answer for value in values] == [NO, YES, YES, NO]
  scattered = runs((0.980, 0.985, 0.987), "accuracy")  # another run in [0.966, 1.002]
  assert [reaches(scattered, value).answer for value in (0.97, 0.9920)] == [YES, UNDECIDED]
  assert [has(scattered, value).answer for value in (0.98, 0.9841)] == [UNDECIDED, UNDECIDED]
  numbers = reaches(ours, 0.9915).numbers  # t(0.95, 2) = 2.92
  assert numbers == "99.11 %, the mean is at least 99.09, another run in [99.06, 99.16]"
  assert reaches({0: ours[0]}, 0.98).answer is MISSING
  lost = runs((0.985, 0.984, None), "accuracy")
  assert [rule(lost, 0.5).answer for rule in (reaches, has)] == [NO, NO]


def test_outcomes():
  findings = [Finding(answer, "n") for answer in Answer]
  assert [alone(each).outcome for each in findings] == [
    Outcome.HOLDS,
    Outcome.FAILS,
    Outcome.UNDECIDED,
    Outcome.OPEN,
  ]
  both = {
    (each.answer, other.answer): at_both_rates(each, other).outcome
    for each in findings
    for other in findings
  }
  assert both.pop((YES, YES)) is Outcome.HOLDS
  assert both.pop((YES, NO)) is Outcome.PAPER_ONLY
  assert both.pop((NO, YES)) is Outcome.TUNED_ONLY
  assert both.pop((NO, NO)) is Outcome.FAILS
  assert both.pop((YES, UNDECIDED)) is Outcome.PAPER_AT_LEAST
  assert both.pop((UNDECIDED, YES)) is Outcome.TUNED_AT_LEAST
  assert both.pop((NO, UNDECIDED)) is Outcome.NOT_PAPER
  assert both.pop((UNDECIDED, NO)) is Outcome.NOT_TUNED
  assert both.pop((UNDECIDED, UNDECIDED)) is Outcome.UNDECIDED
  assert len(both) == 7
  assert set(both.values()) == {Outcome.OPEN}


def test_one_of_several_needs_wider_intervals():
  yes, no, unknown, missing = (Finding(answer, answer.value) for answer in Answer)

  def all_of(**findings):
    return some(findings, findings, "wide")

  assert all_of(a=no, b=yes, c=unknown) == Finding(YES, "yes (wide)")
  assert all_of(a=no, b=unknown) == Finding(UNDECIDED, "undecided (wide)")
  assert all_of(a=no, b=no).answer is NO
  assert all_of(a=yes, b=missing) == Finding(MISSING, "without b")
  # It takes a wide interval to say yes, and narrow ones to say no.
  assert some({"a": no, "b": unknown}, {"a": no, "b": yes}, "").answer is UNDECIDED
  assert some({"a": no, "b": unknown}, {"a": no, "b": no}, "").answer is NO
  ours, theirs = runs((0.9910, 0.9914, 0.9918), "accuracy"), runs((0.9900,) * 3, "accuracy")
  assert more_accurate(ours, theirs).answer is YES  # t(0.975, 2) = 4.3
  np.testing.assert_allclose(shared_level(7), 1 - 0.05 / 7)
  assert more_accurate(ours, theirs, shared_level(7)).answer is UNDECIDED  # t(0.9964, 2) = 11.8


def test_robustness_is_compared_where_the_cnn_has_the_papers_accuracy():
  attacks = {
    arm: {seed: attack(plan.attack(arm, seed), factor + 0.01 * seed) for seed in range(3)}
    for arm, factor in {"cnn": 1.0, "l1": 0.8, "l2": 1.2}.items()
  }
  epsilon = robustness.paper_epsilon(attacks["cnn"])
  assert epsilon is not None
  mean = np.mean([robustness.accuracy_at(row, epsilon) for row in attacks["cnn"].values()])
  np.testing.assert_allclose(mean, robustness.PAPER_ATTACKED["cnn"], atol=1e-9)
  assert robustness.more_robust(attacks, "l1").answer is YES
  assert robustness.more_robust(attacks, "l2").answer is NO
  assert "the other way round" not in robustness.more_robust(attacks, "l2").numbers
  for row in attacks["l2"].values():
    row["white_box"]["fgsm"]["0.25"] = 0.9
  assert "; the other way round at epsilon 0.25" in robustness.more_robust(attacks, "l2").numbers
  assert robustness.more_robust_to_pgd(attacks, "l1", 0.1).answer is YES
  del attacks["l1"][2]
  assert robustness.more_robust(attacks, "l1").answer is MISSING
  assert robustness.masked(attacks, "l2").answer is MISSING


def test_signs_of_masked_gradients():
  def attacks():
    return {arm: {seed: attack(plan.attack(arm, seed)) for seed in range(3)} for arm in ATTACKED}

  assert robustness.masked(attacks(), "l1").answer is NO
  by_transfer = attacks()
  for row in by_transfer["cnn"].values():
    row["transfer"]["l1"]["fgsm"]["0.2"] = 0.0
  assert robustness.masked(by_transfer, "l1").answer is NO  # steps of its own leave nothing either
  for row in by_transfer["l1"].values():
    row["white_box"] = {"fgsm": {"0.0": 0.99, "0.3": 0.05}, "pgd": {"0.2": 0.02, "0.3": 0.0}}
  numbers = robustness.masked(by_transfer, "l1").numbers
  assert "FGSM made for CNN leaves 0.0 %, the strongest of its own 2.0 % at epsilon 0.2" in numbers
  assert robustness.masked(by_transfer, "l2").answer is NO
  by_steps_of_others = attacks()
  for row in by_steps_of_others["l2"].values():
    row["transfer"]["l1"]["pgd"]["0.05"] -= 0.2
  assert "PGD made for L2" in robustness.masked(by_steps_of_others, "l1").numbers
  # They are compared on the network that they are shown to: here the weak one is of seed 1.
  on_one = attacks()
  on_one["l1"][1]["white_box"] = {
    kind: {epsilon: value and value - 0.5 for epsilon, value in curve.items()}
    for kind, curve in on_one["l1"][1]["white_box"].items()
  }
  for row in on_one["cnn"].values():
    drop = 0.45 * (row["spec"]["target_seed"] == 1)
    for curve in row["transfer"]["l1"].values():
      curve.update({epsilon: value - drop for epsilon, value in curve.items()})
  assert not any("made for" in sign for sign in robustness.masked(on_one, "l1").numbers.split(";"))
  by_steps = attacks()
  for row in by_steps["l1"].values():
    row["white_box"]["pgd"]["0.1"] = 0.95
  assert "PGD leaves" in robustness.masked(by_steps, "l1").numbers
  unbroken = attacks()
  for row in unbroken["l1"].values():
    row["white_box"]["pgd"]["0.3"] = row["white_box"]["fgsm"]["0.3"] = 0.5
  assert "at epsilon 0.3 leaves 50.0 %" in robustness.masked(unbroken, "l1").numbers
  flat = attacks()
  for row in flat["l1"].values():
    row["gradients"]["images_without"] = 0.2
  assert "20.0 %" in robustness.masked(flat, "l1").numbers


def test_every_claim_is_decided_by_complete_rows_and_by_no_others(tmp_path):
  complete = Evidence(fill(Rows(tmp_path / "all", Protocol())).all())
  outcomes = {claim.text: claim.decide(complete).outcome for claim in CLAIMS}
  assert Outcome.OPEN not in outcomes.values()
  assert not any(complete.missing(study) for study in STUDIES)
  two = fill(Rows(tmp_path, Protocol()), seeds=(0, 1), studies=set(STUDIES) - {"fgsm"})
  some = Evidence(two.all())
  assert {claim.decide(some).outcome for claim in CLAIMS} == {Outcome.OPEN}
  empty = Evidence({})
  assert {claim.decide(empty).outcome for claim in CLAIMS} == {Outcome.OPEN}
  assert by_arm(empty.missing("no-relu")) == {
    arm: ["seed 0", "seed 1", "seed 2"] for arm in STUDIES["no-relu"].arms
  }


def test_more_seeds_of_one_study_are_not_missed_in_others(tmp_path):
  rows = fill(Rows(tmp_path, Protocol()))
  fill(rows, seeds=range(5), studies=("tuned", "kernels"))
  evidence = Evidence(rows.all())
  wanted = {study: evidence.wanted_seeds(study) for study in STUDIES}
  more = {study for study, seeds in wanted.items() if seeds == [0, 1, 2, 3, 4]}
  assert more == {"tuned", "kernels"}  # not the arrangement, which shares two networks with it
  assert all(wanted[study] == [0, 1, 2] for study in wanted.keys() - more)
  assert not any(evidence.missing(study) for study in STUDIES)
  assert len(evidence.runs("tuned", "l1")) == 5
  lost = rows.all()
  del lost[identity(Training("l1", 3, evidence.rate("tuned", "l1")))]
  assert by_arm(Evidence(lost).missing("tuned")) == {"l1": ["seed 3"]}


@pytest.mark.parametrize("arm", TUNED)
def test_a_network_that_no_learning_rate_is_good_for_leaves_no_claim_open(tmp_path, arm):
  folder = fill(Rows(tmp_path, Protocol()))
  rows = folder.all()
  for rate in plan.GRID:
    spec = Training(arm, 0, rate, search=True)
    rows[identity(spec)] = folder.row(spec, training(None, final_loss=None))
  found = {claim.text: claim.decide(Evidence(rows)) for claim in CLAIMS}
  assert Outcome.OPEN not in {verdict.outcome for verdict in found.values()}
  verdict = found["The L1 KNN is more accurate in the end than the CNN."]
  told = {
    "l1": "tuned: no, L1 diverges at every learning rate",
    "cnn": "tuned: undecided, CNN diverges at every learning rate",
  }
  if arm in told:
    assert told[arm] in verdict.numbers


def test_an_attacked_network_that_diverged_leaves_no_claim_open(tmp_path):
  folder = fill(Rows(tmp_path, Protocol()))
  rows = folder.all()
  for spec in [Training("l2", 1), *(plan.attack(arm, 0) for arm in ATTACKED)]:
    rows[identity(spec)] = folder.row(spec, training(None, None))
    if not isinstance(spec, Training):
      del rows[identity(spec)]  # there is nothing to show the images to
  found = {claim.text: claim.decide(Evidence(rows)) for claim in CLAIMS}
  assert Outcome.OPEN not in {verdict.outcome for verdict in found.values()}
  assert found["The L2 KNN is more robust to FGSM than the CNN."].outcome is Outcome.FAILS
  assert found["The L1 KNN is more robust to FGSM than the CNN."].outcome is Outcome.UNDECIDED


def test_claims_look_at_the_runs_that_they_name(tmp_path):
  """Each network differs in one thing, which its claims have to find, and no others."""
  paper_errors = {"polynomial": 0.5, "kerv-kerv": 1.5, "power-inside": 0.7, "volterra": 0.9}

  def change(spec):
    changed = {"steps": None}  # 98 % is not what tells them apart
    if spec.search:
      return changed
    if spec.rate == 0.003:
      changed["error"] = paper_errors.get(spec.arm, 1.0)
      changed["steps"] = {"sigmoid": 3000, "cnn": 1000, "gaussian": 400}.get(spec.arm)
    else:
      changed["error"] = {"polynomial": 0.8, "l1": 0.5}.get(spec.arm, 0.8)
      changed["accuracy"] = 0.98 if spec.arm == "l2" else 0.99
    if changed["steps"]:
      changed["error"] = 1.0
    if spec.arm in ("learnable", "volterra"):
      changed["accuracy"] = 0.995
    return changed

  evidence = Evidence(fill(Rows(tmp_path, Protocol()), change=change).all())
  found = {claim.text: claim.decide(evidence).outcome for claim in CLAIMS}
  early = "in the first three epochs"
  expected = {
    "The Gaussian KNN reaches 98 % sooner than the CNN.": Outcome.PAPER_ONLY,
    "The Gaussian KNN reaches 98 % twice as fast as the CNN.": Outcome.PAPER_ONLY,
    "The sigmoid KNN takes longer to 98 % than the CNN.": Outcome.PAPER_ONLY,
    "A learnt balance reaches an accuracy of 99.20 %, but for 0.2 points.": Outcome.HOLDS,
    "A learnt balance is more accurate than the fixed one that it starts from.": Outcome.HOLDS,
    f"The L1 KNN makes fewer errors than the CNN {early}.": Outcome.TUNED_ONLY,
    "The L2 KNN is more accurate in the end than the CNN.": Outcome.FAILS,
    f"With its own learning rate, some KNN makes fewer errors {early} than the CNN with its own.": (
      Outcome.HOLDS
    ),
    "With its own learning rate, some KNN is more accurate in the end than the CNN with its own.": (
      Outcome.FAILS
    ),
    "With the bias inside of the cube, the network learns alike.": Outcome.FAILS,
    "With the bias inside of the tanh, the network learns alike.": Outcome.HOLDS,
    f"The polynomial KNN makes fewer errors {early} than the CNN of 11 features.": Outcome.HOLDS,
    f"The Volterra network makes fewer errors {early} than the CNN of 11 features.": Outcome.HOLDS,
    "The Volterra network is more accurate in the end than the CNN of 11 features.": Outcome.HOLDS,
    "The polynomial KNN is, with fewer weights, as accurate in the end as the Volterra network, "
    "but for 0.1 points.": Outcome.FAILS,
    f"Degree 3 makes fewer errors than degree 2 {early}, balance 1.": Outcome.HOLDS,
    f"Degree 5 makes fewer errors than degree 3 {early}, balance 1.": Outcome.FAILS,
    f"More than a bigger step: the polynomial KNN makes fewer errors {early} than a CNN whose "
    "first step is as long as its own.": Outcome.HOLDS,
  }
  assert {text: found[text] for text in expected} == expected


def test_the_grid_goes_on_while_the_best_is_at_its_edge():
  def rows(accuracy, rates):
    runs = [Training("cnn", 0, rate, search=True) for rate in rates]
    return {identity(run): training(accuracy(run.rate)) for run in runs}

  def known(rows):
    return [run.rate for run in plan.searches("cnn", rows)]

  assert known({}) == list(plan.GRID)
  middle = rows(lambda rate: 0.9 - abs(math.log10(rate / 0.03)) / 10, plan.GRID)
  assert known(middle) == list(plan.GRID)
  assert plan.tuned_rate("cnn", middle) == 0.03
  rising = rows(lambda rate: 0.5 + rate / 10, plan.GRID)
  assert known(rising) == [*plan.GRID, 1.0]
  assert plan.tuned_rate("cnn", rising) is None  # until the run at 1.0 is there
  rising |= rows(lambda rate: 0.3, (1.0,))
  assert plan.tuned_rate("cnn", rising) == 0.3
  falling = rows(lambda rate: 0.9 - rate, (0.0003, *plan.GRID))
  assert known(falling) == [0.0001, 0.0003, *plan.GRID]
  lost = rows(lambda rate: None, plan.GRID)  # all diverged
  assert plan.tuned_rate("cnn", lost) is None


def test_of_equal_accuracies_the_lower_loss_is_chosen():
  runs = [Training("cnn", 0, rate, search=True) for rate in (0.01, 0.03)]
  rows = {
    identity(run): training(0.99, final_loss=loss)
    for run, loss in zip(runs, (0.04, 0.05), strict=True)
  }
  assert plan.best_rate(runs, rows) == 0.01


def test_stages_of_a_study():
  searches = plan.todo("tuned", ("cnn",), (0, 1), {})
  assert [spec.rate for spec in searches] == list(plan.GRID)
  rows = {identity(spec): training(0.9 - abs(math.log10(spec.rate / 0.1))) for spec in searches}
  final = plan.todo("tuned", ("cnn",), (0, 1), rows)
  assert final[len(searches) :] == [Training("cnn", 0, 0.1), Training("cnn", 1, 0.1)]
  trainings = plan.todo("fgsm", ("cnn", "l1", "l2"), (0,), {})
  assert {(spec.arm, spec.seed) for spec in trainings} == {
    (arm, seed) for arm in ("cnn", "l1", "l2") for seed in (0, 1)
  }
  rows = {identity(spec): training() for spec in trainings}
  assert plan.todo("fgsm", ("cnn",), (0,), rows)[-1] == plan.attack("cnn", 0)
  assert plan.attack("cnn", 0).target_seed == 1
  # Networks that diverged are left alone, here one that images would be shown to.
  rows[identity(Training("l2", 1))] = training(None, None)
  assert plan.todo("fgsm", ("cnn", "l1", "l2"), (0,), rows) == trainings


def test_studies_name_arms():
  for study in STUDIES.values():
    assert {*study.arms, *study.beside} <= ARMS.keys()
  assert len(plan.GRID) >= 6
  np.testing.assert_allclose(np.diff(np.log10(plan.GRID)), 0.5, atol=0.03)
