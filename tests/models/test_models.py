"""The networks with batch normalisation: ResNet, GoogLeNet, DenseNet."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kerv_jax import kernels
from kerv_jax.initializers import torch_kernel_init
from kerv_jax.models import (
  CifarResNet,
  DenseNet,
  GoogLeNet,
  ResNet,
  ResNet18,
  ResNet34,
  ResNet50,
  ResNet101,
  googlenet,
)
from kerv_jax.models._layers import BatchNorm, Layers, classify
from kerv_jax.nn import KervConv, hyperparameters
from tests.models.reference import Network

POLYNOMIAL = functools.partial(KervConv, kernel_fn=kernels.Polynomial(3, 2.0))
LEARNABLE = functools.partial(POLYNOMIAL, learnable=("balance",))
BOTTLENECKS = functools.partial(ResNet, stage_sizes=(1, 2), bottleneck=True)
# Of each kind a small one, with the side of its images and the name of its first convolution.
SMALL = {
  "cifar_resnet": (functools.partial(CifarResNet, depth=14, num_classes=5), 8, "conv1"),
  "basic": (functools.partial(ResNet, stage_sizes=(1, 1, 1), num_classes=5), 31, "conv1"),
  "bottleneck": (functools.partial(BOTTLENECKS, num_classes=5), 33, "conv1"),
  "densenet": (functools.partial(DenseNet, depth=10, growth=3, num_classes=5), 9, "conv0"),
  "googlenet": (functools.partial(GoogLeNet, num_classes=5), 5, "conv1/conv"),
}
NETWORKS = pytest.mark.parametrize("kind", SMALL)


def images(side, number=3, seed=0):
  """Neither centred nor alike."""
  rng = np.random.default_rng(seed)
  return rng.normal(0.3, 1.0, (number, side, side, 3)) * (1 + np.arange(number)).reshape(
    -1, 1, 1, 1
  )


@functools.cache
def shapes_of(model, side=32):
  return jax.eval_shape(
    model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, side, side, 3), "f4")
  )


def random_variables(model, side, dtype=np.float64, seed=0):
  """Weights that keep the features' scale; scales, biases and averages that are not 1 and 0."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    name = path[-1].key
    if name in ("scale", "var"):
      return rng.uniform(0.5, 1.5, leaf.shape).astype(dtype)
    if name in ("bias", "mean"):
      return rng.normal(0, 0.3, leaf.shape).astype(dtype)
    if name == "balance":
      return np.full(leaf.shape, 0.7, dtype)
    return (rng.normal(size=leaf.shape) / math.sqrt(math.prod(leaf.shape[:-1]))).astype(dtype)

  return jax.tree_util.tree_map_with_path(draw, shapes_of(model, side))


def size(tree):
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def flat(tree):
  return {
    "/".join(entry.key for entry in path): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def in_train(model):
  """Scores and new statistics in training, as a function of the variables and the images."""
  return lambda variables, x: model.apply(variables, x, train=True, mutable=["batch_stats"])


def intermediate_shapes(model, side):
  """Shape and dtype of what every module returns."""

  def run(x):
    variables = model.init(jax.random.key(0), x)
    return model.apply(variables, x, capture_intermediates=True, mutable=["intermediates"])[1]

  tree = jax.eval_shape(run, jax.ShapeDtypeStruct((2, side, side, 3), "f4"))
  calls = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree["intermediates"]):
    names = [entry.key for entry in path if hasattr(entry, "key")]
    calls["/".join(names[:-1])] = leaf
  return calls


def modules(model, side, classes):
  """The modules of some classes by their paths."""
  found = {}

  def record(call, args, kwargs, context):
    if isinstance(context.module, classes):
      found["/".join(context.module.path)] = context.module
    return call(*args, **kwargs)

  with nn.intercept_methods(record):
    shapes_of.__wrapped__(model, side)
  return found


# --- counts and shapes


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


# --- batch normalisation


