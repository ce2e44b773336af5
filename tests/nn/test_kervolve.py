"""Linen models of others, made kervolutional: the same but for the chosen convolutions."""

import copy
import functools
import inspect
import itertools
import pickle
import re
import threading
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import freeze
from flax.training.train_state import TrainState
from flax.traverse_util import flatten_dict
from jax import lax
from numpy.testing import assert_allclose

from kerv_jax import kernels
from kerv_jax.models import CifarResNet
from kerv_jax.nn import KervConv, hyperparameters, kervolve
from tests.trees import close, different, normal, numpy_init, same

KEY = jax.random.key(0)
GAUSSIAN = kernels.Gaussian(0.1)
POLYNOMIAL = kernels.Polynomial(2, balance=0.5)

Conv = functools.partial(nn.Conv, kernel_init=numpy_init)
Kerv = functools.partial(KervConv, kernel_init=numpy_init)

X = normal(2, 6, 5, 3)


def random_variables(model, *args, seed=1, **kwargs):
  """Random variables of a model; positive, as some are variances."""
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(lambda: model.init(KEY, *args, **kwargs))
  return jax.tree.map(lambda s: jnp.asarray(rng.uniform(0.05, 0.5, s.shape), s.dtype), shapes)


@functools.partial(jax.jit, static_argnums=0)
def apply(model, variables, *args):
  return model.apply(variables, *args)


def program(net, *args):
  """The program of a model and its gradient; equal ones compute the same bits."""

  def loss(variables, *args):
    return jnp.sum(jnp.sin(net.apply(variables, *args)))

  return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(jax.value_and_grad(loss))(*args)))


def paths(variables):
  return {"/".join(key): leaf.shape for key, leaf in flatten_dict(variables["params"]).items()}


# A model written twice: with convolutions to kervolve, and with the layer itself as the answer.


class Block(nn.Module):
  make: Any = Conv
  made_b: Any = Conv

  def setup(self):
    self.a = self.make(3, (3, 3))
    self.b = self.made_b(3, (1, 1), use_bias=False)

  def __call__(self, x):
    return nn.relu(self.b(nn.relu(self.a(x))) + x)


class Net(nn.Module):
  """Compact, with blocks in setup style, a strided stem, a transposed and a dense layer."""

  stem: Any = Conv
  a: Any = Conv
  b: Any = Conv

  @nn.compact
  def __call__(self, x):
    x = self.stem(3, (3, 3), strides=2, padding="CIRCULAR", name="stem")(x)
    for i in range(2):
      x = Block(self.a, self.b, name=f"blocks_{i}")(x)
    x = nn.ConvTranspose(2, (2, 2), kernel_init=numpy_init, name="up")(x)
    x = nn.ConvLocal(2, (2, 2), kernel_init=numpy_init, name="local")(x)
    return nn.Dense(2, kernel_init=numpy_init, name="head")(x.mean((1, 2)))


CONVS = ("stem", "blocks_0/a", "blocks_0/b", "blocks_1/a", "blocks_1/b")


@functools.cache
def net_variables():
  return random_variables(Net(), X)


@functools.cache
def net_output():
  return apply(Net(), net_variables(), X)


CHOICES = {
  "path": ("stem", {"stem"}),
  "nested_path": ("blocks_1/a", {"blocks_1/a"}),
  "glob": ("blocks_*/a", {"blocks_0/a", "blocks_1/a"}),
  "glob_across": ("bl*a", {"blocks_0/a", "blocks_1/a"}),
  "character": ("blocks_?/[b-z]", {"blocks_0/b", "blocks_1/b"}),
  "all": ("*", set(CONVS)),
  "list": (["stem", "blocks_1/*"], {"stem", "blocks_1/a", "blocks_1/b"}),
  "tuple_overlapping": (("stem", "st*"), {"stem"}),
  "size": (lambda m: m.kernel_size == (3, 3), {"stem", "blocks_0/a", "blocks_1/a"}),
  "name": (lambda m: m.name == "stem", {"stem"}),
  "path_of_module": (lambda m: m.path == ("blocks_0", "b"), {"blocks_0/b"}),
  "mixed": (["blocks_0/a", lambda m: not m.use_bias], {"blocks_0/a", "blocks_0/b", "blocks_1/b"}),
}  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES)
def test_where(choice):
  where, expected = CHOICES[choice]
  model = kervolve(Net(), GAUSSIAN, where, learnable=True)
  variables = jax.eval_shape(lambda: model.init(KEY, X))
  learned = {key.removesuffix("/gamma") for key in paths(variables) if key.endswith("gamma")}
  assert learned == expected
  plain = {key: shape for key, shape in paths(variables).items() if not key.endswith("gamma")}
  assert plain == paths(net_variables())


def test_default_is_every_convolution():
  rows = kervolve(Net(), GAUSSIAN).summary(X).splitlines()
  assert [row.split()[0] for row in rows[2:-1]] == list(CONVS)


@pytest.mark.parametrize(
  ("where", "answer"),
  [
    (["stem", "*/b"], {"stem": Kerv, "b": Kerv}),
  ],
)
def test_is_the_model_with_the_layer_instead(where, answer):
  answer = {k: functools.partial(v, kernel_fn=GAUSSIAN, learnable=True) for k, v in answer.items()}
  by_hand, model = Net(**answer), kervolve(Net(), GAUSSIAN, where, learnable=True)
  assert jax.eval_shape(lambda: model.init(KEY, X)) == jax.eval_shape(lambda: by_hand.init(KEY, X))
  variables = random_variables(by_hand, X)
  assert program(model, variables, X) == program(by_hand, variables, X)
  different(apply(model, variables, X), net_output())
  close(hyperparameters(model, variables, X), hyperparameters(by_hand, variables, X))


