"""The benchmarks' own arithmetic, and that every rival computes what it is compared for."""

import functools
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import benchmarks.__main__ as cli
from benchmarks import (
  checkouts,
  correctness,
  growth,
  layer_tables,
  layers,
  measure,
  report,
  results,
  rivals,
  shapes,
  step,
  tables,
  targets,
)
from benchmarks.shapes import SHAPES, TARGETED, Shape
from benchmarks.worker import Worker
from kerv_jax import kernels

ROOT = pathlib.Path(__file__).parents[2]
SMALL = Shape("small", 2, (9, 8), 3, 4, (3, 3))
STRIDED = Shape("strided", 2, (10, 10), 3, 4, (5, 5), stride=2)
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.parametrize("shape", [*SHAPES.values(), SMALL, STRIDED], ids=lambda shape: shape.name)
def test_shapes_know_their_output(shape):
  layer = rivals.layer(rivals.BASELINE, shape)
  lhs, rhs = (jax.ShapeDtypeStruct(s, jnp.float32) for s in (shape.lhs, shape.rhs))
  assert jax.eval_shape(layer, lhs, rhs).shape == shape.out
  taps = math.prod(shape.window) * shape.in_features // shape.groups
  assert shape.terms == math.prod(shape.out) * taps


def test_operands_are_random_signed_filters_and_seeded():
  lhs, rhs, cotangent = SMALL.operands()
  assert (lhs.shape, rhs.shape, cotangent.shape) == (SMALL.lhs, SMALL.rhs, SMALL.out)
  assert rhs.min() < 0 < rhs.max()
  assert np.abs(rhs).max() <= 27**-0.5
  np.testing.assert_array_equal(lhs, SMALL.operands()[0])


@pytest.mark.parametrize("rival", rivals.JAX_RIVALS)
def test_rivals_compute_their_kernel(rival):
  lhs, rhs, cotangent = STRIDED.operands()
  out, *gradients = rivals.program(rivals.layer(rival, STRIDED), backward=True)(lhs, rhs, cotangent)
  name = rival.removeprefix("patches: ")
  if name == f"{rivals.BASELINE} + ReLU":
    expected = jnp.maximum(rivals.layer(rivals.BASELINE, STRIDED)(lhs, rhs), 0)
  else:
    patches = jax.lax.conv_general_dilated_patches(
      lhs, (5, 5), (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    taps = rhs.transpose(2, 0, 1, 3).reshape(-1, 4)  # channel-major, as the patches are
    kernel = (rivals.KERNELS | rivals.ADDITIVE)[name]
    over_filters = jax.vmap(kernel, in_axes=(None, 1))
    expected = jax.vmap(jax.vmap(jax.vmap(over_filters, (0, None)), (0, None)), (0, None))(
      patches, taps
    )
  np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
  assert [g.shape for g in gradients] == [STRIDED.lhs, STRIDED.rhs]
  assert all(np.abs(g).max() > 0 for g in gradients)


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is an optional extra")
@pytest.mark.parametrize("rival", rivals.TORCH_RIVALS)
def test_rivals_in_pytorch_compute_the_same(rival):
  import torch

  from benchmarks import torch_rivals

  lhs, rhs, _ = SMALL.operands()
  x = torch.tensor(np.array(lhs).transpose(0, 3, 1, 2).copy())
  w = torch.tensor(np.array(rhs).transpose(3, 2, 0, 1).copy())
  out = torch_rivals._layer(rival, SMALL)(x, w).numpy().transpose(0, 2, 3, 1)
  name = rival.split(": ")[-1] if ": " in rival else "linear"
  np.testing.assert_allclose(
    out, rivals.layer(name, SMALL)(lhs, rhs), rtol=2e-4, atol=1e-5, err_msg=rival
  )
  torch_rivals.layer(rival, STRIDED, backward=True)(2)


class Clock:
  """A clock that only what is timed moves on."""

  def __init__(self, monkeypatch):
    self.now = 0.0
    self.calls: list[str] = []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: self.now)
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: None)

  def takes(self, name, *seconds):
    turns = iter(range(10**6))

    def call(number):
      for _ in range(number):
        self.now += seconds[next(turns) % len(seconds)]
      self.calls.append(name)

    return call


