"""What runs on a mesh of 8 devices; test_meshes.py runs this file in a process that has them."""

import contextlib
import functools
import pathlib
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from kerv_jax import kernels, kerv_general_dilated
from kerv_jax import nnx as kerv_nnx
from kerv_jax._operator import fused, pairs
from kerv_jax.kernels.additive import PairStatistic
from kerv_jax.nn import KervConv
from tests.operator.cases import NHWC, name

KERNELS = [
  kernels.Linear(),
  kernels.Polynomial(),
  kernels.Sigmoid(),
  kernels.Gaussian(0.05),
  kernels.L2(),
  kernels.L1(),
  kernels.Laplacian(0.05),
  kernels.Huber(0.8),
  kernels.Chebyshev(),
  kernels.Minkowski(3.0),
  kernels.Cosine(),
  -kernels.L1(surrogate=True),
  kernels.Custom(lambda x, w: jnp.max(jnp.abs(x - w))),
  kernels.Concatenate([(8, kernels.Linear()), (8, kernels.L1())]),
  kernels.Concatenate([(8, kernels.Polynomial()), (8, kernels.Gaussian(0.05))]),
]
FEW = [kernels.Gaussian(0.05), kernels.L1(), KERNELS[-2]]
COLLECTIVES = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
SIZES = {"f32": 4, "pred": 1, "s32": 4, "u32": 4}


def operands():
  rng = np.random.default_rng(0)
  shapes = (64, 10, 12, 9), (2, 2, 9, 16), (64, 10, 12, 16)
  return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@functools.cache
def alone(kernel, form="cpu"):
  """The program for one device, in a form, and its results."""
  del form
  program = jax.jit(both(layer(kernel))).lower(*operands()).compile()
  return program, program(*operands())


_traffic_of_convolution = {}


def traffic_of_convolution(axis_type, arguments):
  """That of a layer of convolutions, by the type of the axes."""
  if axis_type not in _traffic_of_convolution:
    program = jax.jit(both(layer(kernels.Linear()))).lower(*arguments).compile()
    _traffic_of_convolution[axis_type] = traffic(program)
  return _traffic_of_convolution[axis_type]


def reduces_pairs(kernel):
  """Whether it has a form for CPUs and one for accelerators."""
  return any(
    statistic == kernels.ABSOLUTE_DISTANCE or isinstance(statistic, PairStatistic)
    for statistic in kernel.statistics or ()
  )


def layer(kernel_fn):
  return functools.partial(
    kerv_general_dilated,
    window_strides=(1, 1),
    padding="SAME",
    dimension_numbers=NHWC,
    kernel_fn=kernel_fn,
  )


def both(function):
  """The value and the gradients, for a cotangent."""

  def run(lhs, rhs, g):
    out, pull = jax.vjp(function, lhs, rhs)
    return out, *pull(g)

  return run


def traffic(compiled):
  """Bytes of the results of each kind of collective."""
  found = {}
  for shape, kind in re.findall(rf"= (.*?) ({COLLECTIVES})(?:-start)?\(", compiled.as_text()):
    for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shape):
      size = int(np.prod([int(d) for d in dims.split(",") if d])) * SIZES[dtype]
      found[kind] = found.get(kind, 0) + size
  return found


def scratch(compiled):
  return compiled.memory_analysis().temp_size_in_bytes


def assert_same(found, expected):
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    a, b = np.asarray(a), np.asarray(b)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


def placed(mesh, *specs):
  return [
    jax.device_put(value, NamedSharding(mesh, spec))
    for value, spec in zip(operands(), specs, strict=True)
  ]


def as_accelerators(monkeypatch):
  """The form of other platforms than CPUs, here."""
  forms = {"_total": (fused.total, (0, 2, 3)), "_cotangents": (fused.cotangents, (0, 3))}
  for attribute, (form, static) in forms.items():
    monkeypatch.setattr(pairs, attribute, jax.jit(form, static_argnums=static, inline=True))
  jax.clear_caches()


@pytest.fixture(params=["cpu", "accelerator"])
def form(request, monkeypatch):
  if request.param == "accelerator":
    as_accelerators(monkeypatch)
  yield request.param
  if request.param == "accelerator":
    jax.clear_caches()


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("kernel", KERNELS, ids=name)
def test_a_sharded_batch_costs_what_a_convolution_costs(kernel, axis_type, form):
  if form == "accelerator" and not reduces_pairs(kernel):
    pytest.skip("it has one form only")
  mesh = jax.make_mesh((8,), ("batch",), axis_types=(axis_type,))
  explicit = axis_type == AxisType.Explicit
  with jax.set_mesh(mesh) if explicit else contextlib.nullcontext():
    arguments = placed(mesh, P("batch"), P(), P("batch"))
    program = jax.jit(both(layer(kernel))).lower(*arguments).compile()
    most = traffic_of_convolution(axis_type, arguments)
    found = program(*arguments)
  single, expected = alone(kernel, form)
  assert_same(found, expected)
  assert [len(value.sharding.device_set) for value in found] == [8, 8, 8]
  assert [value.sharding.is_fully_replicated for value in found] == [False, False, True]
  kinds = traffic(program)
  assert set(kinds) == {"all-reduce"}
  # Beside the filters' gradient: whether a squared distance has cancelled, and the filters' norms.
  assert kinds["all-reduce"] <= most["all-reduce"] + 4 * 64
  assert scratch(program) <= 1.1 * scratch(single) / 8 + 2**14


