"""Runs with many ranks: 1F1B in every pipeline, as exports, tables or recordings."""
