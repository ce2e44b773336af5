"""The data of a tiny study."""

import pytest

from experiments.data import load_ordered
from tests.runs import write_data


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
  """A data set of 61 and 23 small images, as a file, and its digest."""
  file = write_data(tmp_path_factory.mktemp("data"))
  return file, load_ordered(file)[1]
