"""The networks that are compared, by name."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from experiments import UsageError
from experiments.common.layers import AuthorsGaussian, PointwiseConv, VolterraConv
from kerv_jax import kernels
from kerv_jax.models import LeNet5
from kerv_jax.nn import KervConv


@dataclasses.dataclass(frozen=True)
class Arm:
  """A LeNet-5 with layers of its own, and what figures and tables call it."""

  label: str
  conv1: Callable[..., Any] = nn.Conv  # class of the first layer, with what is particular to it
  conv2: Callable[..., Any] = nn.Conv
  relu: bool = True  # activations, with max pooling; without, the pooling is an average
  matches: str | None = None  # the arm whose first step this one's is to be as long as

  def network(self, num_classes: int) -> LeNet5:
    """Returns the network, with a last layer of so many outputs."""
    activation: Any = nn.relu if self.relu else None
    pool: Literal["max", "avg"] = "max" if self.relu else "avg"
    return LeNet5(num_classes, self.conv1, self.conv2, activation=activation, pool=pool)


def _kerv(kernel_fn: kernels.Kernel, **options: Any) -> Callable[..., Any]:
  return functools.partial(KervConv, kernel_fn=kernel_fn, **options)


def _pointwise(function: Callable[..., Any], bias_inside: bool) -> Callable[..., Any]:
  return functools.partial(PointwiseConv, function=function, bias_inside=bias_inside)


def cube(product: Any) -> Any:
  """The profile of the cubic polynomial kernel with balance 1."""
  return (product + 1.0) ** 3


POLYNOMIAL = _kerv(kernels.Polynomial(degree=3, balance=1.0))
GAUSSIAN, SIGMOID = _kerv(kernels.Gaussian(1.0)), _kerv(kernels.Sigmoid())
DEGREES = (2, 3, 5)
BALANCES = (0.5, 1.0, 2.0)

ARMS: dict[str, Arm] = {
  "cnn": Arm("CNN"),
  "polynomial": Arm("polynomial", POLYNOMIAL),
  "gaussian": Arm("Gaussian", GAUSSIAN),
  "sigmoid": Arm("sigmoid", SIGMOID),
  "l1": Arm("L1", _kerv(kernels.L1())),
  "l2": Arm("L2", _kerv(kernels.L2())),
  "conv-kerv": Arm("conv-kerv", nn.Conv, POLYNOMIAL),
  "kerv-kerv": Arm("kerv-kerv", POLYNOMIAL, POLYNOMIAL),
  "linear-cnn": Arm("CNN, no ReLU", relu=False),
  "linear-gaussian-polynomial": Arm(
    "Gaussian-polynomial, no ReLU", GAUSSIAN, POLYNOMIAL, relu=False
  ),
  "linear-polynomial-polynomial": Arm(
    "polynomial-polynomial, no ReLU", POLYNOMIAL, POLYNOMIAL, relu=False
  ),
  "learnable": Arm("learnable balance", _kerv(kernels.Polynomial(3, 1.0), learnable=True)),
  "power-outside": Arm("Conv, then cube", _pointwise(cube, False)),
  "power-inside": Arm("Conv, then cube, bias inside", _pointwise(cube, True)),
  "tanh-outside": Arm("Conv, then tanh", _pointwise(jnp.tanh, False)),
  "tanh-inside": Arm("Conv, then tanh, bias inside", _pointwise(jnp.tanh, True)),
  "cnn-step-polynomial": Arm("CNN, first step of polynomial", matches="polynomial"),
  "cnn-step-gaussian": Arm("CNN, first step of Gaussian", matches="gaussian"),
  "cnn-wide": Arm("CNN, 11 features", functools.partial(nn.Conv, features=11)),
  "volterra": Arm("Volterra", VolterraConv),
  "gaussian-2018": Arm("Gaussian of 2018", AuthorsGaussian),
  "both-gaussian": Arm("Gaussian, both layers", GAUSSIAN, GAUSSIAN),
  "both-sigmoid": Arm("sigmoid, both layers", SIGMOID, SIGMOID),
}
"""By name. Where the label does not say otherwise, the first layer is a kervolution, the second a
convolution, and a polynomial is (<x, w> + 1)^3. The wide CNN has 63,836 parameters, as near as
whole features allow to the 63,656 of the Volterra network; all others have 61,706, or one more."""


def polynomial_name(degree: int, balance: float) -> str:
  """Returns the name of the arm with this kernel, of `DEGREES` and `BALANCES`."""
  if (degree, balance) == (3, 1.0):
    return "polynomial"
  return f"polynomial-{degree}-{balance:g}"


ARMS |= {
  polynomial_name(degree, balance): Arm(
    f"({degree}, {balance:g})", _kerv(kernels.Polynomial(degree, balance))
  )
  for degree in DEGREES
  for balance in BALANCES
  if (degree, balance) != (3, 1.0)
}


def arm(name: str) -> Arm:
  """Returns the arm of a name; a UsageError if there is none."""
  if name not in ARMS:
    raise UsageError(f"`--arms` must be of {', '.join(ARMS)}, got {name!r}")
  return ARMS[name]
