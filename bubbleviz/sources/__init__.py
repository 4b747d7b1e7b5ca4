"""Find profiles on disk, and read the files of every profiler into the same tables.

The module ``paths`` finds files. The module ``readers`` lists the input formats and recognizes the
format of a file. The code for each profiler is in a separate package. Every format is read into a
:class:`~bubbleviz.model.profile.Profile` or a table of operations.

This package may import ``model`` and ``conventions``. The name filters in ``conventions`` let a
reader skip most ranges of a file.
"""
