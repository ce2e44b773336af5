"""The configuration of a run, the presets of the paper, and what they build."""
