"""Runs of many ranks: 1F1B in every pipeline, written as exports, tables or recordings."""
