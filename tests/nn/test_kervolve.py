"""Linen models of others, made kervolutional: the same but for the chosen convolutions."""

import copy
import functools
import inspect
import pickle
import re
import threading
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import freeze
from flax.training.train_state import TrainState
from jax import lax
from numpy.testing import assert_allclose

from kerv_jax import kernels
from kerv_jax.models import CifarResNet
from kerv_jax.nn import KervConv, hyperparameters, kervolve
from tests.nn.nets import (
  GAUSSIAN,
  KEY,
  POLYNOMIAL,
  Block,
  Conv,
  Kerv,
  Net,
  Plain,
  X,
  apply,
  net_variables,
  paths,
  program,
  random_variables,
)
from tests.trees import close, different, normal, numpy_init, same

CONVS = ("stem", "blocks_0/a", "blocks_0/b", "blocks_1/a", "blocks_1/b")


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


class Wrapper:
  """A model beside its module, as transformers has them."""

  def __init__(self, module):
    self.module = module


def test_a_wrapper_is_told_to_pass_its_module():
  with pytest.raises(TypeError, match=r"got .*Wrapper'>; it holds one: pass `model.module`"):
    kervolve(Wrapper(Net()), GAUSSIAN)


class Normalized(nn.Module):
  """A convolution whose weights are made anew and given to its own ``apply``."""

  def setup(self):
    self.plain = nn.Conv(2, (3, 3))
    self.conv = nn.Conv(3, (1, 1), use_bias=False)
    self.weight = self.param("weight", nn.initializers.ones, (1, 1, 2, 3))

  def __call__(self, x):
    return self.conv.apply({"params": {"kernel": self.weight}}, self.plain(x))


def test_a_convolution_run_by_its_own_apply_is_named_as_out_of_reach():
  line = "\nout of reach, run by `apply` of their own: Conv 1x1, 3 features"
  for where in ("plain", "*"):
    assert (
      kervolve(Normalized(), GAUSSIAN, where).summary(X).endswith(f"\n1 of 1 convolutions{line}")
    )
  with pytest.raises(ValueError, match=f"plain: Conv 3x3, 2 features{line}"):
    kervolve(Normalized(), GAUSSIAN, "conv").init(KEY, X)
  assert "out of reach" not in kervolve(Net(), GAUSSIAN).summary(X)


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
  @functools.partial(jax.jit, static_argnums=0)
  @chex.assert_max_traces(n=1)
  def run(model, variables, x):
    return model.apply(variables, x)

  variables = random_variables(Plain(), X)
  for _ in range(2):
    run(kervolve(Plain(), kernels.Gaussian(0.1), "a"), variables, X)
  with pytest.raises(AssertionError, match="traced > 1 times"):
    run(kervolve(Plain(), kernels.Gaussian(0.2), "a"), variables, X)


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


@pytest.mark.usefixtures("promotion")
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
