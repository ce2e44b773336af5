"""Kervolutions that can be stacked: `models.deep` against what it says it does."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from kerv_jax import kernels
from kerv_jax.models import CifarResNet, FastNet, GoogLeNet, LeNet5, ResNet18, deep
from kerv_jax.models.deep import filters, in_range
from kerv_jax.nn import KervConv


def test_widths_count_by_element_of_the_patch():
  inner = kernels.Gaussian(0.5) + kernels.Normalized(kernels.Laplacian(0.4) * kernels.Linear())
  for kernel, wanted in [
    (kernels.Gaussian(0.5), kernels.Gaussian(0.5 / 9)),
    (kernels.Cauchy(1.4), kernels.Cauchy(1.4 * 3)),
    (kernels.RationalQuadratic(2.0, 1.4), kernels.RationalQuadratic(2.0, 1.4 * 3)),
    (inner, inner.with_hyperparameters({
      "terms_0_gamma": 0.5 / 9, "terms_1_inner_terms_0_gamma": 0.4 / 9,
    })),
    (kernels.Polynomial(3, 3.0), kernels.Polynomial(3, 3.0)),
    (kernels.Sigmoid(), kernels.Sigmoid()),
  ]:  # fmt: skip
    made = in_range(kernel, 9)
    assert jax.tree.structure(made) == jax.tree.structure(wanted)
    np.testing.assert_allclose(jax.tree.leaves(made), jax.tree.leaves(wanted))


def test_filters_are_spread_as_the_kernel_asks():
  for kernel, deviation in [
    (kernels.Polynomial(), 1 / 20), (kernels.L2(), 1.0), (kernels.Gaussian(), 1.0),
    (kernels.L1(), 3.0), (-kernels.Laplacian(), 3.0), (kernels.Huber(), 3.0),
    (kernels.MaxPlus(), 10.0), (-kernels.Chebyshev(), 10.0), (2.0 * kernels.MaxPlus(), 10.0),
    (kernels.Chebyshev() + kernels.L1(), 3.0), (kernels.L1() + kernels.Linear(), 1 / 20),
  ]:  # fmt: skip
    made = filters(kernel)(jax.random.key(0), (400, 60))
    np.testing.assert_allclose(jnp.std(made) / deviation, 1, atol=0.02, err_msg=str(kernel))
  parts = kernels.Concatenate([(30, kernels.L1()), (30, kernels.Linear())])
  made = filters(parts)(jax.random.key(0), (400, 60), jnp.bfloat16)
  assert made.dtype == jnp.bfloat16
  ratios = [made[:, :30].std() / 3, made[:, 30:].std() * 20]
  np.testing.assert_allclose(np.asarray(ratios, np.float32), 1, atol=0.03)


class Layer(nn.Module):
  """A layer by itself: `deep` makes functions, which are called within a module."""

  conv: Callable[..., Any]

  @nn.compact
  def __call__(self, x):
    return self.conv(name="conv")(x)


@pytest.mark.parametrize("first", [False, True], ids=["of the layer", "of all layers"])
@pytest.mark.parametrize(("window", "fan_in"), [(3, 6), ((3, 2), 12)])
def test_a_layer_is_a_kervolution_in_range_standardized_over_features(window, fan_in, first):
  x = jax.random.normal(jax.random.key(0), (2, *(7, 6)[: np.size(window)], 4))
  options, groups = {"features": 6, "kernel_size": window}, {"feature_group_count": 2}
  made = deep(kernels.Gaussian(0.5), learnable=True, **(groups if first else {}))
  made = functools.partial(made, **options, **({} if first else groups))
  out, variables = Layer(made).init_with_output(jax.random.key(1), x)
  kernel_fn = kernels.Gaussian(0.5 / fan_in)
  layer = KervConv(**options, **groups, kernel_fn=kernel_fn, learnable=True)
  params = variables["params"]["conv"]
  assert set(params) == {"kernel", "bias", "gamma"}
  y = np.asarray(layer.apply({"params": params}, x), np.float64)
  wanted = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
  np.testing.assert_allclose(out, wanted, atol=2e-4)


def test_parts_of_other_scales_are_standardized_each_by_itself():
  x = jax.random.normal(jax.random.key(0), (2, 8, 8, 16))
  parts = kernels.Concatenate([(8, kernels.Gaussian(0.5)), (4, kernels.L1())])
  conv = functools.partial(deep(parts), features=12, kernel_size=(3, 3), padding="VALID")
  out, _ = Layer(conv).init_with_output(jax.random.key(1), x)
  for part in (out[..., :8], out[..., 8:]):
    np.testing.assert_allclose(part.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(part.std(-1), 1, atol=0.02)
  correlation = np.corrcoef(np.reshape(out[..., :8], (-1, 8)), rowvar=False)
  assert np.abs(correlation[np.triu_indices(8, 1)]).mean() < 0.4  # 0.98, were all standardized


def test_the_dtype_stays_and_what_will_not_do_is_told():
  x = jnp.ones((1, 4, 4, 2), jnp.bfloat16)
  conv = functools.partial(deep(kernels.L2()), features=4, kernel_size=(3, 3), dtype=jnp.bfloat16)
  assert Layer(conv).init_with_output(jax.random.key(0), x)[0].dtype == jnp.bfloat16
  with pytest.raises(TypeError, match="`kernel_fn` must be a kernel"):
    deep("l2")  # pyright: ignore
  with pytest.raises(ValueError, match="`features` must be at least 2, to be standardized, got 1"):
    deep(kernels.L2())(1, (3, 3))
  with pytest.raises(ValueError, match=r"of each part of `kernel_fn` must be at least 2, .* got 1"):
    deep(kernels.Concatenate([(7, kernels.L2()), (1, kernels.L1())]))(8, (3, 3))
  with pytest.raises(TypeError, match=r"`options` must be of bias_init, .*, got \['foo'\]"):
    deep(kernels.L2(), foo=1)
  for groups in (0, -1, 3):
    grouped = functools.partial(conv, feature_group_count=groups)
    with pytest.raises(ValueError, match="feature_group_count"):
      Layer(grouped).init(jax.random.key(0), x)


@pytest.mark.parametrize(("make", "side"), [(LeNet5, 28), (FastNet, 32), (GoogLeNet, 32)])
def test_every_network_takes_it(make, side):
  names = ("conv1", "conv2") if make is LeNet5 else ("conv", "stem")
  image = jax.ShapeDtypeStruct((1, side, side, 3), np.float32)
  trees = [
    jax.eval_shape(make(**dict.fromkeys(names, conv)).init, jax.random.key(0), image)
    for conv in (deep(kernels.Gaussian(0.5), learnable=True), nn.Conv)
  ]
  shapes = [
    {path: leaf.shape for path, leaf in flatten_dict(tree["params"], sep="/").items()}
    for tree in trees
  ]
  widths = {path for path in shapes[0] if path.endswith("/gamma")}
  assert {path: shape for path, shape in shapes[0].items() if path not in widths} == shapes[1]
  kernels_of_cnn = {path for path, shape in shapes[1].items() if len(shape) == 4}
  assert len(widths) >= len(kernels_of_cnn) - 1  # FastNet's whitening is none


def trained(model, side, batch=8, steps=100):
  """Losses of training on random images, and the scores of evaluation afterwards."""
  x = jax.random.normal(jax.random.key(0), (batch, side, side, 3))
  labels = jnp.arange(batch) % 4
  variables = jax.jit(model.init)(jax.random.key(1), x)
  optimizer = optax.sgd(0.05, momentum=0.9)

  @jax.jit
  def step(state):
    params, stats, moments = state

    def loss(params):
      scores, new = model.apply(
        {"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"]
      )
      losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
      return jnp.mean(losses), new["batch_stats"]

    (value, stats), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    updates, moments = optimizer.update(gradient, moments, params)
    return (optax.apply_updates(params, updates), stats, moments), value

  state = variables["params"], variables["batch_stats"], optimizer.init(variables["params"])
  losses = []
  for _ in range(steps):
    state, value = step(state)
    losses.append(float(value))
  params, stats, _ = state
  return losses, model.apply({"params": params, "batch_stats": stats}, x)


CUBIC = deep(kernels.Polynomial(3, 3.0))


@pytest.mark.parametrize(
  ("model", "side"),
  [
    (CifarResNet(depth=8, num_classes=4, conv=CUBIC), 8),
    pytest.param(ResNet18(num_classes=4, conv=CUBIC), 64, marks=pytest.mark.slow),
  ],
  ids=["resnet8", "resnet18"],
)
def test_an_all_cubic_resnet_learns_and_its_evaluation_is_finite(model, side):
  losses, scores = trained(model, side)
  assert np.all(np.isfinite(losses))
  assert losses[-1] < 0.5 * losses[0]
  assert np.all(np.isfinite(scores))


def test_by_default_the_same_network_evaluates_to_nan():
  _, scores = trained(CifarResNet(depth=8, num_classes=4, conv=KervConv), 8, steps=20)
  assert np.any(np.isnan(scores))
