"""Readers for files that contain operations: CSV, Parquet, Arrow, traces, and recordings.

``schema`` defines the columns of a table. ``csv``, ``arrow``, ``traced`` and ``jsonl`` each read
one kind of file into the columns that ``cells`` defines. ``table`` converts rows of these columns
to operations. ``open_table`` wraps an open file in any of these formats.
"""
