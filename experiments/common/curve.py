"""What is known of a training run afterwards: its accuracy on the way."""

import dataclasses


@dataclasses.dataclass
class Curve:
  """One training run, seen at every evaluation; the first is before training.

  Attributes:
    steps: numbers of steps taken before each evaluation.
    seconds: seconds spent in these steps, without compilation and evaluation.
    accuracy: accuracies on the test set.
    diverged_at: step whose loss was NaN or infinite, where the run stopped; None if none was.
  """

  steps: list[int] = dataclasses.field(default_factory=list)
  seconds: list[float] = dataclasses.field(default_factory=list)
  accuracy: list[float] = dataclasses.field(default_factory=list)
  diverged_at: int | None = None

  def reaches(self, target: float) -> tuple[int, float] | None:
    """Returns steps and seconds at the first evaluation with at least this accuracy, or None."""
    for step, seconds, accuracy in zip(self.steps, self.seconds, self.accuracy, strict=True):
      if accuracy >= target:
        return step, seconds
    return None
