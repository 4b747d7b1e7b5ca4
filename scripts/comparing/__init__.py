"""Compares what two versions of bubbleviz write; see ``scripts/compare_outputs --help``."""
