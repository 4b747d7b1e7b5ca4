"""Compares the ranges that `bubbleviz.annotate` opens with the operations of real frameworks."""
