"""The layer under the transformations of JAX and Flax, and what looks into a model."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict, freeze
from numpy.testing import assert_allclose

from kerv_jax import kernels, kerv_general_dilated
from kerv_jax.nn import KervConv, hyperparameters
from tests.nn.layers import (
  KEY,
  LAYERS,
  LAYOUTS,
  UNBOUNDED,
  Conv,
  GaussianConv,
  Kerv,
  LinearConv,
  Named,
  apply,
  check_read,
  every_way_to_learn,
  init,
  perturbed,
  shapes,
)
from tests.trees import close, normal, numpy_init, same


class Block(nn.Module):
  per_feature: bool = False

  @nn.compact
  def __call__(self, x, _=None):
    kernel_fn = kernels.Polynomial(2, 0.3)
    layer = Kerv(
      2, (3,), kernel_fn=kernel_fn, learnable=True, per_feature=self.per_feature, name="kerv"
    )
    return x + 0.1 * layer(x), None


@pytest.mark.parametrize("per_feature", [False, True])
def test_scan_over_layers(per_feature):
  x = normal(2, 5, 2)
  scanned = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)(
    per_feature
  )
  variables = perturbed(init(scanned, x))
  shape = (3, 2) if per_feature else (3,)
  assert shapes(variables["params"]) == {
    "kerv": {"kernel": (3, 3, 2, 2), "bias": (3, 2), "balance": shape}
  }
  read = hyperparameters(scanned, variables, x)
  assert shapes(read) == {"kerv": {"balance": shape}}
  check_read(variables, read)
  expected = x
  for layer in range(3):
    one = jax.tree.map(lambda leaf, layer=layer: leaf[layer], variables)
    expected, _ = apply(Block(per_feature), one, expected)
  assert_allclose(apply(scanned, variables, x)[0], expected, rtol=1e-5, atol=1e-5)
  gradient = jax.grad(lambda v: jnp.sum(apply(scanned, v, x)[0] ** 2))(variables)
  assert np.all(np.asarray(gradient["params"]["kerv"]["balance"]) != 0)


class InsideScan(nn.Module):
  """A scan within a model, over a rematerialised block."""

  @nn.compact
  def __call__(self, x):
    block = nn.remat(Block)
    stack = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
    x, _ = stack(name="stack")(x, None)
    return GaussianConv(2, (1,), name="last")(x)


def test_scan_and_remat_inside_a_model():
  x = normal(2, 5, 2)
  model = InsideScan()
  variables = perturbed(init(model, x))
  read = hyperparameters(model, variables, x)
  assert shapes(read) == {"stack": {"kerv": {"balance": (2,)}}, "last": {"gamma": ()}}
  check_read(variables, read)


@every_way_to_learn
def test_remat(fields):
  x = normal(2, 5, 5, 2)
  layer = Kerv(3, (3, 3), kernel_fn=kernels.Polynomial(2), **fields)
  remat = nn.remat(KervConv)(
    3, (3, 3), kernel_init=numpy_init, kernel_fn=kernels.Polynomial(2), **fields
  )
  variables = init(layer, x)
  same(init(remat, x), variables)
  variables = perturbed(variables)

  def gradients(layer):
    def loss(variables, x):
      return jnp.sum(layer.apply(variables, x) ** 2)

    return jax.jit(jax.value_and_grad(loss, (0, 1)))

  close(gradients(remat)(variables, x), gradients(layer)(variables, x))
  same(hyperparameters(remat, variables, x), hyperparameters(layer, variables, x))
  assert "prevent_cse" in str(jax.make_jaxpr(gradients(remat))(variables, x))


@pytest.mark.parametrize(
  "lift",
  [
    nn.remat,
    nn.jit,
    lambda layer: nn.vmap(layer, variable_axes={"params": 0}, split_rngs={"params": True}),
    lambda layer: nn.map_variables(layer, "params", init=True),
  ],
  ids=["remat", "jit", "vmap", "map_variables"],
)
def test_read_back_from_a_lifted_layer_inside_a_model(lift):
  class Inside(nn.Module):
    @nn.compact
    def __call__(self, x):
      layer = lift(KervConv)
      fields = {"kernel_fn": kernels.Gaussian(0.3), "learnable": True}
      return layer(2, (3, 3), **fields, kernel_init=numpy_init, name="kerv")(x)

  class Top(nn.Module):
    @nn.compact
    def __call__(self, x):
      return Inside(name="inside")(x)

  x = normal(2, 5, 5, 2)
  for model in (Inside(), Top()):
    variables = init(model, x)
    read = hyperparameters(model, variables, x)
    params = variables["params"] if isinstance(model, Inside) else variables["params"]["inside"]
    found = read if isinstance(model, Inside) else read["inside"]
    assert found["kerv"].keys() == {"gamma"}
    assert found["kerv"]["gamma"].shape == params["kerv"]["gamma"].shape
    assert_allclose(found["kerv"]["gamma"], 0.3, rtol=1e-6, atol=0)


def test_lifted_vmap():
  x = normal(3, 2, 5, 5, 2)
  many = nn.vmap(KervConv, variable_axes={"params": 0}, split_rngs={"params": True})(
    2, (3, 3), kernel_fn=kernels.Polynomial(2), learnable=True, kernel_init=numpy_init
  )
  variables = perturbed(init(many, x))
  assert shapes(variables["params"]) == {"kernel": (3, 3, 3, 2, 2), "bias": (3, 2), "balance": (3,)}
  one = Kerv(2, (3, 3), kernel_fn=kernels.Polynomial(2), learnable=True)
  for i, out in enumerate(apply(many, variables, x)):
    own = jax.tree.map(lambda leaf, i=i: leaf[i], variables)
    assert_allclose(out, apply(one, own, x[i]), rtol=1e-5, atol=1e-5)
  read = hyperparameters(many, variables, x)
  assert shapes(read) == {"balance": (3,)}
  check_read(variables, read)

  shared = nn.vmap(KervConv, variable_axes={"params": None}, split_rngs={"params": False})(
    2, (3, 3), kernel_fn=kernels.Polynomial(2), learnable=True, kernel_init=numpy_init
  )
  variables = init(shared, x)
  assert shapes(hyperparameters(shared, variables, x)) == {"balance": ()}
  assert_allclose(apply(shared, variables, x), apply(one, variables, x), rtol=1e-5, atol=1e-5)


def test_lifted_jit():
  x = normal(2, 5, 5, 2)
  kernel_fn = kernels.Polynomial(2, np.array([0.1, 0.2]))
  fields = {"kernel_fn": kernel_fn, "learnable": True, "kernel_init": numpy_init}
  jitted = nn.jit(KervConv)(2, (3, 3), **fields)
  variables = jitted.init(KEY, x)
  close(variables, KervConv(2, (3, 3), **fields).init(KEY, x))
  close(jitted.apply(variables, x), apply(KervConv(2, (3, 3), **fields), variables, x))


every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


@every_layer
def test_jit_vmap_and_derivatives_are_those_of_the_definition(layer):
  x = normal(3, 4, 5, 2)
  variables = perturbed(init(layer, x))
  stack = [perturbed(variables, seed) for seed in (5, 6)]
  rng = np.random.default_rng(7)
  direction = jax.tree.map(
    lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), (variables, x)
  )

  def definition(variables, x):
    if x.ndim == 3:
      return definition(variables, x[None])[0]
    params = variables["params"]
    kernel_fn = layer.kernel_fn.with_hyperparameters(
      {
        name: params[name] if name in UNBOUNDED else jax.nn.softplus(params[name])
        for name in layer.learnable_names
      }
    )
    padding = "VALID" if layer.padding == "CIRCULAR" else layer.padding
    if layer.padding == "CIRCULAR":
      x = jnp.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="wrap")
    out = kerv_general_dilated(
      x,
      params["kernel"],
      (1, 1),
      padding,
      dimension_numbers=LAYOUTS[2],
      kernel_fn=kernel_fn,
      method="patches",
    )
    return out + params["bias"][None, None, None]

  @functools.partial(jax.jit, static_argnums=0)
  def everything(function, variables, stacked, x):
    def loss(variables, x):
      return jnp.mean(jnp.square(function(variables, x)))

    derivatives = jax.grad(loss, (0, 1))(variables, x), jax.jvp(loss, (variables, x), direction)
    over_inputs = jax.vmap(function, (None, 0))(variables, x)
    over_parameters = jax.vmap(function, (0, None))(stacked, x)
    return derivatives, (function(variables, x), over_inputs, over_parameters)

  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stack)
  derivatives, values = everything(layer.apply, variables, stacked, x)
  expected_derivatives, expected = everything(definition, variables, stacked, x)
  assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(expected_derivatives))
  close(derivatives, expected_derivatives, rtol=1e-3, atol=1e-5)
  close(values, expected, rtol=1e-4, atol=1e-5)
  assert_allclose(values[1], values[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [Conv(3, (3, 3)), *LAYERS.values()], ids=["conv", *LAYERS])
def test_shard_map(layer):
  """Data parallelism by hand; on one device, as its types are checked on any number."""
  mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  batch, everywhere = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
  x = normal(2, 4, 4, 2)
  variables = jax.eval_shape(layer.init, KEY, x)

  def gradient(variables, x):
    out, pullback = jax.vjp(layer.apply, variables, x)
    return out, pullback(out)

  sharded = jax.shard_map(
    gradient,
    mesh=mesh,
    in_specs=(everywhere, batch),
    out_specs=(batch, (everywhere, batch)),
  )
  assert shapes(jax.eval_shape(sharded, variables, x)) == shapes(
    jax.eval_shape(gradient, variables, x)
  )


def test_gradient_with_respect_to_the_kernel_in_the_module():
  """The kernel is a pytree, so a module made within the traced function passes gradients."""
  x = normal(2, 5, 5, 2)
  variables = perturbed(init(Kerv(3, (3, 3)), x))

  @jax.jit
  def loss(kernel_fn):
    return jnp.sum(Kerv(3, (3, 3), kernel_fn=kernel_fn).apply(variables, x))

  gradient = jax.grad(loss)(kernels.Polynomial(2, 0.5))
  bias = variables["params"]["bias"][None, None, None]
  linear = LinearConv(3, (3, 3)).apply(variables, x) - bias
  assert_allclose(gradient.balance, jnp.sum(2 * (linear + 0.5)), rtol=1e-4, atol=1e-3)


@every_layer
def test_capture_intermediates_is_as_of_conv(layer):
  x = normal(2, 5, 5, 2)

  def captured(module):
    return module.apply(
      module.init(KEY, x), x, capture_intermediates=True, mutable=["intermediates"]
    )

  out, state = jax.eval_shape(lambda: captured(layer))
  _, expected = jax.eval_shape(lambda: captured(Conv(3, (3, 3))))
  assert state == expected
  assert state["intermediates"]["__call__"] == (out,)


def test_captured_intermediate_is_the_output():
  x = normal(2, 5, 5, 2)
  layer = LAYERS["polynomial"]
  variables = init(layer, x)
  out, state = layer.apply(variables, x, capture_intermediates=True, mutable=["intermediates"])
  same(state["intermediates"]["__call__"][0], out)
  close(out, apply(layer, variables, x))


def test_capture_intermediates_of_a_model_is_as_of_a_cnn():
  x = normal(2, 6, 6, 3)

  def structure(model):
    _, state = jax.eval_shape(
      lambda: model.apply(
        model.init(KEY, x), x, capture_intermediates=True, mutable="intermediates"
      )
    )
    return shapes(state)

  assert structure(Named(GaussianConv)) == structure(Named())


def test_interceptors_see_one_call():
  x = normal(2, 5, 5, 2)
  seen = []

  def record(call, args, kwargs, context):
    seen.append((context.method_name, type(context.module).__name__))
    return call(*args, **kwargs)

  for layer in (Conv(3, (3, 3)), LAYERS["polynomial"]):
    variables = init(layer, x)
    seen.clear()
    with nn.intercept_methods(record):
      layer.apply(variables, x)
    assert seen == [("__call__", type(layer).__name__)]


def test_tabulate():
  x = normal(2, 6, 6, 3)

  def table(model):
    console = {"width": 250, "force_terminal": False, "force_jupyter": False}
    return model.tabulate(
      KEY, x, console_kwargs=console, compute_flops=True, compute_vjp_flops=True
    )

  text = table(Named(functools.partial(GaussianConv, per_feature=True)))
  assert "KervConv" in text
  assert "gamma: float32[4]" in text
  assert "gamma: float32[3]" in text
  assert "kernel: float32[3,3,3,4]" in text
  # One row for each call, as for a CNN: none for the checks or the kernel.
  rows = [line for line in text.splitlines() if "KervConv" in line]
  assert len(rows) == len([line for line in table(Named()).splitlines() if " Conv " in line]) == 2


def test_tabulate_counts_what_is_in_a_loop_once():
  """So its numbers are no measure of these kernels' work, as docs/kernels.md says."""

  def counts(kernel, channels):
    console = {"width": 250, "force_terminal": False, "force_jupyter": False}
    text = KervConv(4, (3, 3), kernel_fn=kernel).tabulate(
      KEY,
      normal(2, 6, 6, channels),
      console_kwargs=console,
      compute_flops=True,
      compute_vjp_flops=True,
    )
    row = next(line for line in text.splitlines() if "KervConv" in line)
    return np.array(re.findall(r" (\d+) +(?=│)", row)[:2], int)

  for kernel, least, most in [(kernels.Linear(), 1.9, 2.1), (kernels.L1(), 1.0, 1.6)]:
    growth = counts(kernel, 32) / counts(kernel, 16)  # twice the work
    assert np.all((least <= growth) & (growth <= most))


def test_lazy_init_and_eval_shape():
  spec = jax.ShapeDtypeStruct((2, 5, 5, 2), jnp.float32)
  x = normal(2, 5, 5, 2)
  for layer in (LAYERS["polynomial"], LAYERS["gaussian"]):
    variables = init(layer, x)
    close(layer.lazy_init(KEY, spec), variables, rtol=1e-6, atol=1e-6)
    assert shapes(jax.eval_shape(layer.init, KEY, spec)) == shapes(variables)


def test_frozen_dict():
  x = normal(2, 5, 5, 2)
  layer = LAYERS["polynomial"]
  variables = perturbed(init(layer, x))
  frozen = freeze(variables)
  assert isinstance(frozen, FrozenDict)
  close(apply(layer, frozen, x), apply(layer, variables, x))
  gradient = jax.grad(lambda v: jnp.sum(apply(layer, v, x)))(frozen)
  assert isinstance(gradient, FrozenDict)


def test_bound_module():
  x = normal(2, 5, 5, 2)
  layer = LAYERS["polynomial"]
  variables = init(layer, x)
  close(layer.bind(variables)(x), apply(layer, variables, x))
