"""Counting: how long each rank worked and was idle in each window, and the resulting bubble ratios.

The result is a ``Counts`` object. It contains the windows for every rank and iteration, along with
a summary. This package may import ``align`` and anything that ``align`` may import. Ratios are
computed only from windows, never from files.
"""
