"""Rows: the operations of each rank to scale, their numbers, and what has no device time."""
