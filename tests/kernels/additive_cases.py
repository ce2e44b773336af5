"""Additive kernels, built in and a user's own, beside their derivatives in NumPy float64."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from kerv_jax import kernels
from kerv_jax.kernels import AdditiveKernel, Hyperparameter, hyperparameter
from tests import reference


class Wave(AdditiveKernel):
  """Smooth, and not the same in x and w; at ``x = 0`` it is 0 for all w, so padded taps tie."""

  scale: Hyperparameter = hyperparameter(default=1.0, constraint="positive")

  def term(self, x, w):
    return jnp.sin(self.scale * x) * w


class MaxWave(Wave):
  reduction = "max"


class MinWave(Wave):
  reduction = "min"


class SoftWave(Wave):
  reduction = "logsumexp"


class NormWave(Wave):
  reduction = "norm"


class ProfiledWave(Wave):
  """A hyperparameter in the term and in the profile."""

  def profile(self, statistic):
    return statistic**2 / self.scale


@jax.custom_jvp
def adder_term(x, w):
  return -jnp.abs(x - w)


@adder_term.defjvp
def _(primals, tangents):
  (x, w), (dx, dw) = primals, tangents
  return adder_term(x, w), jnp.clip(w - x, -1, 1) * dx + (x - w) * dw


class Adder(AdditiveKernel):
  """An AdderNet's layer, its two gradients as the term's own."""

  def term(self, x, w):
    return adder_term(x, w)


class OfFilters(AdditiveKernel):
  """A term of the filter alone: it still counts once a pair."""

  def term(self, x, w):
    return w**2


class OfPatches(AdditiveKernel):
  """A term of the patch alone."""

  reduction = "max"

  def term(self, x, w):
    return -(x**2)


class Counted(AdditiveKernel):
  """A term of neither: the length of the patch."""

  weight: Hyperparameter = hyperparameter(default=1.0)

  def term(self, x, w):
    return self.weight * jnp.ones_like(self.weight)


def wave(x, w, scale):
  s = np.sin(scale * x)
  return s * w, (scale * np.cos(scale * x) * w, s, x * np.cos(scale * x) * w)


def reduced_wave(reduction):
  def slopes(x, w, scale, **number):
    terms, by = wave(x, w, scale)
    value, (dx, dw, ds), *rest = reference.reduced(terms, by, reduction, *number.values())
    return value, dx, dw, np.sum(ds), *rest

  return slopes


def profiled_wave(x, w, scale):
  value, dx, dw, ds = reduced_wave("sum")(x, w, scale)
  slope = 2 * value / scale
  return value**2 / scale, slope * dx, slope * dw, slope * ds - value**2 / scale**2


def adder(x, w):
  return -np.sum(np.abs(x - w)), np.clip(w - x, -1, 1), x - w


def of_patches(x, w):
  value, (dx,) = reference.reduced(-(x**2), (-2 * x,), "max")
  return value, dx, 0 * w


def of_both(x, w, delta):
  """``Huber(delta) + Huber(delta) * MaxPlus()``, whose two hyperparameters are one number."""
  h, dx, dw, dd = reference.huber(x, w, delta)
  m, mx, mw = reference.max_plus(x, w)
  return h + h * m, (1 + m) * dx + h * mx, (1 + m) * dw + h * mw, dd, m * dd


@dataclasses.dataclass(frozen=True)
class Case:
  """A kernel as a function of its hyperparameters.

  ``slopes(x, w, **values)`` returns the value, the derivatives with respect to x and w, and one for
  each leaf of the kernel.
  """

  make: Callable
  slopes: Callable
  ranges: dict = dataclasses.field(default_factory=dict)
  smooth: bool = False

  def draw(self, rng, shape=()):
    return {name: rng.uniform(low, high, shape) for name, (low, high) in self.ranges.items()}


SCALE = {"scale": (0.4, 1.6)}
CASES = {
  "Minkowski": Case(kernels.Minkowski, reference.minkowski, {"p": (1.2, 9.0)}),
  "Minkowski200": Case(
    lambda: kernels.Minkowski(200.0), lambda x, w: reference.minkowski(x, w, 200.0)
  ),
  "Chebyshev": Case(kernels.Chebyshev, reference.chebyshev),
  "Huber": Case(kernels.Huber, reference.huber, {"delta": (0.3, 1.5)}),
  "Intersection": Case(kernels.Intersection, reference.intersection),
  "ChiSquared": Case(kernels.ChiSquared, reference.chi_squared),
  "MaxPlus": Case(kernels.MaxPlus, reference.max_plus),
  "sum": Case(Wave, reduced_wave("sum"), SCALE, smooth=True),
  "max": Case(MaxWave, reduced_wave("max"), SCALE),
  "min": Case(MinWave, reduced_wave("min"), SCALE),
  "logsumexp": Case(
    SoftWave, reduced_wave("logsumexp"), SCALE | {"temperature": (0.2, 2.0)}, smooth=True
  ),
  "norm": Case(NormWave, reduced_wave("norm"), SCALE | {"p": (1.2, 9.0)}),
  "profile": Case(ProfiledWave, profiled_wave, SCALE, smooth=True),
  "Adder": Case(Adder, adder),
  "OfFilters": Case(OfFilters, lambda x, w: (np.sum(w**2), 0 * x, 2 * w), smooth=True),
  "OfPatches": Case(OfPatches, of_patches),
  "Counted": Case(
    Counted,
    lambda x, w, weight: (weight * x.size, 0 * x, 0 * w, x.size),
    {"weight": (-1.0, 1.0)},
    smooth=True,
  ),
  "Combined": Case(
    lambda delta: kernels.Huber(delta) + kernels.Huber(delta) * kernels.MaxPlus(),
    of_both,
    {"delta": (0.3, 1.5)},
  ),
}
