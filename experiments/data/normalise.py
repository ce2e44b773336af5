"""From bytes to the numbers that a network sees."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments import UsageError
from kerv_jax.models.description import normalized


@dataclasses.dataclass(frozen=True)
class Normalisation:
  """Takes `mean` from each channel of images in [0, 1], and divides it by `std`.

  Attributes:
    mean: mean of each channel, or one for all.
    std: standard deviation of each channel, or one for all.
  """

  mean: tuple[float, ...] = (0.0,)
  std: tuple[float, ...] = (1.0,)

  @classmethod
  def by_channel(cls, images: np.ndarray) -> "Normalisation":
    """Returns what brings these images to mean 0 and standard deviation 1, by channel.

    Args:
      images: images, uint8, (number, height, width, channels), all of the training set.

    Returns:
      The normalisation, exact: from integer sums, in float64.

    Raises:
      UsageError: if a channel is the same everywhere.
    """
    values = np.arange(256) / 255
    moments = []
    for channel in range(images.shape[-1]):
      counts = np.bincount(images[..., channel].ravel(), minlength=256)
      mean = np.average(values, weights=counts)
      std = np.sqrt(np.average((values - mean) ** 2, weights=counts))
      if std == 0:
        raise UsageError(
          "normalisation by channel needs images that differ, got a training set whose channel "
          f"{channel} is {values[counts.argmax()] * 255:g} everywhere; images in [0, 1] will do"
        )
      moments.append((float(mean), float(std)))
    mean, std = zip(*moments, strict=True)
    return cls(mean, std)

  def __call__(self, images: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """Normalises images.

    Args:
      images: images, uint8, (..., channels).
      dtype: type of the result; the arithmetic is in float32, or in `dtype` where that is wider.

    Returns:
      The images, of the same shape.

    Raises:
      ValueError: if the number of channels is another.
    """
    if {len(self.mean), len(self.std)} - {1, images.shape[-1]}:
      raise ValueError(
        f"`mean` and `std` must have 1 value, or {images.shape[-1]} for so many channels, got "
        f"{len(self.mean)} and {len(self.std)}"
      )
    return normalized(images, self.mean, self.std, dtype)


UNIT = Normalisation()
"""Images in [0, 1]."""

IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Means and standard deviations of ImageNet's training set, as torchvision has them."""
