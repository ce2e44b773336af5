"""The tests; a package, so that they import their helpers by name."""
