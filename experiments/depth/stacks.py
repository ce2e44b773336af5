"""Plain stacks of one layer again and again: what is left of activations and gradients."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from experiments.depth.kernels import convolution
from kerv_jax.models._layers import BatchNorm

FEATURES, WINDOW = 16, (3, 3)
FAN_IN = FEATURES * math.prod(WINDOW)
FIGURES = ("raw", "positions", "features")


def compiler() -> dict[str, Any]:
  """Returns options for a program that runs once, and takes most of its time to be optimized."""
  return {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else {}


class _Layer(nn.Module):
  """A kervolution, batch normalization if asked for, and a ReLU before it if asked for."""

  conv: Callable[..., Any]
  norm: bool
  relu: bool

  @nn.compact
  def __call__(self, x: Array) -> Array:
    x = nn.relu(x) if self.relu else x
    y = self.conv(features=FEATURES, kernel_size=WINDOW, use_bias=False, name="conv")(x)
    return _batch_normalized(y) if self.norm else y


def _batch_normalized(y: Array) -> Array:
  """What batch normalization does at the start of training, when it has scale 1 and bias 0."""
  axes = tuple(range(y.ndim - 1))
  return jax.nn.standardize(y - jnp.mean(y, axes, keepdims=True), axes)


def left(z: Array) -> dict[str, Array]:
  """Returns what is left of the variation of activations, in parts of their root mean square.

  Args:
    z: activations, (..., features).

  Returns:
    "positions", the standard deviation of a feature over examples and positions; "features", the
    same without what all features of a position have in common: 0 where all say the same.
  """
  z = z.reshape(-1, z.shape[-1])
  about = z - jnp.mean(z, 0, keepdims=True)
  parts = {"positions": about, "features": about - jnp.mean(about, 1, keepdims=True)}
  size = jnp.sqrt(jnp.mean(jnp.square(z)))
  return {name: jnp.sqrt(jnp.mean(jnp.square(part))) / size for name, part in parts.items()}


@contextlib.contextmanager
def values() -> Iterator[dict[str, Array]]:
  """Yields what convolutions, kervolutions and batch normalization return within it, by path."""
  seen: dict[str, Array] = {}

  def see(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    y = call(*args, **kwargs)
    if isinstance(context.module, nn.Conv | BatchNorm) and context.method_name == "__call__":
      seen["/".join(context.module.path)] = y
    return y

  with nn.intercept_methods(see):
    yield seen


def measure(
  kernel: str,
  way: str,
  depths: Sequence[int],
  *,
  norm: bool,
  relu: bool = False,
  seeds: int = 3,
  batch: int = 8,
  side: int = 8,
) -> list[dict[str, Any]]:
  """Measures stacks at the start of training, for normal inputs and random cotangents.

  Args:
    kernel: name of the kernel function.
    way: see `experiments.depth.kernels.convolution`.
    depths: numbers of layers.
    norm: whether batch normalization follows each layer.
    relu: whether a ReLU comes before each layer.
    seeds: number of seeds, from 0.
    batch: number of inputs.
    side: their height and width.

  Returns:
    A row for each seed. By layer of the deepest stack it has "raw", the standard deviation of what
    leaves the kernel function, "positions" and "features" (see `left`); and "gradient", by depth,
    the norm of that with respect to the filters, by layer.
  """
  layer = _Layer(convolution(kernel, way, FAN_IN), norm, relu)
  most = max(depths)

  @functools.partial(jax.vmap, in_axes=(0, None))
  def one(key: Array, depth: Array) -> dict[str, Array]:
    x_key, key, out_key = jax.random.split(key, 3)
    x = jax.random.normal(x_key, (batch, side, side, FEATURES))
    params = jax.vmap(lambda key: layer.init(key, x[:1]))(jax.random.split(key, most))

    def out(params: Any) -> tuple[Array, dict[str, Array]]:
      def body(x: Array, each: Any) -> tuple[Array, dict[str, Array]]:
        number, own = each

        def through(x: Array) -> tuple[Array, dict[str, Array]]:
          with values() as seen:
            z = layer.apply(own, x)
          assert isinstance(z, Array)
          return z, left(z) | {"raw": jnp.std(seen["conv"])}

        def past(x: Array) -> tuple[Array, dict[str, Array]]:
          return x, dict.fromkeys(FIGURES, jnp.zeros(()))

        return lax.cond(number < depth, through, past, x)

      x_out, found = lax.scan(body, x, (jnp.arange(most), params))
      return jnp.sum(x_out * jax.random.normal(out_key, x.shape)), found

    gradient, found = jax.grad(out, has_aux=True)(params)
    (filters,) = jax.tree.leaves(gradient)
    return found | {"gradient": jnp.sqrt(jnp.sum(jnp.square(filters), range(1, filters.ndim)))}

  keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
  program = jax.jit(one, compiler_options=compiler())
  found = {depth: jax.tree.map(np.asarray, program(keys, depth)) for depth in depths}
  return [
    {"seed": seed}
    | {name: _numbers(found[most][name][seed]) for name in FIGURES}
    | {"gradient": {str(d): _numbers(each["gradient"][seed, :d]) for d, each in found.items()}}
    for seed in range(seeds)
  ]


def _numbers(values: np.ndarray) -> list[float | None]:
  return [finite(value) for value in values.tolist()]


def finite(value: float) -> float | None:
  """Returns a number with three digits, for JSON; None for one that is not finite."""
  return float(f"{value:.3g}") if math.isfinite(value) else None