@pytest.mark.parametrize("kernel", FEW, ids=name)
def test_values_on_a_mesh_of_two_axes(kernel, form):
  mesh = jax.make_mesh((2, 4), ("batch", "features"), axis_types=(AxisType.Auto,) * 2)
  arguments = placed(mesh, P("batch"), P(None, None, None, "features"), P("batch"))
  found = jax.jit(both(layer(kernel)))(*arguments)
  assert_same(found, alone(kernel)[1])


@pytest.mark.parametrize("kernel", FEW, ids=name)
def test_explicit_axes_of_features_need_the_sharding_of_the_result(kernel):
  mesh = jax.make_mesh((2, 4), ("batch", "features"))
  expected = alone(kernel)[1]
  with jax.set_mesh(mesh):
    features = P(None, None, None, "features")
    lhs, rhs, g = placed(mesh, P("batch"), features, P("batch", None, None, "features"))
    with pytest.raises(Exception, match="out_sharding"):  # JAX has no public name for it
      layer(kernel)(lhs, rhs)
    sharding = P("batch", None, None, "features")
    found = jax.jit(both(functools.partial(layer(kernel), out_sharding=sharding)))(lhs, rhs, g)
    assert jax.typeof(found[0]).sharding.spec == sharding
  assert_same(found, expected)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kernel", [kernels.Polynomial(), *FEW[:2]], ids=name)
def test_what_is_from_outside_of_an_explicit_mesh_may_meet_what_is_on_it(kernel, mixed):
  types = (AxisType.Auto if mixed else AxisType.Explicit, AxisType.Explicit)
  mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=types)
  lhs, rhs, _ = operands()
  lhs = lhs[:8]
  expected, change = layer(kernel)(lhs, rhs), jax.grad(scanned, (1, 2))(kernel, lhs, rhs)
  with jax.set_mesh(mesh):
    on_it = jax.device_put(rhs, P())
    for left, right in ((lhs, on_it), (lhs, rhs), (jax.device_put(lhs, P()), on_it)):
      assert_same([jax.jit(layer(kernel))(left, right)], [expected])
      assert_same(
        jax.jit(jax.grad(functools.partial(scanned, kernel), (0, 1)))(left, right), change
      )
    module = KervConv(16, (2, 2), kernel_fn=kernel)
    made = jax.jit(module.init)(jax.random.key(0), lhs)
    assert made["params"]["kernel"].shape == rhs.shape
    jax.eval_shape(module.init, jax.random.key(0), jax.ShapeDtypeStruct(lhs.shape, lhs.dtype))


def scanned(kernel, lhs, rhs):
  """Two layers of the same filters over a part of the channels, one after the other."""

  def step(x, w):
    return 0.1 * layer(kernel)(x, w), None

  return jnp.sum(jax.lax.scan(step, lhs, jnp.stack([rhs[..., :9]] * 2))[0])


@pytest.mark.parametrize("kernel", [kernels.L2(), kernels.L1(), KERNELS[-3]], ids=name)
def test_shard_map_over_filters_and_over_both(kernel):
  mesh = jax.make_mesh((2, 4), ("batch", "features"), axis_types=(AxisType.Auto,) * 2)
  lhs, rhs, _ = operands()

  @functools.partial(jax.jit, static_argnums=2)
  def value_and_derivatives(lhs, rhs, function):
    out, pull = jax.vjp(function, lhs, rhs)
    weight = jnp.sin(jnp.arange(out.size, dtype=np.float32)).reshape(out.shape)
    change = jax.jvp(function, (lhs, rhs), (jnp.ones_like(lhs), jnp.sin(rhs)))[1]
    return out, pull(weight), change

  expected = value_and_derivatives(lhs, rhs, layer(kernel))
  for batch in (None, "batch"):
    mapped = jax.shard_map(
      layer(kernel),
      mesh=mesh,
      in_specs=(P(batch), P(None, None, None, "features")),
      out_specs=P(batch, None, None, "features"),
    )
    assert_same(value_and_derivatives(lhs, rhs, mapped), expected)


