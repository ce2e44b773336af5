"""Additive kernels through the operator and the layers: all that ``L1`` can."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.test_util import check_grads

from kerv_jax import kernels, kerv_general_dilated
from kerv_jax import nnx as kerv_nnx
from kerv_jax.kernels import AdditiveKernel
from kerv_jax.nn import KervConv, KervConvTranspose, KervDense, hyperparameters, kervolve
from tests import reference
from tests.kernels.additive_cases import CASES, Adder, MaxWave, SoftWave, Wave
from tests.operator.cases import NHWC, kerv, name, operands
from tests.operator.mesh_cases import as_accelerators
from tests.operator.test_kervolution import equations

KERNELS = [
  kernels.Minkowski(3.0),
  kernels.Chebyshev(),
  kernels.Huber(0.8),
  kernels.Intersection(),
  kernels.ChiSquared(),
  kernels.MaxPlus(),
  Wave(0.8),
  SoftWave(0.8, temperature=0.5),
  kernels.Huber(0.8) - kernels.L1() * kernels.Huber(0.8) + kernels.Linear(),
]
SMOOTH = [Wave(0.8), SoftWave(0.8, temperature=0.5)]
HYPER = [kernels.Minkowski(3.0), kernels.Huber(0.8), SoftWave(0.8, temperature=0.5)]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=name)
# Those that differ in how derivatives are made: a profile of the statistic, a pair that is found, a
# weighted mean, and statistics that several terms share.
every_form = pytest.mark.parametrize("kernel", [KERNELS[i] for i in (0, 1, 7, 8)], ids=name)


def close(actual, expected, tolerance=1e-5):
  """Within a part of the largest number."""
  for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.max(np.abs(b), initial=1))


def definition(lhs, rhs, kernel):
  return kerv(lhs, rhs, kernel, method="patches")


# Values and derivatives


@pytest.mark.parametrize("form", ["cpu", "accelerator"])
@pytest.mark.parametrize("case", CASES)
def test_both_forms_agree_with_the_loops(case, form, monkeypatch):
  additive = CASES[case]
  rng = np.random.default_rng(2)
  lhs, rhs = (np.round(2 * rng.standard_normal(s)) / 2 for s in ((2, 5, 4, 4), (3, 2, 2, 6)))
  values = additive.draw(rng, 6)
  options = {
    "strides": (2, 1),
    "padding": ((1, 2), (0, 1)),
    "lhs_dilation": (1, 1),
    "rhs_dilation": (1, 2),
    "feature_group_count": 2,
    "layouts": NHWC,
  }

  def slopes(x, w, feature):
    return additive.slopes(x, w, **{k: v[feature] for k, v in values.items()})

  expected = reference.kervolution(lhs, rhs, lambda *args: slopes(*args)[0], **options)
  cotangent = rng.standard_normal(expected.shape)
  if form == "accelerator":
    as_accelerators(monkeypatch)
  with jax.enable_x64(True):
    kernel = jax.tree.map(jnp.asarray, additive.make(**values))
    out, pull = jax.vjp(jax.jit(kerv), jnp.asarray(lhs), jnp.asarray(rhs), kernel)
    found = jax.jit(pull)(jnp.asarray(cotangent))
  if form == "accelerator":
    jax.clear_caches()
  close(out, expected, 1e-8)
  leaves = jax.tree.leaves(kernel)
  dx, dw, dp = reference.kervolution_vjp(
    lhs, rhs, lambda *args: slopes(*args)[1:], cotangent, len(leaves), **options
  )
  dp = [d if jnp.ndim(p) else d.sum() for d, p in zip(dp, leaves, strict=True)]
  close(jax.tree.leaves(found), [dx, dw, *dp], 1e-8)


@every_form
def test_forward_mode_is_the_transpose_of_reverse_mode(kernel):
  lhs, rhs = operands()
  args = lhs, rhs, jax.tree.map(jnp.float32, kernel)
  tangents = jax.tree.map(
    lambda v: jnp.cos(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape), args
  )
  directional = jax.jit(lambda *a: jax.jvp(kerv, *a))
  out, forward = directional(args, tangents)
  cotangent = jnp.sin(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)
  found = jax.jit(lambda *a: jax.vjp(kerv, *a)[1](cotangent))(*args)
  products = jax.tree.leaves(jax.tree.map(jnp.vdot, found, tangents))
  close(jnp.vdot(cotangent, forward), sum(products), 1e-4)
  for i in range(2):  # some of the operands alone
    some = jax.tree.map(jnp.zeros_like, tangents)
    one = lambda v: kerv(*args[:i], v, *args[i + 1 :])  # noqa: B023, E731
    alone = jax.jit(lambda *a, one=one: jax.jvp(one, *a))((args[i],), (tangents[i],))[1]
    some = (*some[:i], tangents[i], *some[i + 1 :])
    close(alone, directional(args, some)[1], 1e-4)


@pytest.mark.parametrize("kernel", SMOOTH, ids=name)
def test_second_derivatives_of_smooth_terms(kernel):
  with jax.enable_x64(True):
    lhs, rhs = operands((1, 4, 3, 4), (3, 2, 2, 2), dtype="float64")
    kernel = jax.tree.map(lambda v: jnp.float64(v) * jnp.array([1.0, 1.2]), kernel)
    check_grads(jax.jit(kerv), (lhs, rhs, kernel), order=2, rtol=1e-5, atol=1e-5)


@every_form
def test_second_derivatives_agree_with_the_definition(kernel):
  with jax.enable_x64(True):
    lhs, rhs = operands((1, 4, 4, 4), (3, 2, 2, 2), dtype="float64")
    kernel = jax.tree.map(jnp.float64, kernel)
    vector = operands(rhs_shape=rhs.shape, seed=5, dtype="float64")[1]

    @functools.partial(jax.jit, static_argnums=0)
    def second(run):
      loss = lambda rhs: jnp.sum(jnp.square(run(lhs, rhs, kernel)))  # noqa: E731
      over = jax.jvp(jax.grad(loss), (rhs,), (vector,))[1]
      return over, jax.grad(lambda r: jnp.vdot(jax.grad(loss)(r), vector))(rhs)

    found = second(kerv)
    assert jnp.max(jnp.abs(found[0])) > 1e-3
    close(found, second(definition), 1e-8)


def test_a_maximum_s_derivative_goes_to_the_first_window_position_and_channel():
  lhs, rhs = jnp.ones((1, 3, 3, 2)), jnp.ones((2, 2, 2, 3))

  def loss(lhs, rhs, kernel, padding="VALID"):
    options = {"window_strides": (1, 1), "feature_group_count": 1, "rhs_dilation": (1, 1)}
    return jnp.sum(kerv(lhs, rhs, kernel, padding=padding, **options))

  for kernel in (kernels.MaxPlus(), type("Least", (kernels.MaxPlus,), {"reduction": "min"})()):
    dx, dw = jax.grad(loss, (0, 1))(lhs, rhs, kernel)
    expected = np.zeros(lhs.shape)
    expected[0, :2, :2, 0] = 3  # the first tap of the first channel, for each of three filters
    np.testing.assert_array_equal(dx, expected)
    np.testing.assert_array_equal(dw, np.zeros(rhs.shape) + 4 * np.eye(1, 8).reshape(2, 2, 2, 1))
  # A tie of channels, and one of window positions.
  dw = jax.grad(loss, 1)(lhs.at[..., 0].set(0.0), rhs, kernels.MaxPlus())
  np.testing.assert_array_equal(dw[0, 0], [[0, 0, 0], [4, 4, 4]])
  dw = jax.grad(loss, 1)(lhs, rhs.at[0].set(0.0), kernels.MaxPlus())
  np.testing.assert_array_equal(dw[1, 0], [[4, 4, 4], [0, 0, 0]])


@pytest.mark.parametrize(
  "kernel",
  [kernels.L1(), kernels.Polynomial(), kernels.Huber(0.8), kernels.Minkowski(2.5), MaxWave(0.7)],
  ids=name,
)
def test_every_channel_a_group_of_its_own(kernel):
  options = {"feature_group_count": 4, "window_strides": (2, 1), "rhs_dilation": (1, 2)}
  with jax.enable_x64(True):
    lhs, rhs = operands((2, 7, 6, 4), (3, 2, 1, 4), dtype="float64")
    several = jax.tree.map(lambda v: v * jnp.array([1.0, 1.2, 0.8, 0.9]), kernel)
    single = jax.tree.map(jnp.float64, kernel)

    @functools.partial(jax.jit, static_argnums=1)
    def both(kernel, method):
      run = functools.partial(kerv, method=method, **options)
      out, pull = jax.vjp(run, lhs, rhs, kernel)
      return out, pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    for hyperparameters in (single, several):
      close(both(hyperparameters, "auto"), both(hyperparameters, "patches"), 1e-9)


def test_an_exponent_that_is_known_gives_what_any_does():
  lhs, rhs = operands()
  rhs = rhs.at[..., 0].set(0.0)
  lhs = lhs.at[:, :4].set(0.0)  # some patches are equal to a filter

  @functools.partial(jax.jit, static_argnums=2)
  def derivatives(kernel, vector, known):
    kernel = known or kernel
    gradient = jax.grad(lambda *a: jnp.vdot(jnp.sin(kerv(*a, kernel)), vector), (0, 1))
    return kerv(lhs, rhs, kernel), gradient(lhs, rhs)

  vector = jnp.cos(kerv(lhs, rhs, kernels.Linear()))
  for p in (1.0, 2.0, 3.0, 200.0):
    kernel = kernels.Minkowski(p)
    expected = derivatives(kernel, vector, None)
    close(derivatives(kernel, vector, kernel), expected, 1e-6 * max(p, 10))
  powers = str(jax.make_jaxpr(lambda: kerv(lhs, rhs, kernels.Minkowski(3.0)))())
  assert powers.count("integer_pow") > 0


def test_adder_s_two_gradients():
  lhs, rhs = operands()
  run = lambda kernel: jax.vjp(lambda *a: kerv(*a, kernel), lhs, rhs)  # noqa: E731
  (out, pull), (expected, pull_expected) = run(Adder()), run(-kernels.L1(surrogate=True))
  close(out, expected)
  close(pull(jnp.cos(out)), pull_expected(jnp.cos(out)))


@every_kernel
def test_derivatives_are_finite_where_patch_and_filter_are_equal_or_zero(kernel):
  lhs, _ = operands((1, 6, 5, 4))
  equal = jnp.stack([lhs[0, 0:3, 0:4:2, :2]] * 3 + [lhs[0, 0:3, 0:4:2, 2:]] * 3, axis=-1)
  kernel = jax.tree.map(jnp.float32, kernel)

  @jax.jit
  def derivatives(lhs, rhs, kernel):
    first = jax.grad(lambda *a: jnp.sum(kerv(*a, padding="VALID")), (0, 1, 2))
    total = lambda *a: sum(jnp.sum(jnp.sin(g)) for g in jax.tree.leaves(first(*a)))  # noqa: E731
    return first(lhs, rhs, kernel), jax.grad(total, (0, 1))(lhs, rhs, kernel)

  for a, b in [(lhs, equal), (0 * lhs, equal), (0 * lhs, 0 * equal), (lhs, 0 * equal)]:
    for value in jax.tree.leaves(derivatives(a, b, kernel)):
      assert jnp.all(jnp.isfinite(value))


def test_padding_with_minus_infinity_is_morphological_dilation():
  lhs, rhs = operands((2, 6, 5, 2), (3, 3, 2, 4))
  options = {"window_strides": (1, 1), "rhs_dilation": (1, 1), "feature_group_count": 1}

  def dilation(lhs, rhs):
    pads = [(0, 0), (1, 1), (1, 1), (0, 0)]
    padded = jnp.pad(lhs, pads, constant_values=-jnp.inf)
    return kerv(padded, rhs, kernels.MaxPlus(), padding="VALID", **options)

  expected = np.full((2, 6, 5, 4), -np.inf)
  for n, i, k, c, a, b in np.ndindex(2, 6, 5, 2, 3, 3):
    if 0 <= i + a - 1 < 6 and 0 <= k + b - 1 < 5:
      candidate = lhs[n, i + a - 1, k + b - 1, c] + rhs[a, b, c]
      expected[n, i, k] = np.maximum(expected[n, i, k], candidate)
  np.testing.assert_allclose(dilation(lhs, rhs), expected, rtol=1e-6)
  for value in jax.grad(lambda *a: jnp.sum(dilation(*a)), (0, 1))(lhs, rhs):
    assert jnp.all(jnp.isfinite(value))
  zeros = kerv(lhs, rhs, kernels.MaxPlus(), padding="SAME", **options)
  assert jnp.all(zeros >= dilation(lhs, rhs))  # zero padding is data
  assert jnp.any(zeros > dilation(lhs, rhs))


@every_kernel
def test_a_nan_is_seen_by_every_output_that_sees_it(kernel):
  lhs, rhs = operands((2, 6, 6, 2), (3, 3, 2, 3))
  options = {"feature_group_count": 1, "window_strides": (1, 1), "rhs_dilation": (1, 1)}
  seen = np.zeros((2, 6, 6, 3), bool)
  seen[1, 1:4, 2:5] = True
  out = kerv(lhs.at[1, 2, 3, 0].set(jnp.nan), rhs, kernel, padding="SAME", **options)
  np.testing.assert_array_equal(jnp.isnan(out), seen)


@pytest.mark.parametrize("form", ["cpu", "accelerator"])
def test_the_derivative_of_an_extreme_value_goes_to_the_first_nan(form, monkeypatch):
  if form == "accelerator":
    as_accelerators(monkeypatch)
  lhs = jnp.zeros((1, 3, 1, 4)).at[0, 0, 0, 2].set(jnp.nan).at[0, 1, 0, 1:3].set(jnp.nan)
  rhs = jnp.zeros((1, 1, 4, 1)).at[0, 0, 3].set(0.5)
  options = {"window_strides": (1, 1), "padding": "VALID"}
  options |= {"feature_group_count": 1, "rhs_dilation": (1, 1)}
  out = lambda lhs: jnp.sum(kerv(lhs, rhs, kernels.MaxPlus(), **options))  # noqa: E731
  expected = [[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
  np.testing.assert_array_equal(jax.grad(out)(lhs)[0, :, 0], expected)
  definition = lambda lhs: jnp.sum(kerv(lhs, rhs, kernels.MaxPlus(), method="patches", **options))  # noqa: E731
  np.testing.assert_array_equal(jax.grad(definition)(lhs)[0, :, 0], expected)


@every_kernel
def test_an_empty_batch_gives_an_empty_output(kernel):
  lhs, rhs = operands((0, 6, 5, 4))
  assert kerv(lhs, rhs, kernel).shape == kerv(lhs, rhs, kernels.Linear()).shape
  gradient = jax.grad(lambda rhs: jnp.sum(kerv(lhs, rhs, kernel)))(rhs)
  np.testing.assert_array_equal(gradient, jnp.zeros_like(rhs))


# Transformations


@every_form
def test_vmap_of_operands_and_kernel(kernel):
  def item(value, axis, index):
    return value if axis is None else jax.tree.map(lambda leaf: leaf[index], value)

  def loss(lhs, rhs, kernel):
    return jnp.sum(jnp.sin(kerv(lhs, rhs, kernel)))

  gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
  with jax.enable_x64(True):
    lhs, rhs = operands((3, 2, 4, 5, 4), (3, 3, 2, 2, 4), dtype="float64")
    several = jax.tree.map(lambda leaf: leaf * jnp.array([1.0, 1.2, 0.8]), kernel)
    for axes in ((0, 0, 0), (0, None, None), (None, 0, None)):
      args = [
        value if axis == 0 else item(value, 0, 1)
        for value, axis in zip((lhs, rhs, several), axes, strict=True)
      ]
      together = jax.jit(jax.vmap(gradient, axes))(*args)
      apart = [gradient(*map(item, args, axes, [i] * 3)) for i in range(3)]
      close(together, jax.tree.map(lambda *values: jnp.stack(values), *apart), 1e-9)


@every_form
def test_checkpoint_scan_and_pieces_of_a_batch(kernel):
  lhs, rhs = operands((4, 6, 5, 4))

  def loss(lhs, rhs):
    return jnp.sum(jnp.sin(kerv(lhs, rhs, kernel)))

  expected = jax.jit(jax.grad(loss))(lhs, rhs)
  close(jax.jit(jax.grad(jax.checkpoint(loss)))(lhs, rhs), expected, 1e-4)
  step = lambda carry, x: (carry, jax.grad(loss)(x, rhs))  # noqa: E731
  scanned = lax.scan(step, 0, lhs[:, None])[1]
  close(scanned[:, 0], expected, 1e-4)


# Work and memory


def test_a_statistic_that_kernels_share_is_computed_once():
  lhs, rhs = operands()

  def loops(kernel):
    jaxpr = jax.make_jaxpr(lambda *args: kerv(*args, kernel))(lhs, rhs)
    return sum(e.primitive.name == "scan" for e in equations(jaxpr.jaxpr))

  one = loops(kernels.Huber(0.5))
  assert one
  huber = kernels.Huber(0.5)
  assert loops(huber + 2.0 * kernels.Huber(0.5) * huber) == one
  assert loops(huber + kernels.Huber(0.6)) == 2 * one
  vector = kernels.Huber(np.linspace(0.1, 0.6, 6))
  assert loops(vector - vector * vector) == one
  side_by_side = kernels.Concatenate([(2, huber), (4, 3.0 * kernels.Huber(0.5))])
  assert loops(side_by_side) == one


@pytest.mark.parametrize("groups", [1, 2])
def test_side_by_side(groups):
  lhs, rhs = operands((2, 6, 5, 4), (3, 2, 4 // groups, 6))
  several = kernels.Huber(np.array([0.3, 0.9, 0.5]))
  parts = [(3, several), (1, kernels.Chebyshev()), (2, kernels.Huber(0.4) + kernels.L1())]
  run = functools.partial(kerv, lhs, rhs, feature_group_count=groups)
  together, first = run(kernels.Concatenate(parts)), 0
  for size, kernel in parts:
    own = slice(first, first + size)
    whole = jax.tree.map(lambda v: np.resize(v, 6) if np.ndim(v) else v, kernel)
    close(together[..., own], run(whole)[..., own])
    first += size


@pytest.mark.parametrize("kernel", KERNELS[:-1], ids=name)
def test_memory_is_that_of_an_absolute_distance_and_what_was_reduced(kernel):
  lhs, rhs = operands((8, 24, 24, 8), (5, 5, 8, 16))

  def temp(kernel):
    run = functools.partial(
      kerv, kernel_fn=kernel, window_strides=(1, 1), padding="SAME", feature_group_count=1
    )
    both = lambda lhs, rhs, g: jax.vjp(run, lhs, rhs)[1](g)  # noqa: E731
    out = jax.eval_shape(run, lhs, rhs)
    program = jax.jit(both).lower(lhs, rhs, out).compile()
    return program.memory_analysis().temp_size_in_bytes, 4 * out.size

  found, out = temp(kernel)
  # A smooth maximum and a norm keep the largest term, an extreme value which pair attains it.
  # With JAX 0.12 a smooth maximum keeps one more.
  more = 2.01 if kernel.reduction == "logsumexp" and jax.__version_info__ >= (0, 12) else 1.01
  assert found <= temp(kernels.L1())[0] + more * out


# Layers


@pytest.mark.parametrize("kernel", [kernels.Huber(0.8), kernels.MaxPlus(), kernels.Minkowski()])
def test_layers_are_the_kernel_of_every_patch(kernel, promotion):
  x = operands((2, 5, 6, 3))[0]
  conv, dense = KervConv(4, (3, 3), kernel_fn=kernel), KervDense(4, kernel_fn=kernel)
  transposed = KervConvTranspose(4, (3, 3), strides=(2, 2), kernel_fn=kernel)
  for layer, patch, place in [
    (conv, x[0, 1:4, 2:5], (0, 2, 3)),
    (dense, x[0, 1, 2], (0, 1, 2)),
    (transposed, jnp.zeros((3, 3, 3)).at[1, 1].set(x[0, 1, 2]), (0, 3, 5)),
  ]:
    variables = layer.init(jax.random.key(0), x)
    filters = variables["params"]["kernel"].reshape(-1, 4).T
    found = layer.apply(variables, x)[place]
    close(found, kernel(patch.reshape(-1), filters))
  for make in (
    functools.partial(kerv_nnx.KervConv, 3, 4, (3, 3)),
    functools.partial(kerv_nnx.KervDense, 3, 4),
  ):
    layer = make(kernel_fn=kernel, rngs=nnx.Rngs(0))
    other = conv if isinstance(layer, nnx.Conv) else dense
    params = {"kernel": layer.kernel[...], "bias": layer.bias[...]}
    close(layer(x), other.apply({"params": params}, x))


@pytest.mark.parametrize("kernel", HYPER, ids=name)
@pytest.mark.parametrize("per_feature", [False, True])
def test_hyperparameters_of_terms_learn(kernel, per_feature, promotion):
  x = operands((2, 5, 6, 3))[0]
  layer = KervConv(4, (3, 3), kernel_fn=kernel, learnable=True, per_feature=per_feature)
  variables = layer.init(jax.random.key(0), x)
  names = kernel.hyperparameters()
  close(hyperparameters(layer, variables, x), {
    n: np.broadcast_to(v, (4,) if per_feature else ()) for n, v in names.items()
  })  # fmt: skip
  gradient = jax.grad(lambda v: jnp.sum(jnp.sin(layer.apply(v, x))))(variables)["params"]
  assert set(gradient) == {"kernel", "bias", *names}
  for parameter in names:
    assert gradient[parameter].shape == ((4,) if per_feature else ())
    assert jnp.all(gradient[parameter] != 0)


def test_an_exponent_stays_above_one_while_it_learns(promotion):
  x = operands((2, 5, 6, 3))[0]
  layer = KervConv(4, (3, 3), kernel_fn=kernels.Minkowski(1.5), learnable=True)
  variables = layer.init(jax.random.key(0), x)
  np.testing.assert_allclose(variables["params"]["p"], np.log(np.expm1(0.5)), rtol=1e-5)
  moved = jax.tree.map(lambda v: v - 100.0, variables)
  value = hyperparameters(layer, moved, x)["p"]
  assert 1 <= value < 1.001
  assert jnp.all(jnp.isfinite(layer.apply(moved, x)))
  with pytest.raises(ValueError, match="learnable `p` must start above 1"):
    KervConv(4, (3, 3), kernel_fn=kernels.Minkowski(1.0), learnable=True)


def test_kervolve(promotion):
  model = kervolve(nn.Sequential([nn.Conv(4, (3, 3)), nn.relu, nn.Conv(2, (1, 1))]), MaxWave(0.7))
  x = operands((2, 5, 6, 3))[0]
  variables = model.init(jax.random.key(0), x)
  layers = [
    KervConv(4, (3, 3), kernel_fn=MaxWave(0.7)),
    KervConv(2, (1, 1), kernel_fn=MaxWave(0.7)),
  ]
  first, last = variables["params"]["layers_0"], variables["params"]["layers_2"]
  hidden = nn.relu(layers[0].apply({"params": first}, x))
  close(model.apply(variables, x), layers[1].apply({"params": last}, hidden))


def test_errors_name_the_term():
  lhs, rhs = operands()

  class Stacks(AdditiveKernel):
    def term(self, x, w):
      return jnp.stack([x * w, x + w])

  class Forgets(AdditiveKernel):
    def term(self, x, w):
      x - w

  with pytest.raises(ValueError, match=r"`term` of Forgets must return an array .*, got None"):
    kerv(lhs, rhs, Forgets())
  with pytest.raises(ValueError, match="`term` of Stacks must be a real pointwise function"):
    kerv(lhs, rhs, Stacks())


@pytest.mark.parametrize("method", ["auto", "patches"])
@pytest.mark.parametrize("reduction", ["min", "logsumexp"])
@pytest.mark.parametrize("form", ["cpu", "accelerator"])
def test_an_infinite_pair_that_has_no_part_has_none_in_derivatives(
  form, reduction, method, monkeypatch
):
  if form == "accelerator":
    as_accelerators(monkeypatch)
  sign, shape = (1.0, reduction) if reduction == "min" else (-1.0, reduction)

  class Nearest(AdditiveKernel):
    reduction = shape

    def term(self, x, w):
      return sign * jnp.square(x - w)

  lhs, rhs = operands((1, 4, 5, 2), (3, 3, 2, 2))
  options = {"window_strides": (1, 1), "rhs_dilation": (1, 1), "feature_group_count": 1}
  padded = jnp.pad(lhs, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=jnp.inf)
  out = lambda lhs, rhs, method: jnp.sum(  # noqa: E731
    kerv(lhs, rhs, Nearest(), padding="VALID", method=method, **options)
  )
  found = jax.grad(out, (0, 1))(padded, rhs, method)
  far = jnp.where(jnp.isinf(padded), 1e6, padded)  # of no part, and finite
  close(found, jax.grad(out, (0, 1))(far, rhs, "patches"))


def test_what_a_term_reads_may_change():
  lhs, rhs = operands()
  factor = 1.0

  class Scaled(AdditiveKernel):
    power = 1

    def term(self, x, w):
      return factor * jnp.abs(x - w) ** self.power

  once = kerv(lhs, rhs, Scaled())
  factor = jnp.float32(3.0)
  close(kerv(lhs, rhs, Scaled()), 3 * once)
  factor = jnp.float32(5.0)
  close(kerv(lhs, rhs, Scaled()), 5 * once)
  Scaled.power = 2
  close(kerv(lhs, rhs, Scaled()), kerv(lhs, rhs, Scaled(), method="patches"))


def test_a_term_that_closes_over_a_traced_value_is_told_so():
  lhs, rhs = operands()

  def scaled(scale):
    class Scaled(AdditiveKernel):
      def term(self, x, w):
        return scale * (x - w)

    return jnp.sum(kerv(lhs, rhs, Scaled()))

  assert jnp.isfinite(scaled(jnp.float32(2)))  # a constant
  for transformed in (jax.jit(scaled), jax.grad(scaled), jax.jit(jax.grad(scaled))):
    with pytest.raises(ValueError, match=r"`term` of .*Scaled\(\) closes over a traced value"):
      transformed(2.0)


def test_the_public_operator_takes_its_method():
  lhs, rhs = operands()
  run = functools.partial(
    kerv_general_dilated, lhs, rhs, (2, 1), ((1, 2), (0, 1)), None, (1, 2), NHWC, 2
  )
  for method in ("auto", "conv", "patches"):
    close(run(kernel_fn=kernels.Huber(), method=method), run(kernel_fn=kernels.Huber()))
