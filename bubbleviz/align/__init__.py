"""Align: merge the recordings of several hosts on one clock, in the order of the model's stages.

The result is a ``Run``: the operations of all ranks with paired iterations, and each clock with its
uncertainty. This package may import ``interpret`` and the packages that ``interpret`` may import.
"""
