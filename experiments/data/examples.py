"""What a data set in memory is."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Examples:
  """Labelled images.

  Attributes:
    images: images, uint8, (number, height, width, channels).
    labels: classes, int32 from 0, (number,).
  """

  images: np.ndarray
  labels: np.ndarray

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, index: np.ndarray) -> "Examples":
    return Examples(self.images[index], self.labels[index])


@dataclasses.dataclass(frozen=True)
class Dataset:
  """A data set that is held in memory.

  Attributes:
    train: the training set.
    test: the test set; its images have the shape of the training images.
    description: a line that says what it is.
    num_classes: number of classes; labels are below it.
    validation: part of the training set that is not trained on; None for none.
  """

  train: Examples
  test: Examples
  description: str
  num_classes: int
  validation: Examples | None = None
