"""PyTorch weights in our parameter trees: the authors' layers, and ResNets named as torchvision's.

A state dict is a mapping from names to arrays (or to tensors); PyTorch itself is needed by
:func:`read` alone.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from kerv_jax.kernels import L1, L2, Gaussian, Kernel, Linear, Polynomial

__all__ = ["authors_kernel", "from_state_dict", "read"]

_LEAVES = {
  "kernel": "weight",
  "scale": "weight",
  "bias": "bias",
  "mean": "running_mean",
  "var": "running_var",
}
"""What PyTorch calls the parameters and statistics that a layer of Flax has."""


def read(path: str | os.PathLike[str], key: str | None = None) -> dict[str, np.ndarray]:
  """Reads a state dict that ``torch.save`` wrote.

  Only tensors and plain containers are read (``weights_only``): no code of the file is run.

  Args:
    path: a ``.pt`` or ``.pth`` file.
    key: where in the file the state dict is, such as "state_dict"; None for a file that is one.

  Returns:
    Its tensors as NumPy arrays, by name.

  Raises:
    ImportError: if PyTorch is not installed.
    ValueError: if what is there is not a mapping of names to tensors.

  Example:
    >>> import os, tempfile
    >>> from kerv_jax import torch_import
    >>> import torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   path = os.path.join(folder, "model.pth")
    ...   torch.save({"fc.weight": torch.ones(2, 3)}, path)
    ...   state_dict = torch_import.read(path)
    >>> state_dict["fc.weight"].shape
    (2, 3)
  """
  try:
    import torch  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    raise ImportError("`kerv_jax.torch_import.read` needs PyTorch: pip install torch") from error
  found = torch.load(path, map_location="cpu", weights_only=True)
  if key is not None:
    if not isinstance(found, Mapping) or key not in found:
      keys = list(found) if isinstance(found, Mapping) else type(found).__name__
      raise ValueError(f"`key` must be one that {os.fspath(path)} has, {keys}, got {key!r}")
    found = found[key]
  if not isinstance(found, Mapping) or not all(isinstance(v, torch.Tensor) for v in found.values()):
    kind = list(found) if isinstance(found, Mapping) else type(found).__name__
    raise ValueError(
      f"`path` must be a file with a mapping of names to tensors, got {kind}; `key` chooses one "
      "of several things in a file"
    )
  return {name: _as_numpy(name, value) for name, value in found.items()}


def authors_kernel(
  kernel_type: str, *, balance: float = 1.0, power: int = 3, gamma: float = 1.0
) -> Kernel:
  """Our kernel function for a ``kernel_type`` of the authors' ``Kerv2d`` and ``Kerv1d``.

  Their "manhattan" is the negative of the L1 distance, their "euclidean" the negative of the
  *squared* L2 distance; their bias is added outside the kernel function, as ours.  (Their
  hyperparameters are in no state dict: give them here.)

  Args:
    kernel_type: "linear", "manhattan", "euclidean", "polynomial" or "gaussian".
    balance: of the polynomial.
    power: of the polynomial.
    gamma: of the Gaussian.

  Returns:
    The kernel function.

  Raises:
    ValueError: for another ``kernel_type``.

  Example:
    >>> authors_kernel("euclidean")
    -L2(squared=True)

  Reference:
    github.com/sair-lab/kervolution, the same as branch ``unfold`` of wang-chen/kervolution.
  """
  known: dict[str, Callable[[], Kernel]] = {
    "linear": Linear,
    "manhattan": lambda: -L1(),
    "euclidean": lambda: -L2(squared=True),
    "polynomial": lambda: Polynomial(power, balance),
    "gaussian": lambda: Gaussian(gamma),
  }
  if kernel_type not in known:
    raise ValueError(f"`kernel_type` must be one of {tuple(known)}, got {kernel_type!r}")
  return known[kernel_type]()


def from_state_dict(
  state_dict: Mapping[str, Any],
  variables: Mapping[str, Any],
  *,
  keep: Sequence[str] = (),
  rename: Callable[[str], str] | None = None,
) -> dict[str, Any]:
  """A PyTorch state dict as the variables of a Flax model whose modules have the same names.

  Our path ``layer1_0/downsample_1/scale`` is the name ``layer1.0.downsample.1.weight`` there: a
  number at the end of a part follows a dot, ``kernel`` and ``scale`` are ``weight``, ``mean`` and
  ``var`` are ``running_mean`` and ``running_var``.  So it serves the networks of
  :mod:`kerv_jax.models.resnet`, with any class of layers, and a single layer, whose state dict
  is that of the authors' ``Kerv2d``, ``Kerv1d`` or of any ``torch.nn.Conv`` (with
  :func:`authors_kernel` for the kernel function).

  Filters go from ``(out, in, *window)`` to ``(*window, in, out)``, dense weights from (out, in) to
  (in, out), those of a transposed convolution from ``(in, out, *window)`` to
  ``(*window, out, in)``, which is that of ``transpose_kernel=True``, and every array to the dtype
  of its place.  ``num_batches_tracked`` is left out, and so is a ``module.`` before every name, of
  a model saved while it was parallel.  Hyperparameters of kernel functions, of which a state dict
  has none, stay as they are in ``variables``.

  Args:
    state_dict: arrays or tensors by name.
    variables: of the model, as ``init`` returns them; of a model without learnable
      hyperparameters and nothing to ``keep``, their shapes (``jax.eval_shape``) will do.
    keep: paths of ``variables`` that stay as they are, whatever is in the state dict: parts of
      paths from their beginning, such as "fc" for a classifier of other classes.
    rename: from a name in the state dict to one as above, such as
      ``lambda name: name.replace("linear", "fc")``; None changes none.

  Returns:
    The variables, of the structure, shapes and dtypes of ``variables``.

  Raises:
    TypeError: if the state dict is not a mapping of names to arrays, or ``keep`` is a string.
    ValueError: if ``keep`` has what is no path of ``variables``; if ``variables`` are not those of
      a whole model, by collection; and one that lists every entry that is missing in the state
      dict, that has no place in ``variables``, or that has another shape there.

  Example:
    >>> import jax, jax.numpy as jnp, numpy as np
    >>> from kerv_jax.nn import KervConv
    >>> from kerv_jax.torch_import import authors_kernel, from_state_dict
    >>> layer = KervConv(8, (3, 5), padding=1, kernel_fn=authors_kernel("manhattan"))
    >>> shapes = jax.eval_shape(layer.init, jax.random.key(0), jnp.zeros((1, 9, 9, 4)))
    >>> state_dict = {"weight": np.ones((8, 4, 3, 5)), "bias": np.zeros(8)}
    >>> variables = from_state_dict(state_dict, shapes)
    >>> variables["params"]["kernel"].shape
    (3, 5, 4, 8)
  """
  if isinstance(keep, str):
    raise TypeError(f"`keep` must be a sequence of paths, such as ({keep!r},), got {keep!r}")
  given = _names(state_dict, rename)
  flat: dict[Any, Any] = flax.traverse_util.flatten_dict(dict(variables), sep=None)
  if not flat or any(len(path) < 2 for path in flat):
    raise ValueError(
      "`variables` must be those of a whole model, such as {'params': {'kernel': ...}}, got the "
      f"names {[*variables]}"
    )
  paths = ["/".join(path[1:]) for path in flat]
  for part in keep:
    if not any(_begins(path, part) for path in paths):
      raise ValueError(f"`keep` must be paths of `variables`, {paths}, got {part!r}")
  result: dict[Any, Any] = {}
  missing, misshapen = [], []
  for path, leaf in flat.items():
    _, *modules, name = path
    # Beside a kernel, a scale is not that of a normalization but a kernel function's.
    own = name not in _LEAVES or (name == "scale" and (*path[:-1], "kernel") in flat)
    if own or any(_begins("/".join(path[1:]), part) for part in keep):
      if isinstance(leaf, jax.ShapeDtypeStruct):
        raise ValueError(
          f"`variables` must have a value for {'/'.join(path)}, which stays as it is, got {leaf}"
        )
      if not own:
        given.pop(_torch_name(modules, name), None)
      result[path] = leaf
      continue
    there = _torch_name(modules, name)
    if there not in given:
      missing.append(there)
      continue
    array = given.pop(there)
    value = np.moveaxis(array, (0, 1), (-1, -2)) if name == "kernel" and array.ndim > 1 else array
    if value.shape != tuple(leaf.shape):
      expected = tuple(leaf.shape)
      ours = f", which is {value.shape} here" if name == "kernel" else ""
      misshapen.append(f"{there}: {array.shape}{ours}, must be {expected}")
      continue
    # A copy: where it can, JAX uses memory as it is, which PyTorch may write to later.
    result[path] = jax.numpy.array(value, leaf.dtype, copy=True)
  problems = [
    f"{what}:\n  " + "\n  ".join(entries)
    for what, entries in (
      ("missing in it", sorted(missing)),
      ("without a place in `variables`", sorted(given)),
      ("of another shape", misshapen),
    )
    if entries
  ]
  if problems:
    raise ValueError("`state_dict` does not fit `variables`; entries " + "\nand ".join(problems))
  return flax.traverse_util.unflatten_dict(result)


def _names(
  state_dict: Mapping[str, Any], rename: Callable[[str], str] | None
) -> dict[str, np.ndarray]:
  """The arrays that matter, by the names that they shall have."""
  if not isinstance(state_dict, Mapping) or not all(isinstance(name, str) for name in state_dict):
    raise TypeError(f"`state_dict` must map names to arrays, got {type(state_dict).__name__}")
  parallel = all(name.startswith("module.") for name in state_dict)
  result: dict[str, np.ndarray] = {}
  for original, value in state_dict.items():
    name = original.removeprefix("module.") if parallel else original
    name = rename(name) if rename is not None else name
    if not isinstance(name, str):
      raise TypeError(f"`rename` must return a name, got {name!r} for {original!r}")
    if name.split(".")[-1] == "num_batches_tracked":
      continue
    if name in result:
      raise ValueError(f"`rename` must give each entry a name of its own, got {name!r} twice")
    result[name] = _as_numpy(original, value)
  return result


def _as_numpy(name: str, value: Any) -> np.ndarray:
  """An array, or a tensor wherever it is and whatever its dtype, as an array."""
  try:
    array = _converted(value)
  except (TypeError, ValueError, RuntimeError) as error:  # as PyTorch has them
    raise TypeError(f"`state_dict` must have dense arrays, got for {name!r}: {error}") from error
  if array.dtype != bool and not jax.numpy.issubdtype(array.dtype, jax.numpy.number):
    raise TypeError(f"`state_dict` must map names to arrays, got {value!r} for {name!r}")
  if np.iscomplexobj(array):
    raise TypeError(f"`state_dict` must have real arrays, got {array.dtype} for {name!r}")
  return array


def _converted(value: Any) -> np.ndarray:
  if hasattr(value, "detach"):
    value = value.detach().cpu()
    if value.dtype.itemsize <= 2 and value.dtype.is_floating_point:  # NumPy has not all of these
      value = value.float()
  return np.asarray(value)


def _torch_name(modules: Sequence[str], name: str) -> str:
  parts = [re.sub(r"_(\d+)", r".\1", module) for module in modules]
  return ".".join([*parts, _LEAVES.get(name, name)])


def _begins(path: str, start: str) -> bool:
  return path == start or path.startswith(start + "/")