def test_a_comparison_is_of_medians_side_by_side(monkeypatch):
  clock = Clock(monkeypatch)
  rival, baseline = clock.takes("rival", 0.3, 0.3, 0.9), clock.takes("baseline", 0.1)
  found = measure.compare(rival, baseline, rounds=9, seconds=1e9)
  assert found.rounds == 9
  np.testing.assert_allclose(
    [found.milliseconds, found.baseline_milliseconds, found.ratio], [300, 100, 3]
  )
  np.testing.assert_allclose([found.low, found.high], [3, 9])
  timed = clock.calls[-18:]
  pairs = [set(timed[i : i + 2]) for i in range(0, 18, 2)]
  assert pairs == [{"rival", "baseline"}] * 9
  assert timed[0] != timed[2]  # neither always follows the other


def test_a_comparison_stops_when_its_time_is_over(monkeypatch):
  clock = Clock(monkeypatch)
  found = measure.compare(clock.takes("a", 2.0), clock.takes("b", 1.0), rounds=99, seconds=14.5)
  assert found.rounds == 5
  found = measure.compare(clock.takes("a", 2.0), clock.takes("b", 1.0), rounds=99, seconds=0.0)
  assert found.rounds == 3


def test_short_calls_are_repeated_in_a_sample(monkeypatch):
  clock = Clock(monkeypatch)
  found = measure.compare(clock.takes("a", 2e-4), clock.takes("b", 1e-4), rounds=3, seconds=1.0)
  np.testing.assert_allclose(found.milliseconds, 0.2)
  assert clock.now > 6 * 0.9 * measure._SAMPLE_SECONDS


def test_a_program_tells_its_work():
  size = 64
  ones = jnp.ones((size, size))
  program = measure.compiled(lambda a, b: a @ b, ones, ones)
  program.call(2)
  assert program.flops == pytest.approx(2 * size**3, rel=0.01)
  assert program.bytes_accessed == pytest.approx(3 * 4 * size**2, rel=0.1)
  assert program.compile_seconds > 0


def test_scratch_memory_shows_what_a_fusion_would_hide():
  shape = SHAPES["CIFAR middle"]
  lhs, rhs, _ = shape.operands()
  convolution = rivals.layer(rivals.BASELINE, shape)
  program = measure.compiled(lambda x, w: convolution(jnp.exp(convolution(x, w)), w), lhs, rhs)
  assert program.temp_bytes >= 4 * math.prod(shape.out)


def row(rival, shape, ratio, mode=targets.MODE, **fields):
  return {"rival": rival, "shape": shape, "mode": mode, "ratio": ratio} | fields


def all_rows(ratio, **fields):
  return [
    row(kernel, shape.name, ratio, **fields)
    for target in targets.TARGETS
    for kernel in target.kernels
    for shape in TARGETED
  ]


def test_targets_are_checked_with_a_margin_for_noise():
  assert targets.failures(all_rows(1.0), [], noise=1.0) == []
  slow = targets.failures(all_rows(1.12), [], noise=1.0)
  assert [line.split(":")[0] for line in slow] == ["linear", "polynomial", "sigmoid"]
  assert targets.failures(all_rows(1.12), []) == []
  one = [*all_rows(1.0), row("L1", "CIFAR stem", 11.0)]
  assert [line.split(":")[0] for line in targets.failures(one, [], noise=1.0)] == ["L1"]


def test_memory_has_no_margin():
  sizes = {"baseline_temp_bytes": 1000, "out_bytes": 100, "in_bytes": 10}
  fits = [
    row("polynomial", "CIFAR stem", 1.0, temp_bytes=1300, **sizes),
    row("L1", "CIFAR stem", 1.0, temp_bytes=1320, **sizes),
    row("Gaussian", "CIFAR stem", 1.0, temp_bytes=1400, **sizes),
  ]
  assert targets.failures(fits, []) == []
  more = [{**r, "temp_bytes": r["temp_bytes"] + 1} for r in fits]
  assert len(targets.failures(more, [])) == 3


