"""Programs for GPUs that are not there: how they are read, and what they must be like."""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

import benchmarks.__main__ as cli
from benchmarks import gpu_compile, gpu_program, tables

NEEDS_WHEELS = pytest.mark.skipif(
  gpu_program.missing() is not None, reason=str(gpu_program.missing())
)

# What the compiler writes for a distance with a branch that has a loop, shortened.
SEQUENCE = """\
001: kCustomKernel [source       | next=003 (2)] input_reduce_fusion_1 grid: [784, 1, 1]
006: kConvolution  [prev=005 (1) | next=007 (1)] kConvolution
020: kConditional  [prev=009 (1) | next=021 (1)]
  false_branch:
    010: kCustomKernel [source       | next=013 (3)] loop_pad_fusion grid: [1800, 1, 1]
    013: kWhile        [prev=012 (1) | next=017 (1)]
condition:
        014: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1]
      body:
        015: kCustomKernel [source       | next=016 (1)] loop_add_fusion grid: [1568, 1, 1]
        016: kCopy         [prev=015 (1) | sink        ] kCopy
    018: kCustomKernel [prev=017 (1) | sink        ] loop_select_fusion grid: [1568, 1, 1]
  true_branch:
    019: kCustomKernel [source | sink] wrapped_transpose grid: [3136, 1, 1]
021: kAllReduce     [prev=020 (1) | next=022 (1)] kAllReduce
022: kAllReduceDone [prev=021 (1) | sink        ] kAllReduceDone
"""


def test_steps_are_read_with_what_is_inside_of_them():
  steps = gpu_program.steps_of(SEQUENCE)
  assert [step.number for step in steps] == [1, 6, 20, 21, 22]
  branches = steps[2].parts
  assert [step.number for step in branches["false_branch"]] == [10, 13, 18]
  assert [step.number for step in branches["true_branch"]] == [19]
  assert [step.number for step in branches["false_branch"][1].parts["body"]] == [15, 16]


def test_launches_are_those_of_the_dearest_branch_and_of_every_round_of_a_loop():
  steps = gpu_program.steps_of(SEQUENCE)
  assert gpu_program.launches(steps, {13: 36}) == 2 + (1 + 36 * 2 + 1) + 1
  assert gpu_program.launches(steps, {}) == 2 + (1 + 3 + 1) + 1


def test_a_loop_of_unknown_length_makes_the_host_wait():
  steps = gpu_program.steps_of(SEQUENCE)
  assert gpu_program.host_waits(steps, {13: 36}) == 1  # the conditional
  assert gpu_program.host_waits(steps, {}) == 2


def test_in_a_cuda_graph_the_host_waits_for_nothing():
  inside = "000: kCommandBuffer [source | sink]\n" + textwrap.indent(SEQUENCE, "    ")
  steps = gpu_program.steps_of(inside)
  assert gpu_program.host_waits(steps, {13: 36}) == 0
  assert gpu_program.launches(steps, {13: 36}) == 77


def test_a_program_is_read_from_what_the_compiler_leaves(tmp_path):
  (tmp_path / "module_0001.jit_f.thunk_sequence.txt").write_text(SEQUENCE)
  (tmp_path / "module_0001.jit_f.thunk_metadata.txt").write_text(
    'thunk_info {\n    profile_annotation: "while.5"\n    thunk_id: 13\n  }\n'
  )
  text = """
  %while.5 = (s32[]) while(%t), body=%b, backend_config={"known_trip_count":{"n":"36"}}
  %c.3 = (f32[8]) custom-call(%x), operand_precision={highest,highest}, custom_call_target="__cudnn$convForward"
  %d.3 = (f32[8]) custom-call(%x), custom_call_target="__cublas$gemm"
  %cond.3 = (f32[8]) conditional(%p, %x, %y), true_computation=%t, false_computation=%f
  %r = f32[8] all-reduce-start(%d.3), to_apply=%add
  %s = f32[8] all-reduce-done(%r)
  """  # noqa: E501
  assert gpu_program.read(text, tmp_path) == {
    "launches": 77,
    "host_waits": 1,
    "conditionals": 1,
    "trips": [36],
    "collectives": {"all-reduce": 1},
    "calls": {"__cudnn$convForward highest": 1, "__cublas$gemm": 1},
    "host_transfers": 0,
  }


def layer(kernel, devices=1, mode="forward + backward", **fields):
  row = {"shape": "stem", "kernel": kernel, "devices": devices, "mode": mode, "launches": 5}
  sizes = {"temp_bytes": 100, "in_bytes": 100, "out_bytes": 100, "collectives": {}, "calls": {}}
  return {**row, **sizes, "host_waits": 0, **fields}


@pytest.mark.parametrize(
  ("fields", "words"),
  [
    ({"launches": 101}, "101 launches; at most 100"),
    ({"temp_bytes": 701}, "701 bytes of scratch memory; at most 700"),
    ({"collectives": {"all-gather": 1}}, "1 all-gather; a convolution has 0"),
    ({"collectives": {"all-reduce": 2}}, "2 all-reduce; a convolution has 1"),
  ],
)
def test_a_layer_that_misses_a_bound_is_told(fields, words):
  twin = layer("convolution", devices=8, collectives={"all-reduce": 1})
  fits = layer("L1", devices=8, launches=100, temp_bytes=700, collectives={"all-reduce": 1})
  assert gpu_compile.failures([twin, fits], []) == []
  (line,) = gpu_compile.failures([twin, fits | fields], [])
  assert words in line
  assert line.startswith("L1, stem, 8 GPUs")


