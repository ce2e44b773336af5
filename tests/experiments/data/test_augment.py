import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs the extra 'experiments'")

from experiments import UsageError, data

# Augmentation

KEY = jax.random.key(5)


def variants(image, pad, flip):
  """Every result of an augmentation, by (mirrored, first row, first column)."""
  height, width, _ = image.shape
  found = {}
  for mirrored in (False, True) if flip else (False,):
    turned = image[:, ::-1] if mirrored else image
    padded = np.pad(turned, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    for row, column in itertools.product(range(2 * pad + 1), repeat=2):
      piece = padded[row : row + height, column : column + width]
      found[mirrored, row, column] = np.ascontiguousarray(piece)
  return found


@pytest.mark.parametrize(("flip", "pad"), [(True, 2), (False, 4), (True, 0)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_augmented_image_is_a_crop_of_the_padded_one(flip, pad, dtype):
  images = np.random.default_rng(0).integers(0, 256, (40, 11, 10, 3)).astype(dtype)
  step = jax.jit(lambda x: data.augment(data.Augmentation(flip, pad), x, KEY, 3, jnp.arange(40)))
  augmented = np.asarray(step(images))
  assert augmented.dtype == dtype
  chosen = []
  for image, result in zip(images, augmented, strict=True):
    (place,) = (k for k, v in variants(image, pad, flip).items() if np.array_equal(v, result))
    chosen.append(place)
  assert len(set(chosen)) > (1 if pad == 0 else 20)


def test_augmentations_are_equally_likely():
  image = np.random.default_rng(0).integers(0, 256, (9, 8, 3)).astype(np.uint8)
  number, pad = 20_000, 2
  images = np.broadcast_to(image, (number, 9, 8, 3))
  results = data.augment(data.Augmentation(True, pad), images, KEY, 0, jnp.arange(number))
  found = {bytes(result.tobytes()): 0 for result in variants(image, pad, True).values()}
  assert len(found) == 50
  for result in np.asarray(results):
    found[result.tobytes()] += 1
  counts = np.array(list(found.values()))
  chi_square = np.sum((counts - number / 50) ** 2) / (number / 50)
  assert chi_square < 85.4  # its quantile 0.999 for 49 degrees of freedom


def test_augmentation_depends_on_run_step_and_example_alone():
  images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1)).astype(np.uint8)
  ids = np.random.default_rng(1).permutation(1000)[:30].astype(np.int32)
  augmentation = data.Augmentation(True, 3)

  def augment(rows, key=KEY, step=7, ids=ids):
    return np.asarray(data.augment(augmentation, images[rows], key, step, ids[rows]))

  whole = augment(np.arange(30))
  order = np.random.default_rng(2).permutation(30)
  np.testing.assert_array_equal(augment(order), whole[order])
  for row in (0, 13):
    np.testing.assert_array_equal(augment(np.array([row]))[0], whole[row])
  jitted = jax.jit(lambda images, step, ids: data.augment(augmentation, images, KEY, step, ids))
  np.testing.assert_array_equal(jitted(images, np.int32(7), ids), whole)
  for other in ({"key": jax.random.key(6)}, {"step": 8}, {"ids": ids + 1}):
    changed = np.any(augment(np.arange(30), **other) != whole, axis=(1, 2, 3))
    assert changed.mean() > 0.8
  swapped = data.augment(augmentation, np.stack([images[0]] * 2), KEY, 1, np.array([2, 3]))
  again = data.augment(augmentation, images[:1], KEY, 2, np.array([1]))
  assert np.any(swapped[0] != again[0])  # step 1 of example 2 is not step 2 of example 1


def test_no_augmentation_leaves_images_alone():
  images = jnp.arange(90, dtype=jnp.uint8).reshape(1, 6, 5, 3)
  assert data.augment(data.Augmentation(), images, KEY, 0, jnp.arange(1)) is images


@pytest.mark.parametrize("pad", [5, -1])
def test_padding_that_does_not_fit_is_refused(pad):
  images = jnp.zeros((1, 6, 5, 3), jnp.uint8)
  with pytest.raises(ValueError, match=f"`pad` must be .*6x5, got {pad}"):
    data.augment(data.Augmentation(pad=pad), images, KEY, 0, jnp.arange(1))


# Normalisation


def test_unit_normalisation_is_division_by_255():
  images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
  np.testing.assert_array_equal(data.UNIT(images), images / np.float32(255))


@pytest.mark.parametrize("channels", [1, 3])
def test_normalisation_by_channel(channels):
  rng = np.random.default_rng(0)
  images = rng.integers(0, [[[[90, 200, 256][:channels]]]], (50, 7, 5, channels)).astype(np.uint8)
  normalisation = data.Normalisation.by_channel(images)
  scaled = images.astype(np.float64) / 255
  np.testing.assert_allclose(normalisation.mean, scaled.mean(axis=(0, 1, 2)), rtol=1e-13)
  np.testing.assert_allclose(normalisation.std, scaled.std(axis=(0, 1, 2)), rtol=1e-13)
  wanted = (scaled - scaled.mean(axis=(0, 1, 2))) / scaled.std(axis=(0, 1, 2))
  result = normalisation(jnp.asarray(images))
  assert result.dtype == jnp.float32
  np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)
  with jax.enable_x64(True):
    double = normalisation(jnp.asarray(images), jnp.float64)
    np.testing.assert_allclose(double, wanted, rtol=1e-12, atol=1e-14)
  half = normalisation(jnp.asarray(images), jnp.bfloat16)
  assert half.dtype == jnp.bfloat16
  np.testing.assert_array_equal(half, result.astype(jnp.bfloat16))


def test_channel_that_is_constant_is_refused():
  images = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3)).astype(np.uint8)
  images[..., 1] = 17
  with pytest.raises(UsageError, match="channel 1 is 17 everywhere"):
    data.Normalisation.by_channel(images)


def test_normalisation_of_other_channels_is_refused():
  with pytest.raises(ValueError, match=r"must have 1 value, or 1 .* got 3 and 3"):
    data.IMAGENET(jnp.zeros((1, 4, 4, 1), jnp.uint8))
