import io
import itertools
import math

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs the extra 'experiments'")
pytest.importorskip("grain", reason="needs the extra 'experiments'")

from PIL import Image

from experiments import UsageError, data
from experiments.data import crops


def picture(height, width):
  """An image of noise."""
  return np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)


def jpeg(array):
  stream = io.BytesIO()
  Image.fromarray(array).save(stream, "JPEG", quality=95)
  return stream.getvalue()


# Pieces of images


@pytest.mark.parametrize("size", [(300, 200), (37, 120), (1, 1), (500, 10), (9, 400)])
def test_random_box_is_inside_the_image(size):
  width, height = size
  rng = np.random.default_rng(0)
  for _ in range(300):
    left, top, right, bottom = crops.random_box(width, height, rng)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_random_boxes_are_drawn_as_described():
  rng = np.random.default_rng(0)
  side = 4000  # of which rounding is a small part
  boxes = np.array([crops.random_box(side, side, rng) for _ in range(20_000)])
  width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
  area, aspect = width * height / side**2, np.log(width / height) / np.log(4 / 3)
  assert 0.0795 < area.min() < 0.082
  assert area.max() > 0.98
  np.testing.assert_allclose([aspect.min(), aspect.max()], [-1, 1], atol=0.01)
  # Up to the area 3/4 every aspect ratio fits: there, both are uniform.
  fits = area < 0.75
  for values, low, high in ((area[fits], 0.08, 0.75), (aspect[fits], -1, 1)):
    deciles = np.quantile(values, np.arange(1, 10) / 10)
    np.testing.assert_allclose((deciles - low) / (high - low), np.arange(1, 10) / 10, atol=0.015)
  room = side - width
  place = boxes[:, 0][room > 500] / room[room > 500]
  np.testing.assert_allclose(np.quantile(place, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.015)


@pytest.mark.parametrize(
  ("size", "box"), [((900, 30), (430, 0, 470, 30)), ((30, 900), (0, 430, 30, 470))]
)
def test_centre_is_taken_where_nothing_fits(size, box):
  rng = np.random.default_rng(0)
  assert {crops.random_box(*size, rng) for _ in range(20)} == {box}


def test_random_crop_is_the_box_resized(monkeypatch):
  image = picture(40, 60)
  monkeypatch.setattr(crops, "random_box", lambda width, height, rng: (10, 5, 26, 21))
  piece = image[5:21, 10:26]
  found = []
  for seed in range(200):
    crop = crops.random_crop(Image.fromarray(image), 16, np.random.default_rng(seed))
    found.append(np.array_equal(crop, piece[:, ::-1]))
    assert found[-1] or np.array_equal(crop, piece)
  assert 70 < sum(found) < 130


def test_random_crop_averages_when_it_shrinks(monkeypatch):
  image = picture(64, 64)
  monkeypatch.setattr(crops, "random_box", lambda width, height, rng: (0, 0, 64, 64))
  crop = np.asarray(crops.random_crop(Image.fromarray(image), 8, np.random.default_rng(0)), float)
  # Antialiased noise keeps the mean, and little of the spread.
  np.testing.assert_allclose(crop.mean(), image.mean(), atol=6)
  assert crop.std() < image.std() / 4


def test_ten_crops_are_corners_and_centre_and_mirrored():
  image = picture(20, 27)  # its shorter side is what it is resized to
  pieces = [
    np.asarray(piece) for piece in crops.evaluation_crops(Image.fromarray(image), 16, 20, 10)
  ]
  wanted = []
  for view in (image, image[:, ::-1]):
    corners = [view[:16, :16], view[:16, -16:], view[-16:, :16], view[-16:, -16:]]
    wanted += [*corners, view[2:18, 6:22]]  # 5.5 is rounded to even
  for piece, square in zip(pieces, wanted, strict=True):
    np.testing.assert_array_equal(piece, square)
  (centre,) = crops.evaluation_crops(Image.fromarray(image), 16, 20, 1)
  np.testing.assert_array_equal(centre, wanted[4])


@pytest.mark.parametrize("size", [(40, 80), (81, 40), (20, 20), (30, 39)])
def test_evaluation_resizes_the_shorter_side(size):
  width, height = size
  x, y = np.meshgrid(*(250 * (np.arange(side) + 0.5) / side for side in size))
  image = Image.fromarray(np.stack([x, y, x], -1).astype(np.uint8))
  (piece,) = crops.evaluation_crops(image, 16, 20, 1)
  assert piece.size == (16, 16)
  piece = np.asarray(piece, float)
  # Both directions are scaled alike, so a step is 250 / (20 * side / shorter side).
  steps = [np.diff(piece[8, :, 0]).mean(), np.diff(piece[:, 8, 1]).mean()]
  wanted = [250 / (20 * side / min(size)) for side in (width, height)]
  np.testing.assert_allclose(steps, wanted, rtol=0.03)
  np.testing.assert_allclose(piece[7:9, 7:9].mean(axis=(0, 1)), 125, atol=7)


# Streams


def stream(train=23, test=11, channels=3, **options):
  """A data set of small photographs of many sizes."""

  class Encoded(list):
    pass

  def photographs(number, seed):
    rng = np.random.default_rng(seed)
    found = Encoded()
    for i in range(number):
      coarse = rng.integers(0, 256, (3, 4, channels)).astype(np.uint8)
      array = np.repeat(np.repeat(coarse, 8 + i % 3, axis=0), 9 + i % 2, axis=1)
      found.append((jpeg(array[..., 0] if channels == 1 else array), i % 4))
    return found

  options = {"size": 16, "resize": 20} | options
  train, test = photographs(train, 0), photographs(test, 1)
  return data.StreamedDataset(train, test, "photographs", 4, channels, **options)


def assert_same(first, second):
  for one, other in zip(first, second, strict=True):
    np.testing.assert_array_equal(one, other)
    assert one.dtype == other.dtype


def take(iterator, number):
  return list(itertools.islice(iterator, number))


def test_stream_is_in_the_order_of_the_epoch():
  dataset = stream()
  batches = take(dataset.train_batches(seed=3, batch_size=5), 9)
  ids = np.stack([batch.ids for batch in batches])
  orders = [data.epoch_order(23, 5, seed=3, epoch=epoch) for epoch in range(3)]
  np.testing.assert_array_equal(ids, np.concatenate(orders)[:9])
  for step, batch in enumerate(batches):
    assert batch.images.shape == (5, 16, 16, 3)
    assert [part.dtype for part in batch] == [np.uint8, np.int32, np.int32, np.bool_]
    assert batch.mask.all()
    for image, label, index in zip(batch.images, batch.labels, batch.ids, strict=True):
      content, wanted = dataset.train[index]
      assert label == wanted
      rng = np.random.default_rng([3, step, index])
      piece = crops.random_crop(Image.open(io.BytesIO(content)), 16, rng)
      np.testing.assert_array_equal(image, piece)


@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("start", [0, 1, 4, 7])
def test_stream_starts_at_any_step(start, threads):
  whole = take(stream().train_batches(seed=3, batch_size=5), 9)
  rest = stream(threads=threads).train_batches(seed=3, batch_size=5, start_step=start)
  for first, second in zip(whole[start:], take(rest, 9 - start), strict=True):
    assert_same(first, second)


def test_stream_is_another_for_another_seed():
  first, second = (next(stream().train_batches(seed=seed, batch_size=23)) for seed in (0, 1))
  assert np.any(first.ids != second.ids)
  sort = [batch.images[np.argsort(batch.ids)] for batch in (first, second)]
  assert np.any(sort[0] != sort[1], axis=(1, 2, 3)).all()


@pytest.mark.parametrize("count", [2, 4])
def test_each_process_reads_its_own_rows(count):
  class Recorder(list):
    seen: set

    def __getitem__(self, index):
      self.seen.add(index)
      return super().__getitem__(index)

  whole = take(stream().train_batches(seed=0, batch_size=8), 2)
  shares, seen = [], []
  for index in range(count):
    dataset = stream()
    recorder = Recorder(dataset.train)
    recorder.seen = set()
    own = data.StreamedDataset(recorder, dataset.test, "recorded", 4, size=16, resize=20)
    batches = own.train_batches(seed=0, batch_size=8, process_index=index, process_count=count)
    shares.append(take(batches, 2))
    seen.append(recorder.seen)
    read_ahead = 3  # batches: one is put together while two are read
    ids = [
      data.training_order(23, 8, seed=0, steps=2 + read_ahead)[
        :, data.process_rows(8, index, count)
      ]
    ]
    assert recorder.seen <= set(np.ravel(ids).tolist())
  for step, batch in enumerate(whole):
    joined = [np.concatenate(parts) for parts in zip(*(s[step] for s in shares), strict=True)]
    assert_same(joined, batch)


@pytest.mark.parametrize(("batch_size", "count"), [(4, 1), (4, 2), (11, 1), (16, 4), (1, 1)])
def test_every_example_of_a_stream_is_evaluated_once(batch_size, count):
  dataset = stream()
  shares = [
    list(dataset.eval_batches(batch_size=batch_size, process_index=index, process_count=count))
    for index in range(count)
  ]
  assert {len(share) for share in shares} == {math.ceil(11 / batch_size)}
  batches = [batch for share in shares for batch in share]
  assert {batch.images.shape for batch in batches} == {(batch_size // count, 1, 16, 16, 3)}
  mask = np.concatenate([batch.mask for batch in batches])
  ids = np.concatenate([batch.ids for batch in batches])[mask]
  labels = np.concatenate([batch.labels for batch in batches])[mask]
  images = np.concatenate([batch.images for batch in batches])[mask]
  assert sorted(ids) == list(range(11))
  for index, label, image in zip(ids, labels, images, strict=True):
    content, wanted = dataset.test[index]
    assert label == wanted
    (piece,) = crops.evaluation_crops(Image.open(io.BytesIO(content)), 16, 20, 1)
    np.testing.assert_array_equal(image[0], piece)


def test_stream_is_evaluated_on_ten_crops():
  one, ten = (next(stream().eval_batches(batch_size=3, crops=number)) for number in (1, 10))
  assert ten.images.shape == (3, 10, 16, 16, 3)
  np.testing.assert_array_equal(ten.images[:, 4], one.images[:, 0])
  np.testing.assert_array_equal(ten.images[:, 5:9], ten.images[:, [1, 0, 3, 2], :, ::-1])


def test_grey_images_have_one_channel():
  dataset = stream(channels=1)
  assert next(dataset.train_batches(seed=0, batch_size=4)).images.shape == (4, 16, 16, 1)
  assert next(dataset.eval_batches(batch_size=4)).images.shape == (4, 1, 16, 16, 1)


def test_images_of_other_modes_are_converted():
  dataset = stream()
  for mode in ("L", "CMYK"):
    content = io.BytesIO()
    Image.open(io.BytesIO(dataset.train[0][0])).convert(mode).save(content, "JPEG")
    dataset.train[0] = (content.getvalue(), 0)
    assert next(dataset.train_batches(seed=0, batch_size=23)).images.shape == (23, 16, 16, 3)


@pytest.mark.parametrize("keep", [0, 30, 400])
@pytest.mark.parametrize("part", ["train", "test"])
def test_image_that_cannot_be_decoded_is_named(part, keep):
  dataset = stream()
  examples = getattr(dataset, part)
  examples[6] = (examples[6][0][:keep], 0)
  words = "training" if part == "train" else "test"
  batches = (
    dataset.train_batches(seed=0, batch_size=20)
    if part == "train"
    else dataset.eval_batches(batch_size=4)
  )
  with pytest.raises(UsageError, match=f"photographs: {words} image 6 cannot be decoded"):
    take(batches, 3)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda d: d.train_batches(seed=0, batch_size=24), "from 1 to 23, .* got 24"),
    (lambda d: d.train_batches(seed=0, batch_size=0), "from 1 to 23, .* got 0"),
    (
      lambda d: d.train_batches(seed=0, batch_size=7, process_count=2),
      "multiple of the number of processes, 2, got 7",
    ),
    (lambda d: d.eval_batches(batch_size=7, process_count=2), "processes, 2, got 7"),
    (lambda d: d.eval_batches(batch_size=0), "at least 1, got 0"),
    (lambda d: d.eval_batches(batch_size=4, crops=5), "must be 1 or 10, got 5"),
  ],
)
def test_batches_that_do_not_fit_are_refused(call, message):
  with pytest.raises(UsageError, match=message):
    call(stream())


def test_stream_that_cannot_be_cut_is_refused():
  with pytest.raises(ValueError, match="`size` must be at most `resize`, 20, got 21"):
    stream(size=21)
  with pytest.raises(ValueError, match="`channels` must be 1 or 3, got 4"):
    data.StreamedDataset([], [], "", 4, channels=4)
