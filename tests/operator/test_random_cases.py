"""Random cases: auto, conv, patches and the NumPy reference over every option at once.

40 cases by default; 2,000 with ``HYPOTHESIS_PROFILE=full``.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import assume, event, given
from hypothesis import strategies as st

from kerv_jax import kernels, kerv_general_dilated
from tests import reference

SPACE = "DHW"
# Output rounding of the dtype, and room for the operator's own float32 or float64 arithmetic.
TOLERANCE = {"float64": 1e-7, "float32": 2e-4, "bfloat16": 2**-7, "float16": 2**-10}


@dataclasses.dataclass(frozen=True)
class Case:
  lhs_shape: tuple[int, ...]
  rhs_shape: tuple[int, ...]
  options: dict
  layouts: tuple[str, str, str]
  kernel: str
  per_feature: bool
  dtype: str
  offset: float
  seed: int


def _hyperparameters(rng, features, per_feature):
  def draw(low, high):
    return rng.uniform(low, high, features if per_feature else ()) + 0.0

  return draw


def _make(name: str, draw: Callable) -> tuple[kernels.Kernel, Callable]:
  """The kernel and its definition as a function of (patch, filter, output feature)."""
  at = reference.at
  p, q = draw(0.2, 1.5), draw(0.5, 2.0)
  g = draw(0.01, 0.1)
  return {
    "Linear": (kernels.Linear(), lambda x, w, o: reference.linear(x, w)),
    "Polynomial2": (
      kernels.Polynomial(2, p),
      lambda x, w, o: reference.polynomial(x, w, 2, at(p, o)),
    ),
    "Polynomial3": (
      kernels.Polynomial(3, p),
      lambda x, w, o: reference.polynomial(x, w, 3, at(p, o)),
    ),
    "Sigmoid": (
      kernels.Sigmoid(g, p),
      lambda x, w, o: reference.sigmoid(x, w, at(g, o), at(p, o)),
    ),
    "Gaussian": (kernels.Gaussian(g), lambda x, w, o: reference.gaussian(x, w, at(g, o))),
    "L1": (kernels.L1(), lambda x, w, o: reference.l1(x, w)),
    "L2": (kernels.L2(), lambda x, w, o: reference.l2(x, w)),
    "Laplacian": (kernels.Laplacian(g), lambda x, w, o: reference.laplacian(x, w, at(g, o))),
    "Cauchy": (kernels.Cauchy(q), lambda x, w, o: reference.cauchy(x, w, at(q, o))),
    "RationalQuadratic": (
      kernels.RationalQuadratic(p, q),
      lambda x, w, o: reference.rational_quadratic(x, w, at(p, o), at(q, o)),
    ),
    "Cosine": (kernels.Cosine(), lambda x, w, o: reference.cosine(x, w)),
    "combination": (
      2.0 * kernels.Gaussian(g) - kernels.L1() * kernels.Cosine(),
      lambda x, w, o: (
        2.0 * reference.gaussian(x, w, at(g, o)) - reference.l1(x, w) * reference.cosine(x, w)
      ),
    ),
    "Custom": (
      kernels.Custom(lambda x, w: jnp.max(x * w)),
      lambda x, w, o: np.max(x * w),
    ),
  }[name]


KERNELS = (
  "Linear", "Polynomial2", "Polynomial3", "Sigmoid", "Gaussian", "L1", "L2", "Laplacian",
  "Cauchy", "RationalQuadratic", "Cosine", "combination", "Custom",
)  # fmt: skip


@st.composite
def cases(draw) -> Case:
  rank = draw(st.integers(1, 3))
  layouts = tuple(
    "".join(draw(st.permutations(letters + SPACE[-rank:]))) for letters in ("NC", "IO", "NC")
  )
  space = [letter for letter in layouts[1] if letter not in "IO"]
  most = {1: 9, 2: 6, 3: 4}[rank]

  def per_dimension(low, high):
    return draw(st.tuples(*[st.integers(low, high)] * rank))

  window, rhs_dilation = per_dimension(1, 3), per_dimension(1, 2)
  strides, lhs_dilation = per_dimension(1, 3), per_dimension(1, 2)
  size = per_dimension(1, most)
  extent = [(k - 1) * d + 1 for k, d in zip(window, rhs_dilation, strict=True)]
  padding = draw(st.sampled_from(["VALID", "SAME", "SAME_LOWER", "pairs", "pairs"]))
  fits = [(n - 1) * d + 1 for n, d in zip(size, lhs_dilation, strict=True)]
  if padding == "pairs":  # from cropping one to padding two; enlarged where the window needs it
    pairs = [list(pair) for pair in zip(per_dimension(-1, 2), per_dimension(-1, 2), strict=True)]
    for pair, n, e in zip(pairs, fits, extent, strict=True):
      pair[1] += max(e - (n + sum(pair)), 0)
    padding = tuple(map(tuple, pairs))
  else:
    lhs_dilation = (1,) * rank  # `lax` and ours refuse it with a padding's name
    if padding == "VALID":
      size = tuple(max(n, e) for n, e in zip(size, extent, strict=True))
  groups = draw(st.sampled_from([("none", 1), ("feature", 2), ("feature", 3), ("batch", 2)]))
  feature_groups = groups[1] if groups[0] == "feature" else 1
  batch_groups = groups[1] if groups[0] == "batch" else 1
  channels = draw(st.integers(1, 3))  # of a group: 1 is depthwise
  features = groups[1] * draw(st.integers(1, 2))
  batch = batch_groups * draw(st.integers(1, 2))
  sizes = {"N": batch, "C": channels * feature_groups, **dict(zip(space, size, strict=True))}
  taps = {"I": channels, "O": features, **dict(zip(space, window, strict=True))}
  return Case(
    lhs_shape=tuple(sizes[letter] for letter in layouts[0]),
    rhs_shape=tuple(taps[letter] for letter in layouts[1]),
    options={
      "strides": strides,
      "padding": padding,
      "lhs_dilation": lhs_dilation,
      "rhs_dilation": rhs_dilation,
      "feature_group_count": feature_groups,
      "batch_group_count": batch_groups,
    },
    layouts=layouts,
    kernel=draw(st.sampled_from(KERNELS)),
    per_feature=draw(st.booleans()),
    dtype=draw(st.sampled_from(["float64", "float32", "float32", "bfloat16", "float16"])),
    offset=draw(st.sampled_from([0.0, 0.0, 3.0])),
    seed=draw(st.integers(0, 2**31)),
  )


def run(case: Case, lhs, rhs, kernel, method):
  options = dict(case.options)
  strides, padding = options.pop("strides"), options.pop("padding")
  # Compiled at the lowest effort: these tests are of the program, not of its speed.
  function = jax.jit(
    lambda lhs, rhs, kernel: kerv_general_dilated(
      lhs,
      rhs,
      strides,
      padding,
      dimension_numbers=case.layouts,
      kernel_fn=kernel,
      method=method,
      **options,
    ),
    compiler_options={"xla_backend_optimization_level": 0},
  )
  return function(lhs, rhs, kernel)


@given(cases())
def test_every_method_agrees_with_the_reference(case):
  event(case.kernel)
  event(case.dtype)
  rng = np.random.default_rng(case.seed)
  with jax.enable_x64(case.dtype == "float64"):
    dtype = jnp.dtype(case.dtype)
    lhs = (case.offset + rng.standard_normal(case.lhs_shape)).astype(dtype)
    rhs = (case.offset + rng.standard_normal(case.rhs_shape)).astype(dtype)
    features = case.rhs_shape[case.layouts[1].index("O")]
    kernel, kappa = _make(case.kernel, _hyperparameters(rng, features, case.per_feature))
    expected = reference.kervolution(lhs, rhs, kappa, layouts=case.layouts, **case.options)
    assert expected.size
    assume(np.max(np.abs(expected)) < jnp.finfo(dtype).max / 2)  # a cube can leave float16
    methods = ["auto", "patches"] + ([] if case.kernel == "Custom" else ["conv"])
    for method in methods:
      actual = run(case, jnp.asarray(lhs), jnp.asarray(rhs), kernel, method)
      assert actual.dtype == dtype
      tolerance = TOLERANCE[case.dtype]
      np.testing.assert_allclose(
        np.asarray(actual, np.float64),
        expected,
        rtol=tolerance,
        atol=tolerance * (np.max(np.abs(expected)) + 1e-3),
        err_msg=f"{method} {kernel}",
      )
