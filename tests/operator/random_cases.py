"""Random cases of every option at once, for any table of kernels."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from kerv_jax import kerv_general_dilated

SPACE = "DHW"
# Output rounding of the dtype, and room for the operator's own float32 or float64 arithmetic.
TOLERANCE = {"float64": 1e-7, "float32": 2e-4, "bfloat16": 2**-7, "float16": 2**-10}


@dataclasses.dataclass(frozen=True)
class Case:
  lhs_shape: tuple[int, ...]
  rhs_shape: tuple[int, ...]
  options: dict
  layouts: tuple[str, str, str]
  kernel: str
  per_feature: bool
  dtype: str
  offset: float
  whole: bool
  seed: int

  @property
  def features(self):
    return self.rhs_shape[self.layouts[1].index("O")]

  def operands(self, rng):
    """Input and filters in the case's dtype; of whole numbers, which meet in kinks and ties."""
    values = (
      self.offset + rng.standard_normal(shape) for shape in (self.lhs_shape, self.rhs_shape)
    )
    return tuple((np.round(v) if self.whole else v).astype(jnp.dtype(self.dtype)) for v in values)


@st.composite
def cases(draw, names, dtypes, whole=(False,)) -> Case:
  rank = draw(st.integers(1, 3))
  layouts = tuple(
    "".join(draw(st.permutations(letters + SPACE[-rank:]))) for letters in ("NC", "IO", "NC")
  )
  space = [letter for letter in layouts[1] if letter not in "IO"]
  most = {1: 9, 2: 6, 3: 4}[rank]

  def per_dimension(low, high):
    return draw(st.tuples(*[st.integers(low, high)] * rank))

  window, rhs_dilation = per_dimension(1, 3), per_dimension(1, 2)
  strides, lhs_dilation = per_dimension(1, 3), per_dimension(1, 2)
  size = per_dimension(1, most)
  extent = [(k - 1) * d + 1 for k, d in zip(window, rhs_dilation, strict=True)]
  padding = draw(st.sampled_from(["VALID", "SAME", "SAME_LOWER", "pairs", "pairs"]))
  fits = [(n - 1) * d + 1 for n, d in zip(size, lhs_dilation, strict=True)]
  if padding == "pairs":  # from cropping one to padding two; enlarged where the window needs it
    pairs = [list(pair) for pair in zip(per_dimension(-1, 2), per_dimension(-1, 2), strict=True)]
    for pair, n, e in zip(pairs, fits, extent, strict=True):
      pair[1] += max(e - (n + sum(pair)), 0)
    padding = tuple(map(tuple, pairs))
  else:
    lhs_dilation = (1,) * rank  # `lax` and ours refuse it with a padding's name
    if padding == "VALID":
      size = tuple(max(n, e) for n, e in zip(size, extent, strict=True))
  groups = draw(st.sampled_from([("none", 1), ("feature", 2), ("feature", 3), ("batch", 2)]))
  feature_groups = groups[1] if groups[0] == "feature" else 1
  batch_groups = groups[1] if groups[0] == "batch" else 1
  channels = draw(st.integers(1, 3))  # of a group: 1 is depthwise
  features = groups[1] * draw(st.integers(1, 2))
  batch = batch_groups * draw(st.integers(1, 2))
  sizes = {"N": batch, "C": channels * feature_groups, **dict(zip(space, size, strict=True))}
  taps = {"I": channels, "O": features, **dict(zip(space, window, strict=True))}
  return Case(
    lhs_shape=tuple(sizes[letter] for letter in layouts[0]),
    rhs_shape=tuple(taps[letter] for letter in layouts[1]),
    options={
      "strides": strides,
      "padding": padding,
      "lhs_dilation": lhs_dilation,
      "rhs_dilation": rhs_dilation,
      "feature_group_count": feature_groups,
      "batch_group_count": batch_groups,
    },
    layouts=layouts,
    kernel=draw(st.sampled_from(names)),
    per_feature=draw(st.booleans()),
    dtype=draw(st.sampled_from(dtypes)),
    offset=draw(st.sampled_from([0.0, 0.0, 3.0])),
    whole=draw(st.sampled_from(whole)),
    seed=draw(st.integers(0, 2**31)),
  )


def layer(case: Case, method):
  """The operator with the options of a case, as a function of input, filters and kernel."""
  options = dict(case.options)
  strides, padding = options.pop("strides"), options.pop("padding")
  return lambda lhs, rhs, kernel: kerv_general_dilated(
    lhs,
    rhs,
    strides,
    padding,
    dimension_numbers=case.layouts,
    kernel_fn=kernel,
    method=method,
    **options,
  )


def run(function, *args):
  """Compiled at the lowest effort: these tests are of the program, not of its speed."""
  compiled = jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})
  return compiled(*args)
