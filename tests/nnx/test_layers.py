"""The NNX layer, which is the linen layer in other clothes, and kervolved copies of NNX models."""

import copy
import functools
import pickle
import threading
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from numpy.testing import assert_allclose, assert_array_equal

import kerv_jax.nn as kerv_linen
from kerv_jax import kernels
from kerv_jax import nnx as kerv_nnx
from kerv_jax.kernels import Hyperparameter, hyperparameter
from kerv_jax.nnx.traversal import modules
from tests.trees import close, different, normal, numpy_init, same

GAUSSIAN = kernels.Gaussian(0.1)
POLYNOMIAL = kernels.Polynomial(2, balance=0.5)

OPTIONS: dict[str, Any] = {"kernel_init": numpy_init, "bias_init": numpy_init}
Conv = functools.partial(nnx.Conv, **OPTIONS)
Kerv = functools.partial(kerv_nnx.KervConv, **OPTIONS)


def rngs():
  return nnx.Rngs(0)


X = normal(2, 6, 5, 3)


def shapes(module):
  return {
    "/".join(map(str, path)): leaf.shape
    for path, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param))
  }


def parameters(module):
  return nnx.to_pure_dict(nnx.state(module, nnx.Param))


# The layer.

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
    ({"conv_general_dilated": lax.conv_general_dilated}, TypeError, "has no `conv_general"),
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


def learning(**options):
  return Kerv(3, 4, (3, 3), kernel_fn=GAUSSIAN, learnable=True, rngs=rngs(), **options)


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
  assert "Polynomial(degree=2, balance=0.5)" in repr(layer)


# Kervolved copies.


class Block(nnx.Module):
  def __init__(self, rngs):
    self.conv = Conv(4, 4, (3, 3), rngs=rngs)
    self.point = Conv(4, 4, (1, 1), use_bias=False, rngs=rngs)
    self.norm = nnx.BatchNorm(4, rngs=rngs)

  def __call__(self, x):
    return nnx.relu(self.norm(self.point(nnx.relu(self.conv(x))))) + x


class Net(nnx.Module):
  """Blocks in a list, a convolution under two names, noise, containers and static attributes."""

  def __init__(self, rngs):
    self.c1 = Conv(3, 4, (3, 3), strides=2, padding="CIRCULAR", rngs=rngs)
    self.blocks = nnx.List([Block(rngs), Block(rngs)])
    self.tied = self.blocks[0].conv
    self.more = nnx.data({"a": [Conv(4, 4, (1, 1), rngs=rngs)]})
    self.up = nnx.ConvTranspose(4, 2, (2, 2), kernel_init=numpy_init, rngs=rngs)
    self.drop = nnx.Dropout(0.5, rngs=rngs)
    self.sizes = [1, 2]

  def __call__(self, x):
    x = self.c1(x)
    for block in self.blocks:
      x = block(x)
    return self.up(self.drop(self.more["a"][0](self.tied(x))))


def net():
  model = Net(rngs())
  model.eval()
  return model


CHOICES = {
  "path": ("c1", {"c1"}),
  "nested": ("blocks/1/conv", {"blocks/1/conv"}),
  "other_name": ("tied", {"blocks/0/conv"}),
  "container": ("more/a/0", {"more/a/0"}),
  "glob": ("blocks/*/conv", {"blocks/0/conv", "blocks/1/conv"}),
  "list": (["c1", "blocks/1/*"], {"c1", "blocks/1/conv", "blocks/1/point"}),
  "predicate": (lambda m: not m.use_bias, {"blocks/0/point", "blocks/1/point"}),
  "all": (
    "*",
    {"c1", "blocks/0/conv", "blocks/0/point", "blocks/1/conv", "blocks/1/point", "more/a/0"},
  ),
}  # fmt: skip


def table_paths(model):
  return {line.split()[0].rstrip(",") for line in kerv_nnx.summary(model).splitlines()[2:]}


@pytest.mark.parametrize("choice", CHOICES)
def test_where(choice):
  where, expected = CHOICES[choice]
  original = net()
  model = kerv_nnx.kervolve(original, GAUSSIAN, where, learnable=True)
  assert type(model) is Net
  learned = {key.removesuffix("/gamma") for key in shapes(model) if key.endswith("/gamma")}
  names = {"tied" if name == "blocks/0/conv" else name for name in table_paths(model)}
  wanted = {"tied" if name == "blocks/0/conv" else name for name in expected}
  assert names == wanted
  assert learned == expected
  assert {k: v for k, v in shapes(model).items() if not k.endswith("/gamma")} == shapes(original)
  assert isinstance(model.up, nnx.ConvTranspose)
  assert model.tied is model.blocks[0].conv


