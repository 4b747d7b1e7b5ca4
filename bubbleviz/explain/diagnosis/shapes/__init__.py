"""Shapes of slowness: each module finds the faults of one shape in the effects of a run.

A shape is a module here with ``faults(seen)``, listed in ``findings.py``.
"""