def test_a_checkpoint_loads_and_linear_is_the_cnn_bit_for_bit():
  model = kervolve(Net(), kernels.Linear())
  assert jax.eval_shape(lambda: model.init(KEY, X)) == jax.eval_shape(lambda: Net().init(KEY, X))
  same(apply(model, net_variables(), X), net_output())
  assert program(model, net_variables(), X) == program(Net(), net_variables(), X)


def test_nothing_else_changes():
  """Neither the model nor another of its class, before, during and after."""
  model = kervolve(Net(), GAUSSIAN)
  different(apply(model, net_variables(), X), net_output())
  same(jax.jit(Net().apply)(net_variables(), X), net_output())
  layer, weights = Conv(3, (3, 3)), net_variables()["params"]["stem"]
  weights = {"params": weights}
  expected = layer.apply(weights, X)

  class Other(nn.Module):
    @nn.compact
    def __call__(self, x):
      apart = layer.apply(weights, X)  # another model's stem within, with paths of its own
      return Conv(3, (3, 3), name="stem")(x), apart

  out, apart = kervolve(Other(), GAUSSIAN).apply({"params": {"stem": weights["params"]}}, X)
  same(apart, expected)
  different(out, expected)


def test_an_exception_leaves_nothing_behind():
  class Bad(nn.Module):
    @nn.compact
    def __call__(self, x):
      Conv(3, (3, 3), name="stem")(x)
      raise RuntimeError("inside")

  with pytest.raises(RuntimeError, match="inside"):
    kervolve(Bad(), GAUSSIAN).init(KEY, X)
  same(jax.jit(Net().apply)(net_variables(), X), net_output())


def test_initial_weights_are_the_models():

  def uniform(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype)

  conv = nn.Conv(3, (3, 3), kernel_init=uniform, bias_init=uniform)
  params = jax.jit(kervolve(conv, GAUSSIAN, learnable=True).init)(KEY, X)["params"]
  assert params.pop("gamma").shape == ()
  same({"params": params}, jax.jit(conv.init)(KEY, X))


# Where Flax's transformations are inside the model.


class Step(nn.Module):
  make: Any = Conv

  @nn.compact
  def __call__(self, x, _):
    return self.make(3, (3, 3), name="a")(x), None


def scanned(make):
  axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
  layers = nn.scan(Step, **axes, length=2)(make, name="layers")
  return lambda x: layers(x, None)[0]


def vmapped(make):
  # An ensemble over the leading axis of the inputs, one set of weights each.
  axes = {"in_axes": 0, "variable_axes": {"params": 0}, "split_rngs": {"params": True}}
  block = nn.vmap(Step, **{**axes, "in_axes": (0, None)})(make, name="layers")
  return lambda x: block(x[:, None], None)[0][:, 0]


LIFTS = {
  "scan": scanned,
  "vmap": vmapped,
  "remat": lambda make: lambda x: nn.remat(Step)(make, name="layers")(x, None)[0],
  "jit": lambda make: lambda x: nn.jit(Step)(make, name="layers")(x, None)[0],
  "remat_scan": lambda make: lambda x: nn.remat_scan(Plain, lengths=(2, 1))(make, name="layers")(x),
  "remat_in_scan": lambda make: (
    lambda x: nn.scan(
      nn.remat(Step), variable_axes={"params": 0}, split_rngs={"params": True}, length=2
    )(make, name="layers")(x, None)[0]
  ),
  "map_variables": lambda make: (
    lambda x: nn.map_variables(Step, "params", init=True)(make, name="layers")(x, None)[0]
  ),
}


class Plain(nn.Module):
  make: Any = Conv

  @nn.compact
  def __call__(self, x):
    return self.make(3, (3, 3), name="a")(x)


class Lifted(nn.Module):
  lift: str
  make: Any = Conv

  @nn.compact
  def __call__(self, x):
    x = Conv(3, (1, 1), name="before")(x)
    return LIFTS[self.lift](self.make)(x)


@pytest.mark.parametrize("lift", LIFTS)
def test_inside_lifted_transformations(lift):
  plain = Lifted(lift)
  model = kervolve(plain, GAUSSIAN, "layers*", learnable=True)
  by_hand = Lifted(lift, functools.partial(Kerv, kernel_fn=GAUSSIAN, learnable=True))
  variables = random_variables(by_hand, X)
  assert paths(jax.eval_shape(lambda: model.init(KEY, X))) == paths(variables)
  shapes = paths(jax.eval_shape(lambda: plain.init(KEY, X)))
  assert {key for key in paths(variables) if not key.endswith("gamma")} == set(shapes)
  assert program(model, variables, X) == program(by_hand, variables, X)
  assert program(model, variables, X) != program(plain, variables, X)
  read, expected = (hyperparameters(net, variables, X) for net in (model, by_hand))
  close(read, expected)
  assert paths({"params": read}) == {
    key: shape for key, shape in paths(variables).items() if key.endswith("gamma")
  }


JitConv, JitPlain = nn.jit(nn.Conv), nn.jit(Plain)  # one class each, whose traces nn.jit keeps


@pytest.mark.parametrize("lift", ["remat", "jit", "vmap"])
def test_the_convolution_itself_is_lifted(lift):
  class Direct(nn.Module):
    make: Any = nn.Conv

    @nn.compact
    def __call__(self, x):
      axes = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
      transform = {
        "remat": nn.remat,
        "jit": lambda cls: JitConv,
        "vmap": lambda cls: nn.vmap(cls, **axes),
      }[lift]
      return transform(self.make)(3, (3, 3), kernel_init=numpy_init, name="stem")(x)

  class Hand(nn.Module):
    @nn.compact
    def __call__(self, x):
      return Kerv(3, (3, 3), kernel_fn=GAUSSIAN, learnable=True, name="stem")(x)

  variables = random_variables(Hand(), X)
  model = kervolve(Direct(), GAUSSIAN, "stem", learnable=True)
  expected = apply(Hand(), variables, X)
  for _ in range(2 if lift == "jit" else 1):  # the second time, it runs what it has
    close(model.apply(variables, X), expected)


