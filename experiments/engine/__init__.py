"""One step and many: what is compiled, on which devices, and the optimizers."""
