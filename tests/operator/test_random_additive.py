"""Random cases of additive kernels: values and gradients beside the NumPy loops.

20 cases by default; 2,000 with ``HYPOTHESIS_PROFILE=full``.
"""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import event, given, settings

from tests import reference
from tests.kernels.additive_cases import CASES
from tests.operator.random_cases import TOLERANCE, cases, layer, run

DTYPES = ("float64", "float64", "float32", "bfloat16", "float16")
FEWER = settings(max_examples=max(20, settings.default.max_examples // 2000 * 2000))


def close(actual, expected, tolerance, message=""):
  np.testing.assert_allclose(
    np.asarray(actual, np.float64),
    expected,
    rtol=tolerance,
    atol=tolerance * (np.max(np.abs(expected), initial=0) + 1e-3),
    err_msg=message,
  )


@FEWER
@given(cases(tuple(CASES), DTYPES, whole=(False, True)))
def test_every_method_agrees_with_the_loops(case):
  event(case.kernel)
  event(case.dtype)
  rng = np.random.default_rng(case.seed)
  additive = CASES[case.kernel]
  values = additive.draw(rng, case.features if case.per_feature else ())

  def slopes(x, w, feature):
    return additive.slopes(x, w, **{k: reference.at(v, feature) for k, v in values.items()})

  options = {"layouts": case.layouts, **case.options}
  with jax.enable_x64(case.dtype == "float64"):
    lhs, rhs = map(jnp.asarray, case.operands(rng))
    kernel = jax.tree.map(jnp.asarray, additive.make(**values))
    expected = reference.kervolution(lhs, rhs, lambda *args: slopes(*args)[0], **options)
    for method in ("auto", "patches"):
      close(run(layer(case, method), lhs, rhs, kernel), expected, TOLERANCE[case.dtype], method)
    if case.dtype != "float64":  # where rounding decides which terms are equal
      return
    cotangent = rng.standard_normal(expected.shape)
    leaves = len(jax.tree.leaves(kernel))
    dx, dw, dp = reference.kervolution_vjp(
      lhs, rhs, lambda *args: slopes(*args)[1:], cotangent, leaves, **options
    )
    dp = [d if jnp.ndim(p) else d.sum() for d, p in zip(dp, jax.tree.leaves(kernel), strict=True)]
    for method in ("auto", "patches"):
      gradient = jax.grad(lambda *a: jnp.vdot(layer(case, method)(*a), cotangent), (0, 1, 2))  # noqa: B023
      found = run(gradient, lhs, rhs, kernel)
      for a, b in zip(jax.tree.leaves(found), (dx, dw, *dp), strict=True):
        close(a, b, 1e-7, f"gradient, {method}")
