"""What is compiled for H100s: layers of every kernel, and steps of training."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import gpu_program, rivals
from benchmarks.shapes import SHAPES, Shape
from kerv_jax import kernels, kerv_general_dilated
from kerv_jax.nn import KervConv

LAYERS = (
  SHAPES["CIFAR stem"],
  SHAPES["ResNet-50 middle"],
  Shape("ResNet-50 late", 32, (14, 14), 256, 256, (3, 3)),
  SHAPES["ImageNet stem"],
)
"""The batch is that of one GPU: several have several times as many images."""
NETWORKS = {"ResNet-32": (128, 32, 32, 3), "ResNet-50": (64, 224, 224, 3)}
"""By name, the images of one GPU in a step; the classes are 10 and 1,000."""
STEMS = ("polynomial", "Gaussian", "L1")
DTYPES = ("float32", "bfloat16")
DEVICES = (1, 8)
KERNELS = (rivals.BASELINE, *rivals.KERNELS, "custom")
Row = dict[str, Any]


def layers(shapes: Sequence[str], names: Sequence[str], done: Sequence[Row] = ()) -> Iterator[Row]:
  """Compiles layers: forward, and forward and backward, for one GPU and for several.

  Args:
    shapes: names, of LAYERS.
    names: of kernels, of KERNELS.
    done: rows of what need not be compiled again.

  Yields:
    A row for each, see `gpu_program.compiled`.
  """
  there = {(row["shape"], row["kernel"], row["devices"], row["mode"]) for row in done}
  for shape, kernel, devices, mode in itertools.product(
    LAYERS, names, DEVICES, ("forward", "forward + backward")
  ):
    if shape.name not in shapes or (shape.name, kernel, devices, mode) in there:
      continue
    batch, whole = _shardings(devices)

    def array(sizes: tuple[int, ...], sharding: Any, times: int = 1) -> jax.ShapeDtypeStruct:
      sizes = (sizes[0] * times, *sizes[1:])
      return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=sharding)

    backward = mode != "forward"
    found = gpu_program.compiled(
      rivals.program(_layer(kernel, shape), backward=backward),
      (array(shape.lhs, batch, devices), array(shape.rhs, whole), array(shape.out, batch, devices)),
      out_shardings=(batch, batch, whole) if backward else (batch,),
      registers=devices == 1,
    )
    sizes = {"in_bytes": 4 * math.prod(shape.lhs), "out_bytes": 4 * math.prod(shape.out)}
    yield {
      "shape": shape.name,
      "kernel": kernel,
      "devices": devices,
      "mode": mode,
      **found,
      **sizes,
    }


def _shardings(devices: int) -> tuple[NamedSharding, NamedSharding]:
  """Of what is divided over so many GPUs, and of what each has whole."""
  mesh = gpu_program.mesh(devices)
  return NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())


def _layer(kernel: str, shape: Shape) -> Callable[..., Any]:
  """A layer by the name of its kernel."""
  if kernel != "custom":
    return rivals.layer(kernel, shape)
  custom = kernels.Custom(lambda x, w: jnp.sum(jnp.abs(x - w) ** 1.5))
  return functools.partial(kerv_general_dilated, kernel_fn=custom, **shape.options())


def steps(networks: Sequence[str], done: Sequence[Row] = ()) -> Iterator[Row]:
  """Compiles the steps of training of `experiments`, the state's buffers donated.

  Args:
    networks: names, of NETWORKS.
    done: rows of what need not be compiled again.

  Yields:
    A row for each network, stem, type and number of GPUs.
  """
  there = {(row["network"], row["stem"], row["dtype"], row["devices"]) for row in done}
  for name, dtype, devices, stem in itertools.product(
    networks, DTYPES, DEVICES, ("convolution", *STEMS)
  ):
    if (name, stem, dtype, devices) in there:
      continue
    learner, images = _learner(name, stem, dtype), NETWORKS[name]
    batch, whole = _shardings(devices)
    state = jax.eval_shape(learner.initial_state, jnp.uint32(0), jnp.zeros((1, *images[1:])))
    state = jax.tree.map(
      lambda leaf, where=whole: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), state
    )
    number = images[0] * devices
    arguments = [
      jax.ShapeDtypeStruct(shape, kind, sharding=batch)
      for shape, kind in (
        ((number, *images[1:]), jnp.uint8),
        ((number,), jnp.int32),
        ((number,), jnp.int32),
      )
    ]
    found = gpu_program.compiled(
      learner.step, (state, *arguments), out_shardings=(whole, whole), donate=(0,)
    )
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    names = {"network": name, "stem": stem, "dtype": dtype, "devices": devices}
    yield {**names, **found, "state_bytes": state_bytes}


def _learner(network: str, stem: str, dtype: str) -> Any:
  """The functions of training a network, by names."""
  import optax  # this and the experiments' own packages are needed for steps alone

  from experiments.data import Augmentation
  from experiments.engine.step import Learner
  from kerv_jax.models import CifarResNet, ResNet50

  options = {
    "stem": functools.partial(KervConv, kernel_fn=rivals.KERNELS[stem]) if stem in STEMS else None,
    "dtype": jnp.dtype(dtype) if dtype != "float32" else None,
  }
  cifar = network == "ResNet-32"
  model = CifarResNet(**options) if cifar else ResNet50(**options)
  augmentation = Augmentation(flip=True, pad=4) if cifar else Augmentation()
  return Learner(model, optax.sgd(0.1, momentum=0.9), augmentation=augmentation)
