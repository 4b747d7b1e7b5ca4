"""Traces for trace viewers: processes, slices, flows and counters."""