def test_is_the_model_with_the_layer_instead():
  original, by_hand = net(), net()
  before = original(X)
  model = kerv_nnx.kervolve(original, GAUSSIAN, ["c1", "blocks/*/conv"], learnable=True)
  learned = {"kernel_fn": GAUSSIAN, "learnable": True, "rngs": rngs()}
  by_hand.c1 = Kerv(3, 4, (3, 3), strides=2, padding="CIRCULAR", **learned)
  for block in by_hand.blocks:
    block.conv = Kerv(4, 4, (3, 3), **learned)
  by_hand.tied = by_hand.blocks[0].conv
  same(model(X), by_hand(X))
  assert nnx.graphdef(model) == nnx.graphdef(by_hand)
  different(model(X), before)


def test_linear_is_the_model_bit_for_bit_and_checkpoints_load():
  original = net()
  model = kerv_nnx.kervolve(original, kernels.Linear())
  same(model(X), original(X))
  same(parameters(model), parameters(original))
  knn = kerv_nnx.kervolve(net(), GAUSSIAN)
  checkpoint = jax.tree.map(lambda leaf: 0.9 * leaf, nnx.state(original, nnx.Param))
  nnx.update(knn, checkpoint)
  nnx.update(original, checkpoint)
  same(knn(X), kerv_nnx.kervolve(original, GAUSSIAN)(X))


def test_the_copy_shares_nothing_with_the_original():
  original = net()
  original.train()
  before = nnx.to_pure_dict(jax.tree.map(lambda leaf: leaf, nnx.state(original)))
  model = kerv_nnx.kervolve(original, GAUSSIAN, "c1", learnable=True)

  def parts(model):
    mutable = nnx.Module | nnx.Variable | list | dict | np.ndarray
    return {id(node) for _, node in nnx.iter_graph(model) if isinstance(node, mutable)}

  assert parts(original)
  assert not parts(original) & parts(model)
  optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
  optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
  model.sizes.append(3)
  assert original.sizes == [1, 2]
  assert type(original.c1) is nnx.Conv
  same(nnx.to_pure_dict(nnx.state(original))["c1"], before["c1"])
  assert_array_equal(original.drop.rngs.count[...], before["drop"]["rngs"]["count"])
  # Donating the copy's arrays leaves the original's alone.
  jax.jit(lambda state: jax.tree.map(jnp.copy, state), donate_argnums=0)(nnx.state(model))
  assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(nnx.state(original)))


def test_the_other_way_round_nothing_reaches_the_copy():
  original = net()
  model = kerv_nnx.kervolve(original, GAUSSIAN, "c1")
  expected = model(X)
  nnx.update(original, jax.tree.map(lambda leaf: leaf + 1, nnx.state(original, nnx.Param)))
  original.c1.strides = 1
  same(model(X), expected)


def test_what_python_cannot_copy_is_shared():
  class Holder(nnx.Module):
    def __init__(self):
      self.conv = Conv(3, 4, (3, 3), rngs=rngs())
      self.device, self.lock, self.numbers = jax.devices()[0], threading.Lock(), jnp
      self.options = {"nested": [1]}

  original = Holder()
  model = kerv_nnx.kervolve(original, GAUSSIAN)
  assert (model.device, model.lock, model.numbers) == (original.device, original.lock, jnp)
  assert model.options["nested"] is not original.options["nested"]
  assert model.conv.kernel is not original.conv.kernel


def test_modes_are_kept():
  original = net()
  original.train()
  assert kerv_nnx.kervolve(original, GAUSSIAN).drop.deterministic is False
  original.eval()
  assert kerv_nnx.kervolve(original, GAUSSIAN).drop.deterministic is True


def test_twice_with_different_kernels():
  model = kerv_nnx.kervolve(net(), GAUSSIAN, "c1", learnable=True)
  again = kerv_nnx.kervolve(model, POLYNOMIAL, "*")
  assert "Gaussian" in kerv_nnx.summary(again).splitlines()[-1 - 5]
  assert kerv_nnx.hyperparameters(again).keys() == {"c1"}
  assert again.blocks[1].conv.kernel_fn == POLYNOMIAL
  with pytest.raises(ValueError, match=r"(?s)'c1' chooses no .*\nkervolutions already: c1"):
    kerv_nnx.kervolve(model, POLYNOMIAL, "c1")


def test_a_single_convolution():
  conv = Conv(3, 4, (3, 3), rngs=rngs())
  model = kerv_nnx.kervolve(conv, GAUSSIAN, learnable=True)
  assert type(model) is kerv_nnx.KervConv
  same(model(X), learning()(X))
  assert nnx.graphdef(model) == nnx.graphdef(learning())


