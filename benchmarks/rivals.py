"""What is timed: the operator's kernels, what they replace, and other ways to compute them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks.shapes import Shape
from kerv_jax import kernels, kerv_general_dilated

Layer = Callable[[Array, Array], Array]
"""From input and filters to output."""

BASELINE = "convolution"
KERNELS: dict[str, kernels.Kernel] = {
  "linear": kernels.Linear(),
  "polynomial": kernels.Polynomial(degree=3, balance=1.0),
  "sigmoid": kernels.Sigmoid(),
  "Gaussian": kernels.Gaussian(gamma=0.1),
  "L2": kernels.L2(),
  "Cauchy": kernels.Cauchy(),
  "rational quadratic": kernels.RationalQuadratic(),
  "L1": kernels.L1(),
  "Laplacian": kernels.Laplacian(gamma=0.1),
  "cosine": kernels.Cosine(),
}
"""Of the operator, by the name of the rival."""

ADDITIVE: dict[str, Any] = {}
"""A sum, a maximum and a norm; none in a checkout that is compared and has no such."""
if hasattr(kernels, "AdditiveKernel"):
  ADDITIVE = {
    "Huber": kernels.Huber(),
    "Chebyshev": kernels.Chebyshev(),
    "Minkowski": kernels.Minkowski(p=3.0),
  }

PATCHES = {f"patches: {name}": KERNELS[name] for name in ("polynomial", "Gaussian", "L1")}
JAX_RIVALS = (f"{BASELINE} + ReLU", *KERNELS, *ADDITIVE, *PATCHES)
BROADCAST = ("polynomial", "Gaussian", "L1")
"""Kernels that are timed in PyTorch by unfold and broadcast as well."""


def broadcast(kernel: str) -> str:
  """The rival's name."""
  return f"PyTorch unfold, broadcast: {kernel}"


TORCH_RIVALS = (
  "PyTorch Conv2d",
  *map(broadcast, BROADCAST),
  *(f"PyTorch unfold, matmul: {name}" for name in ("polynomial", "Gaussian")),
)


def layer(rival: str, shape: Shape) -> Layer:
  """A rival in JAX for a shape.

  Args:
    rival: BASELINE or one of JAX_RIVALS.
    shape: of the layer.

  Returns:
    The function of input and filters.
  """
  options = shape.options()
  convolution = functools.partial(lax.conv_general_dilated, **options)
  if rival == BASELINE:
    return convolution
  if rival == f"{BASELINE} + ReLU":
    return lambda lhs, rhs: jax.nn.relu(convolution(lhs, rhs))
  if rival in PATCHES:
    options |= {"method": "patches"}
  kernel = (PATCHES | ADDITIVE | KERNELS)[rival]
  return functools.partial(kerv_general_dilated, kernel_fn=kernel, **options)


def by_definition(kernel: kernels.Kernel, shape: Shape) -> Layer:
  """A kernel of all patches and filters, as it is defined, for a shape."""
  return functools.partial(
    kerv_general_dilated, kernel_fn=kernel, method="patches", **shape.options()
  )


def program(function: Layer, *, backward: bool) -> Callable[[Array, Array, Array], tuple]:
  """What is compiled and timed.

  Args:
    function: the layer.
    backward: whether to take the gradients with respect to input and filters as well.

  Returns:
    A function of input, filters and the output's cotangent; its results are the output and, with
    `backward`, the two gradients.
  """

  def forward(lhs: Array, rhs: Array, cotangent: Array) -> tuple:
    del cotangent
    return (function(lhs, rhs),)

  def both(lhs: Array, rhs: Array, cotangent: Array) -> tuple:
    out, pullback = jax.vjp(function, lhs, rhs)
    return (out, *pullback(cotangent))

  return both if backward else forward


PAIRS = 2**22
"""Pairs of elements that a run of `elementwise` takes."""


def elementwise(rival: str) -> tuple[Callable[..., tuple], tuple[Array, Array, Array]]:
  """The term of an additive kernel and its two derivatives, fused, on arrays in a cache.

  Args:
    rival: one of ADDITIVE.

  Returns:
    A function, and what it is called with: it sums what it finds element by element.
  """
  term = ADDITIVE[rival].term
  rng = np.random.default_rng(0)
  size = 2**16
  x, w, cotangent = rng.uniform(size=size), rng.uniform(-1, 1, PAIRS // size), rng.normal(size=size)

  def run(x: Array, w: Array, cotangent: Array) -> tuple:
    def add(totals: tuple, w: Array) -> tuple[tuple, None]:
      value, pullback = jax.vjp(term, x, jnp.broadcast_to(w, x.shape))
      found = (value, *pullback(cotangent))
      return tuple(a + b for a, b in zip(totals, found, strict=True)), None

    return lax.scan(add, (jnp.zeros_like(x),) * 3, w, unroll=4)[0]

  return run, jax.device_put(tuple(jnp.asarray(v, jnp.float32) for v in (x, w, cotangent)))


# Arrays of the size of all terms that the backward pass was seen to hold at once.
_ARRAYS = {"patches: polynomial": 1, "patches: Gaussian": 2, "patches: L1": 9}
_ARRAYS |= {broadcast(kernel): 5 for kernel in BROADCAST}


def bytes_of_patches(rival: str, shape: Shape) -> int:
  """About what a rival that broadcasts patches against filters needs at once, in bytes."""
  return _ARRAYS.get(rival, 0) * 4 * shape.terms
