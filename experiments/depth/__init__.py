"""Depth: what becomes of activations and gradients in networks of kervolutions, at the start."""
