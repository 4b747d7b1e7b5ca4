"""Sources: where profiles are, and how the files of each profiler become the tables of a profile.

``paths`` finds files, and ``readers`` has a module for each format, which opens its files; what
they need of a profiler is in a package for each. Any format becomes a ``Profile``.

Sources may import conventions, whose name filters keep most ranges in the file, and the model.
"""