def test_running_averages_over_steps_and_their_use():
  rng = np.random.default_rng(0)
  batches = rng.normal(2.0, 3.0, (3, 2, 2, 1, 4)).astype(np.float32)  # 4 values of each feature
  norm = BatchNorm(train=True)
  variables = norm.init(jax.random.key(0), batches[0])
  np.testing.assert_array_equal(variables["batch_stats"]["mean"], np.zeros(4))
  np.testing.assert_array_equal(variables["batch_stats"]["var"], np.ones(4))
  mean, var = np.zeros(4), np.ones(4)
  for batch in batches:
    output, new = norm.apply(variables, batch, mutable=["batch_stats"])
    values = batch.reshape(-1, 4).astype(np.float64)
    wanted = (batch - values.mean(0)) / np.sqrt(values.var(0) + 1e-5)
    np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)
    mean, var = 0.9 * mean + 0.1 * values.mean(0), 0.9 * var + 0.1 * values.var(0, ddof=1)
    variables = {"params": variables["params"], **new}
  stats = variables["batch_stats"]
  np.testing.assert_allclose(stats["mean"], mean, rtol=1e-5)
  np.testing.assert_allclose(stats["var"], var, rtol=1e-5)
  output, new = BatchNorm(train=False).apply(variables, batches[0], mutable=["batch_stats"])
  np.testing.assert_allclose(
    output, (batches[0] - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5
  )
  jax.tree.map(np.testing.assert_array_equal, new["batch_stats"], stats)


def test_statistics_over_a_named_axis_are_those_of_the_whole_batch():
  x = images(5, number=6).astype(np.float32)
  whole, parts = BatchNorm(train=True), BatchNorm(train=True, axis_name="data")
  variables = whole.init(jax.random.key(0), x)
  wanted, wanted_new = whole.apply(variables, x, mutable=["batch_stats"])
  output, new = jax.vmap(
    lambda x: parts.apply(variables, x, mutable=["batch_stats"]), axis_name="data"
  )(x.reshape(3, 2, *x.shape[1:]))
  np.testing.assert_allclose(output.reshape(x.shape), wanted, rtol=1e-5, atol=1e-6)
  for name, value in wanted_new["batch_stats"].items():
    for part in new["batch_stats"][name]:
      np.testing.assert_allclose(part, value, rtol=1e-5)


@NETWORKS
def test_networks_hand_the_axis_on(kind):
  make, side, _ = SMALL[kind]
  jaxpr = jax.make_jaxpr(
    lambda x: in_train(make(axis_name="data"))(random_variables(make(), side, np.float32), x),
    axis_env=[("data", 2)],
  )(images(side).astype(np.float32))
  assert str(jaxpr).count("psum") >= len(flat(shapes_of(make(), side)["batch_stats"])) // 2


def test_statistics_do_not_cancel_once_the_average_is_near_the_mean():
  x = np.random.default_rng(0).normal(3000.0, 1.0, (64, 4, 4, 2)).astype(np.float32)
  variables = BatchNorm(train=True).init(jax.random.key(0), x)
  near = variables | {
    "batch_stats": {"mean": np.full(2, 2990.0, np.float32), "var": np.ones(2, np.float32)}
  }
  output, _ = BatchNorm(train=True).apply(near, x, mutable=["batch_stats"])
  np.testing.assert_allclose(np.std(np.asarray(output), axis=(0, 1, 2)), 1, rtol=2e-3)


def test_one_value_of_a_feature_is_no_batch():
  x = np.ones((1, 1, 1, 3), np.float32)
  variables = BatchNorm(train=True).init(jax.random.key(0), x)
  with pytest.raises(ValueError, match=r"more than one value.*shape \(1, 1, 1, 3\)"):
    BatchNorm(train=True).apply(variables, x, mutable=["batch_stats"])


@NETWORKS
def test_evaluation_is_example_by_example(kind):
  make, side, _ = SMALL[kind]
  model, x = make(), images(side).astype(np.float32)
  variables = random_variables(model, side, np.float32)
  apply = jax.jit(model.apply)
  together = apply(variables, x)
  np.testing.assert_allclose(apply(variables, x[::-1])[::-1], together, rtol=1e-4, atol=1e-4)
  assert np.ptp(np.asarray(together), axis=0).max() > 1e-2


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


# --- the option of bfloat16


@NETWORKS
def test_bfloat16_keeps_parameters_statistics_and_scores_in_float32(kind):
  make, side, stem_name = SMALL[kind]
  model = make(dtype=jnp.bfloat16, stem=LEARNABLE)
  x = jax.ShapeDtypeStruct((2, side, side, 3), "f4")
  variables = shapes_of(model, side)
  assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("f4")}
  scores, new = jax.eval_shape(in_train(model), variables, x)
  assert scores.dtype == jnp.float32
  assert {leaf.dtype for leaf in jax.tree.leaves(new)} == {jnp.dtype("f4")}
  calls = intermediate_shapes(model, side)
  assert calls[stem_name].dtype == jnp.bfloat16
  computed = {name for name, call in calls.items() if call.dtype != jnp.bfloat16}
  assert computed <= {"", "fc", "classifier"}


