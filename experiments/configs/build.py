"""From a configuration to what it names: the network, the data, the trainer."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import UsageError, data
from experiments.common.digests import digest
from experiments.configs.config import TrainConfig
from experiments.configs.identity import STREAMED
from experiments.configs.networks import WHITENED, describe, network
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
from kerv_jax.models import Description

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
    network: what the network is and sees, for those who use it when it is trained.
  """

  trainer: Trainer
  feed: Feed
  image_shape: tuple[int, int, int]
  description: str
  schedule: Callable[[int], float]
  total_steps: int
  fingerprint: str
  network: Description


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
    images, resize = dataset.train.images[:WHITENED], None
  else:
    for option, value in (
      ("--data.validation", config.data.validation),
      ("--eval.views", config.eval.views),
      ("--model.name", config.model.name if config.model.name == "fastnet" else None),
    ):
      if value is not None:
        raise UsageError(
          f"`{option}` {value} is for images that are held in memory, not for {config.data.name}"
        )
    images, resize = None, dataset.resize
    shape = dataset.size, dataset.size, dataset.channels
    normalisation = IMAGENET if config.data.normalisation == "channel" else UNIT
    if config.data.flip or config.data.pad:
      raise UsageError(
        "`--data.flip` and `--data.pad` are for images that are held in memory; those of "
        f"{config.data.name} are always cropped and flipped at random"
      )
  description = describe(
    config.model,
    num_classes=dataset.num_classes,
    image_shape=shape,
    mean=normalisation.mean,
    std=normalisation.std,
    resize=resize,
  )
  if images is not None and config.model.name == "fastnet":
    images = np.asarray(normalisation(jnp.asarray(images)))
    model = network(config.model, description, images)
  else:
    model = network(config.model, description)
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
    augmentation=Augmentation(
      flip=config.data.flip,
      pad=config.data.pad,
      alternate=steps_per_epoch if config.data.flip_mode == "alternating" else 0,
    ),
    smoothing=config.optim.label_smoothing,
    dtype=dtype,
    views=config.eval.views,
  )
  in_memory = isinstance(dataset, Dataset)
  trainer = Trainer(learner, layout=layout, loop=None if in_memory else "python")
  sizes = {"batch_size": config.data.batch_size, "seed": config.seed, "devices": layout.size}
  feed: Feed
  if in_memory:
    held_out = dataset.validation
    feed = MemoryFeed(
      to_device(dataset.train, layout),
      to_device(dataset.test, layout),
      validation=None if held_out is None else to_device(held_out, layout),
      **sizes,
    )
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
    _description(config, dataset),
    lambda step: float(np.asarray(schedule(step))),
    lengths["total_steps"],
    fingerprint(dataset),
    description,
  )


def _description(config: TrainConfig, dataset: Dataset | StreamedDataset) -> str:
  """Returns a line that says what the data are, and how they are tested."""
  validation = f"{config.data.validation:,} to validate, " if config.data.validation else ""
  views = f" (each {config.eval.views})" if config.eval.views else ""
  return (
    f"{dataset.description}: {len(dataset.train):,} to train, {validation}"
    f"{len(dataset.test):,} to test{views}"
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
    named = {"train": dataset.train, "test": dataset.test, "validation": dataset.validation}
    for name, part in ((name, part) for name, part in named.items() if part is not None):
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
  held_out = config.data.validation
  if held_out is not None and isinstance(dataset, Dataset):
    number = len(dataset.train)
    if held_out >= number:
      raise UsageError(f"`--data.validation` must be below {number}, got {held_out}")
    order = np.random.default_rng(1).permutation(number)
    rest, chosen = np.sort(order[held_out:]), np.sort(order[:held_out])
    validation = dataset.train[chosen]
    dataset = dataclasses.replace(dataset, train=dataset.train[rest], validation=validation)
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


@dataclasses.dataclass(frozen=True)
class _Part:
  """Some examples of a streamed set."""

  examples: EncodedExamples
  index: np.ndarray

  def __len__(self) -> int:
    return len(self.index)

  def __getitem__(self, index: int, /) -> tuple[bytes, int]:
    return self.examples[int(self.index[index])]
