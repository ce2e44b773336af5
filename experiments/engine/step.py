"""What a step of training is, and a score: pure functions of the state and a batch."""

import inspect
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.data import UNIT, Augmentation, Normalisation, augment
from experiments.data.views import ViewsName, views_of
from experiments.engine.optim import cross_entropy
from kerv_jax.kernels.definitions import at_least_float32


class TrainState(flax.struct.PyTreeNode):
  """All that changes in training, and the seed.

  Attributes:
    step: number of steps taken.
    seed: seed of the run: of the initial parameters and of the augmentation.
    params: the model's parameters.
    batch_stats: running means and variances, {} for a model without them.
    opt_state: the optimizer's state.
  """

  step: jax.Array
  seed: jax.Array
  params: Any
  batch_stats: Any
  opt_state: optax.OptState


class Score(NamedTuple):
  """Means over a set of examples, each of which counts once.

  Attributes:
    loss: mean cross entropy, without label smoothing.
    accuracy: part of the examples whose class has the highest score.
    top5: part of the examples whose class is among the five highest.
  """

  loss: float
  accuracy: float
  top5: float = 0.0


class Learner:
  """The pure functions of one model, to be transformed as one likes: vmapped over runs, say.

  Args:
    model: a Flax module from images to class scores, called with `train` if it has such an
      argument. Its batch statistics are the collection "batch_stats".
    optimizer: optimizer of the parameters.
    normalisation: function from uint8 images to what the model sees.
    augmentation: augmentation of training images.
    smoothing: smoothing of the labels in training, from 0 to 1.
    views: looks at each image that is scored, see `experiments.data.views`; None for the image.
    dtype: type of the images that the model sees; with float64, which JAX must allow, parameters
      are float64 too.
  """

  def __init__(
    self,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    normalisation: Normalisation = UNIT,
    augmentation: Augmentation | None = None,
    smoothing: float = 0.0,
    views: ViewsName | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
  ):
    self.model = model
    self.optimizer = optimizer
    self.normalisation = normalisation
    self.augmentation = augmentation or Augmentation()
    self.smoothing = smoothing
    self.views: ViewsName | None = views
    self.dtype = jnp.dtype(dtype)
    self._takes_train = "train" in inspect.signature(type(model).__call__).parameters

  def initial_state(
    self, seed: jax.Array, image: jax.Array, learning_rate: jax.Array | None = None
  ) -> TrainState:
    """Returns the state before the first step.

    Args:
      seed: seed of the run, an integer.
      image: an image, (1, height, width, channels), of which only the shape matters.
      learning_rate: learning rate of the run, for an optimizer made by `optax.inject_hyperparams`;
        None leaves it as it is.
    """
    options: dict[str, Any] = {"train": False} if self._takes_train else {}
    variables = self.model.init(jax.random.key(seed), image, **options)
    if self.dtype == jnp.float64:
      variables = jax.tree.map(lambda leaf: leaf.astype(self.dtype), variables)
    opt_state = self.optimizer.init(variables["params"])
    if learning_rate is not None:
      opt_state = optax.tree.set(opt_state, learning_rate=learning_rate)
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      seed=jnp.asarray(seed, jnp.uint32),
      params=variables["params"],
      batch_stats=variables.get("batch_stats", {}),
      opt_state=opt_state,
    )

  def step(
    self, state: TrainState, images: jax.Array, labels: jax.Array, ids: jax.Array
  ) -> tuple[TrainState, jax.Array]:
    """Takes one step of the optimizer.

    Args:
      state: state before the step.
      images: images, uint8, (batch, height, width, channels).
      labels: classes, integers, (batch,).
      ids: places of the examples in their set, which decide their augmentation, integers, (batch,).

    Returns:
      The state after the step and the mean loss before it.
    """
    images = augment(self.augmentation, images, jax.random.key(state.seed), state.step, ids)

    def mean_loss(params: Any) -> tuple[jax.Array, Any]:
      logits, batch_stats = self.apply(params, state.batch_stats, images, train=True)
      return jnp.mean(cross_entropy(logits, labels, self.smoothing)), batch_stats

    (loss, batch_stats), gradient = jax.value_and_grad(mean_loss, has_aux=True)(state.params)
    updates, opt_state = self.optimizer.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    state = state.replace(
      step=state.step + 1, params=params, batch_stats=batch_stats, opt_state=opt_state
    )
    return state, loss

  def score(
    self, state: TrainState, images: jax.Array, labels: jax.Array, mask: jax.Array
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns sums over the examples that the mask keeps.

    Args:
      state: state whose parameters are scored.
      images: images, uint8, (batch, height, width, channels), or (batch, crops, height, width,
        channels): the prediction is then the mean of the crops' probabilities.
      labels: classes, integers, (batch,).
      mask: whether an example counts, bool, (batch,).

    Returns:
      Sums of the loss, of hits, and of hits among the five highest. Where the loss is not finite,
      there is no hit.
    """
    crops = images.shape[1] if images.ndim == 5 else 1
    images = images.reshape(-1, *images.shape[-3:])
    weights = None
    if self.views is not None:
      looks, weights = views_of(self.views, images)
      images = looks.reshape(-1, *images.shape[-3:])
    logits, _ = self.apply(state.params, state.batch_stats, images, train=False)
    if weights is not None:
      logits = logits.reshape(len(weights), -1, logits.shape[-1])
      logits = jnp.tensordot(jnp.asarray(weights, logits.dtype), logits, 1)
    logits = jax.nn.log_softmax(logits.reshape(len(labels), crops, -1))
    logits = jax.nn.logsumexp(logits, axis=1) - np.log(crops) if crops > 1 else logits[:, 0]
    losses = cross_entropy(logits, labels, 0.0)
    own = jnp.take_along_axis(logits, labels[:, None], axis=-1)
    among_five = (jnp.sum(logits > own, axis=-1) < 5) & jnp.isfinite(losses)
    hits = (jnp.argmax(logits, axis=-1) == labels) & jnp.isfinite(losses)
    return (
      jnp.sum(losses, where=mask),
      jnp.sum(hits, where=mask),
      jnp.sum(among_five, where=mask),
    )

  def apply(
    self, params: Any, batch_stats: Any, images: jax.Array, *, train: bool
  ) -> tuple[jax.Array, Any]:
    """Applies the model.

    Args:
      params: The parameters.
      batch_stats: Running means and variances, {} for a model without them.
      images: Images, uint8, (batch, height, width, channels).
      train: Whether the model is in training.

    Returns:
      Scores of the classes, float32 or wider, and the batch statistics afterwards.
    """
    variables = {"params": params} | ({"batch_stats": batch_stats} if batch_stats else {})
    options: dict[str, Any] = {"train": train} if self._takes_train else {}
    inputs = self.normalisation(images, self.dtype)
    if train and batch_stats:
      logits, updated = self.model.apply(variables, inputs, mutable=["batch_stats"], **options)
      batch_stats = updated["batch_stats"]
    else:
      logits = self.model.apply(variables, inputs, **options)
    assert isinstance(logits, jax.Array)
    return logits.astype(at_least_float32(logits.dtype)), batch_stats
