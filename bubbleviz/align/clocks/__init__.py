"""Clocks: infer a common clock for all machines, and its uncertainty, from operation order."""
