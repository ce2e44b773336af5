"""PyTorch weights give PyTorch's numbers; what does not fit is listed."""

import functools
import sys

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from kerv_jax import kernels, torch_import
from kerv_jax.models import ResNet18, ResNet50
from kerv_jax.nn import KervConv, KervConvTranspose, hyperparameters

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def torch():
  return pytest.importorskip("torch", reason="PyTorch is an optional dependency: extra `torch`")


@pytest.fixture(scope="module")
def networks(torch):
  from tests import torch_networks

  return torch_networks


def channels_last(x):
  return jnp.moveaxis(jnp.asarray(x.numpy()), 1, -1)


def shapes(model, x):
  return jax.eval_shape(model.init, KEY, x)


# Networks.


@pytest.mark.parametrize(("depth", "model"), [(18, ResNet18), (50, ResNet50)])
def test_resnet_has_the_logits_of_pytorch(torch, networks, depth, model):
  theirs = networks.ResNet(depth, 7).eval()
  networks.randomise(theirs, seed=depth)
  x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)) + 0.3
  x[1] = 3 * x[1] + torch.linspace(-4, 4, 64)
  ours = model(num_classes=7)
  images = channels_last(x)
  variables = torch_import.from_state_dict(theirs.state_dict(), shapes(ours, images))
  with torch.no_grad():
    expected = theirs(x).numpy()
  assert np.median(np.ptp(expected, axis=0)) > 0.1  # the images differ, and so do the logits
  out = jax.jit(ours.apply)(variables, images)
  assert out.dtype == jnp.float32
  assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
  if depth == 18:  # the statistics are in use, and go where they belong
    changed = theirs.state_dict()
    changed["layer3.1.bn2.running_var"] = 2 * changed["layer3.1.bn2.running_var"]
    other = torch_import.from_state_dict(changed, variables)
    differs = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), other, variables)
    assert [k for k, v in _flat(differs) if v] == ["batch_stats/layer3_1/bn2/var"]


