"""Measurements of the operator: ``python -m benchmarks --help``."""
