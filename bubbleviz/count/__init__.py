"""Counting: how long each rank worked and idled in each window, and the resulting bubble ratios.

The result is ``Counts``: every window of every rank and iteration, and their summary. This package
may import ``align`` and everything that ``align`` may import. Ratios are computed from windows
only, never from files.
"""
