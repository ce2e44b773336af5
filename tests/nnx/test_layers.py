"""The NNX layer, which is the linen layer in other clothes."""

import copy
import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from numpy.testing import assert_allclose

import kerv_jax.nn as kerv_linen
from kerv_jax import kernels
from kerv_jax import nnx as kerv_nnx
from kerv_jax.kernels import Hyperparameter, hyperparameter
from tests.nnx.layers import (
  GAUSSIAN,
  POLYNOMIAL,
  Conv,
  Kerv,
  X,
  learning,
  rngs,
  shapes,
)
from tests.trees import close, different, same

LAYERS = {
  "default": {},
  "strides": {"strides": (2, 1)},
  "circular": {"padding": "CIRCULAR", "strides": 2},
  "reflect": {"padding": "REFLECT"},
  "pairs": {"padding": ((1, 0), (0, 2))},
  "dilations": {"kernel_dilation": 2, "input_dilation": (1, 2), "padding": 1},
  "groups": {"feature_group_count": 3},
  "mask": {"mask": np.tril(np.ones((3, 3, 3, 6), np.float32))},
  "no_bias": {"use_bias": False},
  "bfloat16": {"dtype": jnp.bfloat16},
  "parameters": {"param_dtype": jnp.bfloat16},
  "preferred": {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32},
  "precision": {"precision": "highest"},
  "causal": {"kernel_size": (3,), "padding": "CAUSAL"},
}


@pytest.mark.parametrize("option", LAYERS)
@pytest.mark.usefixtures("promotion")
def test_linear_is_conv_bit_for_bit(option):
  options = {"kernel_size": (3, 3), **LAYERS[option]}
  conv = Conv(3, 6, **options, rngs=rngs())
  layer = Kerv(3, 6, **options, kernel_fn=kernels.Linear(), rngs=rngs())
  same(nnx.to_pure_dict(nnx.state(layer)), nnx.to_pure_dict(nnx.state(conv)))
  same(layer(X), conv(X))
  one = X[0, 0] if len(options["kernel_size"]) == 1 else X[0]
  same(layer(one), conv(one))
  graphdef, state = nnx.split(layer)
  conv_graphdef, conv_state = nnx.split(conv)

  def program(graphdef, state):
    def loss(state, x):
      return jnp.sum(jnp.sin(nnx.merge(graphdef, state)(x)))

    return str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(state, X))

  assert program(graphdef, state) == program(conv_graphdef, conv_state)


@pytest.mark.parametrize(
  ("kernel_fn", "per_feature"),
  [
    (POLYNOMIAL, True),
    (GAUSSIAN, False),
    (2.0 * kernels.Sigmoid(0.2, -0.2) + kernels.Linear() * kernels.Gaussian(0.1), False),
  ],
  ids=lambda value: type(value).__name__,
)
def test_the_same_numbers_as_the_linen_layer(kernel_fn, per_feature):
  options: dict[str, Any] = {"padding": "CIRCULAR", "strides": (2, 1), "feature_group_count": 3}
  learned = {"kernel_fn": kernel_fn, "learnable": True, "per_feature": per_feature}
  linen = kerv_linen.KervConv(6, (3, 2), **options, **learned)
  layer = Kerv(3, 6, (3, 2), **options, **learned, rngs=rngs())
  rng = np.random.default_rng(1)
  variables = jax.tree.map(
    lambda s: jnp.asarray(rng.normal(0.1, 0.4, s.shape), s.dtype),
    jax.eval_shape(lambda: linen.init(jax.random.key(0), X)),
  )
  assert shapes(layer) == {name: leaf.shape for name, leaf in variables["params"].items()}
  # Before the weights are those of the linen layer, hyperparameters have the value asked for.
  initial = linen.init(jax.random.key(0), X)["params"]
  for name in kernel_fn.hyperparameters():
    same(getattr(layer, name)[...], initial[name])
  for name, weights in variables["params"].items():
    getattr(layer, name)[...] = weights
  close(layer(X), linen.apply(variables, X))
  close(
    kerv_nnx.hyperparameters(layer)[""], kerv_linen.hyperparameters(linen, variables, X), rtol=1e-6
  )
  gradient = nnx.jit(nnx.grad(lambda layer: jnp.sum(jnp.sin(layer(X)))))(layer)
  expected = jax.jit(jax.grad(lambda v: jnp.sum(jnp.sin(linen.apply(v, X)))))(variables)
  close(nnx.to_pure_dict(gradient), expected["params"], rtol=1e-4)