class Jitted(nn.Module):
  @nn.compact
  def __call__(self, x):
    return JitPlain(counting_conv, name="layers")(x)


def counting_conv(*args, **options):
  counting_conv.traces += 1
  return Conv(*args, **options)


def test_a_trace_of_the_cnn_is_not_taken_for_the_knns():
  """nn.jit keeps traces; those of the same layer in another model are not the model's."""
  # The last two are told apart by no hash of their numbers: that of -1.0 is that of -2.0.
  kernel_fns = GAUSSIAN, POLYNOMIAL, kernels.Sigmoid(offset=-1.0), kernels.Sigmoid(offset=-2.0)
  counting_conv.traces = 0
  variables = random_variables(Jitted(), X)
  outs = []
  for _ in range(2):
    traces = counting_conv.traces
    for kernel_fn in (None, *kernel_fns):
      model = Jitted() if kernel_fn is None else kervolve(Jitted(), kernel_fn, "layers/a")
      outs.append(model.apply(variables, X))
  for a, b in itertools.pairwise(outs[:5]):
    different(a, b)
  same(outs[:5], outs[5:])
  assert counting_conv.traces == traces  # the second round ran what the first had left


def test_a_model_that_is_itself_lifted():
  axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
  for lifted in (nn.remat(Plain)(), nn.vmap(Plain, **axes)(), nn.jit(Plain)()):
    variables = random_variables(lifted, X)
    model = kervolve(lifted, GAUSSIAN, "a")
    different(model.apply(variables, X), lifted.apply(variables, X))
    same(kervolve(lifted, kernels.Linear()).apply(variables, X), lifted.apply(variables, X))


@pytest.mark.parametrize("model", [JitPlain(), Jitted()], ids=["itself", "within"])
def test_what_is_read_does_not_depend_on_the_traces_that_nn_jit_has(model):
  knn = kervolve(model, GAUSSIAN, "*a", learnable=True)
  variables = knn.init(KEY, X)
  shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
  tables, values = set(), []
  for x in (X, shape, X):
    knn.apply(variables, X)
    twin = kervolve(model, GAUSSIAN, "*a", learnable=True)
    tables.add(twin.summary(x))
    values.append(hyperparameters(twin, variables, x))
  assert len(tables) == 1
  assert "1 of 1 convolutions" in tables.pop()
  assert [len(jax.tree.leaves(v)) for v in values] == [1, 1, 1]
  twin.apply(variables, X)
  assert "1 of 1" in twin.summary()


def test_a_kervolved_class_is_lifted():
  model = kervolve(Plain(), GAUSSIAN, "a")
  variables = random_variables(model, X)
  remat = nn.remat(type(model))()
  close(remat.apply(variables, X), model.apply(variables, X))


def test_jit_and_vmap_around_the_model():
  model = kervolve(Plain(), GAUSSIAN, "a")
  variables = random_variables(model, X)
  eager = model.apply(variables, X)
  close(jax.jit(model.apply)(variables, X), eager)
  each = jax.vmap(model.apply, (None, 0))(variables, X[:, None])
  close(each[:, 0], eager)
  stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.1 * leaf]), variables)
  other = model.apply(jax.tree.map(lambda leaf: 1.1 * leaf, variables), X)
  close(jax.vmap(model.apply, (0, None))(stacked, X), jnp.stack([eager, other]))


class Methods(nn.Module):
  """Methods, not modules, are lifted."""

  make: Any = Conv

  def setup(self):
    self.a = self.make(3, (3, 3))

  @nn.remat
  def first(self, x):
    return self.a(x)

  @nn.jit
  def second(self, x):
    return self.a(x)

  def __call__(self, x):
    x = self.first(x) + self.second(x)
    both = (lambda m, x: m.first(x), lambda m, x: m.a(2 * x))
    return self.first(x) if self.is_initializing() else nn.cond(x[0, 0, 0, 0] > 0, *both, self, x)


def test_lifted_methods():
  model = kervolve(Methods(), GAUSSIAN, "a", learnable=True)
  by_hand = Methods(functools.partial(Kerv, kernel_fn=GAUSSIAN, learnable=True))
  variables = random_variables(by_hand, X)
  assert paths(jax.eval_shape(lambda: model.init(KEY, X))) == paths(variables)
  assert program(model, variables, X) == program(by_hand, variables, X)
  close(hyperparameters(model, variables, X), hyperparameters(by_hand, variables, X))


class Members(nn.Module):
  """Whose layers run in properties and generators too."""

  def setup(self):
    self.a = Conv(3, (3, 3))

  def __call__(self, x):
    return self.a(x)

  @property
  def of_x(self):
    return self.a(X)

  @functools.cached_property
  def of_x_once(self):
    return self.a(X)

  def steps(self, x):
    try:
      factor = (yield self.a(x)) or 1
      yield self.a(factor * x)
    except KeyError:
      yield self.a(-x)
    return self.a(3 * x)