def test_stacked_convolutions():
  @nnx.vmap(in_axes=0, out_axes=0)
  def ensemble(key):
    return nnx.Sequential(nnx.Conv(3, 3, (3, 3), rngs=nnx.Rngs(key)))

  layers = ensemble(jax.random.split(jax.random.key(0), 2))
  model = kerv_nnx.kervolve(layers, GAUSSIAN, learnable=True, per_feature=True)
  assert shapes(model)["layers/0/gamma"] == (2, 3)
  out = nnx.vmap(lambda layer: layer(X))(model)
  kernel, bias = layers.layers[0].kernel[...][1], layers.layers[0].bias[...][1]
  linen = kerv_linen.KervConv(3, (3, 3), kernel_fn=GAUSSIAN)
  close(out[1], linen.apply({"params": {"kernel": kernel, "bias": bias}}, X))


def test_a_model_of_shapes_alone():
  """As before a checkpoint is restored: the hyperparameters have values, the weights none yet."""
  abstract = nnx.eval_shape(lambda: Conv(3, 4, (3, 3), rngs=rngs()))
  layer = kerv_nnx.kervolve(abstract, GAUSSIAN, learnable=True)
  assert shapes(layer) == {"bias": (4,), "gamma": (), "kernel": (3, 3, 3, 4)}
  whole = kerv_nnx.kervolve(Conv(3, 4, (3, 3), rngs=rngs()), GAUSSIAN, learnable=True)
  nnx.update(layer, nnx.state(whole))
  same(layer(X), whole(X))


def test_within_a_jitted_function():
  @jax.jit
  def run(weights):
    conv = Conv(3, 4, (3, 3), rngs=rngs())
    conv.kernel[...] = weights
    return kerv_nnx.kervolve(conv, GAUSSIAN, learnable=True)(X)

  close(run(numpy_init(None, (3, 3, 3, 4))), learning()(X))


class Holds(nnx.Module):
  """Random keys and arrays that are no parameters."""

  def __init__(self, rngs):
    self.conv = Conv(3, 4, (3, 3), rngs=rngs)
    self.drop = nnx.Dropout(0.5, rngs=rngs)
    self.key = nnx.data(jax.random.key(1))
    self.scale = nnx.data(jnp.full(4, 2.0))

  def __call__(self, x):
    return self.drop(self.conv(x)) * self.scale


def test_within_a_transformation_whatever_the_model_holds():
  def run(model, x):
    return kerv_nnx.kervolve(model, GAUSSIAN, learnable=True)(x).sum()

  model = Holds(rngs())
  model.eval()
  expected = 2 * learning()(X).sum()
  close(run(model, X), expected)
  close(nnx.jit(run)(model, X), expected)
  close(nnx.value_and_grad(run)(model, X)[0], expected)
  graphdef, state = nnx.split(model)
  close(jax.jit(lambda state: run(nnx.merge(graphdef, state), X))(state), expected)
  knn = kerv_nnx.kervolve(model, GAUSSIAN)
  assert knn.scale.unsafe_buffer_pointer() != model.scale.unsafe_buffer_pointer()
  assert (knn.key == model.key).all()


class Doubled(nnx.Conv):
  """A subclass that does something of its own around the convolution."""

  def __call__(self, inputs):
    return 2 * super().__call__(inputs)


class Jitted(nnx.Conv):
  """A subclass whose call has been compiled the second time."""

  @nnx.jit
  def __call__(self, inputs):
    return super().__call__(inputs)


