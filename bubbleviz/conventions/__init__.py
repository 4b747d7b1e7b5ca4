"""Conventions: what the names of ranges, kernels, threads and host calls mean, as lists of data.

It hands on the meaning of names: phase, microbatch, chunk and iteration of a range, the kind of a
kernel, the activity of a host. It may import the model.
"""
