"""Batch normalization, bfloat16, remat and gradients."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kerv_jax.models import (
  CifarResNet,
  GoogLeNet,
  googlenet,
)
from kerv_jax.models._layers import BatchNorm, classify
from tests.models.cases import (
  LEARNABLE,
  NETWORKS,
  SMALL,
  flat,
  images,
  in_train,
  intermediate_shapes,
  random_variables,
  shapes_of,
  size,
)


def test_running_averages_over_steps_and_their_use():
  rng = np.random.default_rng(0)
  batches = rng.normal(2.0, 3.0, (3, 2, 2, 1, 4)).astype(np.float32)  # 4 values of each feature
  norm = BatchNorm(train=True)
  variables = norm.init(jax.random.key(0), batches[0])
  np.testing.assert_array_equal(variables["batch_stats"]["mean"], np.zeros(4))
  np.testing.assert_array_equal(variables["batch_stats"]["var"], np.ones(4))
  mean, var = np.zeros(4), np.ones(4)
  for batch in batches:
    output, new = norm.apply(variables, batch, mutable=["batch_stats"])
    values = batch.reshape(-1, 4).astype(np.float64)
    wanted = (batch - values.mean(0)) / np.sqrt(values.var(0) + 1e-5)
    np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)
    mean, var = 0.9 * mean + 0.1 * values.mean(0), 0.9 * var + 0.1 * values.var(0, ddof=1)
    variables = {"params": variables["params"], **new}
  stats = variables["batch_stats"]
  np.testing.assert_allclose(stats["mean"], mean, rtol=1e-5)
  np.testing.assert_allclose(stats["var"], var, rtol=1e-5)
  output, new = BatchNorm(train=False).apply(variables, batches[0], mutable=["batch_stats"])
  np.testing.assert_allclose(
    output, (batches[0] - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5
  )
  chex.assert_trees_all_equal(new["batch_stats"], stats)


def test_statistics_over_a_named_axis_are_those_of_the_whole_batch():
  x = images(5, number=6).astype(np.float32)
  whole, parts = BatchNorm(train=True), BatchNorm(train=True, axis_name="data")
  variables = whole.init(jax.random.key(0), x)
  wanted, wanted_new = whole.apply(variables, x, mutable=["batch_stats"])
  output, new = jax.vmap(
    lambda x: parts.apply(variables, x, mutable=["batch_stats"]), axis_name="data"
  )(x.reshape(3, 2, *x.shape[1:]))
  np.testing.assert_allclose(output.reshape(x.shape), wanted, rtol=1e-5, atol=1e-6)
  for name, value in wanted_new["batch_stats"].items():
    for part in new["batch_stats"][name]:
      np.testing.assert_allclose(part, value, rtol=1e-5)


@NETWORKS
def test_networks_hand_the_axis_on(kind):
  make, side, _ = SMALL[kind]
  jaxpr = jax.make_jaxpr(
    lambda x: in_train(make(axis_name="data"))(random_variables(make(), side, np.float32), x),
    axis_env=[("data", 2)],
  )(images(side).astype(np.float32))
  assert str(jaxpr).count("psum") >= len(flat(shapes_of(make(), side)["batch_stats"])) // 2


def test_statistics_do_not_cancel_once_the_average_is_near_the_mean():
  x = np.random.default_rng(0).normal(3000.0, 1.0, (64, 4, 4, 2)).astype(np.float32)
  variables = BatchNorm(train=True).init(jax.random.key(0), x)
  near = variables | {
    "batch_stats": {"mean": np.full(2, 2990.0, np.float32), "var": np.ones(2, np.float32)}
  }
  output, _ = BatchNorm(train=True).apply(near, x, mutable=["batch_stats"])
  np.testing.assert_allclose(np.std(np.asarray(output), axis=(0, 1, 2)), 1, rtol=2e-3)


def test_one_value_of_a_feature_is_no_batch():
  x = np.ones((1, 1, 1, 3), np.float32)
  variables = BatchNorm(train=True).init(jax.random.key(0), x)
  with pytest.raises(ValueError, match=r"more than one value.*shape \(1, 1, 1, 3\)"):
    BatchNorm(train=True).apply(variables, x, mutable=["batch_stats"])


@NETWORKS
def test_evaluation_is_example_by_example(kind):
  make, side, _ = SMALL[kind]
  model, x = make(), images(side).astype(np.float32)
  variables = random_variables(model, side, np.float32)
  apply = jax.jit(model.apply)
  together = apply(variables, x)
  np.testing.assert_allclose(apply(variables, x[::-1])[::-1], together, rtol=1e-4, atol=1e-4)
  assert np.ptp(np.asarray(together), axis=0).max() > 1e-2


# --- the option of bfloat16


@NETWORKS
def test_bfloat16_keeps_parameters_statistics_and_scores_in_float32(kind):
  make, side, stem_name = SMALL[kind]
  model = make(dtype=jnp.bfloat16, stem=LEARNABLE)
  x = jax.ShapeDtypeStruct((2, side, side, 3), "f4")
  variables = shapes_of(model, side)
  assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("f4")}
  scores, new = jax.eval_shape(in_train(model), variables, x)
  assert scores.dtype == jnp.float32
  assert {leaf.dtype for leaf in jax.tree.leaves(new)} == {jnp.dtype("f4")}
  calls = intermediate_shapes(model, side)
  assert calls[stem_name].dtype == jnp.bfloat16
  computed = {name for name, call in calls.items() if call.dtype != jnp.bfloat16}
  assert computed <= {"", "fc", "classifier"}


class Classifier(nn.Module):
  @nn.compact
  def __call__(self, x):
    return classify(x, 4, nn.initializers.zeros, name="fc")


def test_classifier_averages_in_float32():
  x = jnp.asarray(np.random.default_rng(0).normal(1, 1, (3, 7, 7, 4)), jnp.bfloat16)
  params = {"fc": {"kernel": np.eye(4, dtype=np.float32), "bias": np.arange(4.0, dtype=np.float32)}}
  wanted = np.asarray(x, np.float64).mean(axis=(1, 2)) + np.arange(4.0)
  np.testing.assert_allclose(Classifier().apply({"params": params}, x), wanted, rtol=1e-5)


def test_bfloat16_is_close_to_float32():
  model, x = CifarResNet(depth=8), images(12, number=8).astype(np.float32)
  variables = random_variables(model, 12, np.float32)
  exact = jax.jit(in_train(model))(variables, x)
  rounded = jax.jit(in_train(model.clone(dtype=jnp.bfloat16)))(variables, x)
  difference = np.abs(np.asarray(rounded[0] - exact[0]))
  assert 0 < difference.max() < 0.1 * np.abs(np.asarray(exact[0])).max()
  for name, value in flat(exact[1]).items():
    np.testing.assert_allclose(flat(rounded[1])[name], value, rtol=0.05, atol=0.02, err_msg=name)


# --- the option of remat, and gradients


def loss_of(model, x):
  def loss(params, stats):
    scores, new = in_train(model)({"params": params, "batch_stats": stats}, x)
    return jnp.mean(jnp.sin(scores) * jnp.arange(1.0, 1 + scores.shape[-1])[None]), new

  return jax.value_and_grad(loss, has_aux=True)


@pytest.mark.parametrize("kind", ["cifar_resnet", "bottleneck", "densenet", "googlenet"])
def test_remat_changes_neither_tree_nor_values_and_every_parameter_has_a_gradient(
  kind, monkeypatch
):
  make, side, stem_name = SMALL[kind]
  if kind == "googlenet":  # one of its modules: the gradients of all take long to compile
    monkeypatch.setattr(googlenet, "_MODULES", dict(list(googlenet._MODULES.items())[:1]))
    make = functools.partial(GoogLeNet, num_classes=4)
  plain, remat = make(stem=LEARNABLE), make(stem=LEARNABLE, remat=True)
  assert jax.tree.structure(shapes_of(plain, side)) == jax.tree.structure(shapes_of(remat, side))
  x = images(side, number=4).astype(np.float32)
  variables = random_variables(plain, side, np.float32)
  arguments = variables["params"], variables["batch_stats"]
  kept = [
    jax.eval_shape(lambda v, model=model: jax.vjp(lambda v: in_train(model)(v, x), v)[1], variables)
    for model in (plain, remat)
  ]
  inside = [size(residuals) - size(variables) for residuals in kept]
  assert 0 < inside[1] < 0.7 * inside[0]  # kept from the forward for the backward pass
  (value, new), gradient = jax.jit(loss_of(plain, x))(*arguments)
  (value_again, new_again), gradient_again = jax.jit(loss_of(remat, x))(*arguments)
  np.testing.assert_allclose(value_again, value, rtol=1e-4)
  chex.assert_trees_all_close(new_again, new, rtol=1e-4, atol=1e-5)
  chex.assert_tree_all_finite(gradient)
  for path, leaf in flat(gradient).items():
    leaf = np.asarray(leaf)
    assert np.mean(leaf != 0) > 0.5, path
    again = flat(gradient_again)[path]
    tolerance = 1e-2 * np.abs(leaf).max()
    np.testing.assert_allclose(again, leaf, rtol=1e-2, atol=tolerance, err_msg=path)
  assert f"{stem_name}/balance" in flat(gradient)
