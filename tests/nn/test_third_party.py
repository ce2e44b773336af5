"""Published models, kervolved; each package is optional: ``pip install kerv_jax[third-party]``."""

import importlib.metadata

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kerv_jax import kernels
from kerv_jax import nnx as kerv_nnx
from kerv_jax.nn import hyperparameters, kervolve

pytestmark = pytest.mark.filterwarnings("ignore")  # those of others
KEY = jax.random.key(0)
IMAGES = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32, 32, 3)), jnp.float32)
# The identity plus a little of a bounded kernel: what was trained is not lost.
KERNEL = kernels.Linear() + 0.1 * kernels.Sigmoid()


def packaged(name, module):
  """The module of an installed package, at a version that still has the models."""
  pytest.importorskip(module)
  print(name, importlib.metadata.version(name))


def check_linen(model, where, chosen, learned, **options):
  """Parameter tree, bits with Linear, forward and backward pass, and what is learned."""
  fast = {"compiler_options": {"xla_backend_optimization_level": 0}}
  variables = jax.jit(lambda: model.init(KEY, IMAGES, **options), **fast)()
  mutable = [name for name in variables if name != "params"]

  def forward(model):
    return jax.jit(lambda v: model.apply(v, IMAGES, **options, mutable=mutable)[0], **fast)

  def leaves(out):
    return jax.tree.leaves(out)

  expected = forward(model)(variables)
  linear = forward(kervolve(model, kernels.Linear(), where))(variables)
  for a, b in zip(leaves(linear), leaves(expected), strict=True):
    np.testing.assert_array_equal(a, b)
  knn = kervolve(model, KERNEL, where, learnable=True)
  fresh = jax.eval_shape(lambda: knn.init(KEY, IMAGES, **options))
  count = len(jax.tree.leaves(fresh["params"])) - len(jax.tree.leaves(variables["params"]))
  assert count == learned * len(KERNEL.hyperparameters())
  table = knn.summary(IMAGES, **options)
  assert f"\n{learned} of {chosen} convolutions" in table

  fixed = kervolve(model, KERNEL, where)

  @jax.jit
  def gradient(params):
    def loss(params):
      rest = {name: variables[name] for name in mutable}
      out = fixed.apply({"params": params, **rest}, IMAGES, **options, mutable=mutable)[0]
      return sum(jnp.mean(leaf.astype(jnp.float32) ** 2) for leaf in leaves(out))

    return jax.value_and_grad(loss)(params)

  value, gradients = gradient(variables["params"])
  chex.assert_tree_all_finite((value, gradients))
  assert any(jnp.any(leaf != 0) for leaf in leaves(gradients))
  out = forward(fixed)(variables)
  assert not np.allclose(leaves(out)[0], leaves(expected)[0], rtol=1e-3, atol=1e-3)
  assert hyperparameters(fixed, variables, IMAGES, **options, mutable=mutable) == {}


def test_flaxmodels_resnet():
  packaged("flaxmodels", "flaxmodels")
  from flaxmodels import ResNet18

  model = ResNet18(output="logits", pretrained=None, num_classes=5)
  check_linen(model, lambda m: m.kernel_size == (3, 3), 20, 16, train=False)


def test_flaxmodels_vgg():
  packaged("flaxmodels", "flaxmodels")
  from flaxmodels import VGG16

  model = VGG16(output="logits", pretrained=None, include_head=False)
  check_linen(model, ["conv1_*", "conv5_3"], 13, 3, train=False)


def test_transformers_resnet():
  packaged("transformers", "transformers.models.resnet.modeling_flax_resnet")
  from transformers import ResNetConfig
  from transformers.models.resnet import modeling_flax_resnet

  config = ResNetConfig(
    embedding_size=8, hidden_sizes=[16, 32], depths=[2, 2], layer_type="bottleneck", num_labels=5
  )
  model = modeling_flax_resnet.FlaxResNetForImageClassificationModule(config)
  check_linen(model, "resnet/encoder/*", 15, 14, return_dict=False)


def test_lpips_nnx_vgg():
  packaged("lpips-nnx", "lpips_nnx")
  from lpips_nnx import VGG16Features

  class Untrained(VGG16Features):
    def _load_weights(self):
      """The package downloads them; here they stay random."""

  model = Untrained(rngs=nnx.Rngs(0))
  expected = model(IMAGES)
  for a, b in zip(kerv_nnx.kervolve(model, kernels.Linear())(IMAGES), expected, strict=True):
    np.testing.assert_array_equal(a, b)
  knn = kerv_nnx.kervolve(model, KERNEL, ["conv_0", "conv_2?"], learnable=True)
  assert len(kerv_nnx.summary(knn).splitlines()) == 2 + 5
  gradients = nnx.grad(lambda model: sum(jnp.mean(f**2) for f in model(IMAGES)))(knn)
  chex.assert_tree_all_finite(gradients)
  assert any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(gradients))
  assert not np.allclose(knn(IMAGES)[0], expected[0], rtol=1e-3, atol=1e-3)