def _flat(tree):
  return [
    ("/".join(k.key for k in path), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


def fake(variables, seed=0):
  """A state dict for the variables of a small network, as if PyTorch had made it."""
  rng = np.random.default_rng(seed)
  result = {}
  for path, leaf in _flat(variables):
    _, *modules, name = path.split("/")
    there = torch_import._torch_name(modules, name)
    shape = leaf.shape
    if name == "kernel":
      shape = (shape[-1], shape[-2], *shape[:-2])
    if name in torch_import._LEAVES:
      result[there] = rng.normal(size=shape)
  return result


class Small(nn.Module):
  conv: type = nn.Conv

  @nn.compact
  def __call__(self, x):
    x = self.conv(4, (3, 2), name="conv1")(x)
    x = nn.BatchNorm(use_running_average=True, name="layer1_0")(x)
    return nn.Dense(5, name="fc")(x.mean((1, 2)))


IMAGES = jnp.zeros((2, 6, 6, 3))


def test_names_layouts_and_dtypes():
  variables = shapes(Small(), IMAGES)
  state_dict = fake(variables)
  assert set(state_dict) == {
    *("conv1.weight", "conv1.bias", "fc.weight", "fc.bias", "layer1.0.weight", "layer1.0.bias"),
    *("layer1.0.running_mean", "layer1.0.running_var"),
  }
  state_dict["layer1.0.num_batches_tracked"] = np.array(3)
  loaded = torch_import.from_state_dict(state_dict, variables)
  assert jax.tree.map(lambda a: (a.shape, a.dtype), loaded) == jax.tree.map(
    lambda a: (a.shape, a.dtype), variables
  )
  kernel = loaded["params"]["conv1"]["kernel"]
  assert_allclose(kernel[2, 1, 0, 3], state_dict["conv1.weight"][3, 0, 2, 1], rtol=1e-6)
  assert_allclose(loaded["params"]["fc"]["kernel"], state_dict["fc.weight"].T, rtol=1e-6)
  assert_allclose(loaded["params"]["layer1_0"]["scale"], state_dict["layer1.0.weight"], rtol=1e-6)
  assert_allclose(
    loaded["batch_stats"]["layer1_0"]["var"], state_dict["layer1.0.running_var"], rtol=1e-6
  )
  parallel = {f"module.{name}": value for name, value in state_dict.items()}
  for other in (
    torch_import.from_state_dict(parallel, variables),
    torch_import.from_state_dict(
      {name.replace("fc", "head"): value for name, value in state_dict.items()},
      variables,
      rename=lambda name: name.replace("head", "fc"),
    ),
  ):
    chex.assert_trees_all_equal(other, loaded)


def test_everything_that_does_not_fit_is_listed():
  variables = shapes(Small(), IMAGES)
  state_dict = fake(variables)
  del state_dict["conv1.weight"], state_dict["layer1.0.running_var"]
  state_dict["fc.weight"] = np.zeros((1000, 4))
  state_dict["layer2.0.conv1.weight"] = np.zeros((1, 1, 1, 1))
  state_dict["extra"] = np.zeros(2)
  with pytest.raises(ValueError, match="does not fit") as error:
    torch_import.from_state_dict(state_dict, variables)
  message = str(error.value)
  parts = [part.split("\n  ") for part in message.split("\nand ")]
  assert [part[1:] for part in parts] == [
    ["conv1.weight", "layer1.0.running_var"],
    ["extra", "layer2.0.conv1.weight"],
    ["fc.weight: (1000, 4), which is (4, 1000) here, must be (4, 5)"],
  ]
  with pytest.raises(ValueError, match=r"`variables` must be those of a whole model.*'kernel'"):
    torch_import.from_state_dict(fake(variables), variables["params"]["conv1"])
  with pytest.raises(TypeError, match="`state_dict` must map names to arrays, got list"):
    torch_import.from_state_dict(list(fake(variables)), variables)
  with pytest.raises(ValueError, match="a name of its own"):
    torch_import.from_state_dict(fake(variables), variables, rename=lambda name: "x.weight")
  for value in (object(), np.array(["a", "b"]), np.ones(4, np.complex64)):
    with pytest.raises(TypeError, match=r"'conv1\.bias'"):
      torch_import.from_state_dict(fake(variables) | {"conv1.bias": value}, variables)


def test_tensors_that_are_no_dense_arrays_are_named(torch):
  layer = KervConv(2, (1,), use_bias=False, kernel_fn=kernels.Linear())
  variables = shapes(layer, jnp.zeros((1, 4, 3)))
  weight = torch.ones(2, 3, 1)
  for value in (weight.to_sparse(), weight.to("meta"), None):
    with pytest.raises(TypeError, match="'weight'"):
      torch_import.from_state_dict({"weight": value}, variables)
  eighth = weight.to(torch.float8_e4m3fn)
  loaded = torch_import.from_state_dict({"weight": eighth}, variables)
  assert_array_equal(loaded["params"]["kernel"], np.ones((1, 3, 2)))
  with pytest.raises(TypeError, match="`rename` must return a name, got None for 'weight'"):
    torch_import.from_state_dict({"weight": weight}, variables, rename=lambda name: None)


def test_what_is_kept():
  model = Small(functools.partial(KervConv, kernel_fn=kernels.Sigmoid(0.5, 0.25), learnable=True))
  variables = jax.jit(model.init)(KEY, IMAGES)
  state_dict = fake(variables)
  assert "conv1.scale" not in state_dict
  state_dict |= {"conv1.weight": np.ones((4, 3, 3, 2)), "fc.weight": np.zeros((1000, 4))}
  loaded = torch_import.from_state_dict(state_dict, variables, keep=["fc"])
  assert_array_equal(loaded["params"]["fc"]["kernel"], variables["params"]["fc"]["kernel"])
  assert_array_equal(loaded["params"]["fc"]["bias"], variables["params"]["fc"]["bias"])
  assert_array_equal(loaded["params"]["conv1"]["kernel"], np.ones((3, 2, 3, 4)))
  read = hyperparameters(model, loaded, IMAGES)["conv1"]
  assert (float(read["scale"]), float(read["offset"])) == (0.5, 0.25)
  with pytest.raises(ValueError, match="must have a value for params/conv1/offset"):
    torch_import.from_state_dict(state_dict, shapes(model, IMAGES), keep=["fc"])
  with pytest.raises(ValueError, match=r"`keep` must be paths of .* got 'f'"):
    torch_import.from_state_dict(state_dict, variables, keep=["f"])


# The authors' layers.


@pytest.mark.parametrize(
  "kernel_type", ["linear", "manhattan", "euclidean", "polynomial", "gaussian"]
)
@pytest.mark.parametrize("rank", [1, 2])
def test_the_authors_layers(torch, networks, kernel_type, rank):
  make = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d}[rank]
  window, stride, padding = ((3, 2)[:rank], (2, 1)[:rank], (1, 2)[:rank])
  theirs = make(3, 5, window, stride, padding)
  x = torch.randn(2, 3, *(7, 6)[:rank], generator=torch.Generator().manual_seed(rank))
  with torch.no_grad():
    expected = networks.unfolded(theirs, kernel_type, x)
    if kernel_type == "linear":
      assert_allclose(expected, theirs(x), rtol=1e-4, atol=1e-5)
  ours = KervConv(
    5,
    window,
    strides=stride,
    padding=padding,
    kernel_fn=torch_import.authors_kernel(kernel_type, balance=0.5, power=2, gamma=0.05),
  )
  x = channels_last(x)
  variables = torch_import.from_state_dict(theirs.state_dict(), shapes(ours, x))
  out = jax.jit(ours.apply)(variables, x)
  assert_allclose(out, channels_last(expected), rtol=1e-4, atol=1e-4)


def test_transposed_convolution(torch):
  theirs = torch.nn.ConvTranspose2d(3, 5, (4, 3), stride=(2, 1), padding=(1, 0))
  x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
  pads = ((2, 2), (2, 2))  # window - 1 - padding
  ours = KervConvTranspose(
    5,
    (4, 3),
    strides=(2, 1),
    padding=pads,
    transpose_kernel=True,
    kernel_fn=kernels.Polynomial(1, 0.0),
  )
  with torch.no_grad():
    expected = channels_last(theirs(x))
  x = channels_last(x)
  variables = torch_import.from_state_dict(theirs.state_dict(), shapes(ours, x))
  assert_allclose(jax.jit(ours.apply)(variables, x), expected, rtol=1e-4, atol=1e-5)


def test_conventions_of_the_authors():
  assert torch_import.authors_kernel("linear") == kernels.Linear()
  assert torch_import.authors_kernel("manhattan") == -kernels.L1()
  assert torch_import.authors_kernel("euclidean") == -kernels.L2(squared=True)
  assert torch_import.authors_kernel("polynomial") == kernels.Polynomial(3, 1.0)
  assert torch_import.authors_kernel("gaussian", gamma=0.5) == kernels.Gaussian(0.5)
  with pytest.raises(ValueError, match="'sigmoid'"):
    torch_import.authors_kernel("sigmoid")


# Files.


def test_read(torch, tmp_path):
  module = torch.nn.Linear(3, 2)
  torch.save(module.state_dict(), tmp_path / "plain.pt")
  torch.save({"epoch": 3, "state_dict": module.state_dict()}, tmp_path / "nested.pt")
  expected = {name: value.detach().numpy() for name, value in module.state_dict().items()}
  for found in (
    torch_import.read(tmp_path / "plain.pt"),
    torch_import.read(tmp_path / "nested.pt", "state_dict"),
  ):
    assert found.keys() == expected.keys()
    assert all(type(value) is np.ndarray for value in found.values())
    chex.assert_trees_all_equal(found, expected)
  with pytest.raises(ValueError, match="`key` chooses"):
    torch_import.read(tmp_path / "nested.pt")
  with pytest.raises(ValueError, match="'epoch', 'state_dict'"):
    torch_import.read(tmp_path / "nested.pt", "model")


class Evil:
  def __reduce__(self):
    return (exec, ("raise SystemExit('code of the file was run')",))


def test_no_code_of_a_file_is_run(torch, tmp_path):
  torch.save({"weight": Evil()}, tmp_path / "evil.pt")
  with pytest.raises(Exception, match="Weights only load failed"):
    torch_import.read(tmp_path / "evil.pt")


def test_16_bit_and_trainable_tensors(torch):
  layer = KervConv(2, (1,), use_bias=False, param_dtype=jnp.bfloat16, kernel_fn=kernels.Linear())
  variables = shapes(layer, jnp.zeros((1, 4, 3)))
  weight = torch.nn.Parameter(torch.randn(2, 3, 1, dtype=torch.bfloat16))
  loaded = torch_import.from_state_dict({"weight": weight}, variables)["params"]["kernel"]
  assert loaded.dtype == jnp.bfloat16
  assert_array_equal(np.asarray(loaded[0].T, np.float32), weight.detach().float()[..., 0].numpy())


def test_only_reading_a_file_needs_pytorch(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, "torch", None)
  assert torch_import.authors_kernel("linear") == kernels.Linear()
  variables = shapes(Small(), IMAGES)
  torch_import.from_state_dict(fake(variables), variables)
  with pytest.raises(ImportError, match="pip install torch"):
    torch_import.read(tmp_path / "any.pt")


def test_memory_is_not_shared():
  """JAX would use aligned memory where it lies."""
  memory = np.zeros(4096 + 16, np.float32)
  start = -memory.ctypes.data % 64 // 4
  bias = memory[start : start + 4096]
  shapes = {"params": {"bias": jax.ShapeDtypeStruct((4096,), jnp.float32)}}
  variables = torch_import.from_state_dict({"bias": bias}, shapes)
  memory[:] = 7
  np.testing.assert_array_equal(variables["params"]["bias"], 0)


def test_keep_must_be_paths_that_there_are():
  variables = {"params": {"bias": np.ones(2, np.float32)}}
  with pytest.raises(TypeError, match="`keep` must be a sequence of paths"):
    torch_import.from_state_dict({"bias": np.zeros(2)}, variables, keep="bias")
  with pytest.raises(
    ValueError, match=r"`keep` must be paths of `variables`, \['bias'\], got 'fc'"
  ):
    torch_import.from_state_dict({"bias": np.zeros(2)}, variables, keep=["fc"])
