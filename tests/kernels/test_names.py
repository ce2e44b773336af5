"""Hyperparameters have names of their own, and those of version 0.1 still work."""

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax import nnx, serialization
from flax.core import FrozenDict, freeze
from flax.training.train_state import TrainState
from flax.traverse_util import flatten_dict, unflatten_dict

from kerv_jax import kernels
from kerv_jax import nnx as kerv_nnx
from kerv_jax.kernels import Hyperparameter, hyperparameter
from kerv_jax.nn import KervConv, KervConvTranspose, KervDense, hyperparameters, kervolve
from tests.trees import normal, same

# Each kind of kernel made of others, with its learnable hyperparameters today and in version 0.1.
COMPOSITES = {
  "Sum": (
    kernels.Gaussian(0.1) + kernels.Polynomial(2),
    {"terms_0_gamma": "terms.0.gamma", "terms_1_balance": "terms.1.balance"},
  ),
  "Product": (
    kernels.Gaussian(0.1) * kernels.Sigmoid(0.5, 0.25),
    {
      "terms_0_gamma": "terms.0.gamma",
      "terms_1_scale": "terms.1.scale",
      "terms_1_offset": "terms.1.offset",
    },
  ),
  "Scaled": (2.0 * kernels.Gaussian(0.1), {"scale": "scale", "inner_gamma": "kernel.gamma"}),
  "Negative": (-kernels.Gaussian(0.1), {"inner_gamma": "kernel.gamma"}),
  "Concatenate": (
    kernels.Concatenate([(3, kernels.Polynomial(2)), (1, -kernels.Gaussian(0.1))]),
    {"parts_0_balance": "parts.0.balance", "parts_1_inner_gamma": "parts.1.kernel.gamma"},
  ),
  "nested": (
    kernels.Linear() + 2.0 * -(kernels.Gaussian(0.1) + kernels.L1()),
    {
      "terms_1_scale": "terms.1.scale",
      "terms_1_inner_inner_terms_0_gamma": "terms.1.kernel.kernel.terms.0.gamma",
    },
  ),
}
LAYERS = {
  "KervConv": lambda kernel_fn, **options: KervConv(4, (3, 3), kernel_fn=kernel_fn, **options),
  "KervConvTranspose": lambda kernel_fn, **options: KervConvTranspose(
    4, (3, 3), kernel_fn=kernel_fn, **options
  ),
  "KervDense": lambda kernel_fn, **options: KervDense(4, kernel_fn=kernel_fn, **options),
  "kervolve": lambda kernel_fn, **options: kervolve(nn.Conv(4, (3, 3)), kernel_fn, **options),
}
NNX_LAYERS = {
  "KervConv": lambda **options: kerv_nnx.KervConv(3, 4, (3, 3), **options),
  "KervConvTranspose": lambda **options: kerv_nnx.KervConvTranspose(3, 4, (3, 3), **options),
  "KervDense": lambda **options: kerv_nnx.KervDense(3, 4, **options),
  "kervolve": lambda rngs, **options: kerv_nnx.kervolve(
    nnx.Conv(3, 4, (3, 3), rngs=rngs), **options
  ),
}
every_kernel = pytest.mark.parametrize("kind", COMPOSITES)
every_layer = pytest.mark.parametrize("layer", LAYERS)
X = normal(2, 6, 6, 3)


def old_tree(tree, names):
  """A tree as version 0.1 named it."""
  if not isinstance(tree, dict):
    return tree
  return {names.get(key, key): old_tree(value, names) for key, value in tree.items()}


@every_kernel
def test_names_have_neither_a_dot_nor_kernel_and_the_old_ones_work(kind):
  kernel, names = COMPOSITES[kind]
  assert set(kernel.hyperparameters()) == set(kernel.constraints()) == set(names)
  for name, old in names.items():
    assert "." not in name
    assert "kernel" not in name
    changed = kernel.with_hyperparameters({old: 0.75})
    assert changed.hyperparameters() == {**kernel.hyperparameters(), name: 0.75}
    assert changed == kernel.with_hyperparameters({name: 0.75})
    layer = KervConv(4, (3, 3), kernel_fn=kernel, learnable=(old,))
    assert layer.learnable == layer.learnable_names == (name,)
  with pytest.raises(ValueError, match=r"each hyperparameter once"):
    KervConv(4, (3, 3), kernel_fn=COMPOSITES["Negative"][0], learnable=("kernel.gamma",) * 2)


@every_layer
@every_kernel
@pytest.mark.parametrize("per_feature", [False, True])
def test_masks_separators_and_normalisations_of_weights(layer, kind, per_feature):
  kernel, names = COMPOSITES[kind]
  module = LAYERS[layer](kernel, learnable=True, per_feature=per_feature)
  variables = module.init(jax.random.key(0), X)
  params = variables["params"]
  assert params.keys() == {"kernel", "bias", *names}
  for separator in (".", "/", ":"):
    flat = flatten_dict({"blocks_0": params}, sep=separator)
    same(unflatten_dict(flat, sep=separator), {"blocks_0": params})
  mask = jax.tree.map_with_path(lambda path, _: "kernel" in jax.tree_util.keystr(path), params)
  assert [name for name, chosen in mask.items() if chosen] == ["kernel"]


class Normalised(nn.Module):
  """A layer whose weights, and nothing else, are normalised."""

  layer: nn.Module
  norm: str

  @nn.compact
  def __call__(self, x):
    if self.norm == "WeightNorm":
      return nn.WeightNorm(self.layer, variable_filter={"kernel"})(x)
    return nn.SpectralNorm(self.layer)(x, update_stats=False)


