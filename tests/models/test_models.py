"""The networks with batch normalisation: counts, shapes, values, initialization, refusals."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kerv_jax.initializers import torch_kernel_init
from kerv_jax.models import (
  CifarResNet,
  DenseNet,
  GoogLeNet,
  ResNet18,
  ResNet34,
  ResNet50,
  ResNet101,
)
from kerv_jax.models._layers import Layers
from tests.models.cases import (
  LEARNABLE,
  NETWORKS,
  POLYNOMIAL,
  SMALL,
  flat,
  images,
  in_train,
  intermediate_shapes,
  modules,
  random_variables,
  shapes_of,
  size,
)
from tests.models.reference import Network


@pytest.mark.parametrize(
  ("model", "side", "count"),
  [
    (CifarResNet(depth=20), 32, 269_722),
    (CifarResNet(depth=32), 32, 464_154),
    (CifarResNet(depth=44), 32, 658_586),
    (CifarResNet(depth=56), 32, 853_018),
    (CifarResNet(depth=110), 32, 1_727_962),
    (CifarResNet(depth=110, num_classes=100), 32, 1_733_812),
    (ResNet18(), 224, 11_689_512),
    (ResNet34(), 224, 21_797_672),
    (ResNet50(), 224, 25_557_032),
    (ResNet101(), 224, 44_549_160),
    (GoogLeNet(), 32, 6_158_346),
    (GoogLeNet(num_classes=100), 32, 6_250_596),
    (DenseNet(), 32, 1_019_722),
    (DenseNet(depth=40, growth=12, num_classes=100), 32, 1_060_132),
  ],
)
def test_parameter_counts(model, side, count):
  assert size(shapes_of(model, side)["params"]) == count
  assert size(shapes_of(model.clone(stem=LEARNABLE), side)["params"]) == count + 1


def test_googlenet_has_the_count_of_the_common_one_but_for_its_biases():
  with_biases = GoogLeNet(conv=functools.partial(nn.Conv, use_bias=True))
  assert size(shapes_of(with_biases)["params"]) == 6_166_250


STAGES = {
  "resnet18": (
    ResNet18(),
    224,
    {
      "conv1": (112, 64),
      "layer1_0": (56, 64),
      "layer2_0/conv1": (28, 128),
      "layer2_0/downsample_0": (28, 128),
      "layer2_1": (28, 128),
      "layer3_1": (14, 256),
      "layer4_1": (7, 512),
    },
  ),
  "resnet50": (
    ResNet50(),
    224,
    {
      "layer1_0/downsample_0": (56, 256),
      "layer1_2": (56, 256),
      "layer2_0/conv1": (56, 128),
      "layer2_0/conv2": (28, 128),
      "layer2_0/conv3": (28, 512),
      "layer3_5": (14, 1024),
      "layer4_2": (7, 2048),
    },
  ),
  "cifar_resnet": (
    CifarResNet(depth=32),
    32,
    {"conv1": (32, 16), "layer1_4": (32, 16), "layer2_0": (16, 32), "layer3_4": (8, 64)},
  ),
  "googlenet": (
    GoogLeNet(),
    32,
    {
      "conv1": (32, 192),
      "inception3a": (32, 256),
      "inception3b": (32, 480),
      "inception4a": (16, 512),
      "inception4e": (16, 832),
      "inception5b": (8, 1024),
    },
  ),
  "densenet": (
    DenseNet(),
    32,
    {
      "conv0": (32, 16),
      "denseblock1_denselayer12": (32, 160),
      "transition1": (16, 160),
      "denseblock2_denselayer12": (16, 304),
      "transition2/conv": (16, 304),
      "transition2": (8, 304),
      "denseblock3_denselayer1/conv1": (8, 12),
      "denseblock3_denselayer12": (8, 448),
    },
  ),
}


@pytest.mark.parametrize("kind", STAGES)
def test_shapes_of_stages(kind):
  model, side, wanted = STAGES[kind]
  calls = intermediate_shapes(model, side)
  for name, (height, features) in wanted.items():
    assert calls[name].shape == (2, height, height, features), name


def test_resnet_names_are_torchvisions():
  names = flat(shapes_of(ResNet50(), 64)["params"])
  assert {"conv1/kernel", "bn1/scale", "layer1_0/conv3/kernel", "layer1_0/bn3/bias"} < set(names)
  assert {"layer4_0/downsample_0/kernel", "layer4_0/downsample_1/scale", "fc/bias"} < set(names)
  assert not any(name.endswith("conv1/bias") for name in names)
  for name in names:
    projected = "downsample" in name
    assert not projected or name.split("/")[0] in ("layer1_0", "layer2_0", "layer3_0", "layer4_0")
  assert not any("downsample_0" in name for name in flat(shapes_of(CifarResNet())["params"]))
  assert "layer1_0/downsample_0/kernel" not in flat(shapes_of(ResNet34(), 64)["params"])


# --- values


def run_reference(network, kind, x):
  if kind == "cifar_resnet":
    return network.cifar_resnet(x, 14)
  if kind == "densenet":
    return network.densenet(x, 10)
  if kind == "googlenet":
    return network.googlenet(x)
  return network.resnet(x, (1, 2) if kind == "bottleneck" else (1, 1, 1), kind != "basic")


@NETWORKS
@pytest.mark.parametrize("train", [False, True])
def test_scores_and_statistics_are_pytorchs(kind, train):
  make, side, stem_name = SMALL[kind]
  model = make(stem=POLYNOMIAL)
  x = images(side)
  variables = random_variables(model, side)
  network = Network(
    variables["params"],
    variables["batch_stats"],
    train,
    stem_name,
    lambda product: (product + 2.0) ** 3,
  )
  wanted = run_reference(network, kind, x)
  assert np.abs(wanted - wanted.mean(axis=0)).max() > 0.03 * np.abs(wanted).max()
  with jax.enable_x64(True):
    function = in_train(model) if train else lambda v, x: (model.apply(v, x), v)
    scores, new = jax.jit(function)(variables, x)
    np.testing.assert_allclose(scores, wanted, rtol=1e-8, atol=1e-8)
    if train:
      averages = flat(new["batch_stats"])
      assert len(averages) == 2 * len(network.updated)
      for path, values in network.updated.items():
        for name, value in values.items():
          leaf = averages[f"{path}/{name}"]
          np.testing.assert_allclose(leaf, value, rtol=1e-8, atol=1e-8, err_msg=path)


@pytest.mark.parametrize(("window", "stride"), [(7, 2), (3, 2), (3, 1), (1, 2), (5, 2)])
@pytest.mark.parametrize("side", [8, 9])
def test_convolutions_are_padded_as_in_pytorch(window, stride, side):
  rng = np.random.default_rng(window + side)
  kernel = rng.normal(size=(window, window, 2, 3)).astype(np.float32)
  x = rng.normal(size=(2, side, side, 2)).astype(np.float32)
  layer = Layers(nn.Conv, train=False).convolution(3, window, stride, name=None)
  output = layer.apply({"params": {"kernel": kernel}}, x)
  wanted = Network({"conv": {"kernel": kernel}}, {}, False).conv(x, "conv", stride)
  np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-4)


def test_shortcut_without_parameters_subsamples_and_appends_zeros():
  model = CifarResNet(depth=8, num_classes=5)
  x = images(10)
  variables = random_variables(model, 10, np.float32)
  for name in ("layer1_0", "layer2_0", "layer3_0"):  # blocks add nothing to their shortcuts
    layer = variables["params"][name]["bn2"]
    layer["scale"], layer["bias"] = 0 * layer["scale"], 0 * layer["bias"]
  outputs = model.apply(variables, x, capture_intermediates=True, mutable=["intermediates"])[1]
  calls = {
    name: value["__call__"][0]
    for name, value in outputs["intermediates"].items()
    if "layer" in name
  }
  first = np.asarray(calls["layer1_0"])
  assert first.max() > 0.1
  for stride, features, name in ((2, 32, "layer2_0"), (4, 64, "layer3_0")):
    wanted = np.zeros((3, -(-10 // stride), -(-10 // stride), features), np.float32)
    wanted[..., :16] = first[:, ::stride, ::stride]
    np.testing.assert_array_equal(calls[name], wanted)


# --- initialisation


@pytest.mark.parametrize("kind", ["cifar_resnet", "basic", "densenet"])
def test_initial_distribution(kind):
  make, side, _ = SMALL[kind]
  x = images(side).astype(np.float32)
  params = flat(jax.jit(make().init)(jax.random.key(3), x)["params"])
  tested = set()
  for name, value in params.items():
    value = np.asarray(value, np.float64)
    classifier = name.split("/")[0] in ("fc", "classifier")
    if name.endswith("kernel") and not classifier:
      scaled = value * math.sqrt(math.prod(value.shape[:2]) * value.shape[-1] / 2)
      assert scaled.std() == pytest.approx(1, abs=4 / math.sqrt(2 * value.size)), name
      assert abs(scaled.mean()) < 4.5 / value.size**0.5, name
      assert value.size < 2000 or np.abs(scaled).max() > 2.8, name  # not cut off
      tested.add("normal")
    elif name.endswith("kernel") or (classifier and kind == "basic"):
      bound = len(params[name.replace("bias", "kernel")]) ** -0.5
      assert 0.9 * bound < np.abs(value).max() <= 1.000001 * bound or value.size < 50, name
      assert np.abs(value).mean() == pytest.approx(bound / 2, abs=2 * bound / value.size**0.5), name
      tested.add("uniform")
    else:  # the bias of the other classifiers is that of fb.resnet.torch: none
      assert np.all(value == name.endswith("scale")), name
      tested.add("constant")
  assert tested == {"normal", "uniform", "constant"}


def test_googlenet_has_pytorchs_default_initialisation():
  layers = modules(GoogLeNet(), 32, (nn.Conv, nn.Dense))
  assert len(layers) == 1 + 9 * 7 + 1
  assert all(layer.kernel_init is torch_kernel_init for layer in layers.values())
  bias = layers["fc"].bias_init(jax.random.key(0), (1000,))
  assert 0.99 / 32 < jnp.abs(bias).max() <= 1 / 32


# --- refusals


@pytest.mark.parametrize("depth", [2, 7, 31, 33, 40])
def test_depth_of_a_cifar_resnet(depth):
  with pytest.raises(ValueError, match=f"`depth` must be 6n .* got {depth}"):
    shapes_of(CifarResNet(depth=depth))


@pytest.mark.parametrize("depth", [4, 39, 41])
def test_depth_of_a_densenet(depth):
  with pytest.raises(ValueError, match=f"`depth` must be 3n .* got {depth}"):
    shapes_of(DenseNet(depth=depth))


def test_growth_of_a_densenet():
  with pytest.raises(ValueError, match="`growth` must be at least 1, got 0"):
    shapes_of(DenseNet(growth=0))


def test_shortcut_without_parameters_to_fewer_features():
  with pytest.raises(ValueError, match="from 24 features to 16"):
    shapes_of(CifarResNet(depth=8, stem=functools.partial(nn.Conv, features=24)))


@NETWORKS
@pytest.mark.parametrize("shape", [(8, 8, 3), (1, 2, 8, 8, 3), (2, 0, 8, 3)])
def test_images_of_another_shape(kind, shape):
  with pytest.raises(ValueError, match=r"`x` must be images.*got shape \("):
    jax.eval_shape(SMALL[kind][0]().init, jax.random.key(0), jax.ShapeDtypeStruct(shape, "f4"))


def test_images_too_small_for_the_poolings():
  with pytest.raises(ValueError, match="at least 4, got shape"):
    shapes_of(DenseNet(), side=3)


@NETWORKS
def test_number_of_classes(kind):
  with pytest.raises(ValueError, match="`num_classes` must be at least 1, got 0"):
    shapes_of(SMALL[kind][0](num_classes=0), SMALL[kind][1])
