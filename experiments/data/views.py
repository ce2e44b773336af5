"""Several looks at each image that is tested, whose scores are averaged."""

from typing import Literal

import jax
import jax.numpy as jnp

ViewsName = Literal["mirrored", "shifted"]


def views_of(name: ViewsName, images: jax.Array) -> tuple[jax.Array, tuple[float, ...]]:
  """Returns the looks at images, and how much the scores of each count.

  Args:
    name: "mirrored" is each image and its mirror image; "shifted" is both, and, for half of the
      weight, both shifted by a pixel up and left and by one down and right, with reflection.
    images: images, (batch, height, width, channels), height and width at least 2.

  Returns:
    Images, (views, batch, height, width, channels), and the weights, which sum to 1.
  """
  height, width = images.shape[1:3]
  looks, weights = [images], (0.5, 0.5)
  if name == "shifted":
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), "reflect")
    looks += [padded[:, :height, :width], padded[:, 2:, 2:]]
    weights = (0.25, 0.125, 0.125) * 2
  return jnp.stack([*looks, *(look[:, :, ::-1] for look in looks)]), weights
