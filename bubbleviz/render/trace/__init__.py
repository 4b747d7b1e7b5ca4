"""Renders a report as a trace for trace viewers: processes, slices, flows and counters."""