def test_products_in_groups_have_a_target():
  rows = [row("Gaussian", "depthwise", 0.31), row("L1", "depthwise", 0.9)]
  (line,) = targets.failures(rows, [], noise=1.0)
  assert line == "Gaussian, depthwise: time 0.31 of a convolution's; the target is 0.3"
  assert targets.failures(rows, []) == []


def test_additive_kernels_are_held_to_l1_and_their_own_term():
  def beside(kernel, ratio, temp):
    sizes = {"out_bytes": 100, "in_bytes": 10, "baseline_temp_bytes": 0}
    l1 = row("L1", "CIFAR stem", 2.0, temp_bytes=300, **sizes)
    mine = row(kernel, "CIFAR stem", ratio, temp_bytes=temp, elementwise_ratio=1.0, **sizes)
    return [l1, mine]

  for kernel, most in (("Huber", 3 * 1.3), ("Chebyshev", 3 * 2.0), ("Minkowski", 3 * 2.0)):
    assert targets.failures(beside(kernel, most - 0.01, 400), [], noise=1.0) == []
    (line,) = targets.failures(beside(kernel, most + 0.1, 400), [], noise=1.0)
    assert line.startswith(f"{kernel}, CIFAR stem: time")
    (line,) = targets.failures(beside(kernel, most, 401), [])
    assert line.startswith(f"{kernel}, CIFAR stem: scratch memory 1.01 outputs")
  rows = beside("Huber", 3.9, 350)
  assert "| Huber | sum | 1.30 | 1.30 | 1.30 | 0.50 outputs | 1 output |" in (
    layer_tables.additive(rows)
  )
  assert targets.failures(rows[1:], []) == []  # without L1 there is nothing to hold it to


def test_the_elementwise_cost_is_that_of_the_term_and_its_derivatives(monkeypatch):
  monkeypatch.setattr(rivals, "PAIRS", 2**19)
  function, (x, w, cotangent) = rivals.elementwise("Huber")
  assert x.size * w.size == rivals.PAIRS
  difference = x[None] - w[:, None]
  clipped = jnp.clip(difference, -1, 1)
  terms = (clipped * (difference - clipped / 2)).sum(0)
  slopes = (cotangent[None] * clipped).sum(0)
  for found, right in zip(function(x, w, cotangent), (terms, slopes, -slopes), strict=True):
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_pytorch_is_compared_in_time_and_memory():
  rows = [row("L1", "CIFAR stem", 2.0), row(rivals.broadcast("L1"), "CIFAR stem", 30.0)]
  peaks = [
    {"shape": "CIFAR stem", "rival": "L1", "peak_bytes": 10},
    {"shape": "CIFAR stem", "rival": rivals.broadcast("L1"), "peak_bytes": 1000},
  ]
  assert targets.against_torch(rows, peaks, "CIFAR stem", "L1") == {"time": 15.0, "memory": 100.0}
  (line,) = targets.failures(rows, peaks)
  assert "15.0 times the time" in line


def test_slopes_are_exponents():
  rows = [
    {
      "what": "batch",
      "size": size,
      "rival": rival,
      "milliseconds": 3 * size**2,
      "baseline_milliseconds": 2.0 * size,
      "temp_bytes": 100 * size**3,
      "baseline_temp_bytes": 7,
    }
    for size in (2, 4, 8)
    for rival in growth.RIVALS
  ]
  found = {(r["what"], r["rival"]): (r["time"], r["memory"]) for r in growth.slopes(rows)}
  np.testing.assert_allclose(found["batch", "L1"], (2, 3))
  np.testing.assert_allclose(found["batch", rivals.BASELINE], (1, 0), atol=1e-12)
  assert {what for what, _ in found} == {"batch"}


@pytest.mark.parametrize("what", growth.SIZES)
def test_growth_varies_one_size(what):
  small, large = (growth.shape(what, size) for size in growth.SIZES[what][:2])
  different = [field for field in vars(small) if getattr(small, field) != getattr(large, field)]
  assert len(different) == 2  # the name as well