class Classifier(nn.Module):
  @nn.compact
  def __call__(self, x):
    return classify(x, 4, nn.initializers.zeros, name="fc")


def test_classifier_averages_in_float32():
  x = jnp.asarray(np.random.default_rng(0).normal(1, 1, (3, 7, 7, 4)), jnp.bfloat16)
  params = {"fc": {"kernel": np.eye(4, dtype=np.float32), "bias": np.arange(4.0, dtype=np.float32)}}
  wanted = np.asarray(x, np.float64).mean(axis=(1, 2)) + np.arange(4.0)
  np.testing.assert_allclose(Classifier().apply({"params": params}, x), wanted, rtol=1e-5)


def test_bfloat16_is_close_to_float32():
  model, x = CifarResNet(depth=8), images(12, number=8).astype(np.float32)
  variables = random_variables(model, 12, np.float32)
  exact = jax.jit(in_train(model))(variables, x)
  rounded = jax.jit(in_train(model.clone(dtype=jnp.bfloat16)))(variables, x)
  difference = np.abs(np.asarray(rounded[0] - exact[0]))
  assert 0 < difference.max() < 0.1 * np.abs(np.asarray(exact[0])).max()
  for name, value in flat(exact[1]).items():
    np.testing.assert_allclose(flat(rounded[1])[name], value, rtol=0.05, atol=0.02, err_msg=name)


# --- the option of remat, and gradients


def loss_of(model, x):
  def loss(params, stats):
    scores, new = in_train(model)({"params": params, "batch_stats": stats}, x)
    return jnp.mean(jnp.sin(scores) * jnp.arange(1, 1 + scores.shape[-1])), new

  return jax.value_and_grad(loss, has_aux=True)


@pytest.mark.parametrize("kind", ["cifar_resnet", "bottleneck", "densenet", "googlenet"])
def test_remat_changes_neither_tree_nor_values_and_every_parameter_has_a_gradient(
  kind, monkeypatch
):
  make, side, stem_name = SMALL[kind]
  if kind == "googlenet":  # one of its modules: the gradients of all take long to compile
    monkeypatch.setattr(googlenet, "_MODULES", dict(list(googlenet._MODULES.items())[:1]))
    make = functools.partial(GoogLeNet, num_classes=4)
  plain, remat = make(stem=LEARNABLE), make(stem=LEARNABLE, remat=True)
  assert jax.tree.structure(shapes_of(plain, side)) == jax.tree.structure(shapes_of(remat, side))
  x = images(side, number=4).astype(np.float32)
  variables = random_variables(plain, side, np.float32)
  arguments = variables["params"], variables["batch_stats"]
  kept = [
    jax.eval_shape(lambda v, model=model: jax.vjp(lambda v: in_train(model)(v, x), v)[1], variables)
    for model in (plain, remat)
  ]
  inside = [size(residuals) - size(variables) for residuals in kept]
  assert 0 < inside[1] < 0.7 * inside[0]  # kept from the forward for the backward pass
  (value, new), gradient = jax.jit(loss_of(plain, x))(*arguments)
  (value_again, new_again), gradient_again = jax.jit(loss_of(remat, x))(*arguments)
  np.testing.assert_allclose(value_again, value, rtol=1e-4)
  for path, leaf in flat(new).items():
    np.testing.assert_allclose(flat(new_again)[path], leaf, rtol=1e-4, atol=1e-5, err_msg=path)
  for path, leaf in flat(gradient).items():
    leaf = np.asarray(leaf)
    assert np.all(np.isfinite(leaf)), path
    assert np.mean(leaf != 0) > 0.5, path
    again = flat(gradient_again)[path]
    tolerance = 1e-2 * np.abs(leaf).max()
    np.testing.assert_allclose(again, leaf, rtol=1e-2, atol=tolerance, err_msg=path)
  assert f"{stem_name}/balance" in flat(gradient)


