"""Operations as input: tables of operations in CSV, Parquet and Arrow, traces, and recordings.

``schema`` lists the columns of a table. ``csv``, ``arrow`` and ``traced`` read the columns of a
file as ``cells``, and ``jsonl`` reads recordings as ``cells``. ``table`` converts the rows to
operations. ``open_table`` provides an open file of any of these formats.
"""
