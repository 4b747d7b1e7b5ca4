"""Compares the ranges opened by `bubbleviz.annotate` with the operations of real frameworks."""
