"""Trained networks: used, written to a safetensors file, and read again."""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from kerv_jax.models.description import Description, normalized

_KEY, _DIGEST = "kerv_jax.network", "kerv_jax.sha256"
"""Of the description, and of a digest of it and of the arrays, in the header of a file."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Trained:
  """A trained network, and what is needed to show it images.

  Attributes:
    description: what the network is and what it sees.
    variables: parameters, and batch statistics where there are some, as ``model.apply`` takes them.

  Example:
    >>> import jax, numpy as np
    >>> from kerv_jax.models import Description, Trained
    >>> description = Description(name="lenet5", kernel="l2", image_shape=(28, 28, 1))
    >>> variables = description.network().init(jax.random.key(0), np.zeros((1, 28, 28, 1)))
    >>> network = Trained(description, variables)  # stands for a trained one
    >>> network.predict(np.zeros((3, 28, 28, 1), np.uint8)).shape
    (3, 10)
  """

  description: Description
  variables: Mapping[str, Any]

  def __repr__(self) -> str:
    count = sum(np.size(leaf) for leaf in jax.tree.leaves(self.variables))
    return f"Trained({self.description!r}, variables of {count:,} numbers)"

  @functools.cached_property
  def model(self) -> nn.Module:
    """The network, a linen module from preprocessed images to scores of the classes."""
    return self.description.network()

  def preprocess(self, images: Any) -> jax.Array:
    """Returns images as the model sees them.

    Args:
      images: uint8, (number, height, width, channels).

    Returns:
      Floating point, of the same shape.

    Raises:
      ValueError: if the images are of another type, size or number of channels.
    """
    self._require(images)
    return self._preprocessed(jnp.asarray(images))

  def probabilities(self, images: jax.Array) -> jax.Array:
    """Returns the probability of each class, to be transformed by JAX as one likes.

    Args:
      images: uint8, (number, height, width, channels).

    Returns:
      Shape (number, num_classes), float32 or wider; each row sums to 1.
    """
    scores = self.model.apply(self.variables, self._preprocessed(images))
    assert isinstance(scores, jax.Array)
    return jax.nn.softmax(scores)

  def predict(self, images: Any, *, batch_size: int = 256) -> np.ndarray:
    """Returns the probability of each class, for each image; compiled once for each batch size.

    Args:
      images: uint8, (number, height, width, channels), of any number.
      batch_size: images at a time, at most.

    Returns:
      Shape (number, num_classes); each row sums to 1.

    Raises:
      ValueError: if the images are of another type, size or number of channels, or the batch size
        is below 1.
    """
    if batch_size < 1:
      raise ValueError(f"`batch_size` must be at least 1, got {batch_size}")
    self._require(images)
    images = np.asarray(images)
    number, size = len(images), min(batch_size, max(len(images), 1))
    found = [np.zeros((0, self.description.num_classes), np.float32)]
    for start in range(0, number, size):
      part = images[start : start + size]
      whole = np.pad(part, [(0, size - len(part)), (0, 0), (0, 0), (0, 0)])
      found.append(np.asarray(self._compiled(whole))[: len(part)])
    return np.concatenate(found[1:] or found)

  def _require(self, images: Any) -> None:
    shape = self.description.image_shape
    if np.shape(images)[1:] != shape or getattr(images, "dtype", None) != np.uint8:
      raise ValueError(
        f"`images` must be uint8 of shape (number, {', '.join(map(str, shape))}), got "
        f"{getattr(images, 'dtype', type(images).__name__)} of shape {np.shape(images)}"
      )

  def _preprocessed(self, images: jax.Array) -> jax.Array:
    dtype = jax.dtypes.canonicalize_dtype(
      jnp.float64 if self.description.dtype == "float64" else jnp.float32
    )
    return normalized(images, self.description.mean, self.description.std, dtype)

  @functools.cached_property
  def _compiled(self) -> Any:
    return jax.jit(self.probabilities)


def save(path: str | os.PathLike[str], network: Trained) -> None:
  """Writes a trained network to a safetensors file that says in its header what network it is.

  Args:
    path: the file to write, or to replace; it is there whole or not at all.
    network: the network.

  Raises:
    ImportError: if the package safetensors is not installed.
    ValueError: if the variables are not those of the network.
    OSError: if the file cannot be written.

  Example:
    >>> import os, tempfile, jax, numpy as np
    >>> from kerv_jax.models import Description, Trained, load, save
    >>> description = Description(name="lenet5", kernel="l1", image_shape=(12, 12, 1))
    >>> variables = description.network().init(jax.random.key(0), np.zeros((1, 12, 12, 1)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   save(os.path.join(folder, "network.safetensors"), Trained(description, variables))
    ...   again = load(os.path.join(folder, "network.safetensors"))
    >>> again.description.kernel
    'l1'
  """
  safetensors = _safetensors("save")
  arrays = {
    name: np.asarray(leaf) for name, leaf in flatten_dict(network.variables, sep="/").items()
  }
  _check(network.description, {name: (x.shape, x.dtype) for name, x in arrays.items()}, "`network`")
  text, path = network.description.to_json(), Path(path)
  part = path.with_name(f".{path.name}.{os.getpid()}")
  try:
    with part.open("wb") as stream:
      stream.write(safetensors.numpy.save(arrays, {_KEY: text, _DIGEST: _digest(text, arrays)}))
      stream.flush()
      os.fsync(stream.fileno())
    part.replace(path)
  finally:
    part.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Trained:
  """Reads a trained network from a file of ``save``; no code of the file is run.

  The file is made by ``save``, or by ``python -m experiments export`` in a clone of the repository.

  Args:
    path: the file.

  Returns:
    The network, with its variables on the default device.

  Raises:
    ImportError: if the package safetensors is not installed.
    FileNotFoundError: if there is no such file.
    ValueError: if it is no such file, is not as it was written, or its header describes another
      network than its arrays are of.

  Example:
    >>> from kerv_jax import models
    >>> try:
    ...   models.load("no-network.safetensors")
    ... except FileNotFoundError as error:
    ...   print(error)
    there is no file 'no-network.safetensors'
  """
  safetensors = _safetensors("load")
  path, name = Path(path), os.fspath(path)
  if not path.exists():
    raise FileNotFoundError(f"there is no file {name!r}")
  if not path.is_file():  # reading a pipe waits for somebody to write
    raise ValueError(f"`path` must be a safetensors file, got {name!r}, which is no regular file")
  with _told(name), safetensors.safe_open(path, framework="numpy") as file:
    header = file.metadata() or {}
    if _KEY not in header:
      raise ValueError(f"there is no {_KEY!r} in its header")
    description = Description.from_json(header[_KEY])
    slices = {each: file.get_slice(each) for each in file.keys()}  # noqa: SIM118, no mapping
    kinds = {
      each: (tuple(part.get_shape()), _dtype(part.get_dtype())) for each, part in slices.items()
    }
    _check(description, kinds, "the file")
    arrays = {each: file.get_tensor(each) for each in slices}
    if header.get(_DIGEST) != _digest(header[_KEY], arrays):
      raise ValueError("it does not have the SHA-256 it was written with")
  return Trained(description, jax.tree.map(jnp.asarray, unflatten_dict(arrays, sep="/")))


def _safetensors(what: str) -> Any:
  """The package, or an error that says how to get it."""
  try:
    import safetensors
    import safetensors.numpy
  except ImportError as error:
    raise ImportError(
      f"`kerv_jax.models.{what}` needs safetensors: pip install 'kerv_jax[safetensors]'"
    ) from error
  return safetensors


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
  """Within it, whatever is wrong with a file is a ValueError that names it."""
  try:
    yield
  except (OSError, MemoryError):
    raise
  except Exception as error:  # of many types, by what is wrong
    message = " ".join(str(error).split())
    raise ValueError(
      f"`path` must be a network that `kerv_jax.models.save` wrote, got {name!r}: {message}"
    ) from error


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
  """The SHA-256 over a description, and names and bytes of arrays."""
  total = hashlib.sha256(text.encode())
  for name in sorted(arrays):
    total.update(f"\0{name}\0".encode())
    total.update(np.ascontiguousarray(arrays[name]).tobytes())
  return total.hexdigest()


def _dtype(name: str) -> Any:
  """The type of an array, by the name that a safetensors file has for it."""
  return {"F32": np.dtype("float32"), "F64": np.dtype("float64")}.get(name, name)


def _check(description: Description, kinds: Mapping[str, tuple[Any, Any]], what: str) -> None:
  """Raises a ValueError unless arrays have the names, shapes and types of a network's variables."""
  image = jax.ShapeDtypeStruct((1, *description.image_shape), jnp.float32)
  shapes: Any = jax.eval_shape(description.network().init, jax.random.key(0), image)
  dtype = np.dtype("float64" if description.dtype == "float64" else "float32")
  leaves: Any = flatten_dict(shapes, sep="/")
  wanted = {name: (leaf.shape, dtype) for name, leaf in leaves.items()}
  for name in sorted(wanted.keys() | kinds.keys()):
    if kinds.get(name) != wanted.get(name):
      raise ValueError(
        f"{what} must have the variables of the {description.name} that it describes; {name!r} "
        f"must be {_kind(wanted.get(name))}, got {_kind(kinds.get(name))}"
      )


def _kind(kind: tuple[Any, Any] | None) -> str:
  return "left out" if kind is None else f"{kind[1]} of shape {tuple(kind[0])}"
