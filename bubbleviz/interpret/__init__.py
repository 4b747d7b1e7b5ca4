"""Interpretation: kernels are linked to ranges that launched them and become operations of ranks.

The result is a ``Recording`` per profile, with times on the clock of the profile: operations with
their spans, and GPU time that no operation explains. This package may import ``sources`` and
everything that ``sources`` may import.
"""
