"""Presets that are not the paper's: CIFAR in minutes, by a public record recipe."""

from collections.abc import Iterator
from typing import NamedTuple

from experiments.configs.config import DataConfig, EvalConfig, ModelConfig, TrainConfig
from experiments.engine.optim import SGDConfig


class Recipe(NamedTuple):
  """A CNN and its kervolutional twins.

  Attributes:
    name: the beginning of the presets' names.
    config: the configuration.
    knns: networks of the twins, by the endings of their names.
    source: where it is from.
    left_open: what was chosen here.
    published: the error of the CNN as its author has it; "" where there is none.
  """

  name: str
  config: TrainConfig
  knns: dict[str, ModelConfig]
  source: str
  left_open: str
  published: str = ""


EXAMPLES = 1024 * (1 + 1 / (1 - 0.85))
"""Examples by which the recipe counts its learning rate and weight decay."""


def fast() -> Iterator[Recipe]:
  """Yields the recipes for CIFAR-10 and CIFAR-100, in three sizes."""
  sizes = (
    ("", (64, 256, 256), 10, 1000, "5.99 % (Jordan)"),
    ("-medium", (64, 128, 128), 11, 1000, "7.0 % (Jordan)"),
    ("-small", (32, 64, 64), 8, 500, ""),
  )
  for data, targets in (("cifar10", (0.90, 0.93, 0.94)), ("cifar100", (0.60, 0.70))):
    for ending, widths, epochs, batch_size, published in sizes:
      model = ModelConfig(
        name="fastnet", kernel="polynomial", degree=3, learnable=True, widths=widths
      )
      config = TrainConfig(
        epochs=epochs,
        model=model,
        data=DataConfig(
          name=data,
          batch_size=batch_size,
          flip=True,
          flip_mode="alternating",
          pad=2,
          normalisation="channel",
        ),
        optim=_optimizer(batch_size),
        eval=EvalConfig(targets=targets, views="shifted"),
      )
      text = "x".join(map(str, widths))
      yield Recipe(
        f"fast-{data}{ending}",
        config,
        {"polynomial": model},
        f"not in the paper: FastNet {text} by the recipe of airbench",
        "all of it; the first learned convolution is the kervolution, power 3 with a learnable "
        "balancer, at the CNN's learning rate; test scores are means over mirrored and shifted "
        "images (`--eval.views`)",
        published if data == "cifar10" else "",
      )


def _optimizer(batch_size: int) -> SGDConfig:
  """Returns the recipe's, whose loss is summed over examples, for one that is a mean."""
  return SGDConfig(
    learning_rate=round(11.5 / EXAMPLES * batch_size, 6),
    momentum=0.85,
    nesterov=True,
    weight_decay=round(0.0153 / 11.5, 8),
    schedule="triangle",
    label_smoothing=0.2,
    groups="whitened",
    lookahead=5,
  )
