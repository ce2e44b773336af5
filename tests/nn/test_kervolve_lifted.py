"""Kervolved models with Flax's transformations, methods and scopes inside."""

import functools
import inspect
import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from kerv_jax import kernels
from kerv_jax.nn import hyperparameters, kervolve
from tests.nn.nets import (
  GAUSSIAN,
  KEY,
  POLYNOMIAL,
  Conv,
  Kerv,
  Plain,
  X,
  apply,
  paths,
  program,
  random_variables,
)
from tests.trees import close, different, numpy_init, same


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
