"""The network of the fast recipe, its initializers, and lookahead."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kerv_jax.initializers import dirac_kernel_init, torch_kernel_init, whitening
from kerv_jax.kernels import Polynomial
from kerv_jax.models import FastNet
from kerv_jax.nn import KervConv
from kerv_jax.optim import lookahead

optax = pytest.importorskip("optax", reason="needs the extra 'experiments'")

KEY = jax.random.key(0)


def pictures(number=30, side=12):
  """Images whose neighbouring pixels and channels are alike."""
  noise = np.random.default_rng(0).normal(size=(number, side + 1, side + 1, 4))
  smooth = noise[:, 1:, 1:] + noise[:, :-1, 1:] + 0.5 * noise[:, 1:, :-1]
  return (smooth[..., :3] + smooth[..., 1:] * [0.2, 0.4, 0.9]).astype(np.float32)


def test_whitening_makes_patches_white():
  images = pictures()
  filters = np.asarray(whitening(images, 1e-9)(KEY, (2, 2, 3, 24)))
  patches = [
    image[i : i + 2, j : j + 2].ravel() for image in images for i in range(11) for j in range(11)
  ]
  seen = np.asarray(patches, np.float64) @ filters.reshape(12, 24)
  covariance = np.cov(seen.T, bias=True)
  np.testing.assert_allclose(covariance[:12, :12], np.eye(12), atol=2e-4)
  np.testing.assert_array_equal(filters[..., 12:], -filters[..., :12])
  lengths = np.linalg.norm(filters.reshape(12, 24), axis=0)[:12]
  assert (np.diff(lengths) > 0).all()  # the largest eigenvalue first
  few = whitening(images, 1e-9)(KEY, (2, 2, 3, 4))
  np.testing.assert_array_equal(few, filters[..., [0, 1, 12, 13]])


@pytest.mark.parametrize("shape", [(2, 2, 3, 5), (2, 2, 3, 26), (2, 2, 1, 2), (13, 2, 3, 4)])
def test_whitening_of_another_shape_is_refused(shape):
  with pytest.raises(ValueError, match="`shape` must be"):
    whitening(pictures())(KEY, shape)


def test_whitening_of_no_images_is_refused():
  with pytest.raises(ValueError, match="`images` must be"):
    whitening(np.zeros((3, 4, 4)))
  with pytest.raises(ValueError, match="`epsilon` must be positive, got 0"):
    whitening(pictures(), 0)


@pytest.mark.parametrize("outputs", [7, 3])
def test_dirac_passes_its_input_on(outputs):
  kernel = np.asarray(dirac_kernel_init(KEY, (3, 3, 5, outputs)))
  x = np.random.default_rng(0).normal(size=(1, 6, 6, 5)).astype(np.float32)
  y = jax.lax.conv_general_dilated(
    x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )
  same = min(outputs, 5)
  np.testing.assert_array_equal(y[..., :same], x[..., :same])
  rest = torch_kernel_init(KEY, (3, 3, 5, outputs))[..., same:]
  np.testing.assert_array_equal(kernel[..., same:], rest)


def test_stem_is_the_first_learned_convolution():
  kerv = functools.partial(KervConv, kernel_fn=Polynomial(3), learnable=True)
  images = jnp.asarray(pictures(4))
  models = [
    FastNet((8, 8, 8), stem=stem, whitening_init=whitening(images)) for stem in (None, kerv)
  ]
  cnn, knn = (model.init(KEY, images) for model in models)
  (name,) = set(knn["params"]["conv1_1"]) - set(cnn["params"]["conv1_1"])
  assert name == "balance"
  del knn["params"]["conv1_1"]["balance"]
  for one, other in zip(*map(jax.tree.leaves, (cnn, knn)), strict=True):
    np.testing.assert_array_equal(one, other)
  assert "scale" not in cnn["params"]["norm1_1"]

  @jax.jit
  def gradient(params):
    return jax.grad(
      lambda p: jnp.sum(
        jnp.square(models[0].apply({**cnn, "params": p}, images, True, mutable=["batch_stats"])[0])
      )
    )(params)

  found = gradient(cnn["params"])
  assert not np.any(found["whitening"]["kernel"])
  assert np.any(found["whitening"]["bias"])


def test_images_that_are_too_small_are_refused():
  with pytest.raises(ValueError, match="at least 9"):
    FastNet((8, 8, 8)).init(KEY, jnp.zeros((1, 8, 8, 3)))
  with pytest.raises(ValueError, match=r"`widths` must be three positive numbers, got \(8, 8\)"):
    FastNet((8, 8)).init(KEY, jnp.zeros((1, 9, 9, 3)))


def test_lookahead_step_by_step():
  gradients = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
  total, every, decay = 7, 2, 0.8
  optimizer = lookahead(optax.sgd(0.1, 0.9), total, every, decay)
  params = {"w": jnp.asarray([1.0, -2.0, 3.0])}
  state = optimizer.init(params)
  slow = fast = np.asarray(params["w"], np.float64)
  buffer = np.zeros(3)
  for step, gradient in enumerate(gradients, start=1):
    updates, state = optimizer.update({"w": jnp.asarray(gradient)}, state, params)
    params = optax.apply_updates(params, updates)
    buffer = 0.9 * buffer + gradient
    fast = fast - 0.1 * buffer
    if step % every == 0:
      part = decay**every * (step / total) ** 3
      fast = slow = part * slow + (1 - part) * fast
    if step == total:
      fast = slow
    np.testing.assert_allclose(params["w"], fast, rtol=1e-5)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"total_steps": 0}, "`total_steps` must be at least 1, got 0"),
    ({"total_steps": 3, "every": 0}, "`every` must be at least 1, got 0"),
    ({"total_steps": 3, "decay": 2}, "`decay` must be from 0 to 1, got 2"),
  ],
)
def test_lookahead_that_makes_no_sense_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    lookahead(optax.sgd(0.1), **options)
