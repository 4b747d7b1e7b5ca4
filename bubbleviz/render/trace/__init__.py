"""Renders reports as traces for trace viewers: processes, slices, flows and counters."""
