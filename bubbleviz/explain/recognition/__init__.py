"""Recognize the schedule of a run from the order in which ranks ran their operations."""
