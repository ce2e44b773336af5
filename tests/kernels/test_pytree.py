"""Kernels are immutable pytrees of their hyperparameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels
from tests.kernels.cases import (
  CASES,
  LENGTH,
  as_float32,
  every_case,
  vectors,
)


@every_case
def test_leaves_and_their_names(name):
  case = CASES[name]
  kernel = case.make(**case.draw(np.random.default_rng(9)))
  paths = [
    jax.tree_util.keystr(path, simple=True, separator="_").replace("kernel", "inner")
    for path, _ in jax.tree_util.tree_leaves_with_path(kernel)
  ]
  assert tuple(paths) == tuple(kernel.hyperparameters()) == tuple(kernel.constraints())
  assert list(kernel.hyperparameters().values()) == jax.tree.leaves(kernel)
  if name in ("Difference", "CustomSum"):
    expected = {
      "Difference": ["terms_0_sigma"],
      "CustomSum": ["terms_0_gamma", "terms_1_inner_scale"],
    }[name]
    assert paths == expected
  else:
    assert paths == list(case.leaf_names)


def test_paths_are_attributes():
  (path, value), *_ = jax.tree_util.tree_flatten_with_path(kernels.Polynomial(2, 0.25))[0]
  assert jax.tree_util.keystr(path) == ".balance"
  assert value == 0.25
  kernel = 3.0 * kernels.Gaussian(0.5) + kernels.Cauchy(2.0)
  leaves = jax.tree_util.tree_leaves_with_path(kernel)
  assert [(jax.tree_util.keystr(p), v) for p, v in leaves] == [
    (".terms[0].scale", 3.0),
    (".terms[0].kernel.gamma", 0.5),
    (".terms[1].sigma", 2.0),
  ]


def test_degree_is_static():
  kernel = kernels.Polynomial(4, 0.5)
  assert jax.tree.leaves(kernel) == [0.5]
  assert "degree" not in kernel.hyperparameters()
  assert jax.tree.structure(kernel) != jax.tree.structure(kernels.Polynomial(3, 0.5))
  assert jax.tree.map(lambda leaf: 2 * leaf, kernel) == kernels.Polynomial(4, 1.0)

  degrees = []

  @jax.jit
  def f(kernel, x):
    degrees.append(kernel.degree)
    return kernel(x, x)

  x = jnp.ones(2)
  assert float(f(kernel, x)) == 2.5**4
  assert float(f(kernels.Polynomial(4, 1.0), x)) == 3.0**4  # another leaf: no new trace
  assert float(f(kernels.Polynomial(3, 1.0), x)) == 3.0**3  # another degree: one
  assert degrees == [4, 3]


@every_case
def test_immutable(name):
  case = CASES[name]
  kernel = case.make(**case.draw(np.random.default_rng(10)))
  for field in dataclasses.fields(kernel):
    with pytest.raises(dataclasses.FrozenInstanceError):
      setattr(kernel, field.name, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
      delattr(kernel, field.name)
  with pytest.raises(dataclasses.FrozenInstanceError):
    kernel.something = 1.0


def test_changing_the_array_that_made_a_kernel_does_not_change_the_kernel():
  gamma = np.array([0.1, 0.2])
  kernel = kernels.Gaussian(gamma)
  twin, before = kernels.Gaussian(gamma.copy()), hash(kernel)
  gamma[0] = -5.0
  assert_array_equal(kernel.gamma, [0.1, 0.2])
  assert kernel == twin
  assert hash(kernel) == before


@every_case
def test_a_kernel_is_an_argument_of_jit_vmap_scan_and_map(name):
  case, rng = CASES[name], np.random.default_rng(11)
  x, w = as_float32(vectors(27, (4, LENGTH), (LENGTH,)))
  values = case.draw(rng)
  kernel = case.make(**values)
  stack = as_float32([case.make(**case.draw(rng)) for _ in range(3)])
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stack)
  assert type(stacked) is type(kernel)

  @jax.jit
  def transformed(kernel, stacked, x, w):
    over_patches = [
      kernel(x, w),
      jax.vmap(lambda k, patch: k(patch, w), (None, 0))(kernel, x),
      jax.lax.scan(lambda k, patch: (k, k(patch, w)), kernel, x)[1],
    ]
    if not jax.tree.leaves(stacked):
      return over_patches, []
    over_kernels = [
      jax.vmap(lambda k: k(x[0], w))(stacked),
      jax.vmap(lambda k: k(x[0], w), (jax.tree.map(lambda _: 0, stacked),))(stacked),
      jax.lax.map(lambda k: k(x[0], w), stacked),
    ]
    return over_patches, over_kernels

  over_patches, over_kernels = transformed(kernel, stacked, x, w)
  expected = case.formula(np.asarray(x, np.float64), np.asarray(w, np.float64), **values)
  for out in over_patches:
    assert_allclose(out, expected, rtol=5e-5, atol=5e-6)
  assert bool(over_kernels) == bool(case.ranges or jax.tree.leaves(kernel))
  for out in over_kernels:
    assert_allclose(out, [k(x[0], w) for k in stack], rtol=5e-5, atol=5e-6)


def test_gradient_descent_on_a_kernel_inside_scan():
  x, w = as_float32(vectors(28, (5, LENGTH), (LENGTH,)))
  start = 0.5 * kernels.Gaussian(0.3) + kernels.Sigmoid(0.2)

  def step(kernel, patch):
    value, gradient = jax.value_and_grad(lambda k: k(patch, w))(kernel)
    return jax.tree.map(lambda leaf, g: leaf - 0.1 * g, kernel, gradient), value

  end, values = jax.lax.scan(step, start, x)
  kernel, expected = start, []
  for patch in x:
    kernel, value = step(kernel, patch)
    expected.append(value)
  assert type(end) is kernels.Sum
  assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
  for leaf, other, first in zip(*map(jax.tree.leaves, (end, kernel, start)), strict=True):
    assert_allclose(leaf, other, rtol=1e-5, atol=1e-6)
    assert leaf != first


@pytest.mark.parametrize("placeholder", [None, "name", -1.0, np.nan, jnp.zeros((2, 3)), object()])
@pytest.mark.parametrize("name", ["Polynomial3", "RationalQuadratic", "Nested", "Softened"])
def test_rebuilding_does_not_validate(name, placeholder):
  case = CASES[name]
  kernel = case.make(**case.draw(np.random.default_rng(12)))
  rebuilt = jax.tree.map(lambda _: placeholder, kernel)
  assert type(rebuilt) is type(kernel)
  assert len(rebuilt.hyperparameters()) == len(kernel.hyperparameters())
  assert all(value is placeholder for value in rebuilt.hyperparameters().values())
  assert all(value is not placeholder for value in kernel.hyperparameters().values())


def test_unflatten_of_flatten_is_the_kernel():
  for case in CASES.values():
    kernel = case.make(**case.draw(np.random.default_rng(13)))
    leaves, tree = jax.tree.flatten(kernel)
    assert jax.tree.unflatten(tree, leaves) == kernel
    assert jax.tree.structure(jax.eval_shape(lambda k=kernel: k)) == tree


def test_hyperparameters_constraints_and_with_hyperparameters():
  kernel = 2.0 * kernels.Gaussian(0.5) + kernels.Polynomial(2, 0.0) * kernels.Sigmoid()
  assert kernel.hyperparameters() == {
    "terms_0_scale": 2.0,
    "terms_0_inner_gamma": 0.5,
    "terms_1_terms_0_balance": 0.0,
    "terms_1_terms_1_scale": 1.0,
    "terms_1_terms_1_offset": 0.0,
  }
  assert kernel.constraints() == {
    "terms_0_scale": "any",
    "terms_0_inner_gamma": "positive",
    "terms_1_terms_0_balance": "non-negative",
    "terms_1_terms_1_scale": "any",
    "terms_1_terms_1_offset": "any",
  }
  other = kernel.with_hyperparameters({"terms_0_inner_gamma": 0.25, "terms_1_terms_1_offset": -1})
  assert other == 2.0 * kernels.Gaussian(0.25) + kernels.Polynomial(2, 0.0) * kernels.Sigmoid(
    1.0, -1.0
  )
  assert kernel.hyperparameters()["terms_0_inner_gamma"] == 0.5
  assert kernel.with_hyperparameters({}) == kernel
  with pytest.raises(ValueError, match=r"no hyperparameter 'gamma'.*terms_0_inner_gamma"):
    kernel.with_hyperparameters({"gamma": 1.0})
  with pytest.raises(ValueError, match=r"no hyperparameter 'degree'"):
    kernels.Polynomial().with_hyperparameters({"degree": 2})
  with pytest.raises(ValueError, match=r"terms_0_inner_gamma.*positive.*-0\.5"):
    kernel.with_hyperparameters({"terms_0_inner_gamma": -0.5})
  with pytest.raises(ValueError, match="none"):
    kernels.Linear().with_hyperparameters({"gamma": 1.0})