def test_memory_on_several_gpus_is_that_of_one():
  rows = [layer("Gaussian"), layer("Gaussian", devices=8, temp_bytes=110)]
  assert gpu_compile.failures(rows, []) == []
  (line,) = gpu_compile.failures([rows[0], rows[1] | {"temp_bytes": 111}], [])
  assert "111 bytes" in line


@pytest.mark.parametrize(
  ("fields", "words"),
  [
    ({"collectives": {"all-gather": 1}}, "1 all-gather"),
    ({"host_transfers": 1}, "1 transfers"),
    ({"alias_bytes": 90}, "90 of 100 bytes donated"),
  ],
)
def test_a_step_that_misses_a_bound_is_told(fields, words):
  names = {"network": "ResNet-32", "stem": "L1", "dtype": "float32", "devices": 8}
  row = {**names, "collectives": {}, "host_transfers": 0, "alias_bytes": 100, "state_bytes": 100}
  twin = row | {"stem": "convolution"}
  assert gpu_compile.failures([], [twin, row]) == []
  (line,) = gpu_compile.failures([], [twin, row | fields])
  assert words in line


def test_the_tables_show_both_modes_in_one_line():
  row = layer("L1", registers=40, spills=0, collectives={"all-reduce": 1}, calls={"__a$b": 2})
  table = tables.gpu_layers([layer("L1", mode="forward", launches=1), row])
  line = table.splitlines()[-1]
  assert line == "| stem | L1 | 1 | 1 / 5 | 0 | 1 all-reduce | 0.0 | 2 a$b | 40 / 0 |"


def test_it_is_skipped_where_the_packages_are_not_there(monkeypatch, capsys):
  monkeypatch.setattr(gpu_program, "NEEDED", ("no_such_package.at_all",))
  assert gpu_compile.main(["--check"]) == 0
  assert "skipped: no module no_such_package.at_all" in capsys.readouterr().out


PROBE = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from benchmarks import gpu_program
x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(gpu_program.mesh(1), PartitionSpec()))
def f(x):
  return jax.lax.platform_dependent(
    x, cpu=lambda x: x + 111, rocm=lambda x: x + 333, cuda=jnp.sort, default=lambda x: x + 444
  )
text = jax.jit(f).lower(x).compile().as_text()
assert " sort(" in text and "111" not in text and "444" not in text, text
"""  # noqa: E501


@NEEDS_WHEELS
def test_programs_are_lowered_for_cuda():
  environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
  subprocess.run([sys.executable, "-c", PROBE], env=environment, check=True)


SQUARED = "(Gaussian|L2|Cauchy|rational quadratic), "
KNOWN = (
  SQUARED + "[^,]+, 8 GPUs, .*: [12] all-reduce",  # whether any device cancels
  r"step of .*, 8 GPUs: \d+ all-reduce",  # the same, and in bfloat16 what XLA does not combine
  "(L1|Laplacian), ImageNet stem, 8 GPUs, .*launches",
  "L1, ResNet-50 (middle|late), 8 GPUs, .*scratch memory",
  "(Gaussian|L2|Cauchy|rational quadratic|cosine), ResNet-50 .*, 8 GPUs, .*memory each",
  "(custom|Laplacian), (CIFAR|ImageNet) stem, 8 GPUs, .*memory each",
)
"""What misses its bounds, all of it on 8 GPUs."""


def unexpected(layers, steps):
  missed = gpu_compile.failures(layers, steps)
  return [line for line in missed if not any(re.match(each, line) for each in KNOWN)]


def test_the_recorded_programs_miss_what_is_known_and_nothing_else():
  recorded = json.loads(
    (pathlib.Path(__file__).parents[2] / "results/speed/gpu-compile-h100.json").read_text()
  )
  assert unexpected(recorded["layers"], recorded["steps"]) == []
  missed = gpu_compile.failures(recorded["layers"], recorded["steps"])
  assert all(any(re.match(each, line) for line in missed) for each in KNOWN)


@NEEDS_WHEELS
@pytest.mark.slow
@pytest.mark.parametrize("shape", ["CIFAR stem", "ResNet-50 middle", "ResNet-50 late"])
def test_layers_keep_their_bounds(shape, tmp_path):
  out = tmp_path / "rows.json"
  cli.main(["gpu-compile", "--shapes", shape, "--networks", "--out", str(out)])
  rows = json.loads(out.read_text())["layers"]
  assert unexpected(rows, []) == []
  assert {row["devices"] for row in rows} == {1, 8}
  twin = next(r for r in rows if r["kernel"] == "convolution" and r["devices"] == 8)
  assert twin["calls"] == {"__cudnn$convForward": 1}  # it is a GPU's program that was read


@NEEDS_WHEELS
@pytest.mark.slow
def test_steps_of_training_keep_their_bounds(tmp_path):
  out = tmp_path / "rows.json"
  cli.main(["gpu-compile", "--shapes", "--networks", "ResNet-32", "--out", str(out)])
  rows = json.loads(out.read_text())["steps"]
  assert unexpected([], rows) == []
  assert [row["collectives"] for row in rows if row["devices"] == 1] == [{}] * 8
  assert all(row["collectives"]["all-reduce"] for row in rows if row["devices"] == 8)
