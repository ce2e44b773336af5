"""What the linen layers have in common: a kernel function and hyperparameters that learn."""

from collections.abc import Callable, Sequence
from typing import Any

from jax import Array

from kerv_jax import _rules
from kerv_jax._kernel import Kernel
from kerv_jax._learnable import learnable_names, require_options, require_start
from kerv_jax.kervolution import require_per_feature


class Kervolutional:
  """Mixin of the linen layers with fields ``kernel_fn``, ``learnable`` and ``per_feature``."""

  features: int
  param_dtype: Any
  kernel_fn: Kernel
  learnable: bool | Sequence[str]
  per_feature: bool

  def _check_kernel_fn(self) -> None:
    """Checks the three fields, before anything is traced; for the end of ``__post_init__``."""
    names = require_options(
      self.kernel_fn,
      self.learnable,
      self.per_feature,
      lambda name: name in ("kernel", "bias") or hasattr(type(self), name),
    )
    if not isinstance(self.learnable, bool):
      self.learnable = names
    require_per_feature(self.kernel_fn, self.features)
    require_start(self.kernel_fn, names, self.param_dtype)

  @property
  def learnable_names(self) -> tuple[str, ...]:
    """Names of the hyperparameters that are parameters of the module."""
    return learnable_names(self.kernel_fn, self.learnable)

  def _operator(self: Any) -> Callable[..., Array]:
    """``kerv_general_dilated`` with the current hyperparameters, within ``__call__``."""
    return _rules.operator(self, self.kernel_fn, self.learnable_names, self.per_feature)
