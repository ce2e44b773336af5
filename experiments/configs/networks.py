"""From a configuration to the network that it names."""

import dataclasses
from typing import Any

import flax.linen as nn
import numpy as np

from experiments import UsageError
from experiments.configs.config import ModelConfig
from kerv_jax.initializers import whitening
from kerv_jax.models import Description

WHITENED = 5000
"""Training images whose patches decide the whitening of fastnet."""


def describe(config: ModelConfig, **sees: Any) -> Description:
  """Returns the description of a network that can be used once it is trained.

  Args:
    config: configuration of the network.
    **sees: what it sees, by the names of `Description`: its `image_shape`, `num_classes`, ...

  Raises:
    UsageError: if that cannot be.
  """
  values = dataclasses.asdict(config)
  del values["remat"]  # how it is trained
  try:
    return Description(**values, **sees)
  except ValueError as error:
    raise UsageError(f"such a network cannot be: {error}") from error


def network(
  config: ModelConfig, description: Description, images: np.ndarray | None = None
) -> nn.Module:
  """Returns the network to train.

  Args:
    config: configuration of the network.
    description: what `describe` made of it.
    images: training images as the network sees them, for fastnet's whitening; without them its
      filters are random.
  """
  changes: dict[str, Any] = {"remat": True} if config.remat else {}
  if images is not None:
    changes["whitening_init"] = whitening(images)
  return description.network().clone(**changes)