def test_properties_and_generators_of_a_bound_model():
  model = kervolve(Members(), GAUSSIAN)
  variables = random_variables(model, X)
  bound, outs = model.bind(variables), [model.apply(variables, c * X) for c in (1, 2, 3, -1)]
  different(outs[0], Members().apply(variables, X))
  same(bound.of_x, outs[0])
  same([bound.of_x_once, bound.of_x_once], [outs[0]] * 2)
  steps = bound.steps(X)
  same([next(steps), steps.send(2)], outs[:2])
  with pytest.raises(StopIteration) as end:
    next(steps)
  same(end.value.value, outs[2])
  steps = bound.steps(X)
  next(steps)
  same(steps.throw(KeyError()), outs[3])
  steps.close()
  same(
    nn.Conv(3, (3, 3)).apply({"params": variables["params"]["a"]}, X),
    Members().bind(variables).of_x,
  )
  assert inspect.signature(type(model).steps) == inspect.signature(Members.steps)
  wrong = kervolve(Members(), GAUSSIAN, "b").bind(variables)
  with pytest.raises(ValueError, match="'b' chooses no convolution"):
    list(wrong.steps(X))
  with pytest.raises(ValueError, match="'b' chooses no convolution"):
    _ = wrong.of_x


class Coder(nn.Module):
  """Two halves with methods of their own."""

  def setup(self):
    self.a, self.b = Conv(3, (3, 3)), Conv(3, (3, 3))

  def encode(self, x):
    return self.a(x)

  def decode(self, x):
    return self.b(x)

  def __call__(self, x):
    return self.decode(self.encode(x))


def test_parameters_of_one_method_at_a_time():
  model = kervolve(Coder(), GAUSSIAN, ["a", "b"])
  assert set(model.init(KEY, X, method="encode")["params"]) == {"a"}
  assert set(model.init(KEY, X, method=Coder.decode)["params"]) == {"b"}
  assert "1 of 1" in kervolve(Coder(), GAUSSIAN, ["a", "b"]).summary(X, method="decode")
  variables = model.init(KEY, X)
  same(model.apply(variables, X, method="decode"), model.bind(variables).decode(X))
  wrong = kervolve(Coder(), GAUSSIAN, ["a", "c"])
  for run in (wrong.init, wrong.init_with_output):
    with pytest.raises(ValueError, match="'c' chooses no convolution"):
      run(KEY, X)
  with pytest.raises(ValueError, match="'c' chooses no convolution"):
    wrong.summary(X)
  with pytest.raises(ValueError, match="'c' chooses no convolution"):
    wrong.apply(variables, X, method="encode")


class NamedScope(nn.Module):
  make: Any = Conv

  @nn.compact_name_scope
  def up(self, x):
    return self.make(3, (3, 3), name="inner")(x)

  @nn.compact
  def __call__(self, x):
    return self.up(self.make(3, (1, 1), name="outer")(x))


class SharesScope(nn.Module):
  inner: nn.Module

  def setup(self):
    nn.share_scope(self, self.inner)

  def __call__(self, x):
    return self.inner(x)


def test_scopes_of_other_kinds():
  by_hand = NamedScope(functools.partial(Kerv, kernel_fn=GAUSSIAN))
  variables = random_variables(by_hand, X)
  model = kervolve(NamedScope(), GAUSSIAN, ["up/inner", "outer"])
  assert program(model, variables, X) == program(by_hand, variables, X)
  by_hand = SharesScope(Plain(functools.partial(Kerv, kernel_fn=GAUSSIAN)))
  variables = random_variables(by_hand, X)
  assert set(paths(variables)) == {"a/kernel", "a/bias"}
  for model in (SharesScope(kervolve(Plain(), GAUSSIAN)), kervolve(SharesScope(Plain()), GAUSSIAN)):
    assert program(model, variables, X) == program(by_hand, variables, X)


# How modules are written and used.


class Shared(nn.Module):
  """One convolution called twice, and one given from outside."""

  given: nn.Module

  def setup(self):
    self.conv = Conv(3, (3, 3))

  def __call__(self, x):
    return self.given(self.conv(self.conv(x)))

  def encode(self, x):
    return self.conv(x)

  def decode(self, x):
    return self.given(x)

  @nn.nowrap
  def helper(self, x):
    return self.conv(x)


def test_shared_modules_and_modules_as_attributes():
  net = Shared(Conv(2, (1, 1)))
  model = kervolve(net, POLYNOMIAL, learnable=True)
  variables = random_variables(model, X)
  assert set(paths(variables)) == {
    "conv/kernel", "conv/bias", "conv/balance", "given/kernel", "given/bias", "given/balance"
  }  # fmt: skip
  conv = Kerv(3, (3, 3), kernel_fn=POLYNOMIAL, learnable=True)
  given = Kerv(2, (1, 1), kernel_fn=POLYNOMIAL, learnable=True)
  expected = X
  for layer, name in ((conv, "conv"), (conv, "conv"), (given, "given")):
    expected = layer.apply({"params": variables["params"][name]}, expected)
  close(model.apply(variables, X), expected)
  assert model.given == net.given


def test_every_way_to_call_a_method():
  net = Shared(Conv(3, (1, 1)))
  model = kervolve(net, POLYNOMIAL, "conv")
  variables = random_variables(net, X)
  weights = {"params": variables["params"]["conv"]}
  expected = Kerv(3, (3, 3), kernel_fn=POLYNOMIAL).apply(weights, X)
  different(expected, net.apply(variables, X, method="encode"))
  for method in ("encode", Shared.encode, model.encode, "helper", lambda m, x: m.conv(x)):
    same(model.apply(variables, X, method=method), expected)
  bound = model.bind(variables)
  same(bound.encode(X), expected)
  same(bound.helper(X), expected)
  same(bound.conv(X), net.apply(variables, X, method="encode"))  # taken out: the CNN's again
  same(nn.apply(lambda m, x: m.encode(x), model)(variables, X), expected)
  # A method without a chosen convolution is no error: its parameters are there, and it is not run.
  decoded = model.apply(variables, X, method="decode")
  same(decoded, net.apply(variables, X, method="decode"))
  same(kervolve(net, POLYNOMIAL, lambda m: m.name == "conv").apply(
    variables, X, method="decode"), decoded)  # fmt: skip


