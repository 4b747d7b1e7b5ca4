"""Conventions: pattern lists that give meaning to the names of ranges, kernels, threads and calls.

From a range name, the package reads the phase, microbatch, chunk and iteration. The package also
classifies kernels by kind and host calls by activity. Its modules may import ``model``.
"""
