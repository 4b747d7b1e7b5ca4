"""Tables of operations: CSV, Parquet and Arrow IPC, of which any tracer can write one.

``cells`` names the columns and makes numbers of them, or refuses what cannot be; ``files`` reads
those of a file; ``operations`` makes operations of its rows, and is an open table.
"""
