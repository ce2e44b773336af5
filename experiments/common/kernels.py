"""The paper's kernel functions by name, with what tables and figures call them."""

import dataclasses
from typing import Literal, NamedTuple

from kerv_jax import kernels

KernelName = Literal["polynomial", "gaussian", "sigmoid", "l1", "l2"]


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


KERNELS: dict[KernelName, NamedKernel] = {
  "polynomial": NamedKernel("polynomial", kernels.Polynomial(degree=3, balance=1.0), ("balance",)),
  "gaussian": NamedKernel("Gaussian", kernels.Gaussian(gamma=1.0), ("gamma",)),
  "sigmoid": NamedKernel("sigmoid", kernels.Sigmoid()),
  "l1": NamedKernel("L1", kernels.L1()),
  "l2": NamedKernel("L2", kernels.L2()),
}
"""By name, in the order in which the paper has them."""


def kernel(name: KernelName, **hyperparameters: float) -> kernels.Kernel:
  """Returns the kernel function of a name.

  Args:
    name: one of `KERNELS`.
    **hyperparameters: values other than the paper's, such as ``degree=5``. Those that the kernel
      function does not have are left out, so that one configuration serves all of them.
  """
  known = KERNELS[name].kernel
  own = {field.name for field in dataclasses.fields(known)}
  return dataclasses.replace(known, **{k: v for k, v in hyperparameters.items() if k in own})
