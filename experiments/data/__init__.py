"""Images and labels: where they come from, how they are split, augmented, and in which order seen.

A set is loaded by name with `load`. One that fits in memory is a `Dataset`, uint8, to be put on the
device as it is, where the step picks (`epoch_order`), augments (`augment`) and normalises
(`Normalisation`) its batch; one that does not is a `StreamedDataset`.
"""

from experiments.data.augment import Augmentation, augment
from experiments.data.batches import Batch, Images, Picks, each_once, picks
from experiments.data.examples import Dataset, Examples
from experiments.data.normalise import IMAGENET, UNIT, Normalisation
from experiments.data.npz import NPZ_KEYS, load_npz
from experiments.data.order import (
  epoch_order,
  eval_batches,
  process_rows,
  split_by_class,
  training_order,
)
from experiments.data.ordered import load_ordered
from experiments.data.prepared import load_prepared
from experiments.data.sources import SAMPLE, load, load_embedded
from experiments.data.stream import EncodedExamples, StreamedDataset

__all__ = [
  "IMAGENET",
  "NPZ_KEYS",
  "SAMPLE",
  "UNIT",
  "Augmentation",
  "Batch",
  "Dataset",
  "EncodedExamples",
  "Examples",
  "Images",
  "Normalisation",
  "Picks",
  "StreamedDataset",
  "augment",
  "each_once",
  "epoch_order",
  "eval_batches",
  "load",
  "load_embedded",
  "load_npz",
  "load_ordered",
  "load_prepared",
  "picks",
  "process_rows",
  "split_by_class",
  "training_order",
]
