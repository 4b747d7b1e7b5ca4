"""Align: recordings of several hosts are merged on one clock, in the order of the model's stages.

It hands on a ``Run``: operations of all ranks, iterations paired, each clock with its
uncertainty. It may import interpret and what that stands on.
"""
