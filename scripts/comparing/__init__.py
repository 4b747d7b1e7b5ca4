"""Compares the outputs of two versions of bubbleviz; see ``scripts/compare_outputs --help``."""
