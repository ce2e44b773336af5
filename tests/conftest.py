"""Sets the compiler's lowest effort before JAX is imported: tests are mostly compilation."""

import os

os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 " + os.environ.get("XLA_FLAGS", "")

import hypothesis

hypothesis.settings.register_profile(
  "ci", max_examples=40, derandomize=True, deadline=None, database=None
)
hypothesis.settings.register_profile(
  "full", parent=hypothesis.settings.get_profile("ci"), max_examples=2000
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