def test_inside_another_model():
  class Outer(nn.Module):
    backbone: nn.Module

    @nn.compact
    def __call__(self, x):
      x = Conv(3, (3, 3), name="stem")(x)  # not the backbone's
      return self.backbone(self.backbone(x))

  plain, kerv = Outer(Plain()), Outer(kervolve(Plain(), GAUSSIAN, "a"))
  hand = Outer(Plain(functools.partial(Kerv, kernel_fn=GAUSSIAN)))
  variables = random_variables(plain, X)
  assert paths(jax.eval_shape(lambda: kerv.init(KEY, X))) == paths(variables)
  close(kerv.apply(variables, X), hand.apply(variables, X))
  # Kervolved once more: what is a kervolution stays one.
  again = kervolve(kerv, POLYNOMIAL, "*")
  out = again.apply(variables, X)
  assert "1 of 1 convolutions" in again.summary()
  assert "stem  Conv 3x3, 3 features  Polynomial" in again.summary()

  class Kerved(nn.Module):
    @nn.compact
    def __call__(self, x):
      x = Kerv(3, (3, 3), kernel_fn=POLYNOMIAL, name="stem")(x)
      backbone = Plain(functools.partial(Kerv, kernel_fn=GAUSSIAN), name="backbone")
      return backbone(backbone(x))

  close(out, Kerved().apply(variables, X))
  with pytest.raises(ValueError, match=r"(?s)'backbone/a' chooses no.*stem: Conv.*already: backb"):
    kervolve(kerv, POLYNOMIAL, "backbone/a").apply(variables, X)


def test_methods_called_apart_within_another_model():
  """While parameters are made, what a method lacks may be another's."""

  class Outer(nn.Module):
    inner: nn.Module

    @nn.compact
    def __call__(self, x):
      return self.inner.encode(self.inner.decode(x))

  net = Shared(Conv(3, (1, 1)))
  variables = random_variables(Outer(net), X)
  model = Outer(kervolve(net, POLYNOMIAL, "conv"))
  assert paths(jax.eval_shape(lambda: model.init(KEY, X))) == paths(variables)
  decoded = net.apply({"params": variables["params"]["inner"]}, X, method="decode")
  conv = Kerv(3, (3, 3), kernel_fn=POLYNOMIAL)
  expected = conv.apply({"params": variables["params"]["inner"]["conv"]}, decoded)
  close(model.apply(variables, X), expected)


def test_made_within_another_model():
  class Auto(nn.Module):
    kernel_fn: kernels.Kernel

    @nn.compact
    def __call__(self, x):
      x = Plain()(x)
      return kervolve(Plain(parent=None), self.kernel_fn)(x)

  class Setup(nn.Module):
    kernel_fn: kernels.Kernel

    def setup(self):
      self.Plain_0 = Plain()
      self.Plain_1 = kervolve(Plain(), self.kernel_fn)

    def __call__(self, x):
      return self.Plain_1(self.Plain_0(x))

  variables = random_variables(Auto(GAUSSIAN), X)
  assert set(paths(variables)) == {
    "Plain_0/a/kernel", "Plain_0/a/bias", "Plain_1/a/kernel", "Plain_1/a/bias"
  }  # fmt: skip
  out = Auto(GAUSSIAN).apply(variables, X)
  different(out, Auto(kernels.Linear()).apply(variables, X))
  same(out, Setup(GAUSSIAN).apply(variables, X))

  class Wrong(nn.Module):
    @nn.compact
    def __call__(self, x):
      return kervolve(Plain(), GAUSSIAN)(x)

  with pytest.raises(ValueError, match=r"must not be bound, got Plain at .* parent=None"):
    Wrong().init(KEY, X)


def test_wrong_paths_inside_another_model_are_found():
  class Outer(nn.Module):
    backbone: nn.Module

    @nn.compact
    def __call__(self, x):
      return self.backbone(x)

  variables = random_variables(Outer(Plain()), X)
  with pytest.raises(ValueError, match=r"'b' chooses no convolution; there are:\n  a: Conv 3x3"):
    Outer(kervolve(Plain(), GAUSSIAN, "b")).apply(variables, X)


def test_twice_with_different_kernels():
  model = kervolve(kervolve(Net(), GAUSSIAN, "stem"), POLYNOMIAL, "*/a", learnable=True)
  hand = Net(
    stem=functools.partial(Kerv, kernel_fn=GAUSSIAN),
    a=functools.partial(Kerv, kernel_fn=POLYNOMIAL, learnable=True),
  )
  variables = random_variables(hand, X)
  assert program(model, variables, X) == program(hand, variables, X)
  everything = kervolve(model, kernels.Sigmoid(), "*")
  rows = [row.split("  ") for row in everything.summary(X).splitlines()[2:-1]]
  kernel = {row[0]: next(cell for cell in row if "(" in cell) for row in rows}
  assert kernel["stem"].startswith("Gaussian")
  assert kernel["blocks_0/a"].startswith("Polynomial")
  assert kernel["blocks_0/b"].startswith("Sigmoid")


def test_a_model_that_has_the_layer_already():
  net = Net(stem=functools.partial(Kerv, kernel_fn=GAUSSIAN))
  model = kervolve(net, POLYNOMIAL)
  assert "4 of 4 convolutions" in model.summary(X)
  hand = Net(
    stem=functools.partial(Kerv, kernel_fn=GAUSSIAN),
    a=functools.partial(Kerv, kernel_fn=POLYNOMIAL),
    b=functools.partial(Kerv, kernel_fn=POLYNOMIAL),
  )
  assert program(model, net_variables(), X) == program(hand, net_variables(), X)
  with pytest.raises(ValueError, match=r"(?s)'stem' chooses no .* already: stem"):
    kervolve(net, POLYNOMIAL, "stem").init(KEY, X)


