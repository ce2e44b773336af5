"""The formulations of kervolution in PyTorch, and its convolution; the only file that needs it."""

from collections.abc import Callable

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]
from jax import lax

from benchmarks.rivals import KERNELS
from benchmarks.shapes import Shape
from kerv_jax import kernels

Layer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _broadcast(
  patches: torch.Tensor, filters: torch.Tensor, kernel: kernels.Kernel
) -> torch.Tensor:
  """Filter by filter the product or the difference with every patch, then the sum.

  Args:
    patches: (batch, taps, positions).
    filters: (features, taps).
    kernel: which one.

  Returns:
    (batch, features, positions).
  """
  patches, filters = patches[:, None], filters[None, :, :, None]
  if isinstance(kernel, kernels.Polynomial):
    return ((patches * filters).sum(2) + float(kernel.balance)) ** kernel.degree
  if isinstance(kernel, kernels.L1):
    return (patches - filters).abs().sum(2)
  assert isinstance(kernel, kernels.Gaussian)
  return torch.exp(-float(kernel.gamma) * ((patches - filters) ** 2).sum(2))


def _matmul(patches: torch.Tensor, filters: torch.Tensor, kernel: kernels.Kernel) -> torch.Tensor:
  """The same through one matrix product, and the norms where it is a distance."""
  products = filters @ patches
  if isinstance(kernel, kernels.Polynomial):
    return (products + float(kernel.balance)) ** kernel.degree
  assert isinstance(kernel, kernels.Gaussian)
  norms = (patches**2).sum(1, keepdim=True) + (filters**2).sum(1)[None, :, None]
  return torch.exp(-float(kernel.gamma) * (norms - 2 * products))


def _layer(rival: str, shape: Shape) -> Layer:
  """The function of images and filters, both with the channels before height and width."""
  low_high = lax.padtype_to_pads(shape.spatial, shape.window, (shape.stride,) * 2, shape.padding)
  padding = tuple(high for _, high in low_high)  # symmetric, as PyTorch has it: same output size
  if rival == "PyTorch Conv2d":
    return lambda lhs, rhs: F.conv2d(lhs, rhs, stride=shape.stride, padding=padding)
  way, name = rival.removeprefix("PyTorch unfold, ").split(": ")
  kernel = KERNELS[name]
  combine = {"broadcast": _broadcast, "matmul": _matmul}[way]

  def unfold(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    patches = F.unfold(lhs, shape.window, padding=padding, stride=shape.stride)
    out = combine(patches, rhs.flatten(1), kernel)
    return out.unflatten(2, shape.out[1:-1])

  return unfold


def layer(rival: str, shape: Shape, *, backward: bool) -> Callable[[int], None]:
  """A rival in PyTorch, on the GPU if there is one.

  Args:
    rival: one of `benchmarks.rivals.TORCH_RIVALS`.
    shape: of the layer; its operands are brought into PyTorch's layout once.
    backward: whether to take the gradients with respect to input and filters as well.

  Returns:
    Runs it so many times.
  """
  device = "cuda" if torch.cuda.is_available() else "cpu"
  lhs, rhs, cotangent = (np.asarray(operand) for operand in shape.operands())

  def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.ascontiguousarray(array), device=device)

  x, w = tensor(lhs.transpose(0, 3, 1, 2)), tensor(rhs.transpose(3, 2, 0, 1))
  g = tensor(cotangent.transpose(0, 3, 1, 2))
  x.requires_grad_(backward)
  w.requires_grad_(backward)
  function = _layer(rival, shape)

  def call(number: int) -> None:
    for _ in range(number):
      out = function(x, w)
      if backward:
        torch.autograd.grad(out, (x, w), g)
    if device == "cuda":
      torch.cuda.synchronize()

  return call
