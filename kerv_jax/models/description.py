"""What a network is, in values of JSON's types: a name and a few options, none of which is code."""

import dataclasses
import functools
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from kerv_jax import kernels
from kerv_jax.kernels.definitions import at_least_float32
from kerv_jax.models.deep import deep
from kerv_jax.models.densenet import DenseNet
from kerv_jax.models.fastnet import FastNet
from kerv_jax.models.googlenet import GoogLeNet
from kerv_jax.models.lenet import LeNet5
from kerv_jax.models.resnet import CifarResNet, ResNet18, ResNet34, ResNet50, ResNet101
from kerv_jax.nn import KervConv

ModelName = Literal[
  "lenet5",
  "fastnet",
  "resnet8",
  "resnet20",
  "resnet32",
  "resnet110",
  "googlenet",
  "densenet40",
  "resnet18",
  "resnet34",
  "resnet50",
  "resnet101",
]
KernelName = Literal["polynomial", "gaussian", "sigmoid", "l1", "l2", "cosine"]

KERNELS: dict[KernelName, kernels.Kernel] = {
  "polynomial": kernels.Polynomial(degree=3, balance=1.0),
  "gaussian": kernels.Gaussian(gamma=1.0),
  "sigmoid": kernels.Sigmoid(),
  "l1": kernels.L1(),
  "l2": kernels.L2(),
  "cosine": kernels.Cosine(),
}
"""The paper's kernel functions with its hyperparameters, by name, in its order; and the cosine."""
LEARNABLE: dict[KernelName, tuple[str, ...]] = {"polynomial": ("balance",), "gaussian": ("gamma",)}
"""Hyperparameters that ``Description.learnable`` learns."""

MAX_DEGREE = 1000
"""A power that overflows float32 for all numbers but those within a tenth of 1."""
_LEAST, _LARGEST = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "max"))
"""The smallest positive number of float32 that no device takes for 0, and the largest."""
_MAX_CLASSES, _MAX_SIDE, _MAX_WIDTH, _MAX_STEP = 2**20, 2**16, 4096, 2**53
_LATER = {"recipe", "step"}
"""Attributes that older descriptions do not have."""