def test_default_is_the_cubic_polynomial_that_learns_nothing():
  layer = Kerv(3, 4, (3, 3), rngs=rngs())
  assert layer.kernel_fn == kernels.Polynomial()
  assert set(shapes(layer)) == {"kernel", "bias"}
  assert kerv_nnx.hyperparameters(layer) == {}


def test_chosen_hyperparameters_learn():
  layer = Kerv(3, 4, 1, kernel_fn=kernels.Sigmoid(0.5, 0.25), learnable=["offset"], rngs=rngs())
  assert set(shapes(layer)) == {"kernel", "bias", "offset"}
  layer.offset[...] = jnp.float32(-1)
  assert layer.kernel_fn == kernels.Sigmoid(0.5, jnp.float32(-1))


@pytest.mark.parametrize("value", [1e-6, 1.0])
def test_positive_whatever_the_optimiser_does(value):
  layer = Kerv(3, 4, (3, 3), kernel_fn=kernels.Gaussian(value), learnable=True, rngs=rngs())
  assert_allclose(layer.kernel_fn.gamma, value, rtol=1e-6)
  optimizer = nnx.Optimizer(layer, optax.sgd(1e6), wrt=nnx.Param)
  gradient = nnx.jit(nnx.grad(lambda m: jnp.sum(m(X))))
  for _ in range(2):
    optimizer.update(layer, gradient(layer))
    assert layer.kernel_fn.gamma > 0
    assert jnp.isfinite(layer.kernel_fn.gamma)


class Named(kernels.InnerProductKernel):
  """A kernel whose hyperparameter has the name of something that the layer has."""

  strides: Hyperparameter = hyperparameter(default=1.0)

  def profile(self, statistic):
    return self.strides * statistic


@pytest.mark.parametrize(
  ("options", "error", "message"),
  [
    ({"kernel_fn": jnp.tanh}, TypeError, "`kernel_fn` must be"),
    ({"learnable": ("gamma",)}, ValueError, "`learnable` must name hyperparameters"),
    ({"learnable": "balance"}, TypeError, "`learnable` must be a bool or a tuple"),
    ({"per_feature": True}, ValueError, "`per_feature` needs a learnable"),
    ({"per_feature": 1, "learnable": True}, TypeError, "`per_feature` must be True or False"),
    ({"kernel_fn": Named(), "learnable": True}, ValueError, "learnable `strides` of `kernel_fn`"),
    ({"kernel_fn": kernels.Polynomial(2, 0.0), "learnable": True}, ValueError, "must start above"),
    ({"kernel_fn": kernels.Gaussian(np.ones(3))}, ValueError, "each of the 4 output features"),
    ({"feature_group_count": 2}, ValueError, "must divide `in_features` 3, got 2"),
    ({"feature_group_count": 3}, ValueError, "must divide `out_features` 4, got 3"),
    (
      {"conv_general_dilated": lax.conv_general_dilated},
      TypeError,
      "unexpected .*conv_general",
    ),
  ],
)
def test_arguments_are_checked(options, error, message):
  with pytest.raises(error, match=message):
    Kerv(3, 4, (3, 3), **options, rngs=rngs())


def test_kernels_with_vectors():
  vector = kernels.Gaussian(np.array([0.1, 0.2, 0.3, 0.4]))
  for kernel_fn in (vector, kernels.Gaussian(jnp.asarray(vector.gamma))):
    layer = Kerv(3, 4, (3, 3), kernel_fn=kernel_fn, rngs=rngs())
    out = nnx.jit(lambda layer, x: layer(x))(layer, X)
    one = Kerv(3, 4, (3, 3), kernel_fn=kernels.Gaussian(0.3), rngs=rngs())(X)
    close(out[..., 2], one[..., 2])
    different(out[..., 1], one[..., 1])
    assert "gamma" not in shapes(layer)


