"""Operations as input: tables of operations in CSV, Parquet and Arrow, traces, and recordings.

``schema`` lists the columns that all of them have. ``csv``, ``arrow`` and ``traced`` read the
columns of a file as ``cells``, ``jsonl`` those of recordings, and ``table`` makes operations of the
rows. ``open_table`` is an open file of any of these formats.
"""
