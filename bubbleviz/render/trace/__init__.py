"""Trace: what viewers of traces show: processes, slices, flows and counters."""
