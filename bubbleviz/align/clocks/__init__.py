"""Clocks: infer one clock for all machines, and its uncertainty, from the order of operations."""
