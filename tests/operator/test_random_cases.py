"""Random cases: auto, conv, patches and the NumPy reference over every option at once.

25 cases by default; 2,000 with ``HYPOTHESIS_PROFILE=full``.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import assume, event, given

from kerv_jax import kernels
from tests import reference
from tests.operator.random_cases import TOLERANCE, cases, layer, run

DTYPES = ("float64", "float32", "float32", "bfloat16", "float16")


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


@given(cases(KERNELS, DTYPES))
def test_every_method_agrees_with_the_reference(case):
  event(case.kernel)
  event(case.dtype)
  rng = np.random.default_rng(case.seed)
  with jax.enable_x64(case.dtype == "float64"):
    dtype = jnp.dtype(case.dtype)
    lhs, rhs = case.operands(rng)
    kernel, kappa = _make(case.kernel, _hyperparameters(rng, case.features, case.per_feature))
    expected = reference.kervolution(lhs, rhs, kappa, layouts=case.layouts, **case.options)
    assert expected.size
    assume(np.max(np.abs(expected)) < jnp.finfo(dtype).max / 2)  # a cube can leave float16
    methods = ["auto", "patches"] + ([] if case.kernel == "Custom" else ["conv"])
    for method in methods:
      actual = run(layer(case, method), jnp.asarray(lhs), jnp.asarray(rhs), kernel)
      assert actual.dtype == dtype
      tolerance = TOLERANCE[case.dtype]
      np.testing.assert_allclose(
        np.asarray(actual, np.float64),
        expected,
        rtol=tolerance,
        atol=tolerance * (np.max(np.abs(expected)) + 1e-3),
        err_msg=f"{method} {kernel}",
      )
