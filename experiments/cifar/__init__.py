"""Presets trained over many seeds: a result is many runs with their mean and spread."""
