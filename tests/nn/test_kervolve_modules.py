"""Kervolved models however their modules are written and called."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from kerv_jax import kernels
from kerv_jax.nn import kervolve
from tests.nn.nets import (
  GAUSSIAN,
  KEY,
  POLYNOMIAL,
  Conv,
  Kerv,
  Net,
  Plain,
  X,
  net_variables,
  paths,
  program,
  random_variables,
)
from tests.trees import close, different, same


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
@pytest.mark.usefixtures("promotion")
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
