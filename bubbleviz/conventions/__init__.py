"""Conventions: lists that assign a meaning to the names of ranges, kernels, threads and host calls.

The package returns the phase, microbatch, chunk and iteration of a range, the kind of a kernel and
the activity of a host. It may import ``model``.
"""
