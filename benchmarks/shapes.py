"""The shapes that are timed."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


@dataclasses.dataclass(frozen=True)
class Shape:
  """A layer and its input, channels last.

  Attributes:
    name: in tables and files.
    batch: images.
    spatial: their sides.
    in_features: channels of the input.
    out_features: channels of the output.
    window: sides of the filters.
    stride: along every side.
    padding: "SAME" or "VALID".
    groups: of features.
  """

  name: str
  batch: int
  spatial: tuple[int, ...]
  in_features: int
  out_features: int
  window: tuple[int, ...]
  stride: int = 1
  padding: str = "SAME"
  groups: int = 1

  @property
  def lhs(self) -> tuple[int, ...]:
    """Shape of the input."""
    return (self.batch, *self.spatial, self.in_features)

  @property
  def rhs(self) -> tuple[int, ...]:
    """Shape of the filters."""
    return (*self.window, self.in_features // self.groups, self.out_features)

  @property
  def out(self) -> tuple[int, ...]:
    """Shape of the output."""
    sides = zip(self.spatial, self.window, strict=True)
    if self.padding == "SAME":
      spatial = [-(-side // self.stride) for side in self.spatial]
    else:
      spatial = [(side - taps) // self.stride + 1 for side, taps in sides]
    return (self.batch, *spatial, self.out_features)

  @property
  def terms(self) -> int:
    """Products, or differences, that the definition sums over in the whole output."""
    return math.prod(self.out) * math.prod(self.rhs[:-1])

  @property
  def planar(self) -> bool:
    """Whether it is of the kind that the rivals in PyTorch know: images, one group."""
    return len(self.spatial) == 2 and self.groups == 1

  def options(self) -> dict[str, Any]:
    """Arguments of `lax.conv_general_dilated` beside the operands."""
    space = "DHW"[-len(self.spatial) :]
    return {
      "window_strides": (self.stride,) * len(self.spatial),
      "padding": self.padding,
      "dimension_numbers": lax.conv_dimension_numbers(
        self.lhs, self.rhs, (f"N{space}C", f"{space}IO", f"N{space}C")
      ),
      "feature_group_count": self.groups,
    }

  def operands(self) -> tuple[Array, Array, Array]:
    """Seeded input in [0, 1), filters of PyTorch's default range, and a cotangent of the output."""
    rng = np.random.default_rng(0)
    bound = math.prod(self.rhs[:-1]) ** -0.5
    lhs = rng.uniform(size=self.lhs)
    rhs = rng.uniform(-bound, bound, self.rhs)
    cotangent = rng.standard_normal(self.out)
    lhs, rhs, cotangent = (jnp.asarray(array, jnp.float32) for array in (lhs, rhs, cotangent))
    return jax.device_put((lhs, rhs, cotangent))


TARGETED = (
  Shape("LeNet conv1", 50, (28, 28), 1, 6, (5, 5)),
  Shape("LeNet conv2", 50, (14, 14), 6, 16, (5, 5), padding="VALID"),
  Shape("CIFAR stem", 128, (32, 32), 3, 16, (3, 3)),
  Shape("CIFAR middle", 64, (32, 32), 16, 16, (3, 3)),
  Shape("ResNet-50 middle", 8, (28, 28), 128, 128, (3, 3)),
  Shape("ImageNet stem", 4, (224, 224), 3, 64, (7, 7), stride=2),
)
"""The six that the targets are about."""

OTHERS = (
  Shape("depthwise", 32, (32, 32), 64, 64, (3, 3), groups=64),
  Shape("8 groups", 4, (32, 32), 64, 64, (3, 3), groups=8),
  Shape("rank 1", 32, (1024,), 32, 32, (9,)),
  Shape("rank 3", 4, (16, 16, 16), 16, 16, (3, 3, 3)),
)
SHAPES = {shape.name: shape for shape in (*TARGETED, *OTHERS)}
"""All shapes by name."""
