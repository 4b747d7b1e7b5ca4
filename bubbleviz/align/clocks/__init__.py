"""Infers one clock for all machines from the known order of operations, and its uncertainty."""
