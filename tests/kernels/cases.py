"""Every kernel with its formula in NumPy float64, and kernels of a user's own."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kerv_jax import kernels
from kerv_jax.kernels import Hyperparameter, hyperparameter, static

LENGTH = 7  # of a patch


# Kernels of a user's own, of every sort the documentation offers.


class Softened(kernels.InnerProductKernel):
  """Hyperparameters with and without a default, and a static field."""

  rate: Hyperparameter = hyperparameter(constraint="positive")
  shift: Hyperparameter = hyperparameter(default=0.0)
  order: int = static(default=2)

  def profile(self, statistic):
    return jnp.log1p(jnp.exp(self.rate * statistic + self.shift)) ** self.order


class Chebyshev(kernels.Kernel):
  """Not a function of patch statistics."""

  weight: Hyperparameter = hyperparameter(default=1.0, constraint="non-negative")

  def __call__(self, x, w):
    x, w = jnp.broadcast_arrays(x, w)
    weight, largest = jnp.broadcast_arrays(self.weight, jnp.max(jnp.abs(x - w), axis=-1))
    return weight * largest


class ShiftedGaussian(kernels.Gaussian):
  """A subclass of a built-in kernel that adds a hyperparameter."""

  height: Hyperparameter = hyperparameter(default=0.5)

  def profile(self, statistic):
    return super().profile(statistic) + self.height


class Ratio(kernels.Kernel):
  """Two statistics."""

  @property
  def statistics(self):
    return (kernels.INNER_PRODUCT, kernels.SQUARED_DISTANCE)

  def from_statistics(self, statistics):
    return statistics[kernels.INNER_PRODUCT] / (1 + statistics[kernels.SQUARED_DISTANCE])


def hadamard_max(x, w):
  return jnp.max(x * w, axis=-1)


# The definitions, in NumPy.


def dot(x, w):
  return np.sum(x * w, axis=-1)


def squared(x, w):
  return np.sum((x - w) ** 2, axis=-1)


def absolute(x, w):
  return np.sum(np.abs(x - w), axis=-1)


def power(base, degree):
  value = np.ones_like(base)
  for _ in range(degree):
    value = value * base
  return value


def cosine(x, w):
  return dot(x, w) / np.sqrt(dot(x, x) * dot(w, w))


@dataclasses.dataclass(frozen=True)
class Case:
  """A kernel as a function of its hyperparameters, the same in NumPy, and their ranges."""

  make: Callable[..., kernels.Kernel]
  formula: Callable[..., Any]
  ranges: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
  names: tuple[str, ...] | None = None  # of the leaves, where not the arguments' own
  smooth: bool = True

  @property
  def leaf_names(self):
    return tuple(self.ranges) if self.names is None else self.names

  def draw(self, rng, shape=()):
    return {name: rng.uniform(low, high, shape) for name, (low, high) in self.ranges.items()}


CASES = {
  "Linear": Case(kernels.Linear, dot),
  **{
    f"Polynomial{degree}": Case(
      lambda balance, degree=degree: kernels.Polynomial(degree, balance),
      lambda x, w, balance, degree=degree: power(dot(x, w) + balance, degree),
      {"balance": (0.2, 1.5)},
    )
    for degree in (1, 2, 3, 4, 7)
  },
  "Sigmoid": Case(
    kernels.Sigmoid,
    lambda x, w, scale, offset: np.tanh(scale * dot(x, w) + offset),
    {"scale": (-0.9, -0.2), "offset": (-0.5, 0.5)},
  ),
  "Gaussian": Case(
    kernels.Gaussian, lambda x, w, gamma: np.exp(-gamma * squared(x, w)), {"gamma": (0.05, 0.3)}
  ),
  "L1": Case(kernels.L1, absolute, smooth=False),
  "L2": Case(kernels.L2, lambda x, w: np.sqrt(squared(x, w))),
  "L2squared": Case(lambda: kernels.L2(squared=True), squared),
  "Laplacian": Case(
    kernels.Laplacian,
    lambda x, w, gamma: np.exp(-gamma * absolute(x, w)),
    {"gamma": (0.05, 0.3)},
    smooth=False,
  ),
  "Cauchy": Case(
    kernels.Cauchy,
    lambda x, w, sigma: 1 / (1 + squared(x, w) / sigma**2),
    {"sigma": (0.5, 4.0)},
  ),
  "RationalQuadratic": Case(
    kernels.RationalQuadratic,
    lambda x, w, alpha, length: (1 + squared(x, w) / (2 * alpha * length**2)) ** -alpha,
    {"alpha": (0.3, 3.0), "length": (0.5, 4.0)},
  ),
  "Cosine": Case(kernels.Cosine, cosine),
  "Sum": Case(
    lambda gamma, offset: kernels.Gaussian(gamma) + kernels.Sigmoid(0.3, offset) + kernels.Linear(),
    lambda x, w, gamma, offset: (
      np.exp(-gamma * squared(x, w)) + np.tanh(0.3 * dot(x, w) + offset) + dot(x, w)
    ),
    {"gamma": (0.05, 0.3), "offset": (-0.5, 0.5)},
    names=("terms_0_gamma", "terms_1_scale", "terms_1_offset"),
  ),
  "Difference": Case(
    lambda sigma: kernels.Cauchy(sigma) - kernels.Linear(),
    lambda x, w, sigma: 1 / (1 + squared(x, w) / sigma**2) - dot(x, w),
    {"sigma": (0.5, 4.0)},
    names=("terms_0_sigma",),
  ),
  "Product": Case(
    lambda gamma, balance: kernels.Gaussian(gamma) * kernels.Polynomial(2, balance),
    lambda x, w, gamma, balance: np.exp(-gamma * squared(x, w)) * power(dot(x, w) + balance, 2),
    {"gamma": (0.05, 0.3), "balance": (0.2, 1.5)},
    names=("terms_0_gamma", "terms_1_balance"),
  ),
  "Negative": Case(
    lambda gamma: -kernels.Gaussian(gamma),
    lambda x, w, gamma: -np.exp(-gamma * squared(x, w)),
    {"gamma": (0.05, 0.3)},
    names=("inner_gamma",),
  ),
  "Scaled": Case(
    lambda scale, gamma: scale * kernels.Gaussian(gamma),
    lambda x, w, scale, gamma: scale * np.exp(-gamma * squared(x, w)),
    {"scale": (-3.0, -0.5), "gamma": (0.05, 0.3)},
    names=("scale", "inner_gamma"),
  ),
  "Nested": Case(
    lambda scale, gamma: scale * (-(kernels.L1() * (kernels.Cosine() + kernels.Gaussian(gamma)))),
    lambda x, w, scale, gamma: (
      -scale * absolute(x, w) * (cosine(x, w) + np.exp(-gamma * squared(x, w)))
    ),
    {"scale": (0.5, 2.0), "gamma": (0.05, 0.3)},
    names=("scale", "inner_inner_terms_1_terms_1_gamma"),
    smooth=False,
  ),
  "Custom": Case(
    lambda: kernels.Custom(hadamard_max), lambda x, w: np.max(x * w, axis=-1), smooth=False
  ),
  "CustomSum": Case(
    lambda gamma: kernels.Gaussian(gamma) - 2.0 * kernels.Custom(hadamard_max),
    lambda x, w, gamma: np.exp(-gamma * squared(x, w)) - 2 * np.max(x * w, axis=-1),
    {"gamma": (0.05, 0.3)},
    names=("terms_0_gamma", "terms_1_inner_scale"),
    smooth=False,
  ),
  "Softened": Case(
    lambda rate, shift: Softened(rate, shift, order=3),
    lambda x, w, rate, shift: power(np.log1p(np.exp(rate * dot(x, w) + shift)), 3),
    {"rate": (0.2, 0.8), "shift": (-0.5, 0.5)},
  ),
  "Chebyshev": Case(
    Chebyshev,
    lambda x, w, weight: weight * np.max(np.abs(x - w), axis=-1),
    {"weight": (0.5, 2.0)},
    smooth=False,
  ),
  "ShiftedGaussian": Case(
    ShiftedGaussian,
    lambda x, w, gamma, height: np.exp(-gamma * squared(x, w)) + height,
    {"gamma": (0.05, 0.3), "height": (-1.0, 1.0)},
  ),
  "Ratio": Case(Ratio, lambda x, w: dot(x, w) / (1 + squared(x, w))),
}
every_case = pytest.mark.parametrize("name", CASES)


def vectors(seed, x_shape=(LENGTH,), w_shape=(LENGTH,), scale=0.7):
  rng = np.random.default_rng(seed)
  return scale * rng.normal(size=x_shape) + 0.1, scale * rng.normal(size=w_shape) - 0.2


def as_float32(tree):
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


A, B, C = kernels.Gaussian(0.2), kernels.Polynomial(2, 0.5), kernels.L1()


def refused(error, make, name, value):
  shown = str(value.shape) if getattr(value, "ndim", 0) > 1 else repr(value)
  with pytest.raises(error, match=rf"`{name}`") as caught:
    make(**{name: value})
  assert shown in str(caught.value)
