"""Studies that a file plans: networks, settings, learning rates and seeds, each run a `train`."""
