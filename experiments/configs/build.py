"""From a configuration to what it names: the network, the data, the trainer."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments import UsageError, data
from experiments.common.digests import digest
from experiments.common.kernels import KERNELS, kernel
from experiments.configs.config import ModelConfig, TrainConfig
from experiments.configs.identity import STREAMED
from experiments.configs.ranges import LARGEST
from experiments.data import (
  IMAGENET,
  UNIT,
  Augmentation,
  Dataset,
  EncodedExamples,
  Normalisation,
  StreamedDataset,
)
from experiments.data.feeds import Feed, MemoryFeed, StreamFeed
from experiments.engine import optim
from experiments.engine.layout import Layout
from experiments.engine.step import Learner
from experiments.engine.trainer import Trainer, to_device
from kerv_jax import models
from kerv_jax.nn import KervConv

SMALLEST_LENET_IMAGE = 12
SAMPLED = 64
"""Examples of each part of a streamed set that its fingerprint looks at."""


class Parts(NamedTuple):
  """The parts that a run is made of.

  Attributes:
    trainer: trainer of the network.
    feed: feed of the data.
    image_shape: (height, width, channels).
    description: a line that says what the data are.
    schedule: function from the number of steps taken to the learning rate.
    total_steps: number of steps of the run.
    fingerprint: digest of the data: other data under the same name have another one.
  """

  trainer: Trainer
  feed: Feed
  image_shape: tuple[int, int, int]
  description: str
  schedule: Callable[[int], float]
  total_steps: int
  fingerprint: str


def build(config: TrainConfig, layout: Layout) -> Parts:
  """Loads the data and makes the network.

  Args:
    config: configuration of the run.
    layout: devices of the run.

  Raises:
    UsageError: if an option or the data will not do.
  """
  config.check()
  dtype = jnp.dtype("float64" if config.model.dtype == "float64" else "float32")
  if jax.dtypes.canonicalize_dtype(dtype) != dtype:
    raise UsageError("`--model.dtype` float64 needs the environment variable JAX_ENABLE_X64=1")
  dataset = load(config)
  if isinstance(dataset, Dataset):
    shape, normalisation = dataset.train.images.shape[1:], UNIT
    if config.data.normalisation == "channel":
      normalisation = Normalisation.by_channel(dataset.train.images)
  else:
    shape = dataset.size, dataset.size, dataset.channels
    normalisation = IMAGENET if config.data.normalisation == "channel" else UNIT
    if config.data.flip or config.data.pad:
      raise UsageError(
        "`--data.flip` and `--data.pad` are for images that are held in memory; those of "
        f"{config.data.name} are always cropped and flipped at random"
      )
  model = network(config.model, dataset.num_classes)
  if config.model.name == "lenet5" and min(shape[:2]) < SMALLEST_LENET_IMAGE:
    raise UsageError(
      f"`--data.name` must have images of at least {SMALLEST_LENET_IMAGE}x{SMALLEST_LENET_IMAGE} "
      f"for lenet5, got {shape[0]}x{shape[1]}"
    )
  if config.data.pad >= min(shape[:2]):
    raise UsageError(
      f"`--data.pad` must be below the images' sides, {shape[0]}x{shape[1]}, got {config.data.pad}"
    )
  if config.data.batch_size > len(dataset.train):
    raise UsageError(
      f"`--data.batch-size` must be at most {len(dataset.train)}, the number of examples to train "
      f"on, got {config.data.batch_size}"
    )
  layout.check_batch(config.data.batch_size, "--data.batch-size")
  steps_per_epoch = len(dataset.train) // config.data.batch_size
  if config.epochs * steps_per_epoch > LARGEST:
    raise UsageError(
      f"`--epochs` must be at most {LARGEST // steps_per_epoch}, of {steps_per_epoch} steps each, "
      f"got {config.epochs}"
    )
  lengths = {"steps_per_epoch": steps_per_epoch, "total_steps": config.epochs * steps_per_epoch}
  schedule = optim.make_schedule(config.optim, **lengths)
  learner = Learner(
    model,
    optim.make_optimizer(config.optim, **lengths),
    normalisation=normalisation,
    augmentation=Augmentation(flip=config.data.flip, pad=config.data.pad),
    smoothing=config.optim.label_smoothing,
    dtype=dtype,
  )
  in_memory = isinstance(dataset, Dataset)
  trainer = Trainer(learner, layout=layout, loop=None if in_memory else "python")
  sizes = {"batch_size": config.data.batch_size, "seed": config.seed, "devices": layout.size}
  feed: Feed
  if in_memory:
    feed = MemoryFeed(to_device(dataset.train, layout), to_device(dataset.test, layout), **sizes)
  else:
    feed = StreamFeed(dataset, **sizes)
  try:
    trainer.check(shape, config.data.batch_size)
  except ValueError as error:
    raise UsageError(
      f"`--model.name` {config.model.name} cannot be trained with `--data.name` {config.data.name} "
      f"and `--data.batch-size` {config.data.batch_size}: {error}"
    ) from error
  return Parts(
    trainer,
    feed,
    shape,
    f"{dataset.description}: {len(dataset.train):,} to train, {len(dataset.test):,} to test",
    lambda step: float(np.asarray(schedule(step))),
    lengths["total_steps"],
    fingerprint(dataset),
  )


def fingerprint(dataset: Dataset | StreamedDataset) -> str:
  """Returns what tells data apart.

  Args:
    dataset: data set as it is trained on.

  Returns:
    A digest of all images that are in memory; of streamed ones, `STREAMED` and one of their number
    and of `SAMPLED` of each part.
  """
  parts: dict[str, Any] = {"classes": np.asarray(dataset.num_classes)}
  if isinstance(dataset, Dataset):
    for name, part in (("train", dataset.train), ("test", dataset.test)):
      parts[name] = {"images": part.images, "labels": part.labels}
    return digest(parts)
  for name, examples in (("train", dataset.train), ("test", dataset.test)):
    number = len(examples)
    parts[name] = {"number": np.asarray(number)}
    for index in np.unique(np.linspace(0, number - 1, min(number, SAMPLED)).astype(int)):
      content, label = examples[int(index)]
      image = np.frombuffer(content, np.uint8)
      parts[name][str(index)] = {"image": image, "label": np.asarray(label)}
  return STREAMED + digest(parts)


def load(config: TrainConfig) -> Dataset | StreamedDataset:
  """Returns the data set, as much of it as is asked for.

  Args:
    config: configuration of the run.
  """
  dataset = data.load(config.data.name, config.data.data_dir, option="--data.name")
  parts = {"train": config.data.train_examples, "test": config.data.test_examples}
  for part, number in parts.items():
    examples = getattr(dataset, part)
    if number is None:
      continue
    if number > len(examples):
      raise UsageError(f"`--data.{part}-examples` must be at most {len(examples)}, got {number}")
    index = np.sort(np.random.default_rng(0).permutation(len(examples))[:number])
    chosen = examples[index] if isinstance(dataset, Dataset) else _Part(examples, index)
    dataset = dataclasses.replace(dataset, **{part: chosen})
  return dataset


def network(config: ModelConfig, num_classes: int) -> nn.Module:
  """Returns the network that a configuration names.

  Args:
    config: configuration of the network.
    num_classes: number of classes, the outputs of the last layer.
  """
  kerv = kervolution(config)
  first, rest = (kerv, kerv if config.layers == "all" else nn.Conv)
  if config.name == "lenet5":
    return models.LeNet5(num_classes=num_classes, conv1=first, conv2=rest)
  options: dict[str, Any] = {
    "num_classes": num_classes,
    "conv": rest,
    "stem": first,
    "dtype": jnp.bfloat16 if config.dtype == "bfloat16" else None,
    "remat": config.remat,
  }
  if config.name in ("resnet8", "resnet20", "resnet32", "resnet110"):
    return models.CifarResNet(depth=int(config.name.removeprefix("resnet")), **options)
  classes: dict[str, Callable[..., nn.Module]] = {
    "resnet18": models.ResNet18,
    "resnet34": models.ResNet34,
    "resnet50": models.ResNet50,
    "resnet101": models.ResNet101,
    "googlenet": models.GoogLeNet,
    "densenet40": models.DenseNet,
  }
  return classes[config.name](**options)


def kervolution(config: ModelConfig) -> Callable[..., nn.Module]:
  """Returns the class of the kervolutional layers; of convolutions for the CNN.

  Args:
    config: configuration of the network.
  """
  if config.kernel == "none":
    return nn.Conv
  kernel_fn = kernel(
    config.kernel, degree=config.degree, balance=config.balance, gamma=config.gamma
  )
  learnable = KERNELS[config.kernel].learnable if config.learnable else False
  return functools.partial(KervConv, kernel_fn=kernel_fn, learnable=learnable)


@dataclasses.dataclass(frozen=True)
class _Part:
  """Some examples of a streamed set."""

  examples: EncodedExamples
  index: np.ndarray

  def __len__(self) -> int:
    return len(self.index)

  def __getitem__(self, index: int, /) -> tuple[bytes, int]:
    return self.examples[int(self.index[index])]
