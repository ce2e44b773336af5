"""Pieces of an image of any size, as networks for ImageNet are trained and evaluated on."""

import math

import numpy as np
from PIL import Image

AREA = (0.08, 1.0)
"""Part of an image that a random crop covers, least and most."""
ASPECT = (3 / 4, 4 / 3)
"""Width by height of a random crop, least and most."""


def random_crop(image: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
  """Returns a random piece, resized to a square, and every other time mirrored.

  As in torchvision's `RandomResizedCrop` and `RandomHorizontalFlip`: the area uniform, the aspect
  ratio uniform in the logarithm, bilinear with antialiasing; what does not fit is drawn again, and
  after ten times the largest central piece of an allowed ratio is taken.

  Args:
    image: image of any size.
    size: sides of the result in pixels.
    rng: generator that decides.

  Returns:
    The piece.
  """
  piece = image.crop(random_box(*image.size, rng)).resize((size, size), Image.Resampling.BILINEAR)
  mirrored = rng.random() < 0.5
  return piece.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else piece


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
  """Returns where a random piece is, see `random_crop`.

  Args:
    width: width of the image in pixels.
    height: height of the image in pixels.
    rng: generator that decides.

  Returns:
    Left, top, right and bottom, the latter two exclusive.
  """
  for _ in range(10):
    area = width * height * rng.uniform(*AREA)
    aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
    w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
    if 0 < w <= width and 0 < h <= height:
      left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
      return left, top, left + w, top + h
  w = min(width, round(height * ASPECT[1]))
  h = min(height, round(width / ASPECT[0]))
  left, top = (width - w) // 2, (height - h) // 2
  return left, top, left + w, top + h


def evaluation_crops(image: Image.Image, size: int, resize: int, crops: int) -> list[Image.Image]:
  """Returns the pieces to evaluate an image on, as torchvision's `Resize` and `TenCrop`.

  Args:
    image: image of any size.
    size: sides of each piece in pixels.
    resize: the shorter side of the image in pixels before it is cut, bilinear with antialiasing.
    crops: number of pieces: 1 for the centre; 10 for the corners and the centre, and the same of
      the image mirrored.

  Returns:
    The pieces.
  """
  width, height = image.size
  short = min(width, height)
  width, height = width * resize // short, height * resize // short
  image = image.resize((width, height), Image.Resampling.BILINEAR)
  right, bottom = width - size, height - size
  centre = round(right / 2), round(bottom / 2)
  corners = [(0, 0), (right, 0), (0, bottom), (right, bottom)] if crops == 10 else []
  mirrored = [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)] if crops == 10 else []
  return [
    view.crop((x, y, x + size, y + size))
    for view in [image, *mirrored]
    for x, y in [*corners, centre]
  ]