# --- what is a kervolution


def convolutions(model, side):
  """The class of every convolution by its path."""
  return {path: type(layer) for path, layer in modules(model, side, nn.Conv).items()}


@NETWORKS
def test_twin_differs_in_the_first_layer_alone(kind):
  make, side, stem_name = SMALL[kind]
  cnn, knn = make(), make(stem=POLYNOMIAL)
  layers, twins = convolutions(cnn, side), convolutions(knn, side)
  assert set(layers.values()) == {nn.Conv}
  assert twins == layers | {stem_name: KervConv}
  shapes, twin_shapes = shapes_of(cnn, side), shapes_of(knn, side)
  jax.tree.map(
    lambda ours, theirs: np.testing.assert_equal(ours.shape, theirs.shape), shapes, twin_shapes
  )
  assert set(convolutions(make(conv=POLYNOMIAL), side).values()) == {KervConv}
  assert convolutions(make(conv=POLYNOMIAL, stem=nn.Conv), side) == dict.fromkeys(
    layers, KervConv
  ) | {stem_name: nn.Conv}
  learnt = flat(shapes_of(make(stem=LEARNABLE), side))
  assert set(learnt) == set(flat(shapes_of(cnn, side))) | {f"params/{stem_name}/balance"}


def test_twin_starts_from_the_same_weights():
  x = images(8).astype(np.float32)
  cnn = jax.jit(CifarResNet(depth=8).init)(jax.random.key(1), x)
  knn = jax.jit(CifarResNet(depth=8, stem=LEARNABLE).init)(jax.random.key(1), x)
  for name, leaf in flat(cnn).items():
    np.testing.assert_array_equal(flat(knn)[name], leaf)


@pytest.mark.parametrize("remat", [False, True])
def test_learnt_values_are_read_back(remat):
  model, x = CifarResNet(depth=8, stem=LEARNABLE, remat=remat), images(8).astype(np.float32)
  variables = random_variables(model, 8, np.float32)
  wanted = {"conv1": {"balance": np.log1p(np.exp(0.7))}}
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-6),
    hyperparameters(model, variables, x),
    wanted,
  )


def test_what_a_partial_sets_is_kept():
  stem = functools.partial(
    nn.Conv, features=8, kernel_size=(5, 5), kernel_init=nn.initializers.ones
  )
  model = CifarResNet(
    depth=8, stem=stem, conv=functools.partial(nn.Conv, use_bias=True, dtype=jnp.bfloat16)
  )
  x = images(9).astype(np.float32)
  params = jax.jit(model.init)(jax.random.key(0), x)["params"]
  np.testing.assert_array_equal(params["conv1"]["kernel"], np.ones((5, 5, 3, 8)))
  assert set(params["conv1"]) == {"kernel"}
  assert set(params["layer1_0"]["conv1"]) == {"kernel", "bias"}
  calls = intermediate_shapes(model, 9)
  assert calls["conv1"].shape == (2, 9, 9, 8)
  assert calls["conv1"].dtype == jnp.float32
  assert calls["layer1_0/conv1"].dtype == jnp.bfloat16
  assert calls["layer1_0"].shape == (2, 9, 9, 16)


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
