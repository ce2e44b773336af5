"""Dense layers with a kernel function, for Flax linen."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
from jax import Array, lax

from kerv_jax._forms import dense_product
from kerv_jax._kernel import Kernel
from kerv_jax._layer import Kervolutional
from kerv_jax.kernels import Linear, Polynomial


class KervDense(Kervolutional, nn.Dense):
  """``flax.linen.Dense`` with a kernel function in place of the inner product.

  Output feature o of an input x is ``kappa(x, kernel[:, o]) + bias[o]``: the case of a window of
  one, as an idea that needs no windows.  With ``Gaussian`` it is a layer of radial basis functions,
  with ``-L2(squared=True)`` one of nearest prototypes, with ``Cosine`` a normalised classifier.
  With ``Linear()`` it is ``nn.Dense`` bit for bit.

  Attributes:
    kernel_fn: the kernel function, with the hyperparameters' (initial) values.
    learnable: as of :class:`kerv_jax.nn.KervConv`.
    per_feature: likewise.
    features, use_bias, and the rest: as in ``flax.linen.Dense``, with the parameters ``kernel``,
      shape (in_features, features), and ``bias``, shape (features,), except that there is no
      ``dot_general`` and no ``dot_general_cls``: this layer is that choice.

  Raises:
    TypeError: for a ``kernel_fn``, ``learnable`` or ``per_feature`` of the wrong type.
    ValueError: as :class:`kerv_jax.nn.KervConv`.

  Example:
    >>> import jax
    >>> from kerv_jax import kernels
    >>> from kerv_jax.nn import KervDense
    >>> layer = KervDense(10, kernel_fn=kernels.Gaussian(0.1), learnable=True, per_feature=True)
    >>> x = jax.random.normal(jax.random.key(0), (4, 32))
    >>> variables = layer.init(jax.random.key(1), x)
    >>> jax.tree.map(lambda p: p.shape, variables["params"])
    {'bias': (10,), 'gamma': (10,), 'kernel': (32, 10)}
    >>> layer.apply(variables, x).shape
    (4, 10)
  """

  kernel_fn: Kernel = Polynomial()
  learnable: bool | Sequence[str] = False
  per_feature: bool = False
  # The product is this class's own, so neither is a field here.
  dot_general: ClassVar[Any] = None
  dot_general_cls: ClassVar[Any]  # pyright: ignore[reportRedeclaration]

  def __post_init__(self) -> None:
    """Checks the fields of this class, before anything is traced."""
    self._check_kernel_fn()
    super().__post_init__()

  @nn.nowrap
  def dot_general_cls(self) -> Callable[..., Array]:  # pyright: ignore
    """The product that ``nn.Dense`` calls, with the current hyperparameters."""
    if type(self.kernel_fn) is Linear:
      return lax.dot_general
    return dense_product(self._operator())
