"""The networks layer by layer in NumPy float64, as PyTorch would compute them; imports no JAX.

Parameters and statistics are nested dictionaries of arrays, weights in the layout HWIO. `updated`
collects the running averages after a training step under the path of their layer.
"""

import numpy as np


def relu(x):
  return np.maximum(x, 0)


def pad(x, margin, value=0.0):
  return np.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)), constant_values=value)


def windows(x, size, stride):
  """Yields each position of the output and the window of the input that it sees."""
  height, width = ((n - size) // stride + 1 for n in x.shape[1:3])
  for i in range(height):
    for j in range(width):
      yield i, j, x[:, i * stride : i * stride + size, j * stride : j * stride + size]


def pool(x, size, stride, margin, reduction):
  x = pad(x, margin, -np.inf if margin else 0.0)
  height, width = ((n - size) // stride + 1 for n in x.shape[1:3])
  out = np.zeros((len(x), height, width, x.shape[-1]))
  for i, j, window in windows(x, size, stride):
    out[:, i, j] = reduction(window, axis=(1, 2))
  return out


class Network:
  """Layers by name; `kappa` is the pointwise profile of a kervolution in the first convolution."""

  def __init__(self, params, stats, train, stem="conv1", kappa=lambda product: product):
    self.params, self.stats, self.train = params, stats, train
    self.stem, self.kappa = stem, kappa
    self.updated = {}

  def at(self, path, tree=None):
    tree = self.params if tree is None else tree
    for name in path.split("/"):
      tree = tree[name]
    return tree

  def conv(self, x, path, stride=1):
    kernel = np.asarray(self.at(path)["kernel"], np.float64)
    size = len(kernel)
    x = pad(x, size // 2)
    height, width = ((n - size) // stride + 1 for n in x.shape[1:3])
    out = np.zeros((len(x), height, width, kernel.shape[-1]))
    for i, j, window in windows(x, size, stride):
      out[:, i, j] = np.tensordot(window, kernel, 3)
    return self.kappa(out) if path == self.stem else out

  def norm(self, x, path):
    layer, stats = self.at(path), self.at(path, self.stats)
    mean, var = stats["mean"], stats["var"]
    if self.train:
      values = x.reshape(-1, x.shape[-1])
      mean, var = values.mean(axis=0), values.var(axis=0)
      self.updated[path] = {
        "mean": 0.9 * stats["mean"] + 0.1 * mean,
        "var": 0.9 * stats["var"] + 0.1 * values.var(axis=0, ddof=1),
      }
    return (x - mean) / np.sqrt(var + 1e-5) * layer["scale"] + layer["bias"]

  def classify(self, x, path):
    layer = self.at(path)
    return x.mean(axis=(1, 2)) @ layer["kernel"] + layer["bias"]

  def block(self, x, path, stride, convolutions, shortcut):
    """A residual block; `convolutions` are the strides of its convolutions."""
    y = x
    for i, step in enumerate(convolutions, start=1):
      y = self.norm(self.conv(y, f"{path}/conv{i}", step), f"{path}/bn{i}")
      y = relu(y) if i < len(convolutions) else y
    if x.shape != y.shape or stride > 1:
      if shortcut == "pad":
        padded = np.zeros(y.shape)
        padded[..., : x.shape[-1]] = x[:, ::stride, ::stride]
        x = padded
      else:
        x = self.norm(self.conv(x, f"{path}/downsample_0", stride), f"{path}/downsample_1")
    return relu(x + y)

  def cifar_resnet(self, x, depth):
    x = relu(self.norm(self.conv(x, "conv1"), "bn1"))
    for stage in (1, 2, 3):
      for i in range((depth - 2) // 6):
        stride = 2 if stage > 1 and i == 0 else 1
        x = self.block(x, f"layer{stage}_{i}", stride, (stride, 1), "pad")
    return self.classify(x, "fc")

  def resnet(self, x, sizes, bottleneck):
    x = relu(self.norm(self.conv(x, "conv1", 2), "bn1"))
    x = pool(x, 3, 2, 1, np.max)
    for stage, blocks in enumerate(sizes, start=1):
      for i in range(blocks):
        stride = 2 if stage > 1 and i == 0 else 1
        strides = (1, stride, 1) if bottleneck else (stride, 1)
        x = self.block(x, f"layer{stage}_{i}", stride, strides, "project")
    return self.classify(x, "fc")

  def densenet(self, x, depth):
    x = self.conv(x, "conv0")
    for block in (1, 2, 3):
      for i in range(1, (depth - 4) // 3 + 1):
        path = f"denseblock{block}_denselayer{i}"
        y = self.conv(relu(self.norm(x, f"{path}/norm1")), f"{path}/conv1")
        x = np.concatenate([x, y], axis=-1)
      if block < 3:
        path = f"transition{block}"
        x = self.conv(relu(self.norm(x, f"{path}/norm")), f"{path}/conv")
        x = pool(x, 2, 2, 0, np.mean)
    return self.classify(relu(self.norm(x, "norm")), "classifier")

  def googlenet(self, x):
    def convolution(x, path):
      return relu(self.norm(self.conv(x, f"{path}/conv"), f"{path}/bn"))

    x = convolution(x, "conv1")
    for name in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
      if name in ("4a", "5a"):
        x = pool(x, 3, 2, 1, np.max)
      path, branches = f"inception{name}", []
      for layers in (
        ["branch1"],
        ["branch2_0", "branch2_1"],
        ["branch3_0", "branch3_1", "branch3_2"],
        ["branch4_1"],
      ):
        y = pool(x, 3, 1, 1, np.max) if layers == ["branch4_1"] else x
        for layer in layers:
          y = convolution(y, f"{path}/{layer}")
        branches.append(y)
      x = np.concatenate(branches, axis=-1)
    return self.classify(x, "fc")
