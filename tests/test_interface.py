"""What users' code relies on: public names, their arguments, and the layers' parameters.

`interface.txt` has a line for each public name.  A line that changes is a change for every user,
and belongs into the changelog.
"""

import importlib
import inspect
import pathlib
import re

import flax.linen as nn
import jax
import pytest
from flax import nnx

from kerv_jax import kernels
from kerv_jax import nnx as kerv_nnx
from kerv_jax.nn import KervConv, KervConvTranspose, KervDense, kervolve

MODULES = (
  "kerv_jax", "kerv_jax.kernels", "kerv_jax.kervolution", "kerv_jax.nn", "kerv_jax.nnx",
  "kerv_jax.initializers", "kerv_jax.models", "kerv_jax.optim", "kerv_jax.torch_import",
)  # fmt: skip
PARENTS = (
  nn.Conv, nn.ConvTranspose, nn.Dense, nnx.Conv, nnx.ConvTranspose, nnx.Linear, nn.Module,
)  # fmt: skip


def argument(parameter):
  """An argument as it is written; a function by its name, and no addresses."""
  if parameter.default is parameter.empty:
    return str(parameter.replace(annotation=parameter.empty))
  default = getattr(parameter.default, "__name__", repr(parameter.default))
  return f"{parameter.name}={re.sub('<.* object at .*>', '...', default)}"


def line(module, name, value):
  """A public name with its arguments, those left out that a layer of Flax has too."""
  if not callable(value) or value is kernels.Hyperparameter:
    return f"{module}.{name}" + (f" = {value!r}" if isinstance(value, str) else "")
  bases = [base for base in PARENTS if isinstance(value, type) and issubclass(value, base)]
  inherited = {"self", "options"}.union(*(inspect.signature(b.__init__).parameters for b in bases))
  made = value.__init__ if bases else value  # the metaclass of NNX has a signature of its own
  own = [p for name, p in inspect.signature(made).parameters.items() if name not in inherited]
  keyword = [p.kind is p.KEYWORD_ONLY for p in own]
  texts = [argument(p) for p in own]
  if any(keyword):
    texts.insert(keyword.index(True), "*")
  return f"{module}.{name}({', '.join(texts)})"


def interface():
  for module_name in MODULES:
    module = importlib.import_module(module_name)
    for name in sorted(module.__all__):
      yield line(module_name, name, getattr(module, name))


def test_public_names_and_their_arguments():
  written = (pathlib.Path(__file__).parent / "interface.txt").read_text().splitlines()
  assert list(interface()) == written


COMPOSITES = {
  "Sum": kernels.Gaussian(0.1) + kernels.Polynomial(2),
  "Product": kernels.Gaussian(0.1) * kernels.Sigmoid(),
  "Scaled": 2.0 * kernels.Gaussian(0.1),
  "Negative": -kernels.Gaussian(0.1),
  "Concatenate": kernels.Concatenate([(3, kernels.Linear()), (1, kernels.Gaussian(0.1))]),
}
NAMES = {
  "Sum": {"terms_0_gamma", "terms_1_balance"},
  "Product": {"terms_0_gamma", "terms_1_scale", "terms_1_offset"},
  "Scaled": {"scale", "inner_gamma"},
  "Negative": {"inner_gamma"},
  "Concatenate": {"parts_1_gamma"},
}
IMAGES = jax.ShapeDtypeStruct((2, 6, 6, 3), "float32")
LINEN = {
  "KervConv": lambda kernel_fn: KervConv(4, (3, 3), kernel_fn=kernel_fn, learnable=True),
  "KervConvTranspose": lambda kernel_fn: KervConvTranspose(
    4, (3, 3), kernel_fn=kernel_fn, learnable=True
  ),
  "KervDense": lambda kernel_fn: KervDense(4, kernel_fn=kernel_fn, learnable=True),
  "kervolve": lambda kernel_fn: kervolve(nn.Conv(4, (3, 3)), kernel_fn, learnable=True),
}
NNX = {
  "KervConv": lambda **options: kerv_nnx.KervConv(3, 4, (3, 3), **options, rngs=nnx.Rngs(0)),
  "KervConvTranspose": lambda **options: kerv_nnx.KervConvTranspose(
    3, 4, (3, 3), **options, rngs=nnx.Rngs(0)
  ),
  "KervDense": lambda **options: kerv_nnx.KervDense(3, 4, **options, rngs=nnx.Rngs(0)),
  "kervolve": lambda **options: kerv_nnx.kervolve(
    nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0)), **options
  ),
}


@pytest.mark.parametrize("kind", COMPOSITES)
@pytest.mark.parametrize("layer", LINEN)
def test_parameters_of_a_composite_kernel(layer, kind):
  kernel_fn = COMPOSITES[kind]
  model = LINEN[layer](kernel_fn)
  params = jax.eval_shape(model.init, jax.random.key(0), IMAGES)["params"]
  assert params.keys() == {"kernel", "bias"} | NAMES[kind]
  state = nnx.state(NNX[layer](kernel_fn=kernel_fn, learnable=True), nnx.Param)
  assert set(state) == params.keys()
