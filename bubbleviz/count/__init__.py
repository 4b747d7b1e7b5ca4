"""Counting: how long each rank worked and idled in each window, and the resulting bubble ratios.

The result is a ``Counts`` object. It contains the windows of every rank and iteration, and a
summary. This package may import ``align`` and everything that ``align`` may import. Ratios are
computed only from windows, never from files.
"""
