"""Tables of operations: CSV, Parquet and Arrow IPC, of which any tracer can write one.

``schema`` names the columns; ``delimited``, ``arrow`` and ``column_files`` read those of a file;
``times``, ``keys``, ``ranks`` and the modules of cells make numbers of them, and refuse what cannot
be; ``operations`` puts these together, and ``file`` is an open table.
"""
