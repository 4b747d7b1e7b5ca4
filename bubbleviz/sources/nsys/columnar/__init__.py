"""Columnar exports: the directories of ``nsys export --type parquetdir`` and ``arrowdir``.

::

    directory ─ table_files ─ cells ─ tables ─┬─ plain_queries, row_queries ─┬─ answers ─ export
                                              └─ reader ─────────────────────┘

Each file of such a directory is a table of the SQLite export, with the same columns. ``sql/`` stays
the reference: queries of large tables have a twin here that goes through columns, and all others
run as they are, on small tables that are loaded into an SQLite database in memory.
"""
