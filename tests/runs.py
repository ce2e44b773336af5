"""Small training runs, in this process and in others, for the tests of the engine."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from experiments.configs.config import DataConfig, EvalConfig, ModelConfig, RunConfig, TrainConfig
from experiments.engine.optim import SGDConfig

ROOT = Path(__file__).parent.parent
CLASSES = 3


def blobs(number, seed):
  """Noisy 12x12 images with a bright square whose place is the class."""
  rng = np.random.default_rng(seed)
  labels = rng.permutation(np.arange(number) % CLASSES).astype(np.int32)
  images = rng.integers(0, 60, (number, 12, 12, 1))
  for image, label in zip(images, labels, strict=True):
    image[4 * label : 4 * label + 4, 2:8] += 190
  return images.astype(np.uint8), labels


def write_data(folder, train=61, test=23):
  """A Keras-style data set whose sizes are no multiples of a batch."""
  (x_train, y_train), (x_test, y_test) = blobs(train, 0), blobs(test, 1)
  file = Path(folder) / "blobs.npz"
  np.savez(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
  return str(file)


def config(data, out, *, model="lenet5", epochs=4, batch_size=8, rate=0.05, **run):
  """A run with everything on that has a state: momentum, a schedule, augmentation."""
  return TrainConfig(
    epochs=epochs,
    seed=3,
    model=ModelConfig(name=model, kernel="polynomial", degree=2, learnable=True),
    data=DataConfig(name=data, batch_size=batch_size, flip=True, pad=2),
    optim=SGDConfig(learning_rate=rate, weight_decay=1e-3, milestones=(1.0, 3.0), factor=0.5),
    eval=EvalConfig(batch_size=10, targets=(0.5, 0.999)),
    run=RunConfig(out=str(out), **run),
  )


def options(config):
  """The options of the command line that make the preset lenet5-sample-polynomial this."""
  given = []

  def visit(values, prefix):
    for name, value in values.items():
      option = prefix + name.replace("_", "-")
      if isinstance(value, dict):
        visit(value, f"{option}.")
      elif isinstance(value, bool):
        given.append(f"--{option}" if value else f"--{prefix}no-{option.removeprefix(prefix)}")
      elif isinstance(value, tuple | list):
        given.extend([f"--{option}", *map(str, value)])
      elif value is not None:
        given.extend([f"--{option}", str(value)])

  visit(dataclasses.asdict(config), "")
  return given


def launch(config, *more, devices=1, x64=False, root=ROOT, cwd=ROOT):
  """The run in a process of its own, by the code in a folder, in a working directory."""
  flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
  environment = os.environ | {"XLA_FLAGS": flags, "JAX_ENABLE_X64": str(int(x64))}
  environment["PYTHONPATH"] = str(root)
  if x64:  # images in float64, which Flax promotes with the parameters, in float32
    environment["JAX_NUMPY_DTYPE_PROMOTION"] = "standard"
  command = [sys.executable, "-W", "error", "-m", "experiments", "train"]
  return subprocess.Popen(
    [*command, "lenet5-sample-polynomial", *options(config), *map(str, more)],
    cwd=cwd,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def finish(process, timeout=300):
  """Exit code and what was printed."""
  try:
    out, err = process.communicate(timeout=timeout)
  finally:
    process.kill()
  return process.returncode, out, err
