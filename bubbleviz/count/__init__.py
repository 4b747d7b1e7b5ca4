"""Count: how long each rank worked and idled in each window, and the bubble ratios of it.

It hands on ``Counts``: every window of every rank and iteration, and their summary. It may import
align and what that stands on; ratios see windows only, never files.
"""
