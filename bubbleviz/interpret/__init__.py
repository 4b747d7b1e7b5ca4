"""Interpretation: links kernels to the ranges that launched them, and builds operations of ranks.

The result is one ``Recording`` per profile, with times on the clock of the profile. It contains the
operations with their spans, and the GPU time that belongs to no operation. This package may import
``sources`` and everything that ``sources`` may import.
"""
