"""Interpret: kernels are linked to the ranges that launched them, and become operations of ranks.

It hands on a ``Recording`` for each profile: operations with their spans, and what was left
unexplained, on the profile's own clock. It may import sources and what they stand on.
"""
