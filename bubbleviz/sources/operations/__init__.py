"""Readers for files that contain operations: CSV, Parquet and Arrow tables, traces and recordings.

``schema`` defines the columns of a table. ``csv``, ``arrow``, ``traced`` and ``jsonl`` each read
one kind of file into the columns defined by ``cells``. ``table`` converts rows in these columns to
operations. ``open_table`` represents an open file in any of the formats.
"""
