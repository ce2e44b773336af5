"""Kervolution as its definition, in NumPy float64 with explicit loops; imports nothing of JAX.

The operator's arguments mean what they mean to ``lax.conv_general_dilated``; the kernel function
is a plain function of two float64 vectors and the output feature's number.
"""

import itertools

import numpy as np


def same_padding(size, extent, stride, lower):
  out = -(-size // stride)
  total = max((out - 1) * stride + extent - size, 0)
  low = (total + 1) // 2 if lower else total // 2
  return low, total - low


def pad_and_dilate(x, pads, dilation):
  """Inserts zeros between the elements of each spatial axis, then pads or crops."""
  for axis, ((low, high), step) in enumerate(zip(pads, dilation, strict=True), start=2):
    size = x.shape[axis]
    dilated = np.zeros((*x.shape[:axis], (size - 1) * step + 1, *x.shape[axis + 1 :]))
    for index in range(size):
      source, target = [slice(None)] * x.ndim, [slice(None)] * x.ndim
      source[axis], target[axis] = index, index * step
      dilated[tuple(target)] = x[tuple(source)]
    padded_size = dilated.shape[axis] + low + high
    padded = np.zeros((*x.shape[:axis], padded_size, *x.shape[axis + 1 :]))
    for index in range(padded_size):
      if 0 <= index - low < dilated.shape[axis]:
        source, target = [slice(None)] * x.ndim, [slice(None)] * x.ndim
        source[axis], target[axis] = index - low, index
        padded[tuple(target)] = dilated[tuple(source)]
    x = padded
  return x


def kervolution(
  lhs,
  rhs,
  kappa,
  *,
  strides,
  padding,
  lhs_dilation,
  rhs_dilation,
  layouts,
  feature_group_count=1,
  batch_group_count=1,
):
  """``out[n, o, p] = kappa(patch, filter, o)``.

  Patch and filter are vectors in the order (window position, input feature).  Layouts are three
  strings such as ("NHWC", "HWIO", "NHWC"), whose letters other than N, C, I, O are spatial; the
  filters' order of them is that of strides, padding and dilations.
  """
  lhs, rhs = np.asarray(lhs, np.float64), np.asarray(rhs, np.float64)
  space = [letter for letter in layouts[1] if letter not in "IO"]
  x = np.transpose(lhs, [layouts[0].index(letter) for letter in ["N", "C", *space]])
  w = np.transpose(rhs, [layouts[1].index(letter) for letter in ["O", "I", *space]])
  window = w.shape[2:]
  extent = [(k - 1) * d + 1 for k, d in zip(window, rhs_dilation, strict=True)]
  if padding == "VALID":
    padding = [(0, 0)] * len(window)
  elif padding in ("SAME", "SAME_LOWER"):
    padding = [
      same_padding(size, e, s, padding == "SAME_LOWER")
      for size, e, s in zip(x.shape[2:], extent, strides, strict=True)
    ]
  x = pad_and_dilate(x, padding, lhs_dilation)
  out_shape = [(n - e) // s + 1 for n, e, s in zip(x.shape[2:], extent, strides, strict=True)]
  features, channels = w.shape[:2]
  batch = x.shape[0] // batch_group_count
  out = np.zeros((batch, features, *out_shape))
  for item, feature in itertools.product(range(batch), range(features)):
    first_channel = feature // (features // feature_group_count) * channels
    source = feature // (features // batch_group_count) * batch + item
    for position in itertools.product(*map(range, out_shape)):
      corner = [p * s for p, s in zip(position, strides, strict=True)]
      patch, filter_ = [], []
      for tap in itertools.product(*map(range, window)):
        where = [c + t * d for c, t, d in zip(corner, tap, rhs_dilation, strict=True)]
        for channel in range(channels):
          patch.append(x[(source, first_channel + channel, *where)])
          filter_.append(w[(feature, channel, *tap)])
      value = kappa(np.array(patch), np.array(filter_), feature)
      out[(item, feature, *position)] = value
  return np.transpose(out, [["N", "C", *space].index(letter) for letter in layouts[2]])


def at(value, feature):
  """A hyperparameter's value for one output feature."""
  value = np.asarray(value, np.float64)
  return value[feature] if value.ndim else value


def linear(x, w):
  return float(np.dot(x, w))


def polynomial(x, w, degree, balance):
  value = 1.0
  for _ in range(degree):
    value *= np.dot(x, w) + balance
  return value


def sigmoid(x, w, scale, offset):
  return np.tanh(scale * np.dot(x, w) + offset)


def gaussian(x, w, gamma):
  return np.exp(-gamma * np.sum((x - w) ** 2))


def l1(x, w):
  return np.sum(np.abs(x - w))


def l2(x, w):
  return np.sqrt(np.sum((x - w) ** 2))


def laplacian(x, w, gamma):
  return np.exp(-gamma * np.sum(np.abs(x - w)))


def cauchy(x, w, sigma):
  return 1 / (1 + np.sum((x - w) ** 2) / sigma**2)


def rational_quadratic(x, w, alpha, length):
  return (1 + np.sum((x - w) ** 2) / (2 * alpha * length**2)) ** -alpha


def cosine(x, w):
  norm = np.sqrt(np.sum(x**2)) * np.sqrt(np.sum(w**2))
  return np.dot(x, w) / norm if norm > 0 else 0.0
