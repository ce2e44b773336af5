"""The kervolution operator: a convolution whose inner product is a kernel function."""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from kerv_jax._operator import options as _options
from kerv_jax._operator import sharding
from kerv_jax._operator.distances import STATISTICS, convolve
from kerv_jax._operator.patches import from_patches
from kerv_jax._operator.shared import from_statistics
from kerv_jax.kernels.additive import PairStatistic
from kerv_jax.kernels.base import Kernel, require_kernel
from kerv_jax.kernels.builtin import is_convolution
from kerv_jax.kernels.pytree import map_leaves
from kerv_jax.kernels.ranges import require_features, split

__all__ = ["kerv_general_dilated"]


def kerv_general_dilated(
  lhs: Array,
  rhs: Array,
  window_strides: Sequence[int],
  padding: str | Sequence[tuple[int, int]],
  lhs_dilation: Sequence[int] | None = None,
  rhs_dilation: Sequence[int] | None = None,
  dimension_numbers: Any = None,
  feature_group_count: int = 1,
  batch_group_count: int = 1,
  precision: Any = None,
  preferred_element_type: Any = None,
  out_sharding: Any = None,
  *,
  kernel_fn: Kernel,
  method: Literal["auto", "conv", "patches"] = "auto",
) -> Array:
  r"""General n-dimensional kervolution, with the arguments of ``jax.lax.conv_general_dilated``.

  .. math:: \mathrm{out}_{n, p, o} = \kappa(x_{n, p}, w_o)

  where :math:`x_{n, p}` is the patch of item n at output position p, :math:`w_o` the filter of
  output feature o and :math:`\kappa` the kernel function.  No patches are built unless ``method``
  is "patches", so memory is that of a convolution and a few outputs.

  Functions of the inner product take the time of a convolution; those of the squared distance take
  that and the norms of patches, but where it cancels it is summed directly.  Such a sum, as of the
  absolute distance, takes a few times as long.  ``Linear`` is the convolution itself.  On a CPU,
  XLA's convolution is slow in small groups (up to 32 channels and as many features), its
  derivatives above all: there inner products are summed directly too, in full precision, in less
  time and up to three outputs more of memory.

  Padding and ``lhs_dilation`` insert zeros, and a zero is data: for a distance kernel a padded tap
  contributes ``|0 - w|``.

  Args:
    lhs: input of n >= 1 spatial dimensions, shape ``(N, C, *space)`` unless ``dimension_numbers``
      says otherwise; float64, float32, bfloat16 or float16.
    rhs: filters, shape ``(O, C // feature_group_count, *window)`` unless ``dimension_numbers`` says
      otherwise; the dtype of ``lhs``.
    window_strides: n positive integers.
    padding: "VALID", "SAME", "SAME_LOWER" or n pairs (low, high); negative ones crop.
    lhs_dilation: n positive integers, the spacing of the input's elements; None is 1.
    rhs_dilation: n positive integers, the spacing of the filter's taps; None is 1.
    dimension_numbers: None, or three strings such as ``("NHWC", "HWIO", "NHWC")``, or a
      ``jax.lax.ConvDimensionNumbers``: the layouts of ``lhs``, ``rhs`` and the output.
    feature_group_count: number of groups of features; patch and filter are those of a group.
    batch_group_count: number of groups of the batch, as in ``lax``; every kernel supports it.
    precision: None, a ``jax.lax.Precision``, a pair of them, a ``jax.lax.DotAlgorithmPreset``, or
      their names, as in ``lax``.  None is the backend's default for inner products and ``HIGHEST``
      for squared distances, which cancel.
    preferred_element_type: None or the dtype of the result.  Statistics and kernel functions are
      computed in float32 or wider whatever the operands' dtype, and rounded once.
    out_sharding: None, a ``jax.sharding.PartitionSpec`` or a ``NamedSharding``: the sharding of the
      result on a mesh with explicit axes; needed there, as in ``lax``, where the filters or the
      input's features are sharded.
    kernel_fn: the kernel function; its hyperparameters are scalars or vectors of shape (O,), those
      inside a ``kernels.Concatenate`` with a value for each feature of their part.
    method: "conv" computes patch statistics through convolutions, "patches" applies the kernel
      function to every patch and filter, "auto" is "conv" wherever that serves the kernel.

  Returns:
    The kervolution, in the shape that ``lax.conv_general_dilated`` returns.

  Raises:
    TypeError: if an argument has the wrong type, such as integer or complex operands.
    ValueError: if shapes and options do not fit together, a hyperparameter is neither a scalar nor
      of shape (O,), or ``method`` cannot serve ``kernel_fn``.

  Example:
    >>> import jax
    >>> from kerv_jax import kernels, kerv_general_dilated
    >>> x = jax.random.normal(jax.random.key(0), (8, 32, 32, 3))
    >>> w = jax.random.normal(jax.random.key(1), (3, 3, 3, 16))
    >>> layout = ("NHWC", "HWIO", "NHWC")
    >>> y = kerv_general_dilated(
    ...   x, w, (1, 1), "SAME", dimension_numbers=layout, kernel_fn=kernels.Gaussian(0.1)
    ... )
    >>> y.shape
    (8, 32, 32, 16)

  Reference:
    Wang et al., "Kervolutional Neural Networks", CVPR 2019, eq. (3) to (5).
  """
  require_kernel("kernel_fn", kernel_fn)
  chosen = _method(method, kernel_fn)
  lhs, rhs = _options.as_array("lhs", lhs), _options.as_array("rhs", rhs)
  options = _options.resolve(
    lhs,
    rhs,
    window_strides,
    padding,
    lhs_dilation,
    rhs_dilation,
    dimension_numbers,
    feature_group_count,
    batch_group_count,
    precision,
    preferred_element_type,
  )
  convolution = functools.partial(
    convolve, options=options, preferred_element_type=options.preferred_element_type
  )
  if chosen == "conv" and is_convolution(kernel_fn):
    return convolution(lhs, rhs, out_sharding=out_sharding)
  require_features("kernel_fn", kernel_fn, options.features)
  kernel_fn = map_leaves(lambda leaf: _as_array(leaf, options.compute_dtype), kernel_fn)

  def kervolution(lhs: Array, rhs: Array, kernel_fn: Kernel) -> Array:
    folded, resolved = _options.fold_batch_groups(lhs, options)
    parts = split(kernel_fn, options.features)
    through = from_patches if chosen == "patches" else from_statistics
    return through(folded, rhs, resolved, parts).astype(options.out_dtype)

  return sharding.apply(kervolution, convolution, out_sharding, lhs, rhs, kernel_fn)


def _method(method: str, kernel_fn: Kernel) -> str:
  if method not in _options.METHODS:
    raise ValueError(f"`method` must be one of {_options.METHODS}, got {method!r}")
  if kernel_fn.statistics is None:
    if method == "conv":
      raise ValueError(
        f"`method` 'conv' cannot serve {kernel_fn!r}, which is not a function of patch "
        "statistics; 'patches' and 'auto' can"
      )
    return "patches"
  unknown = [
    name
    for name in kernel_fn.statistics
    if name not in STATISTICS and not isinstance(name, PairStatistic)
  ]
  if unknown:
    raise ValueError(
      f"`kernel_fn` must ask for statistics among {tuple(STATISTICS)}, got {unknown} from "
      f"{kernel_fn!r}"
    )
  return "conv" if method == "auto" else method


def _as_array(leaf: Any, dtype: Any) -> Array | np.ndarray:
  """A hyperparameter as an array; of NumPy's, whose value is known, where it is no array of JAX."""
  return (jnp if isinstance(leaf, Array) else np).asarray(leaf, dtype)
