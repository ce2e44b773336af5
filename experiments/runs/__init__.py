"""A run and its folder: it goes on where it was, and can be evaluated and read later."""
