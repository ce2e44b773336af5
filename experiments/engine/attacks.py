"""Attacks on a trained network: images moved, within bounds, so that it errs."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data import eval_batches

Logits = Callable[[jax.Array], jax.Array]
"""From images in [0, 1] to the scores of the classes."""
Loss = Literal["cross-entropy", "margin"]

STEPS = 20
RESTARTS = 3
STEP = 0.125
"""Of PGD, in parts of epsilon: 20 of them cross the ball of radius epsilon more than once."""


def fgsm(gradient: jax.Array, images: jax.Array, epsilon: jax.Array | float) -> jax.Array:
  """Returns images in [0, 1], each pixel moved by epsilon where the loss of this gradient rises.

  References:
    Goodfellow, Shlens, Szegedy, "Explaining and Harnessing Adversarial Examples", ICLR 2015.
  """
  return jnp.clip(images + epsilon * jnp.sign(gradient), 0.0, 1.0)


def losses(logits: jax.Array, labels: jax.Array, kind: Loss) -> jax.Array:
  """Returns what an attack makes large, for each image.

  It is the cross entropy, whose gradient vanishes where the network is very sure, or the margin,
  the best wrong score less the right one, whose gradient does not.
  """
  right = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
  if kind == "cross-entropy":
    return jax.nn.logsumexp(logits, axis=-1) - right
  wrong = jnp.where(jax.nn.one_hot(labels, logits.shape[-1], dtype=bool), -jnp.inf, logits)
  return jnp.max(wrong, axis=-1) - right


def input_gradient(
  logits: Logits, images: jax.Array, labels: jax.Array, kind: Loss = "cross-entropy"
) -> jax.Array:
  """Returns the gradient of each image's loss, see `losses`, with respect to it."""
  return jax.grad(lambda images: jnp.sum(losses(logits(images), labels, kind)))(images)


def pgd_step(
  logits: Logits,
  images: jax.Array,
  moved: jax.Array,
  labels: jax.Array,
  epsilon: jax.Array | float,
  kind: Loss = "cross-entropy",
) -> jax.Array:
  """Returns images after a step of projected gradient descent from where they were moved to.

  References:
    Madry, Makelov, Schmidt, Tsipras, Vladu, "Towards Deep Learning Models Resistant to Adversarial
    Attacks", ICLR 2018.
  """
  gradient = input_gradient(logits, moved, labels, kind)
  return project(images, moved + STEP * epsilon * jnp.sign(gradient), epsilon)


def project(images: jax.Array, moved: jax.Array, epsilon: jax.Array | float) -> jax.Array:
  """Returns what is nearest to the images moved, within epsilon of the others and in [0, 1]."""
  return jnp.clip(jnp.clip(moved, images - epsilon, images + epsilon), 0.0, 1.0)


class Attacker:
  """Attacks on one network, over a set of examples.

  Args:
    apply: from parameters and images in [0, 1] to scores.
    params: of the network.
    images: in [0, 1], float32, (number, height, width, channels).
    labels: (number,).
    batch_size: images at a time.
  """

  def __init__(
    self,
    apply: Callable[[Any, jax.Array], jax.Array],
    params: Any,
    images: np.ndarray,
    labels: np.ndarray,
    batch_size: int = 250,
  ):
    self.params, self.images, self.labels = params, images, labels
    self.batch_size = min(batch_size, len(images))

    def gradient(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
      return input_gradient(functools.partial(apply, params), images, labels)

    def step(params: Any, *arguments: Any) -> jax.Array:
      return pgd_step(functools.partial(apply, params), *arguments)

    self._right = jax.jit(lambda params, x, y: jnp.argmax(apply(params, x), axis=-1) == y)
    self._gradient = jax.jit(gradient)
    self._step = jax.jit(step, static_argnums=5)

  def right(self, images: np.ndarray) -> np.ndarray:
    """Which images of these labels, moved or not, the network classifies rightly, (number,)."""
    return self._over(lambda x, y: self._right(self.params, x, y), images, self.labels)

  def gradients(self) -> np.ndarray:
    """Gradients of the cross entropy with respect to the images, of their shape."""
    return self._over(lambda x, y: self._gradient(self.params, x, y), self.images, self.labels)

  def pgd(self, epsilon: float, seed: int = 0, restarts: int = RESTARTS, steps: int = STEPS):
    """The worst that PGD finds, over restarts.

    Args:
      epsilon: how far each pixel may go.
      seed: of the random starts.
      restarts: at most; only images that are still classified rightly are tried again. Every
        second one makes the margin large, in place of the cross entropy.
      steps: in each.

    Returns:
      The images, moved: misclassified ones where one was found.
    """
    wrong = ~self.right(self.images)
    result = self.images.copy()
    alive = np.arange(len(result))
    rng = np.random.default_rng([seed, round(1e6 * epsilon)])
    for restart in range(restarts):
      if not len(alive):
        break
      kind: Loss = "margin" if restart % 2 else "cross-entropy"
      noise = rng.uniform(-epsilon, epsilon, result[alive].shape).astype(np.float32)

      def attack(x: jax.Array, y: jax.Array, noise: jax.Array, kind: Loss = kind) -> jax.Array:
        moved = project(x, x + noise, epsilon)
        for _ in range(steps):  # no loop of XLA's, in which convolutions are slow on CPU
          moved = self._step(self.params, x, moved, y, np.float32(epsilon), kind)
        return moved

      result[alive] = self._over(attack, self.images[alive], self.labels[alive], noise)
      saved = wrong & self.right(result)  # an attacker leaves alone what is wrong already
      result[saved] = self.images[saved]
      alive = np.flatnonzero(self.right(result))
    return result

  def _over(self, function: Callable[..., jax.Array], *arrays: np.ndarray) -> np.ndarray:
    """What a function gives for all rows of arrays, batch by batch; the last one is padded."""
    results = []
    for rows, mask in zip(*eval_batches(len(arrays[0]), self.batch_size), strict=True):
      results.append(np.asarray(function(*(array[rows] for array in arrays)))[mask])
    return np.concatenate(results)