def test_the_operator_is_measured_row_by_row(monkeypatch, tmp_path, capsys):
  monkeypatch.setitem(shapes.SHAPES, "CIFAR stem", SMALL)
  monkeypatch.setattr(layers, "_free_bytes", lambda: 2**10)
  names = ["polynomial", "patches: L1"]
  out = tmp_path / "new" / "layers.json"
  options = ["--rounds", "3", "--seconds", "0.1", "--no-compile", "--no-peak"]
  code = cli.main(
    ["operator", "--shapes", "CIFAR stem", "--rivals", *names, "--out", str(out), *options]
  )
  assert code == 0
  content = json.loads(out.read_text())
  forward, skipped, both, _ = content["rows"]
  assert (forward["mode"], both["mode"]) == ("forward", "forward + backward")
  assert both["ratio"] > 0
  assert both["low"] <= both["high"]
  assert both["rounds"] == 3
  assert both["out_bytes"] == 4 * math.prod(SMALL.out)
  assert both["flops"] > forward["flops"] > 0
  assert "GiB" in skipped["skipped"]
  assert content["versions"]["jax"] == jax.__version__
  assert content["command"].startswith("python -m benchmarks operator --shapes 'CIFAR stem'")
  assert content["limits"]["bytes_per_second"] > 0
  assert "| polynomial |" in capsys.readouterr().out


def test_quick_is_a_part_of_the_whole():
  whole = layers.Plan()
  for field in ("shapes", "rivals", "modes"):
    assert set(getattr(layers.QUICK, field)) < set(getattr(whole, field))


def test_a_busy_machine_is_noticed(monkeypatch):
  monkeypatch.setattr(measure.os, "cpu_count", lambda: 2)
  for load, said in ((0.9, None), (12.9, "a load of 12.9 on 2 cores in the last minute")):
    monkeypatch.setattr(measure.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
    assert measure.busy() is said or said in measure.busy()
  monkeypatch.delattr(measure.os, "getloadavg")  # as on Windows
  assert measure.busy() is None


def test_a_figure_that_is_missing_is_explained():
  row = {"shape": "CIFAR stem", "mode": "forward", "rival": "PyTorch"}
  rows = [row | {"skipped": "PyTorch is not installed"}]
  (dash,) = layer_tables.missing(rows, [{}])
  assert dash.endswith("PyTorch: PyTorch is not installed")
  (resident,) = layer_tables.missing([row], [])
  assert "?: resident memory was not measured" in resident


def test_a_check_that_fails_says_what_and_returns_one(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(layers, "rows", lambda *args: iter(all_rows(9.0, low=9, high=9)))
  monkeypatch.setattr(layer_tables, "limits", lambda *args: "")
  monkeypatch.setattr(layer_tables, "memory", lambda *args: "")
  monkeypatch.setattr(layer_tables, "summary", lambda *args: "")
  monkeypatch.setattr(layer_tables, "times", lambda *args: "")
  arguments = ["operator", "--quick", "--out", str(tmp_path / "rows.json")]
  assert cli.main(arguments) == 0
  assert cli.main([*arguments, "--check"]) == 1
  assert "missed: polynomial: time 9.00" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["operator", "--rounds", "2"], ["--rounds", "at least 3", "2"]),
    (["operator", "--rivals", "gauss"], ["--rivals", "'gauss'", "Gaussian"]),
    (["operator", "--shapes", "lenet"], ["--shapes", "'lenet'"]),
    ([], ["operator", "step"]),
  ],
)
def test_arguments_that_will_not_do(arguments, words, capsys):
  with pytest.raises(SystemExit) as error:
    cli.main(arguments)
  assert error.value.code == 2
  message = capsys.readouterr().err
  assert all(word in message for word in words)


def test_a_step_updates_parameters_and_statistics(monkeypatch):
  build = functools.partial(step._resnet, step.CifarResNet)
  images, labels = jnp.ones((2, 8, 8, 3)), jnp.array([0, 1])
  run, arguments = step._step(build("polynomial").clone(depth=8), images, labels)
  params, statistics, _, loss = jax.jit(run)(*arguments)
  assert math.isfinite(loss)
  for before, after in ((arguments[0], params), (arguments[1], statistics)):
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert not all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(after)))


