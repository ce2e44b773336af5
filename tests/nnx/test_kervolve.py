"""Kervolved copies of NNX models."""

import copy
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
from numpy.testing import assert_array_equal

import kerv_jax.nn as kerv_linen
from kerv_jax import kernels
from kerv_jax import nnx as kerv_nnx
from kerv_jax.nnx.traversal import modules
from tests.nnx.layers import (
  GAUSSIAN,
  OPTIONS,
  POLYNOMIAL,
  Conv,
  Kerv,
  X,
  learning,
  parameters,
  rngs,
  shapes,
)
from tests.trees import close, different, numpy_init, same


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
    self.scale = nnx.data(jnp.full((1, 1, 1, 4), 2.0))

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