def test_a_single_convolution():
  layer = Conv(4, (3, 3), strides=2)
  variables = random_variables(layer, X)
  model = kervolve(layer, GAUSSIAN, learnable=True, per_feature=True)
  hand = Kerv(4, (3, 3), strides=2, kernel_fn=GAUSSIAN, learnable=True, per_feature=True)
  assert paths(jax.eval_shape(lambda: model.init(KEY, X))) == {
    "kernel": (3, 3, 3, 4), "bias": (4,), "gamma": (4,)
  }  # fmt: skip
  variables["params"]["gamma"] = jnp.arange(4.0)
  same(model.apply(variables, X), hand.apply(variables, X))


def test_a_name_that_looks_like_a_glob():
  class Odd(nn.Module):
    @nn.compact
    def __call__(self, x):
      return Conv(3, (1, 1), name="c[0]")(Conv(3, (1, 1), name="c0")(x))

  table = kervolve(Odd(), GAUSSIAN, "c[0]").summary(X)
  assert {row.split()[0] for row in table.splitlines()[2:-1]} == {"c[0]", "c0"}


def test_sequential():
  model = kervolve(nn.Sequential([Conv(3, (3, 3)), nn.relu, Conv(2, (1, 1))]), GAUSSIAN, "layers_2")
  variables = random_variables(model, X)
  out = nn.relu(Conv(3, (3, 3)).apply({"params": variables["params"]["layers_0"]}, X))
  hand = Kerv(2, (1, 1), kernel_fn=GAUSSIAN)
  same(model.apply(variables, X), hand.apply({"params": variables["params"]["layers_2"]}, out))


