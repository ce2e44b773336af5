"""Learned hyperparameters are read back from whole models."""

import flax.linen as nn
import jax
from flax.core import freeze
from numpy.testing import assert_allclose

from kerv_jax import kernels
from kerv_jax.nn import hyperparameters
from tests.nn.layers import KEY, GaussianConv, Kerv, check_read, init, perturbed, shapes, small
from tests.trees import close, normal, same


class Setup(nn.Module):
  """Setup style, a list of layers, a dictionary, one layer called twice, one never."""

  def setup(self):
    self.first = GaussianConv(2, (3, 3))
    self.layers = [GaussianConv(2, (3, 3), kernel_fn=kernels.Gaussian(0.2 + i)) for i in range(2)]
    self.table = {"a": GaussianConv(2, (1, 1), kernel_fn=kernels.Gaussian(0.7))}
    self.unused = GaussianConv(2, (1, 1))
    self.plain = nn.Conv(2, (1, 1))

  def __call__(self, x):
    x = self.first(self.first(x))
    for layer in self.layers:
      x = layer(x)
    return self.plain(self.table["a"](x))


class Inner(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = GaussianConv(2, (3, 3), name="kerv")(x)
    return Kerv(2, (1, 1))(x)  # nothing to learn


class Outer(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = Inner()(Inner(name="inner")(x))
    return Kerv(2, (1, 1), learnable=True)(x)


def test_read_back_setup_style():
  x = normal(1, 5, 5, 2)
  model = Setup()
  variables = init(model, x)
  read = hyperparameters(model, variables, x)
  assert shapes(read) == {
    "first": {"gamma": ()},
    "layers_0": {"gamma": ()},
    "layers_1": {"gamma": ()},
    "table_a": {"gamma": ()},
  }
  assert_allclose(read["layers_1"]["gamma"], 1.2, rtol=1e-6, atol=0)
  variables = perturbed(variables)
  check_read(variables, hyperparameters(model, variables, x))


def test_read_back_nested_models():
  x = normal(1, 5, 5, 2)
  model = Outer()
  variables = perturbed(init(model, x))
  read = hyperparameters(model, variables, x)
  assert shapes(read) == {
    "inner": {"kerv": {"gamma": ()}},
    "Inner_0": {"kerv": {"gamma": ()}},
    "KervConv_0": {"balance": ()},
  }
  check_read(variables, read)
  frozen = hyperparameters(model, freeze(variables), x)
  same(frozen, read)
  jitted = jax.jit(lambda v: hyperparameters(model, v, x))(variables)
  close(jitted, read, rtol=1e-6, atol=0)


def test_read_back_in_sequential():
  x = normal(1, 5, 5, 2)
  model = nn.Sequential([GaussianConv(2, (3, 3)), nn.relu, Kerv(3, (1, 1), learnable=True)])
  variables = perturbed(jax.jit(model.init)(KEY, x))
  read = hyperparameters(model, variables, x)
  assert shapes(read) == {"layers_0": {"gamma": ()}, "layers_2": {"balance": ()}}
  check_read(variables, read)


def test_read_back_with_batch_norm_dropout_and_keywords():
  x = normal(2, 8, 8, 3)
  model = small(kernel_fn=kernels.Gaussian(0.1), learnable=True)
  variables = perturbed(init(model, x))
  read = hyperparameters(model, variables, x)
  assert set(read) == {"stem", "KervConv_0", "KervConv_1"}
  training = hyperparameters(
    model, variables, x, train=True, mutable=["batch_stats"], rngs={"dropout": KEY}
  )
  same(training, read)


class Methods(nn.Module):
  def setup(self):
    self.kerv = GaussianConv(2, (3, 3))
    self.other = GaussianConv(2, (3, 3))

  def encode(self, x):
    return self.kerv(x)

  def __call__(self, x):
    return self.other(self.encode(x))


def test_read_back_through_another_method():
  x = normal(1, 5, 5, 2)
  model = Methods()
  variables = init(model, x)
  assert set(hyperparameters(model, variables, x)) == {"kerv", "other"}
  assert set(hyperparameters(model, variables, x, method="encode")) == {"kerv"}
  assert set(hyperparameters(model, variables, x, method=Methods.encode)) == {"kerv"}


def test_reading_back_computes_nothing():
  calls = []

  def seen(x):
    calls.append(1)
    return x

  class Watched(nn.Module):
    @nn.compact
    def __call__(self, x):
      x = jax.pure_callback(seen, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
      return GaussianConv(2, (3, 3))(x)

  x = normal(1, 5, 5, 2)
  model = Watched()
  variables = jax.jit(model.init)(KEY, x)
  jax.block_until_ready(variables)
  calls.clear()
  assert set(hyperparameters(model, variables, x)) == {"KervConv_0"}
  assert not calls
