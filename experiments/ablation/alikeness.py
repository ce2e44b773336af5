"""How like two sets of filters are."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from experiments.ablation.evidence import Evidence
from experiments.ablation.study import STUDIES


def match(filters: np.ndarray, others: np.ndarray) -> tuple[list[int], list[float]]:
  """Sets filters beside those they are like.

  Args:
    filters: (height, width, channels, number).
    others: of the same shape.

  Returns:
    For each of the filters the index of its partner among the others, and their correlation; the
    pairing has the largest sum of correlations.
  """

  def unit(weights: np.ndarray) -> np.ndarray:
    flat = weights.reshape(-1, weights.shape[-1]).astype(np.float64)
    flat = flat - flat.mean(axis=0)
    return flat / np.maximum(np.linalg.norm(flat, axis=0), 1e-12)

  correlation = unit(filters).T @ unit(others)
  rows, columns = linear_sum_assignment(-correlation)
  return columns.tolist(), correlation[rows, columns].tolist()


def sentence(evidence: Evidence) -> str:
  """How like the filters of both networks are, of one seed and of two.

  Args:
    evidence: of the page.

  Returns:
    It; "" if there are fewer than two seeds of both.
  """
  cnn, knn = (
    {seed: np.array(row["filters"]) for seed, row in evidence.filters(arm).items()}
    for arm in STUDIES["filters"].arms
  )
  same = [np.mean(match(cnn[seed], knn[seed])[1]) for seed in cnn.keys() & knn.keys()]
  pairs = [(one, other) for one in cnn for other in knn if one != other]
  apart = [np.mean(match(cnn[one], knn[other])[1]) for one, other in pairs]
  if not same or not apart:
    return ""
  return (
    f"The mean correlation of pairs, paired the same way, is {np.mean(same):.2f} of a CNN and a "
    f"KNN that start from the same weights ({len(same)} seeds), and {np.mean(apart):.2f} of those "
    f"that start from different ones ({len(apart)} pairs of seeds)."
  )