def test_a_part_replaces_no_results(monkeypatch, tmp_path, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(growth, "SIZES", {"batch": (1, 2, 4)})
  assert cli.main(["growth", "--quick"]) == 0
  assert list(tmp_path.iterdir()) == []
  assert "not written" in capsys.readouterr().out
  with pytest.raises(SystemExit):
    cli.main(["operator", "--quick", "--resume"])
  assert "--resume" in capsys.readouterr().err


def test_a_report_needs_results(tmp_path, capsys):
  assert cli.main(["report", "--folder", str(tmp_path / "none")]) == 2
  assert "`--folder`" in capsys.readouterr().err
  assert not (tmp_path / "none").exists()


def test_targets_of_steps():
  rows = [{"network": "LeNet-5", "kernel": "polynomial", "ratio": 1.2}]
  assert step.failures(rows, noise=1.25) == []
  assert "LeNet-5, polynomial" in step.failures(rows, noise=1.0)[0]


def test_a_run_is_measured_beside_a_bare_loop(monkeypatch, capsys):
  pytest.importorskip("orbax.checkpoint", reason="needs the extra 'experiments'")
  from benchmarks import engine

  (row,) = engine.rows(names=("lenet5-mnist-cnn",), rounds=3, seconds=0.1)
  assert row["low"] <= row["ratio"] <= row["high"]
  assert row["per_second"] > 0
  assert row["baseline_per_second"] > 0
  slow = row | {"ratio": 0.7}
  monkeypatch.setattr(engine, "rows", lambda **_: iter([slow]))
  assert cli.main(["engine", "--quick", "--check"]) == 1
  assert "0.700 of a bare loop's" in capsys.readouterr().err
  assert engine.failures([slow], noise=1.4) == []
  assert "lenet5-mnist-cnn" in tables.engine([slow])


def test_correctness_finds_what_is_wrong(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(correctness, "SHAPES", (SMALL,))
  monkeypatch.setattr(correctness, "KERNELS", {"L1": kernels.L1(), "L2": kernels.L2()})
  monkeypatch.setattr(correctness, "BOUNDS", {"bfloat16": 2e-2})
  out = tmp_path / "correctness.json"
  assert cli.main(["correctness", "--out", str(out)]) == 0
  rows = json.loads(out.read_text())["rows"]
  assert {r["kernel"] for r in rows} == {"L1", "L2"}
  assert all(r["ok"] and r["error"] > 0 for r in rows)
  monkeypatch.setattr(correctness, "BOUNDS", {"bfloat16": 1e-6})
  assert cli.main(["correctness", "--out", str(out)]) == 1
  assert "missed: L1, bfloat16" in capsys.readouterr().err


def test_a_worker_serves_a_rival_and_tells_its_peak():
  shape = Shape("small", 8, (64, 64), 8, 32, (3, 3))
  with Worker("polynomial", shape, backward=False) as worker:
    worker(1)
    worker(3)
    if sys.platform == "linux" and worker.peak_bytes is not None:
      assert worker.peak_bytes >= 4 * math.prod(shape.out)


def test_a_worker_that_fails_says_why():
  worker = Worker("no such rival", SMALL, backward=False)
  with worker, pytest.raises(RuntimeError, match="no such rival"):
    worker(1)


def test_a_worker_imports_the_library_that_it_is_told(tmp_path):
  (tmp_path / "kerv_jax").mkdir()
  (tmp_path / "kerv_jax/__init__.py").write_text("raise ImportError('the other checkout')")
  worker = Worker("L1", SMALL, backward=False, library=tmp_path)
  with worker, pytest.raises(RuntimeError, match="the other checkout"):
    worker(1)


def test_a_checkout_is_compared_with_another(monkeypatch, tmp_path, capsys):
  monkeypatch.setitem(shapes.SHAPES, "CIFAR stem", SMALL)
  out = tmp_path / "compare.json"
  arguments = ["--shapes", "CIFAR stem", "--rivals", "L1", "--rounds", "3", "--seconds", "0.1"]
  arguments += ["--launches", "1", "--out", str(out)]
  assert cli.main(["compare", "--against", str(ROOT), *arguments]) == 0
  content = json.loads(out.read_text())
  (row,), (mean,) = content["rows"], content["means"]
  assert row["low"] <= row["ratio"] <= row["high"]
  assert [len(launch) for launch in row["ratios"]] == [3]
  assert (mean["ratio"], mean["low"], mean["high"]) == (row["ratio"], row["low"], row["high"])
  assert "| L1 | forward + backward | 1 |" in capsys.readouterr().out
  with pytest.raises(SystemExit):
    cli.main(["compare", "--against", str(tmp_path), *arguments])
  assert "kerv_jax" in capsys.readouterr().err


def test_a_comparison_of_checkouts_is_held_to_the_end_of_its_interval():
  rng = np.random.default_rng(0)

  def found(rival, center, spread):
    return [
      {"rival": rival, "mode": targets.MODE, "ratios": launches.tolist()}
      for launches in center * np.exp(spread * rng.standard_normal((6, 2, 25)))
    ]

  (mean,) = checkouts.means(found("L1", 1.2, 0.05))
  assert mean["low"] < 1.2 < mean["high"] < mean["low"] + 0.06
  (shaken,) = checkouts.means(found("L1", 1.2, 0.5))
  assert shaken["high"] - shaken["low"] > 3 * (mean["high"] - mean["low"])
  assert checkouts.failures(found("L1", 1.0, 0.05), 1.05) == []
  assert "L1" in checkouts.failures(found("L1", 1.04, 0.1), 1.05)[0]
  assert checkouts.failures(found(rivals.BASELINE, 1.2, 0.05), 1.05) == []  # the machine's noise


def test_launches_that_differ_widen_the_interval():
  same, apart = [[1.0] * 25] * 2, [[0.9] * 25, [1.1] * 25]
  assert checkouts.interval([same]) == {"ratio": 1.0, "low": 1.0, "high": 1.0}
  found = checkouts.interval([apart])
  assert (found["low"], found["high"]) == (0.9, 1.1)


def test_results_are_whole_after_every_row(tmp_path):
  file = results.Results(tmp_path / "a.json", "command")
  file.set(rows=[{"ratio": 1.0}])
  file.set(rows=[{"ratio": 1.0}, {"ratio": 2.0}])
  found = results.load([tmp_path / "a.json", tmp_path / "missing.json"])
  assert [r["ratio"] for r in found["a"]["rows"]] == [1.0, 2.0]
  assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_text_is_filled_with_what_there_is_to_show():
  text = "# A\n\nsays $x.\n\nno name\n\nand $y\n\n## B\n\nabout\n\n$z\n\n## C\n\nplain\n"
  filled = report.fill(text, {"x": "1", "y": "", "z": ""})
  assert filled == "# A\n\nsays 1.\n\nno name\n\n## C\n\nplain"
  assert "## B\n\nabout\n\n$5" in report.fill(text, {"x": "1", "y": "2", "z": "$5"})
  with pytest.raises(KeyError, match="y"):
    report.fill(text, {"x": "1", "z": ""})


def test_compiling_and_running_are_compared_with_a_convolution(monkeypatch, capsys):
  monkeypatch.setitem(shapes.SHAPES, "CIFAR stem", SMALL)
  folders = [str(ROOT), str(ROOT / "tests/..")]
  arguments = ["--kernels", "L1", "--shape", "CIFAR stem", "--rounds", "3"]
  assert cli.main(["compile", "--libraries", *folders, *arguments]) == 0
  table = capsys.readouterr().out
  assert "| convolution |" in table
  assert table.count("| L1 |") == 2


def test_the_readme_section_goes_between_its_marks(tmp_path, capsys):
  readme, folder = tmp_path / "README.md", tmp_path / "speed"
  shutil.copytree(ROOT / "results/speed", folder)
  arguments = ["report", "--folder", str(folder), "--readme", str(readme)]
  readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
  assert cli.main(arguments) == 0
  text = readme.read_text()
  assert text.startswith(f"before\n{report.BEGIN}\n\nTime of a layer")
  assert text.endswith(f"\n\n{report.END}\nafter\n")
  assert (folder / "README.md").read_text() == (ROOT / "results/speed/README.md").read_text()
  readme.write_text("no marks\n")
  assert cli.main(arguments) == 2
  assert "speed" in capsys.readouterr().err


def test_page_and_readme_are_what_the_results_say():
  folder = ROOT / "results/speed"
  found = results.load(folder.glob("*.json"))
  assert (folder / "README.md").read_text() == report.page(found)
  readme = (ROOT / "README.md").read_text()
  assert report.section(found) == readme.split(report.BEGIN)[1].split(report.END)[0].strip()


@pytest.mark.slow
def test_the_gpu_script_runs_dry(tmp_path):
  environment = {**os.environ, "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu", "DRY_RUN": "1"}
  command = ["bash", str(ROOT / "benchmarks/gpu.sh"), str(tmp_path)]
  done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  files = {f"{name}-cpu.json" for name in ("correctness", "operator", "questions", "step")}
  assert {path.name for path in tmp_path.iterdir()} == {"README.md", *files}
  assert "## Other ways to compute distances" in (tmp_path / "README.md").read_text()


def test_the_gpu_script_takes_less_than_eight_minutes():
  text = (ROOT / "benchmarks/gpu.sh").read_text()
  limits = [int(seconds) for seconds in re.findall(r"^run (\d+) ", text, re.MULTILINE)]
  assert len(limits) == 5
  assert sum(limits) < 480


def test_the_gpu_script_refuses_a_machine_without_gpu(tmp_path):
  environment = {"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    ["bash", str(ROOT / "benchmarks/gpu.sh"), str(tmp_path)],
    capture_output=True,
    text=True,
    env=environment,
    check=False,
  )
  assert done.returncode == 1
  assert "no GPU: jax runs on cpu" in done.stderr
  assert list(tmp_path.iterdir()) == []


def temp_bytes(rival, shape):
  operands = [jax.ShapeDtypeStruct(s, jnp.float32) for s in (shape.lhs, shape.rhs, shape.out)]
  program = rivals.program(rivals.layer(rival, shape), backward=True)
  compiled = jax.jit(program).lower(*operands).compile(measure._NO_YNN_FUSION)
  return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("shape", ["LeNet conv2", "CIFAR middle"])
@pytest.mark.parametrize(
  ("target", "kernel"),
  [(target, kernel) for target in targets.TARGETS for kernel in target.kernels],
  ids=lambda value: value if isinstance(value, str) else "",
)
def test_memory_is_a_convolutions_and_a_few_outputs(target, kernel, shape):
  layout = SHAPES[shape]
  sizes = {
    "baseline_temp_bytes": temp_bytes(rivals.BASELINE, layout),
    "out_bytes": 4 * math.prod(layout.out),
    "in_bytes": 4 * math.prod(layout.lhs),
  }
  allowed = targets.allowed_bytes(target, sizes)
  assert temp_bytes(kernel, layout) <= allowed
  assert allowed < 4 * layout.terms / 4  # far from what broadcasting patches would take


FEW_CHANNELS = pytest.mark.xfail(
  strict=True, reason="of few channels L1 keeps little: what the terms are reduced to is more"
)


@pytest.mark.parametrize(
  ("kernel", "shape"),
  [
    *((kernel, "LeNet conv2") for kernel in rivals.ADDITIVE),
    ("Huber", "CIFAR stem"),
    pytest.param("Chebyshev", "CIFAR stem", marks=FEW_CHANNELS),
    pytest.param("Minkowski", "CIFAR stem", marks=FEW_CHANNELS),
  ],
)
def test_memory_of_an_additive_kernel_is_that_of_l1_and_one_output(kernel, shape):
  layout = SHAPES[shape]
  beyond = (temp_bytes(kernel, layout) - temp_bytes("L1", layout)) / (4 * math.prod(layout.out))
  assert round(beyond, 2) <= targets.PAIRS_OUTPUTS
