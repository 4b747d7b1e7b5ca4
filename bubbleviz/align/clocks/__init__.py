"""Infers one clock for all machines, and its uncertainty, from the known order of operations."""
