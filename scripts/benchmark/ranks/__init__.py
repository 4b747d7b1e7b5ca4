"""Runs of many ranks: planted with a known truth, analysed, measured step by step."""