@every_layer
@every_kernel
@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("norm", ["WeightNorm", "SpectralNorm"])
def test_normalised_weights_leave_hyperparameters_alone(layer, kind, per_feature, norm):
  kernel, _ = COMPOSITES[kind]
  make = lambda learnable: Normalised(  # noqa: E731
    LAYERS[layer](kernel, learnable=learnable, per_feature=per_feature and learnable), norm
  )
  variables = make(True).init(jax.random.key(0), X)
  fixed = make(False).init(jax.random.key(0), X)
  assert variables.keys() == fixed.keys()
  for name in variables.keys() - {"params"}:
    assert jax.tree.structure(variables[name]) == jax.tree.structure(fixed[name])
  # The hyperparameters start from the values of the fixed kernel; were one normalised, the outputs
  # would differ.
  np.testing.assert_allclose(
    make(True).apply(variables, X), make(False).apply(fixed, X), rtol=1e-4, atol=1e-5
  )


@every_layer
@every_kernel
def test_variables_of_version_0_1_load(layer, kind):
  kernel, names = COMPOSITES[kind]
  module = LAYERS[layer](kernel, learnable=True)
  variables = module.init(jax.random.key(0), X)
  old = old_tree(variables, names)
  assert names == {k: k for k in names} or old != variables
  same(kernels.with_current_names(old), variables)
  same(kernels.with_current_names(variables), variables)
  frozen = kernels.with_current_names(freeze(old))
  assert isinstance(frozen, FrozenDict)
  same(frozen, freeze(variables))
  flat = kernels.with_current_names(flatten_dict(old))
  same(unflatten_dict(flat), variables)
  restored = serialization.from_bytes(
    variables,
    serialization.to_bytes(
      kernels.with_current_names(serialization.msgpack_restore(serialization.to_bytes(old)))
    ),
  )
  same(jax.tree.map(np.asarray, restored), jax.tree.map(np.asarray, variables))


def test_a_training_state_of_version_0_1_loads():
  kernel, names = COMPOSITES["Scaled"]
  module = KervConv(4, (3, 3), kernel_fn=kernel, learnable=True)
  params = module.init(jax.random.key(0), X)["params"]
  make = lambda params: TrainState.create(  # noqa: E731
    apply_fn=module.apply, params=params, tx=optax.adam(0.1)
  )
  old, new = make(old_tree(params, names)), make(params)
  renamed = kernels.with_current_names(old)
  for part in ("params", "opt_state"):
    same(getattr(renamed, part), getattr(new, part))


@every_layer
@every_kernel
def test_nnx_has_the_same_names_and_loads_the_old_ones(layer, kind):
  kernel, names = COMPOSITES[kind]
  module = NNX_LAYERS[layer](kernel_fn=kernel, learnable=True, rngs=nnx.Rngs(0))
  state = nnx.state(module, nnx.Param)
  assert set(state) == {"kernel", "bias", *names}
  values = nnx.to_pure_dict(state)
  changed = {name: value * 0 + 0.5 for name, value in values.items()}
  old = nnx.State({names.get(name, name): nnx.Param(v) for name, v in changed.items()})
  renamed = kernels.with_current_names(old)
  assert isinstance(renamed, nnx.State)
  nnx.update(module, renamed)
  same(nnx.to_pure_dict(nnx.state(module, nnx.Param)), changed)
  same(kernels.with_current_names(old_tree(values, names)), values)


def test_learned_values_are_read_by_todays_names():
  kernel, names = COMPOSITES["nested"]
  module = KervConv(4, (3, 3), kernel_fn=kernel, learnable=True)
  read = hyperparameters(module, module.init(jax.random.key(0), X), X)
  assert read.keys() == names.keys()


@pytest.mark.parametrize("name", ["stem/kernel", "kernel", "a.b", "terms.x.gamma", "layer1.0.conv"])
def test_other_names_stay(name):
  tree = {name: {"kernel": 1.0, 7: 2.0}}
  assert kernels.with_current_names(tree) == tree


def test_a_hyperparameter_must_not_be_called_kernel():
  for name in ("kernel", "kernel_width", "subkernel"):
    with pytest.raises(TypeError, match=rf"`{name}` of Own must not have 'kernel' in its name"):
      type(
        "Own",
        (kernels.InnerProductKernel,),
        {"__annotations__": {name: Hyperparameter}, name: hyperparameter(default=1.0)},
      )

  class Own(kernels.InnerProductKernel):  # structure has no such name
    kernel_width: int = kernels.static(default=3)

  assert Own().kernel_width == 3


def test_a_hyperparameter_must_not_have_a_name_of_one_inside():
  with pytest.raises(TypeError, match="`inner_gamma` of Own must not begin with `inner_`"):

    class Own(kernels.Scaled):
      inner_gamma: Hyperparameter = hyperparameter(default=1.0)


@pytest.mark.parametrize("learnable", [False, True])
def test_tracing_moves_nothing_to_a_device(learnable):
  module = KervConv(4, (3, 3), kernel_fn=2.0 * kernels.Gaussian(0.1), learnable=learnable)
  key, x = jax.random.key(0), X
  with jax.transfer_guard("disallow"):
    shapes = jax.eval_shape(module.init, key, x)
    variables = jax.jit(module.init)(key, x)
    jax.jit(module.apply)(variables, x).block_until_ready()
  assert jax.tree.structure(shapes) == jax.tree.structure(variables)
