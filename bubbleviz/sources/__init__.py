"""Sources: where profiles are, and how the files of each profiler become the tables of a profile.

It hands on a ``Profile`` for each file, whatever wrote it. It may import conventions, whose name
filters keep most ranges in the file, and the model.
"""
