"""The demo: a CNN and its kervolutional twins learn real digits, side by side."""

from experiments.demo.command import FILES, run
from experiments.demo.config import DemoConfig

__all__ = ["FILES", "DemoConfig", "run"]
