"""The options of a convolution: checked once, in one form that every method shares."""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, core, lax

from kerv_jax.kernels.definitions import at_least_float32

METHODS = ("auto", "conv", "patches")


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of one call, resolved against the operands' shapes.

  Attributes:
    dimension_numbers: axes of batch, feature and space in each operand and the output.
    strides: one per spatial dimension, as are the next three.
    padding: (low, high), after ``lhs_dilation``; negative values crop.
    padding_name: the same as ``lax`` names it, or None; symbolic sizes need it.
    lhs_dilation: spacing of the input's elements.
    rhs_dilation: spacing of the filter's taps.
    window: the filter's spatial shape.
    out_spatial: the output's spatial shape.
    features: number of output features.
    feature_group_count: groups of input and output features.
    batch_group_count: groups of the batch; 1 after :func:`fold_batch_groups`.
    precision: as the caller gave it.
    compute_dtype: dtype of the statistics: at least float32.
    out_dtype: dtype of the result.
    preferred_element_type: as the caller gave it.
  """

  dimension_numbers: lax.ConvDimensionNumbers
  strides: tuple[int, ...]
  padding: tuple[tuple[int, int], ...]
  padding_name: str | None
  lhs_dilation: tuple[int, ...]
  rhs_dilation: tuple[int, ...]
  window: tuple[int, ...]
  out_spatial: tuple[int, ...]
  features: int
  feature_group_count: int
  batch_group_count: int
  precision: Any
  compute_dtype: Any
  out_dtype: Any
  preferred_element_type: Any

  def per_feature(self, vector: Array) -> Array:
    """Shapes a vector over output features, shape (features,), to broadcast with the output."""
    shape = [1] * (len(self.window) + 2)
    shape[self.dimension_numbers.out_spec[1]] = vector.shape[0]
    return vector.reshape(shape)


def resolve(
  lhs: Array,
  rhs: Array,
  window_strides: Sequence[int],
  padding: str | Sequence[tuple[int, int]],
  lhs_dilation: Sequence[int] | None,
  rhs_dilation: Sequence[int] | None,
  dimension_numbers: Any,
  feature_group_count: int,
  batch_group_count: int,
  precision: Any,
  preferred_element_type: Any,
) -> Options:
  """Checks the arguments of ``kerv_general_dilated`` and resolves them.

  Raises:
    TypeError: for operands that are not real floating-point arrays of one dtype, and for options
      of the wrong type.
    ValueError: for shapes and options that do not fit together.
  """
  out_dtype, compute_dtype = _dtypes(lhs, rhs, preferred_element_type)
  rank = lhs.ndim - 2
  if rank < 1 or rhs.ndim != lhs.ndim:
    raise ValueError(
      "`lhs` and `rhs` must both have n spatial dimensions and two more, n >= 1, "
      f"got shapes {lhs.shape} and {rhs.shape}"
    )
  try:
    dnums = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"`dimension_numbers` must be None or three specifications of {rank + 2} dimensions, such "
      f"as ('NHWC', 'HWIO', 'NHWC'), got {dimension_numbers!r}: {error}"
    ) from error
  strides = _positive("window_strides", window_strides, rank)
  lhs_dilation = _positive(
    "lhs_dilation", (1,) * rank if lhs_dilation is None else lhs_dilation, rank
  )
  rhs_dilation = _positive(
    "rhs_dilation", (1,) * rank if rhs_dilation is None else rhs_dilation, rank
  )
  if isinstance(padding, str) and max(lhs_dilation) > 1:  # as `lax` has it
    raise ValueError(
      f"`padding` must be {rank} pairs of integers (low, high) where `lhs_dilation` exceeds 1, "
      f"got {padding!r} with {lhs_dilation}"
    )
  features = rhs.shape[dnums.rhs_spec[0]]
  groups, batch_groups = _groups(lhs, rhs, dnums, feature_group_count, batch_group_count)

  spatial = tuple(lhs.shape[axis] for axis in dnums.lhs_spec[2:])
  window = tuple(rhs.shape[axis] for axis in dnums.rhs_spec[2:])
  if min(window) < 1:
    raise ValueError(f"`rhs` must have a window of at least 1 in each dimension, got {window}")
  extent = tuple((k - 1) * d + 1 for k, d in zip(window, rhs_dilation, strict=True))
  pads = _pads(padding, spatial, extent, strides)
  padded = tuple(
    (max((size - 1) * d + 1, 0) if size else 0) + lo + hi
    for size, d, (lo, hi) in zip(spatial, lhs_dilation, pads, strict=True)
  )
  same = isinstance(padding, str) and padding.upper() != "VALID"
  fits = [
    not isinstance(p, int) or p >= e or (same and n == 0)  # what is symbolic may be large enough
    for p, e, n in zip(padded, extent, spatial, strict=True)
  ]
  if not all(fits):
    raise ValueError(
      "the window must fit into the padded input: `rhs` has a window of "
      f"{window}, dilated by `rhs_dilation` {rhs_dilation} to {extent}, and `lhs` a spatial shape "
      f"of {spatial}, after `lhs_dilation` {lhs_dilation} and `padding` {padding!r} {padded}"
    )
  return Options(
    dimension_numbers=dnums,
    strides=strides,
    padding=pads,
    padding_name=padding if isinstance(padding, str) else None,
    lhs_dilation=lhs_dilation,
    rhs_dilation=rhs_dilation,
    window=window,
    out_spatial=tuple(
      core.max_dim((p - e) // s + 1, 0) for p, e, s in zip(padded, extent, strides, strict=True)
    ),
    features=features,
    feature_group_count=groups,
    batch_group_count=batch_groups,
    precision=_precision(precision),
    compute_dtype=compute_dtype,
    out_dtype=out_dtype,
    preferred_element_type=preferred_element_type,
  )


def as_array(name: str, operand: Any) -> Array:
  """The operand as an array; an error that names it if it is none."""
  try:
    return jnp.asarray(operand)
  except (TypeError, ValueError):
    raise TypeError(f"`{name}` must be an array, got {operand!r}") from None


def fold_batch_groups(lhs: Array, options: Options) -> tuple[Array, Options]:
  """Turns groups of the batch into groups of features, which every statistic knows.

  Args:
    lhs: the input, in the layout of ``options``.
    options: the resolved options.

  Returns:
    An input with ``batch_group_count`` times fewer batch items and as many times more features,
    and the options with ``feature_group_count`` in place of ``batch_group_count``.
  """
  groups = options.batch_group_count
  if groups == 1:
    return lhs, options
  batch, feature = options.dimension_numbers.lhs_spec[:2]
  shape = lhs.shape
  split = lhs.reshape(*shape[:batch], groups, shape[batch] // groups, *shape[batch + 1 :])
  # The axis of groups stands at `batch`; it goes right before the features' axis.
  moved = jnp.moveaxis(split, batch, feature)
  folded = list(shape)
  folded[batch] //= groups
  folded[feature] *= groups
  return moved.reshape(folded), dataclasses.replace(
    options, feature_group_count=groups, batch_group_count=1
  )


def _dtypes(lhs: Array, rhs: Array, preferred: Any) -> tuple[Any, Any]:
  """The dtypes of the result and of the computation."""
  for name, operand in (("lhs", lhs), ("rhs", rhs)):
    if operand.dtype not in (jnp.float64, jnp.float32, jnp.bfloat16, jnp.float16):
      raise TypeError(
        f"`{name}` must be float64, float32, bfloat16 or float16, got {operand.dtype}"
      )
  if lhs.dtype != rhs.dtype:
    raise TypeError(f"`lhs` and `rhs` must have the same dtype, got {lhs.dtype} and {rhs.dtype}")
  out_dtype = lhs.dtype
  if preferred is not None:
    try:
      out_dtype = jnp.dtype(preferred)
    except TypeError:
      out_dtype = jnp.dtype(bool)
    if not jnp.issubdtype(out_dtype, jnp.floating) or out_dtype.itemsize < lhs.dtype.itemsize:
      raise TypeError(
        "`preferred_element_type` must be None or a floating-point dtype no narrower than the "
        f"operands' {lhs.dtype}, got {preferred!r}"
      )
  return out_dtype, at_least_float32(out_dtype)


def _precision(precision: Any) -> Any:
  """None, a ``lax.Precision`` or a pair of them."""
  if precision is None:
    return None
  try:
    if isinstance(precision, tuple):
      left, right = precision
      return lax.Precision(left), lax.Precision(right)
    if isinstance(precision, (lax.DotAlgorithm, lax.DotAlgorithmPreset)):
      return precision
    if isinstance(precision, str) and precision in lax.DotAlgorithmPreset.__members__:
      return lax.DotAlgorithmPreset[precision]
    return lax.Precision(precision)
  except (TypeError, ValueError):
    raise ValueError(
      "`precision` must be None, a jax.lax.Precision (or its name, such as 'highest'), a pair of "
      "them or a jax.lax.DotAlgorithmPreset (or its name, such as 'BF16_BF16_F32'), got "
      f"{precision!r}"
    ) from None


def _integers(name: str, values: Any, rank: int, allowed: str) -> tuple[int, ...]:
  try:
    integers = tuple(operator.index(v) for v in values)
  except TypeError:
    raise TypeError(f"`{name}` must be {rank} {allowed}, got {values!r}") from None
  if len(integers) != rank:
    raise ValueError(f"`{name}` must be {rank} {allowed}, got {values!r}")
  return integers


def _positive(name: str, values: Any, rank: int) -> tuple[int, ...]:
  integers = _integers(name, values, rank, "positive integers")
  if min(integers) < 1:
    raise ValueError(f"`{name}` must be {rank} positive integers, got {values!r}")
  return integers


def _count(name: str, value: Any) -> int:
  try:
    count = operator.index(value)
  except TypeError:
    raise TypeError(f"`{name}` must be a positive integer, got {value!r}") from None
  if count < 1:
    raise ValueError(f"`{name}` must be a positive integer, got {value!r}")
  return count


def _pads(
  padding: Any, spatial: tuple[int, ...], extent: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
  rank = len(spatial)
  allowed = f"'VALID', 'SAME', 'SAME_LOWER' or {rank} pairs of integers (low, high)"
  if isinstance(padding, str):
    if padding.upper() not in ("VALID", "SAME", "SAME_LOWER"):
      raise ValueError(f"`padding` must be {allowed}, got {padding!r}")
    return tuple(
      (low, high) for low, high in lax.padtype_to_pads(spatial, extent, strides, padding)
    )
  try:
    pairs = tuple(_integers("padding", pair, 2, "integers") for pair in padding)
  except (TypeError, ValueError):
    raise ValueError(f"`padding` must be {allowed}, got {padding!r}") from None
  if len(pairs) != rank:
    raise ValueError(f"`padding` must be {allowed}, got {padding!r}")
  return tuple((low, high) for low, high in pairs)


def _groups(
  lhs: Array, rhs: Array, dnums: lax.ConvDimensionNumbers, feature_groups: Any, batch_groups: Any
) -> tuple[int, int]:
  groups = _count("feature_group_count", feature_groups)
  batches = _count("batch_group_count", batch_groups)
  channels, batch = lhs.shape[dnums.lhs_spec[1]], lhs.shape[dnums.lhs_spec[0]]
  features, taken = rhs.shape[dnums.rhs_spec[0]], rhs.shape[dnums.rhs_spec[1]]
  if groups > 1 and batches > 1:
    raise ValueError(
      "at most one of `feature_group_count` and `batch_group_count` may exceed 1, "
      f"got {groups} and {batches}"
    )
  if channels % groups or features % groups:
    raise ValueError(
      f"`feature_group_count` must divide the {channels} input features of `lhs` and the "
      f"{features} output features of `rhs`, got {groups}"
    )
  if batch % batches or features % batches:
    raise ValueError(
      f"`batch_group_count` must divide the batch of {batch} of `lhs` and the {features} output "
      f"features of `rhs`, got {batches}"
    )
  if taken != channels // groups:
    raise ValueError(
      f"`rhs` must take {channels // groups} input features ({channels} of `lhs` in "
      f"{groups} groups), got {taken} (shapes {lhs.shape} and {rhs.shape})"
    )
  return groups, batches
