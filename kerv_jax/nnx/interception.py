"""What makes an NNX convolution of another class a kervolution."""

import functools
from typing import Any

from flax import nnx

from kerv_jax.nnx.layers import KervConv, Kervolution, Kervolutional, asking


def _blank(cls: type) -> Any:
  """An object without attributes: what unpickling starts from."""
  return object.__new__(kervolution_of(cls))


@functools.cache
def kervolution_of(cls: Any) -> Any:
  """The class that a convolution of a class becomes.

  Args:
    cls: ``nnx.Conv`` or a subclass.

  Returns:
    :class:`KervConv`, or a subclass of ``cls`` with its name and methods.
  """
  if cls is nnx.Conv:
    return KervConv

  def checked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    around, asking.classes = asking.classes, set()
    try:
      out = cls.__call__(self, *args, **kwargs)
    finally:
      asked, asking.classes = asking.classes, around | asking.classes
    if made in asked:
      made._asked = True  # its program may be cached from now on
    elif not made._asked:
      raise ValueError(
        f"the convolution of {cls.__name__} cannot be replaced: it does not call its "
        "`conv_general_dilated` as flax.nnx.Conv does"
      )
    return out

  def reduced(self: Any, protocol: Any) -> Any:
    """As of any object, but for the class, which has no name to go by."""
    out: Any = cls.__reduce_ex__(self, protocol)
    return (_blank, (cls,), *out[2:]) if type(self) is made else out

  namespace = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
  namespace["__reduce_ex__"] = reduced
  namespace["kernel_fn"] = vars(Kervolutional)["kernel_fn"]
  namespace["conv_general_dilated"] = vars(Kervolution)["conv_general_dilated"]
  if cls.__call__ is not nnx.Conv.__call__:
    namespace["__call__"] = functools.wraps(cls.__call__)(checked_call)
  made = type(cls)(cls.__name__, (cls, Kervolution), {**namespace, "_asked": False})
  return made
