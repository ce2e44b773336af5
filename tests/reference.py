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


def kervolution(lhs, rhs, kappa, **options):
  """``out[n, o, p] = kappa(patch, filter, o)``.

  Patch and filter are vectors in the order (window position, input feature).  Options are those of
  :func:`windows`.
  """
  lhs, rhs = np.asarray(lhs, np.float64), np.asarray(rhs, np.float64)
  x, w = np.append(0.0, lhs), rhs.ravel()
  shape, order, found = windows(lhs.shape, rhs.shape, **options)
  out = np.zeros(shape)
  for index, feature, patch, filter_ in found:
    out[index] = kappa(x[patch], w[filter_], feature)
  return np.transpose(out, order)


def kervolution_vjp(lhs, rhs, slopes, cotangent, params=0, **options):
  """The gradients of ``sum(cotangent * kervolution)`` by the derivatives of the kernel function.

  ``slopes(patch, filter, o)`` returns the vectors of the derivatives with respect to patch and
  filter, and one number for each of the ``params`` hyperparameters; the result has for each of
  these one number per output feature.
  """
  lhs, rhs = np.asarray(lhs, np.float64), np.asarray(rhs, np.float64)
  x, w = np.append(0.0, lhs), rhs.ravel()
  shape, order, found = windows(lhs.shape, rhs.shape, **options)
  cotangent = np.transpose(np.asarray(cotangent, np.float64), np.argsort(order))
  assert cotangent.shape == shape
  dx, dw, dp = np.zeros(x.size), np.zeros(w.size), np.zeros((params, shape[1]))
  for index, feature, patch, filter_ in found:
    to_patch, to_filter, *to_params = slopes(x[patch], w[filter_], feature)
    np.add.at(dx, patch, cotangent[index] * to_patch)
    np.add.at(dw, filter_, cotangent[index] * to_filter)
    dp[:, feature] += cotangent[index] * np.array(to_params)
  return dx[1:].reshape(lhs.shape), dw.reshape(rhs.shape), dp


def windows(
  lhs_shape,
  rhs_shape,
  *,
  strides,
  padding,
  lhs_dilation,
  rhs_dilation,
  layouts,
  feature_group_count=1,
  batch_group_count=1,
):
  """What each output is a function of.

  Layouts are three strings such as ("NHWC", "HWIO", "NHWC"), whose letters other than N, C, I, O
  are spatial; the filters' order of them is that of strides, padding and dilations.

  Returns the output's shape (N, C, *space), the order of its axes in its layout, and for each
  output its index, its feature and where the elements of patch and filter lie in the ravelled
  operands; in the input 0 is a padded zero and 1 its first element.
  """
  space = [letter for letter in layouts[1] if letter not in "IO"]
  lhs = np.arange(1, np.prod(lhs_shape) + 1).reshape(lhs_shape)
  rhs = np.arange(np.prod(rhs_shape)).reshape(rhs_shape)
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
  x = pad_and_dilate(x, padding, lhs_dilation).astype(int)
  out_shape = [(n - e) // s + 1 for n, e, s in zip(x.shape[2:], extent, strides, strict=True)]
  features, channels = w.shape[:2]
  batch = x.shape[0] // batch_group_count

  def each():
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
        yield (item, feature, *position), feature, np.array(patch), np.array(filter_)

  order = [["N", "C", *space].index(letter) for letter in layouts[2]]
  return (batch, features, *out_shape), order, each()


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


# Kernels that reduce a term over the elements; each returns the value and its derivatives with
# respect to patch, filter and hyperparameters, at kinks and ties as the library documents them.


def huber(x, w, delta):
  d = x - w
  far = np.abs(d) > delta
  value = np.sum(np.where(far, delta * (np.abs(d) - delta / 2), d**2 / 2))
  slope = np.where(far, delta * np.sign(d), d)
  return value, slope, -slope, np.sum(np.where(far, np.abs(d) - delta, 0.0))


def intersection(x, w):
  to_x = np.where(x < w, 1.0, np.where(x == w, 0.5, 0.0))
  return np.sum(np.minimum(x, w)), to_x, 1 - to_x


def chi_squared(x, w):
  d, size = x - w, np.abs(x) + np.abs(w)
  ratio = np.divide(d, size, out=np.zeros_like(d), where=size > 0)
  to_x, to_w = (np.where(size > 0, -(ratio**2) * np.sign(v), 0.0) for v in (x, w))
  return np.sum(ratio * d), 2 * ratio + to_x, -2 * ratio + to_w


def minkowski(x, w, p):
  value, slopes, to_p = reduced(x - w, (np.ones(x.shape), -np.ones(x.shape)), "norm", p)
  return value, *slopes, to_p


def chebyshev(x, w):
  d = x - w
  first = 1.0 * (np.arange(d.size) == np.argmax(np.abs(d)))
  return np.max(np.abs(d)), first * np.sign(d), -first * np.sign(d)


def max_plus(x, w):
  first = 1.0 * (np.arange(x.size) == np.argmax(x + w))
  return np.max(x + w), first, first


def reduced(terms, slopes, reduction, number=1.0):
  """Terms and their derivatives, reduced; that by a temperature or exponent comes last."""
  if reduction == "sum":
    return np.sum(terms), slopes
  if reduction == "logsumexp":
    largest = np.max(terms)
    weights = np.exp((terms - largest) / number)
    logarithm = np.log(np.sum(weights))
    weights /= np.sum(weights)
    to_temperature = logarithm - np.sum(weights * (terms - largest)) / number
    return (
      largest + number * logarithm,
      [weights * slope for slope in slopes],
      to_temperature,
    )
  if reduction == "norm":
    size = np.abs(terms)
    largest = np.max(size)
    if largest == 0:
      return 0.0, [np.zeros_like(slope) for slope in slopes], 0.0
    size = size / largest
    total = np.sum(size**number)
    norm = total ** (1 / number)
    weights = (size / norm) ** (number - 1) * np.sign(terms)
    logs = np.log(size, out=np.zeros_like(size), where=size > 0)
    to_p = norm * (np.sum(size**number * logs) / total / number - np.log(total) / number**2)
    return largest * norm, [weights * slope for slope in slopes], largest * to_p
  extreme = np.argmax(terms) if reduction == "max" else np.argmin(terms)
  first = np.arange(terms.size) == extreme
  return terms[extreme], [first * slope for slope in slopes]