OPTIONS = {
  "mask": {"mask": np.tril(np.ones((3, 3, 3, 4), np.float32))},
  "circular": {"padding": "CIRCULAR", "strides": (2, 1)},
  "reflect": {"padding": "REFLECT"},
  "groups": {"feature_group_count": 3, "features": 6},
  "dilations": {"kernel_dilation": 2, "input_dilation": (1, 2), "padding": ((1, 0), (2, 2))},
  "bfloat16": {"dtype": jnp.bfloat16},
  "parameters": {"param_dtype": jnp.bfloat16},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_the_convolution(option):
  options = {"features": 4, "kernel_size": (3, 3), **OPTIONS[option]}
  layer = Conv(**options)
  hand = Kerv(**options, kernel_fn=GAUSSIAN, learnable=True)
  variables = random_variables(hand, X)
  model = kervolve(layer, GAUSSIAN, learnable=True)
  assert program(model, variables, X) == program(hand, variables, X)
  shapes = jax.eval_shape(lambda: model.init(KEY, X))
  assert shapes == jax.eval_shape(lambda: hand.init(KEY, X))


class Standardised(nn.Conv):
  """A subclass that does something of its own around the convolution."""

  @nn.compact
  def __call__(self, inputs):
    return 2 * super().__call__(inputs)


class Own(nn.Conv):
  """One that computes the convolution itself, so that no operator can be given to it."""

  @nn.compact
  def __call__(self, inputs):
    kernel = self.param("kernel", self.kernel_init, (1, 1, inputs.shape[-1], self.features))
    return lax.conv_general_dilated(
      inputs, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


class OwnAroundAnother(Own):
  """The same, with a convolution inside that can be replaced."""

  @nn.compact
  def __call__(self, inputs):
    kernel = self.param("kernel", self.kernel_init, (1, 1, 3, self.features))
    return lax.conv_general_dilated(
      Conv(3, (1, 1), name="inner")(inputs),
      kernel,
      (1, 1),
      "SAME",
      dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def test_a_convolution_does_not_ask_for_the_one_around_it():
  model = nn.Sequential([OwnAroundAnother(4, (1, 1))])
  for _ in range(2):
    with pytest.raises(ValueError, match="OwnAroundAnother at 'layers_0' cannot be replaced"):
      kervolve(model, GAUSSIAN).init(KEY, X)
  kervolve(model, GAUSSIAN, "*/inner").init(KEY, X)


def test_subclasses_of_the_convolution():
  layer = Standardised(4, (3, 3))
  variables = random_variables(layer, X)
  out = kervolve(layer, GAUSSIAN).apply(variables, X)
  close(out, 2 * Kerv(4, (3, 3), kernel_fn=GAUSSIAN).apply(variables, X))
  own = Own(4, (1, 1))
  for _ in range(2):
    with pytest.raises(ValueError, match=r"convolution of Own at '' cannot be replaced: it does"):
      kervolve(own, GAUSSIAN).init(KEY, X)


# Errors.


@pytest.mark.parametrize(
  ("where", "shown"),
  [
    ("nothing", "'nothing'"),
    ("blocks_0", "'blocks_0'"),  # not a convolution but what holds some
    ("head", "'head'"),
    ("up", "'up'"),
    ("local", "'local'"),
    (["stem", "blocks_*/c"], r"'blocks_\*/c'"),
    (lambda m: m.features == 7, "<lambda>"),
    ("", "''"),
  ],
)
def test_nothing_chosen_lists_what_there_is(where, shown):
  model = kervolve(Net(), GAUSSIAN, where)
  listed = r"(?s)`where` [^;]*" + shown + r" chooses no convolution; there are:\n.*"
  listed += r"blocks_0/a: Conv 3x3, 3 features\n  blocks_0/b: Conv 1x1, 3 features\n"
  for run in (
    lambda: jax.eval_shape(lambda: model.init(KEY, X)),
    lambda: jax.eval_shape(lambda: model.apply(net_variables(), X)),
    lambda: model.summary(X),
  ):
    with pytest.raises(ValueError, match=listed) as error:
      run()
    assert not {"up:", "local:", "head:"} & set(str(error.value).split())


def test_a_model_without_convolutions():
  with pytest.raises(ValueError, match="chooses no convolution; there is none"):
    kervolve(nn.Dense(2), GAUSSIAN).init(KEY, X)


@pytest.mark.parametrize(
  ("change", "error", "message"),
  [
    ({"model": Net}, TypeError, "`model` must be a flax.linen.Module"),
    ({"model": Net().bind({})}, ValueError, "`model` must not be bound"),
    ({"kernel_fn": "gaussian"}, TypeError, "`kernel_fn` must be"),
    ({"where": 3}, TypeError, "`where` must be a path"),
    ({"where": ["stem", 3]}, TypeError, "`where` must be a path"),
    ({"where": nn.Conv}, TypeError, "`where` must be a path"),
    ({"where": []}, ValueError, "`where` must choose at least one"),
    ({"learnable": ("beta",)}, ValueError, "`learnable` must name hyperparameters"),
    ({"learnable": "gamma"}, TypeError, "`learnable` must be a bool or a tuple"),
    ({"per_feature": True}, ValueError, "`per_feature` needs a learnable"),
    ({"per_feature": 1}, TypeError, "`per_feature` must be True or False"),
  ],
)
def test_arguments_are_checked_at_once(change, error, message):
  arguments: dict[str, Any] = {"model": Net(), "kernel_fn": GAUSSIAN, "where": "stem", **change}
  model, kernel_fn = arguments.pop("model"), arguments.pop("kernel_fn")
  with pytest.raises(error, match=message):
    kervolve(model, kernel_fn, **arguments)


def test_what_fits_no_layer_is_an_error_when_the_model_runs():
  vector = kernels.Gaussian(np.array([0.1, 0.2]))
  for options in ({}, {"learnable": True}, {"learnable": True, "per_feature": True}):
    with pytest.raises(ValueError, match="one value for each of the 3"):
      kervolve(Net(), vector, "stem", **options).init(KEY, X)
  tiny = kernels.Polynomial(2, balance=0.0)
  with pytest.raises(ValueError, match="learnable `balance` must start above"):
    kervolve(Net(), tiny, "stem", learnable=True).init(KEY, X)


# What is around a model.


def test_summary():
  model = kervolve(Net(), GAUSSIAN, "*/a", learnable=True)
  with pytest.raises(ValueError, match="needs the inputs"):
    model.summary()
  expected = """\
path        layer                 kernel function      learnable
----------  --------------------  -------------------  ---------
blocks_0/a  Conv 3x3, 3 features  Gaussian(gamma=0.1)  gamma
blocks_1/a  Conv 3x3, 3 features  Gaussian(gamma=0.1)  gamma
2 of 5 convolutions"""
  assert model.summary(X) == expected
  assert model.summary() == expected
  assert model.summary(X, rngs=KEY) == model.summary(X, rngs={"params": KEY}) == expected
  other = kervolve(Net(), GAUSSIAN, "*/a", learnable=True)
  jax.eval_shape(lambda: other.init(KEY, X))
  assert other.summary() == expected


def test_summary_of_a_model_with_noise_and_keywords():
  class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x, *, train):
      x = nn.BatchNorm(use_running_average=not train)(Conv(3, (3, 3))(x))
      return x + jax.random.normal(self.make_rng("noise"), x.shape)

  model = kervolve(Noisy(), GAUSSIAN)
  assert "1 of 1" in model.summary(X, train=True, rngs={"params": KEY, "noise": KEY})


def test_tabulate_and_repr():
  model = kervolve(Plain(), GAUSSIAN, "a", learnable=True)
  assert "gamma" in model.tabulate(KEY, X, console_kwargs={"width": 200})
  assert "kervolved: Gaussian(gamma=0.1) where 'a'" in repr(model)


def test_equality_hash_copies_and_pickles():
  model = kervolve(Net(stem=nn.Conv), GAUSSIAN, ["stem", "*/b"], learnable=True)
  again = kervolve(Net(stem=nn.Conv), kernels.Gaussian(0.1), ["stem", "*/b"], learnable=("gamma",))
  assert model == again
  assert hash(model) == hash(again)
  assert model != Net(stem=nn.Conv)
  assert model != kervolve(Net(stem=nn.Conv), kernels.Gaussian(0.2), ["stem", "*/b"])
  assert isinstance(model, Net)
  plain = kervolve(Block(nn.Conv, nn.Conv), POLYNOMIAL, "a")
  for twin in (model.clone(), copy.copy(model)):
    assert twin == model
    assert twin.summary(X) == model.summary(X)
  for twin in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
    assert twin == plain
    assert twin.summary(X) == plain.summary(X)
  assert plain.clone(make=Conv).make is Conv


def test_equal_models_are_traced_once():
  count = 0

  @functools.partial(jax.jit, static_argnums=0)
  def run(model, variables, x):
    nonlocal count
    count += 1
    return model.apply(variables, x)

  variables = random_variables(Plain(), X)
  for _ in range(2):
    run(kervolve(Plain(), kernels.Gaussian(0.1), "a"), variables, X)
  assert count == 1
  run(kervolve(Plain(), kernels.Gaussian(0.2), "a"), variables, X)
  assert count == 2


def test_signatures_and_what_interceptors_see_are_the_models():
  model, calls = kervolve(Plain(), GAUSSIAN, "a"), []
  for name in ("apply", "init", "init_with_output", "__call__"):
    assert inspect.signature(getattr(model, name)) == inspect.signature(getattr(Plain(), name))
  variables = random_variables(Plain(), X)

  def record(call, args, kwargs, context):
    calls.append((type(context.module).__name__, context.module.path, context.method_name))
    return call(*args, **kwargs)

  with nn.intercept_methods(record):
    jax.eval_shape(lambda: model.apply(freeze(variables), X))
  assert calls == [("Plain", (), "__call__"), ("Conv", ("a",), "__call__")]


def test_unhashable_predicates_and_partitioned_weights():
  class Predicate:
    __hash__ = None  # pyright: ignore

    def __call__(self, module):
      return module.features == 3

  boxed = nn.with_partitioning(numpy_init, (None, None, None, "features"))
  net = Plain(functools.partial(nn.Conv, kernel_init=boxed))
  variables = net.init(KEY, X)
  expected = Plain(functools.partial(Kerv, kernel_fn=GAUSSIAN)).apply(nn.unbox(variables), X)
  same(kervolve(net, GAUSSIAN, Predicate()).apply(variables, X), expected)
  with pytest.raises(ValueError, match="'b' chooses no"):
    kervolve(net, GAUSSIAN, "b").apply(variables, X)


def test_a_class_with_its_own_constructor_and_comparison():
  class Special(nn.Module):
    features: int = 3

    def __eq__(self, other):
      return isinstance(other, Special)

    def __hash__(self):
      return 5

    @nn.compact
    def __call__(self, x):
      return Conv(self.features, (3, 3), name="a")(x)

    def summary(self):
      return "the model's own"

  model = kervolve(Special(4), GAUSSIAN)
  assert hash(model) == 5
  assert model == Special(4)
  assert model.summary() == "the model's own"
  assert model.init(KEY, X)["params"]["a"]["bias"].shape == (4,)


def test_gradient_with_respect_to_the_kernel():
  variables = random_variables(Plain(), X)

  def gradient_of(make):
    return jax.jit(jax.grad(lambda k: jnp.sum(make(k).apply(variables, X))))(GAUSSIAN)

  gradient = gradient_of(lambda k: kervolve(Plain(), k, "a"))
  hand = gradient_of(lambda k: Plain(functools.partial(Kerv, kernel_fn=k)))
  assert_allclose(gradient.gamma, hand.gamma, rtol=1e-5)
  assert gradient.gamma != 0
  with jax.checking_leaks():
    jax.make_jaxpr(lambda k: kervolve(Plain(), k, "a").apply(variables, X))(GAUSSIAN)


def test_threads_do_not_see_each_other():
  """While one thread is inside a kervolved model, another runs the CNN."""
  inside, done = threading.Event(), threading.Event()

  class Waiting(nn.Module):
    @nn.compact
    def __call__(self, x):
      inside.set()
      assert done.wait(60)
      return Conv(3, (3, 3), name="a")(x)

  variables, outs = random_variables(Plain(), X), {}

  def run():
    outs["knn"] = kervolve(Waiting(), GAUSSIAN, "a").apply(variables, X)

  thread = threading.Thread(target=run)
  thread.start()
  assert inside.wait(60)
  outs["cnn"] = Plain().apply(variables, X)
  done.set()
  thread.join()
  same(outs["cnn"], Plain().apply(variables, X))
  different(outs["knn"], outs["cnn"])


class Named(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Conv(4, (3, 3), name="conv1")(x))
    return nn.Dense(3, name="dense")(x.mean((1, 2)))


def test_a_train_state_fine_tunes_from_the_cnns_weights():
  cnn = Named()
  images, labels = normal(8, 6, 6, 3), jnp.arange(8) % 3
  checkpoint = jax.tree.map(lambda leaf: leaf - 0.25, random_variables(cnn, images))
  knn = kervolve(cnn, kernels.Sigmoid(), where="conv*", learnable=True)
  params = jax.jit(knn.init)(KEY, images)["params"]
  for layer, weights in checkpoint["params"].items():
    params[layer] |= weights
  state = TrainState.create(apply_fn=knn.apply, params=params, tx=optax.adam(1e-1))

  @jax.jit
  def step(state):
    def loss(params):
      scores = state.apply_fn({"params": params}, images)
      return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    value, gradient = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradient), value

  values = []
  for _ in range(60):
    state, value = step(state)
    values.append(float(value))
  assert values[-1] < 0.7 * values[0]
  before, after = (hyperparameters(knn, {"params": p}, images) for p in (params, state.params))
  assert before["conv1"]["scale"] == 1
  assert after["conv1"]["scale"] != 1


def test_batch_statistics_and_mutable_collections():
  cnn = CifarResNet(depth=8, num_classes=2)
  images = normal(2, 8, 8, 3)
  checkpoint = random_variables(cnn, images)
  stem = functools.partial(KervConv, kernel_fn=GAUSSIAN)
  programs = [
    jax.make_jaxpr(functools.partial(net.apply, train=True, mutable=["batch_stats"]))
    for net in (kervolve(cnn, GAUSSIAN, "conv1"), CifarResNet(depth=8, num_classes=2, stem=stem))
  ]
  first, second = (str(program(checkpoint, images)) for program in programs)
  assert re.sub("0x[0-9a-f]+", "", first) == re.sub("0x[0-9a-f]+", "", second)


def test_captured_intermediates_are_those_of_the_model():
  def capture(net):
    options = {"capture_intermediates": True, "mutable": "intermediates"}
    return jax.jit(functools.partial(net.apply, **options))(net_variables(), X)

  same(capture(kervolve(Net(), kernels.Linear())), capture(Net()))


@pytest.mark.parametrize("field", ["conv_general_dilated", "conv_general_dilated_cls"])
def test_operator_that_somebody_else_has_set_is_not_discarded(field):
  def double(*args, **kwargs):
    return 2 * lax.conv_general_dilated(*args, **kwargs)

  given = double if field == "conv_general_dilated" else lambda: double
  layer = Conv(4, (3, 3), **{field: given})
  variables = random_variables(layer, X)
  with pytest.raises(ValueError, match="cannot be replaced: it has an operator of its own"):
    kervolve(layer, kernels.Linear()).apply(variables, X)
