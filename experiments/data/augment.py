"""Augmentation on the device, inside the jitted step."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """What is done to training images that are held in memory.

  Attributes:
    flip: whether every other image is mirrored, left to right, at random.
    alternate: steps of an epoch, if mirroring alternates: an image that is mirrored in one epoch is
      not in the next, and the first is random; 0 if each epoch is.
    pad: pixels to reflect around an image before a crop of its own size is taken from it at random;
      0 for none. The edge itself is not repeated.
  """

  flip: bool = False
  pad: int = 0
  alternate: int = 0


def augment(
  augmentation: Augmentation, images: jax.Array, key: jax.Array, step: jax.Array, ids: jax.Array
) -> jax.Array:
  """Augments a batch; what happens to an example depends on (key, step, id) and nothing else.

  Args:
    augmentation: changes to make.
    images: (batch, height, width, channels), of any type.
    key: key of the run, see `jax.random.key`.
    step: step of the run, from 0.
    ids: places of the examples in the training set, integers, (batch,).

  Returns:
    The images, of the same shape and type: not the same place in the batch, nor the other examples
    in it, nor the number of devices has a part in the result.

  Raises:
    ValueError: if the images are too small to be padded.
  """
  height, width = images.shape[1:3]
  flip, pad = augmentation.flip, augmentation.pad
  if not 0 <= pad < min(height, width):
    raise ValueError(
      f"`pad` must be at least 0 and below the image's sides, {height}x{width}, got {pad}"
    )
  if not flip and not pad:
    return images
  run, key = key, jax.random.fold_in(key, step)

  def one(image: jax.Array, identity: jax.Array) -> jax.Array:
    flip_key, crop_key = jax.random.split(jax.random.fold_in(key, identity))
    if flip and augmentation.alternate:
      first = jax.random.bernoulli(jax.random.fold_in(run, identity))
      odd = step // augmentation.alternate % 2 == 1
      image = jnp.where(first ^ odd, image[:, ::-1], image)
    elif flip:
      image = jnp.where(jax.random.bernoulli(flip_key), image[:, ::-1], image)
    if pad:
      rows, columns = jax.random.randint(crop_key, (2,), 0, 2 * pad + 1)
      padded = jnp.pad(image, ((pad, pad), (pad, pad), (0, 0)), "reflect")
      image = jax.lax.dynamic_slice(padded, (rows, columns, 0), image.shape)
    return image

  return jax.vmap(one)(images, ids)