def test_nnx_transformations():
  layer = learning()
  expected = layer(X)
  graphdef, state = nnx.split(layer)
  assert hash(graphdef) == hash(nnx.graphdef(learning()))
  assert graphdef == nnx.graphdef(learning())
  assert graphdef != nnx.graphdef(Kerv(3, 4, (3, 3), kernel_fn=kernels.Gaussian(0.2), rngs=rngs()))
  same(nnx.merge(graphdef, state)(X), expected)
  same(nnx.clone(layer)(X), expected)
  close(nnx.jit(lambda layer, x: layer(x))(layer, X), expected)
  close(nnx.remat(lambda layer, x: layer(x))(layer, X), expected)
  close(jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))(state, X), expected)
  shape = nnx.eval_shape(learning)
  assert shapes(shape) == shapes(layer)


def test_ensembles_and_scans():
  @nnx.vmap(in_axes=0, out_axes=0)
  def ensemble(key):
    return Kerv(3, 3, (3, 3), kernel_fn=GAUSSIAN, learnable=True, rngs=nnx.Rngs(key))

  layers = ensemble(jax.random.split(jax.random.key(0), 2))
  assert shapes(layers)["gamma"] == (2,)
  layers.gamma[...] = layers.gamma[...] + jnp.array([0.0, 1.0])
  each = nnx.jit(nnx.vmap(lambda layer: layer(X)))(layers)
  graphdef, state = nnx.split(layers)
  singles = [nnx.merge(graphdef, jax.tree.map(lambda leaf, i=i: leaf[i], state)) for i in (0, 1)]
  close(each, jnp.stack([layer(X) for layer in singles]))
  scanned = nnx.jit(nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry))
  close(scanned(X, layers), singles[1](singles[0](X)))


@pytest.mark.usefixtures("promotion")
def test_an_optimizer_trains_hyperparameters_and_weights():
  teacher = Kerv(3, 4, (3, 3), kernel_fn=kernels.Gaussian(0.3), rngs=rngs())
  layer = learning()
  optimizer = nnx.Optimizer(layer, optax.adam(3e-2), wrt=nnx.Param)
  target = teacher(X)

  @nnx.jit
  def step(layer, optimizer):
    loss, gradient = nnx.value_and_grad(lambda m: jnp.mean((m(X) - target) ** 2))(layer)
    optimizer.update(layer, gradient)
    return loss

  losses = [float(step(layer, optimizer)) for _ in range(100)]
  assert losses[-1] < 0.05 * losses[0]
  assert layer.kernel_fn.gamma > 0.12


def test_orbax(tmp_path):
  orbax = pytest.importorskip("orbax.checkpoint")
  layer = learning()
  layer.gamma[...] = jnp.float32(-0.7)
  with orbax.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / "layer", nnx.state(layer))
    checkpointer.wait_until_finished()
    graphdef, abstract = nnx.split(nnx.eval_shape(learning))
    restored = nnx.merge(graphdef, checkpointer.restore(tmp_path / "layer", abstract))
  same(restored(X), layer(X))
  same(nnx.to_pure_dict(nnx.state(restored)), nnx.to_pure_dict(nnx.state(layer)))


def test_copies_pickles_and_display():
  layer = Kerv(3, 4, (3, 3), kernel_fn=POLYNOMIAL, learnable=True, rngs=rngs())
  for twin in (copy.deepcopy(layer), nnx.clone(layer)):
    same(twin(X), layer(X))
    twin.balance[...] = twin.balance[...] + 1
    different(twin(X), layer(X))
  fields = pickle.loads(pickle.dumps(layer.kernel_spec))
  assert fields == layer.kernel_spec
  assert "Polynomial(degree=2, balance=0.5) at first; `balance` below raw" in repr(layer)
  free = Kerv(3, 4, (3, 3), kernel_fn=kernels.Sigmoid(), learnable=True, rngs=rngs())
  assert re.search(r"kernel_spec=Sigmoid\(.*\) at first,?\n", repr(free))
  fixed = Kerv(3, 4, (3, 3), kernel_fn=POLYNOMIAL, rngs=rngs())
  assert "kernel_spec=Polynomial(degree=2, balance=0.5)\n" in repr(fixed)
