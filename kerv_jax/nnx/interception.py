"""What makes an NNX convolution of another class a kervolution."""

import functools
from typing import Any

from flax import nnx

from kerv_jax.nnx.layers import KernelConv, KernelLayer, KervConv


def _blank(cls: type) -> Any:
  """An object without attributes: what unpickling starts from."""
  return object.__new__(kervolved_class(cls))


@functools.cache
def kervolved_class(cls: Any) -> Any:
  """The class that a convolution of a class becomes.

  Args:
    cls: ``nnx.Conv`` or a subclass.

  Returns:
    :class:`KervConv`, or a subclass of ``cls`` with its name and methods.
  """
  if cls is nnx.Conv:
    return KervConv

  def asked(self: Any, *args: Any, **options: Any) -> Any:
    """As of :class:`KervConv`; notes that the class calls it."""
    made._asks = True
    return KernelConv.conv_general_dilated(self, *args, **options)

  def checked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    out = cls.__call__(self, *args, **kwargs)
    if not made._asks:  # nor has in an earlier call, whose program may be cached
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
  namespace["kernel_fn"] = vars(KernelLayer)["kernel_fn"]
  namespace["conv_general_dilated"] = asked
  if cls.__call__ is not nnx.Conv.__call__:
    namespace["__call__"] = functools.wraps(cls.__call__)(checked_call)
  made = type(cls)(cls.__name__, (cls, KernelConv), {**namespace, "_asks": False})
  return made
