"""Renders reports as text for a terminal or a file, with one module per group of sections."""