_CLASSES: Mapping[str, Callable[..., nn.Module]] = {
  "resnet18": ResNet18,
  "resnet34": ResNet34,
  "resnet50": ResNet50,
  "resnet101": ResNet101,
  "googlenet": GoogLeNet,
  "densenet40": DenseNet,
  **{f"resnet{n}": functools.partial(CifarResNet, depth=n) for n in (8, 20, 32, 110)},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
  """A network of this package, and what it sees, described by values of JSON's types.

  Attributes:
    name: "lenet5", "fastnet", "resnet8", "resnet20", "resnet32", "resnet110", "googlenet",
      "densenet40", "resnet18", "resnet34", "resnet50" or "resnet101".
    kernel: kernel function of the kervolutions, "polynomial", "gaussian", "sigmoid", "l1", "l2" or
      "cosine"; "none" is the CNN.
    layers: which convolutions are kervolutions, the "first" or "all".
    degree: of the polynomial, from 1 to 1000.
    balance: of the polynomial, at least 0; where it is learned, its start.
    gamma: of the Gaussian, positive; where it is learned, its start.
    learnable: whether the balance or gamma is learned.
    dtype: of the computation, "float32", "bfloat16" or "float64".
    widths: features of the three groups of "fastnet"; None for its default, and for the others.
    num_classes: outputs of the last layer.
    image_shape: (height, width, channels) of an image.
    mean: what is taken from each channel of images in [0, 1], or one value for all.
    std: what each channel is divided by then, a positive normal number of float32, or one for all.
    recipe: "deep" for kervolutions that are those of :func:`kerv_jax.models.deep`, where ``gamma``
      counts by element of the patch; None for ``KervConv``.
    resize: the shorter side in pixels to which an image of any size is brought, before its center
      is cut out; None for a network whose images have one size.
    step: steps of training that its variables have had; None where nobody has counted.

  Raises:
    ValueError: if a value is not as above, or of another type; the message names it.

  Example:
    >>> from kerv_jax.models import Description
    >>> description = Description(name="lenet5", kernel="gaussian", image_shape=(28, 28, 1))
    >>> description.network().conv1.keywords["kernel_fn"]
    Gaussian(gamma=1.0)
    >>> Description.from_json(description.to_json()) == description
    True
  """

  name: ModelName
  kernel: Literal["none", KernelName] = "polynomial"
  layers: Literal["first", "all"] = "first"
  degree: int = 3
  balance: float = 1.0
  gamma: float = 1.0
  learnable: bool = False
  dtype: Literal["float32", "bfloat16", "float64"] = "float32"
  widths: tuple[int, ...] | None = None
  num_classes: int = 10
  image_shape: tuple[int, ...]
  mean: tuple[float, ...] = (0.0,)
  std: tuple[float, ...] = (1.0,)
  resize: int | None = None
  recipe: Literal["deep"] | None = None
  step: int | None = None

  def __post_init__(self):
    hints = typing.get_type_hints(type(self))
    for field in ("name", "kernel", "layers", "dtype"):
      names = typing.get_args(hints[field])
      if not (isinstance(value := getattr(self, field), str) and value in names):
        raise ValueError(f"`{field}` must be one of {', '.join(names)}, got {_short(value)}")
    if self.recipe not in (None, "deep") or (self.recipe and self.kernel == "none"):
      raise ValueError(
        "`recipe` must be None, or 'deep' for kervolutions, got "
        f"{_short(self.recipe)} with `kernel` {self.kernel!r}"
      )
    if type(self.learnable) is not bool:
      raise ValueError(f"`learnable` must be true or false, got {_short(self.learnable)}")
    if self.learnable and self.kernel not in LEARNABLE:
      able = " or ".join(LEARNABLE)
      raise ValueError(f"`learnable` needs `kernel` to be {able}, got {self.kernel!r}")
    self._integers("degree", 1, 1, MAX_DEGREE)
    self._integers("num_classes", 1, 1, _MAX_CLASSES)
    self._integers("image_shape", 3, 1, _MAX_SIDE)
    if self.widths is not None:
      self._integers("widths", 3, 1, _MAX_WIDTH)
      if self.name != "fastnet":
        raise ValueError(f"`widths` is for fastnet alone, got {self.widths} for {self.name}")
    if self.resize is not None:
      self._integers("resize", 1, max(self.image_shape[:2]), _MAX_SIDE)
    if self.step is not None:
      self._integers("step", 1, 0, _MAX_STEP)
    least = "positive, since it is learned," if self._learns_balance else "at least 0"
    self._numbers(
      "balance",
      (None,),
      lambda value: value >= _LEAST or (value == 0 and not self._learns_balance),
      f"{least} and finite in float32",
    )
    self._numbers("gamma", (None,), lambda value: value >= _LEAST, "positive and finite in float32")
    lengths, each = (1, self.image_shape[2]), "one or one for each channel"
    self._numbers("mean", lengths, lambda value: True, f"finite in float32, {each}")
    self._numbers("std", lengths, lambda value: value >= _LEAST, f"at least {_LEAST:g}, {each}")

  @property
  def _learns_balance(self) -> bool:
    return self.learnable and self.kernel == "polynomial"

  def _integers(self, name: str, length: int, least: int, most: int) -> None:
    """Checks whole numbers: one, or a tuple of so many."""
    value = getattr(self, name)
    values = value if isinstance(value, tuple | list) else (value,)
    single = length == 1
    if (
      isinstance(value, tuple | list) == single
      or len(values) != length
      or not all(type(each) is int and least <= each <= most for each in values)
    ):
      what = "a whole number" if single else f"{length} whole numbers"
      raise ValueError(f"`{name}` must be {what} from {least} to {most}, got {_short(value)}")
    object.__setattr__(self, name, value if single else tuple(value))

  def _numbers(
    self, name: str, lengths: tuple[int | None, ...], allowed: Callable[[float], bool], told: str
  ) -> None:
    """Checks numbers: one, for the length None, or a tuple of one of these lengths."""
    value = getattr(self, name)
    listed = isinstance(value, tuple | list)
    values = value if listed else (value,)
    if (len(values) if listed else None) not in lengths or not all(
      type(each) in (int, float) and abs(each) <= _LARGEST and allowed(each) for each in values
    ):
      raise ValueError(f"`{name}` must be {told}, got {_short(value)}")
    floats = tuple(map(float, values))
    object.__setattr__(self, name, floats if listed else floats[0])

  def to_json(self) -> str:
    """Returns all of it as a JSON object.

    Returns:
      The text, in one line.
    """
    return json.dumps(dataclasses.asdict(self))

  @classmethod
  def from_json(cls, text: str) -> "Description":
    """Returns what a text of ``to_json`` describes; nothing in it is ever executed.

    Args:
      text: the text.

    Returns:
      The description.

    Raises:
      ValueError: if it is not such a text, or describes what cannot be.
    """
    try:
      values = json.loads(text)
    except (ValueError, RecursionError) as error:
      raise ValueError(f"the description of the network is no JSON: {error}") from None
    names = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(values, Mapping):
      raise ValueError(f"the description of the network must be an object, got {_short(values)}")
    unknown, missing = values.keys() - names, names - _LATER - values.keys()
    if unknown or missing:
      kind, wrong = ("unknown", unknown) if unknown else ("missing", missing)
      raise ValueError(
        f"{kind} in the description of the network: {_short(', '.join(sorted(wrong)))}; it must "
        f"have {', '.join(sorted(names))}"
      )
    return cls(**values)

  def network(self) -> nn.Module:
    """Returns the network, a linen module from images to scores of classes.

    Returns:
      One of ``kerv_jax.models``.
    """
    kerv = self._kervolution()
    rest = kerv if self.layers == "all" else nn.Conv
    if self.name == "lenet5":
      return LeNet5(num_classes=self.num_classes, conv1=kerv, conv2=rest)
    options: dict[str, Any] = {
      "num_classes": self.num_classes,
      "conv": rest,
      "stem": kerv,
      "dtype": jnp.bfloat16 if self.dtype == "bfloat16" else None,
    }
    if self.name == "fastnet":
      return FastNet(self.widths or FastNet.widths, **options)
    return _CLASSES[self.name](**options)

  def _kervolution(self) -> Callable[..., nn.Module]:
    """Returns the class of the kervolutional layers; of convolutions for the CNN."""
    if self.kernel == "none":
      return nn.Conv
    known = KERNELS[self.kernel]
    own = {field.name for field in dataclasses.fields(known)} & {"degree", "balance", "gamma"}
    kernel_fn = dataclasses.replace(known, **{name: getattr(self, name) for name in own})
    learnable = LEARNABLE.get(self.kernel, ()) if self.learnable else ()
    if self.recipe == "deep":
      return deep(kernel_fn, learnable=learnable)
    return functools.partial(KervConv, kernel_fn=kernel_fn, learnable=learnable)


def normalized(
  images: jax.Array, mean: tuple[float, ...], std: tuple[float, ...], dtype: Any = jnp.float32
) -> jax.Array:
  """Images as a network sees them: in [0, 1], without their mean, divided by their deviation.

  Args:
    images: uint8, (..., channels).
    mean: of each channel, or one for all.
    std: of each channel, or one for all.
    dtype: of the result; the arithmetic is in it, and in float32 at least.

  Returns:
    The images, of the same shape.
  """
  wide = at_least_float32(dtype)
  scaled = images.astype(wide) / 255
  if mean != (0.0,):
    scaled = scaled - _along_channels(mean, scaled)
  if std != (1.0,):
    scaled = scaled / _along_channels(std, scaled)
  return scaled.astype(dtype)


def _along_channels(values: tuple[float, ...], images: jax.Array) -> jax.Array:
  return jax.lax.expand_dims(jnp.asarray(values, images.dtype), range(images.ndim - 1))


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 80 else f"{text[:77]}..."