class Own(nnx.Conv):
  """One that computes the convolution itself, so that no operator can be given to it."""

  def __call__(self, inputs):
    return lax.conv_general_dilated(
      inputs, self.kernel[...], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


class OwnAroundAnother(Own):
  """The same, with a convolution inside that can be replaced."""

  def __init__(self, *args, rngs, **options):
    super().__init__(*args, rngs=rngs, **options)
    self.inner = Conv(3, 3, (1, 1), rngs=rngs)

  def __call__(self, inputs):
    return super().__call__(self.inner(inputs))


def test_a_convolution_does_not_ask_for_the_one_around_it():
  model = OwnAroundAnother(3, 4, (3, 3), rngs=rngs())
  for _ in range(2):
    with pytest.raises(ValueError, match="of OwnAroundAnother cannot be replaced"):
      kerv_nnx.kervolve(model, GAUSSIAN)(X)
  kerv_nnx.kervolve(model, GAUSSIAN, "inner")(X)


def test_subclasses_of_the_convolution():
  layer = Doubled(3, 4, (3, 3), **OPTIONS, rngs=rngs())
  model = kerv_nnx.kervolve(nnx.Sequential(layer), GAUSSIAN, learnable=True)
  assert isinstance(model.layers[0], Doubled)
  same(model(X), 2 * learning()(X))
  jitted = nnx.jit(lambda model: model(X))
  for _ in range(2):
    close(jitted(model), 2 * learning()(X))
  again = kerv_nnx.kervolve(nnx.Sequential(layer), GAUSSIAN, learnable=True)
  assert nnx.graphdef(model) == nnx.graphdef(again)
  with pytest.raises(ValueError, match="chooses no convolution; there is none\nkervolutions"):
    kerv_nnx.kervolve(model, GAUSSIAN)
  jitted = kerv_nnx.kervolve(Jitted(3, 4, (3, 3), **OPTIONS, rngs=rngs()), GAUSSIAN)
  for _ in range(2):
    close(jitted(X), learning()(X))
  for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), nnx.clone(model)):
    assert type(twin.layers[0]) is type(model.layers[0])
    assert nnx.graphdef(twin) == nnx.graphdef(model)
    same(twin(X), model(X))
  own = kerv_nnx.kervolve(Own(3, 4, (3, 3), rngs=rngs()), GAUSSIAN)
  for _ in range(2):
    with pytest.raises(ValueError, match=r"of Own cannot be replaced: it does not call its"):
      own(X)


def test_cycles_and_many_paths():
  class Node(nnx.Module):
    def __init__(self, below):
      self.conv = Conv(3, 3, (1, 1), rngs=rngs())
      self.left = self.right = nnx.data(below)

  top = node = Node(None)
  for _ in range(40):
    top = Node(top)
  node.left = top  # and 2**40 paths to it
  model = kerv_nnx.kervolve(top, GAUSSIAN, ["conv", "right/right/conv"])
  assert model.conv.kernel_fn == GAUSSIAN
  assert model.left.left.conv.kernel_fn == GAUSSIAN
  assert type(model.left.conv) is nnx.Conv
  assert len(modules(model, nnx.Conv)) == 41


@pytest.mark.parametrize(
  ("where", "shown"),
  [
    ("nothing", "'nothing'"),
    ("blocks/0", "'blocks/0'"),
    ("up", "'up'"),
    (["c1", "blocks/*/c"], "'blocks/*/c'"),
    (lambda m: m.out_features == 7, "<lambda>"),
  ],
)
def test_nothing_chosen_lists_what_there_is(where, shown):
  with pytest.raises(ValueError, match=r"chooses no convolution") as error:
    kerv_nnx.kervolve(net(), GAUSSIAN, where)
  lines = str(error.value).splitlines()
  assert shown in lines[0]
  assert {"  c1: Conv 3x3, 4 features", "  more/a/0: Conv 1x1, 4 features"} < set(lines)
  assert not any(line.startswith("  up") for line in lines)


@pytest.mark.parametrize(
  ("change", "error", "message"),
  [
    ({"model": nn.Conv(3, (3, 3))}, TypeError, "`model` must be a flax.nnx.Module"),
    ({"kernel_fn": "gaussian"}, TypeError, "`kernel_fn` must be"),
    ({"where": 3}, TypeError, "`where` must be a path"),
    ({"where": nnx.Conv}, TypeError, "`where` must be a path"),
    ({"where": ()}, ValueError, "`where` must choose at least one"),
    ({"learnable": ("beta",)}, ValueError, "`learnable` must name hyperparameters"),
    ({"per_feature": True}, ValueError, "`per_feature` needs a learnable"),
    ({"kernel_fn": kernels.Gaussian(np.ones(3))}, ValueError, "each of the 4 output features"),
  ],
)
def test_arguments_of_kervolve_are_checked(change, error, message):
  arguments: dict[str, Any] = {"model": net(), "kernel_fn": GAUSSIAN, "where": "c1", **change}
  with pytest.raises(error, match=message):
    kerv_nnx.kervolve(arguments.pop("model"), arguments.pop("kernel_fn"), **arguments)


def test_operator_that_somebody_else_has_set_is_not_discarded():
  def double(*args, **kwargs):
    return 2 * lax.conv_general_dilated(*args, **kwargs)

  layer = Conv(3, 4, (3, 3), conv_general_dilated=double, rngs=rngs())
  with pytest.raises(ValueError, match=r"`conv_general_dilated` must be that of jax.lax"):
    kerv_nnx.kervolve(layer, GAUSSIAN)