@pytest.mark.parametrize("kernel", [kernels.L1(), kernels.Gaussian(0.05)], ids=name)
def test_pmap(kernel):
  lhs, rhs, g = operands()
  shards = [value.reshape(8, 8, *value.shape[1:]) for value in (lhs, g)]
  out, to_lhs, to_rhs = jax.pmap(both(layer(kernel)), in_axes=(0, None, 0))(
    shards[0], rhs, shards[1]
  )
  expected = alone(kernel)[1]
  assert_same((out.reshape(expected[0].shape), to_lhs.reshape(lhs.shape), to_rhs.sum(0)), expected)


@pytest.mark.parametrize("kernel", FEW, ids=name)
def test_nnx_layers_take_the_sharding_of_their_result(kernel):
  mesh = jax.make_mesh((2, 4), ("batch", "features"))
  lhs = operands()[0]
  window = {"kernel_metadata": {"out_sharding": (None, None, None, "features")}}
  dense = {"kernel_metadata": {"out_sharding": (None, "features")}}
  make_conv = functools.partial(kerv_nnx.KervConv, 9, 16, (2, 2), kernel_fn=kernel)
  make_dense = functools.partial(kerv_nnx.KervDense, 9, 16, kernel_fn=kernel)
  expected = make_conv(rngs=nnx.Rngs(0))(lhs), make_dense(rngs=nnx.Rngs(0))(lhs[:, 0])
  with jax.set_mesh(mesh):
    x = jax.device_put(lhs, NamedSharding(mesh, P("batch")))
    conv, linear = make_conv(rngs=nnx.Rngs(0), **window), make_dense(rngs=nnx.Rngs(0), **dense)
    found = (
      conv(x, out_sharding=P("batch", None, None, "features")),
      linear(x[:, 0], out_sharding=P("batch", None, "features")),
    )
    for value in found:
      assert value.sharding.spec[-1] == "features"
  assert_same(found, expected)


class _Net(nn.Module):
  kernel_fn: kernels.Kernel

  @nn.compact
  def __call__(self, x):
    x = nn.relu(KervConv(16, (3, 3), kernel_fn=self.kernel_fn, learnable=True)(x))
    x = nn.relu(nn.Conv(16, (3, 3))(x))
    return nn.Dense(10)(x.mean((1, 2)))


@pytest.mark.parametrize("kernel", [kernels.L2() * 0.1, kernels.Gaussian(0.05)], ids=name)
def test_a_step_of_training_gathers_nothing(kernel):
  model, optimizer = _Net(0.1 * kernels.L1() + kernel), optax.sgd(0.1, 0.9)
  images, labels = operands()[0], np.arange(64) % 10
  variables = model.init(jax.random.key(0), images[:1])

  def step(variables, state, images, labels):
    def loss(variables):
      logits = model.apply(variables, images)
      return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, gradient = jax.value_and_grad(loss)(variables)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(variables, updates), state, value

  mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
  whole, batch = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
  state = optimizer.init(variables)
  arguments = (
    *jax.device_put((variables, state), whole),
    *jax.device_put((images, labels), batch),
  )
  program = jax.jit(step).lower(*arguments).compile()
  assert set(traffic(program)) == {"all-reduce"}
  alone = jax.jit(step)
  for _ in range(3):
    variables, state, expected = alone(variables, state, images, labels)
    new = program(*arguments)
    arguments = (*jax.device_put(new[:2], whole), *arguments[2:])
    np.testing.assert_allclose(new[2], expected, rtol=1e-5)


def test_space_may_be_sharded():
  """The values are right; convolutions exchange borders, distances gather space."""
  mesh = jax.make_mesh((2,), ("space",), axis_types=(AxisType.Auto,))
  for kernel in (kernels.Polynomial(), kernels.Gaussian(0.05), kernels.L1()):
    arguments = placed(mesh, P(None, "space"), P(), P(None, "space"))
    assert_same(jax.jit(both(layer(kernel)))(*arguments), alone(kernel)[1])


def test_the_page_on_several_devices_runs(capsys):
  page = (pathlib.Path(__file__).parents[2] / "docs" / "devices.md").read_text()
  blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
  expected = re.findall(r"^ *print\(.*\)  # ([^:\n]*)", "".join(blocks), re.M)
  exec("".join(blocks), {})
  assert capsys.readouterr().out.splitlines() == expected
  assert len(expected) == 3


def test_the_comparison_is_with_what_runs():
  """Guards the checks above: gathering would be seen."""
  mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
  lhs = placed(mesh, P("batch"), P(), P("batch"))[0]
  gathered = jax.jit(lambda x: lax.rev(x, (0,)) + x.reshape(-1)[::7].sum())
  assert set(traffic(gathered.lower(lhs).compile())) - {"all-reduce"}
