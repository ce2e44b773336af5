"""The paper's kernel functions by name, with what tables and figures call them."""

from typing import NamedTuple

from kerv_jax import kernels
from kerv_jax.models import description
from kerv_jax.models.description import KernelName


class NamedKernel(NamedTuple):
  """A kernel function that options, tables and figures name.

  Attributes:
    label: what tables and figures call it.
    kernel: the kernel function with the paper's hyperparameters.
    learnable: names of the hyperparameters that an experiment may learn.
  """

  label: str
  kernel: kernels.Kernel
  learnable: tuple[str, ...] = ()


_LABELS = {"gaussian": "Gaussian", "l1": "L1", "l2": "L2"}

KERNELS: dict[KernelName, NamedKernel] = {
  name: NamedKernel(_LABELS.get(name, name), kernel, description.LEARNABLE.get(name, ()))
  for name, kernel in description.KERNELS.items()
}
"""By name, in the order in which the paper has them."""
