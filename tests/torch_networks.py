"""Plain PyTorch networks and layers whose weights `kerv_jax.torch_import` is tested with."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
  """A residual block of two or three convolutions, with the names of torchvision's."""

  def __init__(self, channels, width, stride, bottleneck):
    super().__init__()
    out = 4 * width if bottleneck else width
    plan = [(width, 3, stride), (width, 3, 1)]
    if bottleneck:
      plan = [(width, 1, 1), (width, 3, stride), (out, 1, 1)]
    self.number, before = len(plan), channels
    for i, (features, window, step) in enumerate(plan, start=1):
      conv = nn.Conv2d(before, features, window, step, padding=window // 2, bias=False)
      setattr(self, f"conv{i}", conv)
      setattr(self, f"bn{i}", nn.BatchNorm2d(features))
      before = features
    self.downsample = None
    if stride > 1 or channels != out:
      self.downsample = nn.Sequential(
        nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
      )

  def forward(self, x):
    y = x
    for i in range(1, self.number + 1):
      y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
      y = F.relu(y) if i < self.number else y
    return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
  """Of 18 or 50 layers."""

  def __init__(self, depth, num_classes):
    super().__init__()
    sizes, bottleneck = {18: ((2, 2, 2, 2), False), 50: ((3, 4, 6, 3), True)}[depth]
    self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64)
    channels = 64
    for stage, blocks in enumerate(sizes):
      width, layers = 64 * 2**stage, []
      for i in range(blocks):
        layers.append(Block(channels, width, 2 if stage and not i else 1, bottleneck))
        channels = 4 * width if bottleneck else width
      setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
    self.fc = nn.Linear(channels, num_classes)

  def forward(self, x):
    x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, padding=1)
    for stage in range(1, 5):
      x = getattr(self, f"layer{stage}")(x)
    return self.fc(x.mean((2, 3)))


@torch.no_grad()
def randomise(module, seed):
  """Random values of everything, statistics included, that keep the scale of what goes through."""
  generator = torch.Generator().manual_seed(seed)
  for name, value in module.state_dict().items():
    if not value.dtype.is_floating_point:
      continue
    noise = torch.randn(value.shape, generator=generator)
    if value.ndim > 1:
      value.copy_(noise / value[0].numel() ** 0.5)
    elif name.endswith(("bias", "running_mean")):
      value.copy_(0.2 * noise)
    else:
      value.copy_(0.6 + 0.3 * torch.rand(value.shape, generator=generator))


KERNELS = {
  "linear": lambda x, w: (x * w).sum(2),
  "manhattan": lambda x, w: -(x - w).abs().sum(2),
  "euclidean": lambda x, w: -((x - w) ** 2).sum(2),
  "polynomial": lambda x, w: ((x * w).sum(2) + 0.5) ** 2,
  "gaussian": lambda x, w: torch.exp(-0.05 * ((x - w) ** 2).sum(2)),
}
"""What the authors' layer computes of patches (N, 1, K, L) and filters (1, O, K, 1)."""


def unfolded(layer, kernel_type, x):
  """A convolution layer's weights as a kervolution, from unfolded patches."""
  padding = layer.padding if layer.weight.ndim == 4 else (0, *layer.padding)
  stride = layer.stride if layer.weight.ndim == 4 else (1, *layer.stride)
  weight = layer.weight if layer.weight.ndim == 4 else layer.weight[:, :, None]
  image = x if x.ndim == 4 else x[:, :, None]
  window = weight.shape[2:]
  space = [
    (size + 2 * pad - k) // step + 1
    for size, pad, k, step in zip(image.shape[2:], padding, window, stride, strict=True)
  ]
  patches = F.unfold(image, window, padding=padding, stride=stride)[:, None]
  out = KERNELS[kernel_type](patches, weight.flatten(1)[None, :, :, None])
  out = out + layer.bias[:, None]
  return out.reshape(len(x), -1, *(space if x.ndim == 4 else space[1:]))
