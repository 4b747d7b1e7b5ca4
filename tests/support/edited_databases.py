"""Edits SQLite files before a test reads them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def edit_database(path: Path, *statements: str, source: Path | None = None) -> Path:
    """Run SQL statements one by one on a file, or on a copy of ``source``, and return the path."""
    if source is not None:
        path.write_bytes(source.read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        # Views may outlive their tables, as in files that other tools have edited.
        db.execute("PRAGMA legacy_alter_table = ON")
        db.execute("PRAGMA synchronous = OFF")
        for statement in statements:
            db.execute(statement)
    return path


def read_columns(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the column names of each table of an SQLite file."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            table: tuple(row[1] for row in db.execute(f'PRAGMA table_info("{table}")'))
            for (table,) in tables
            if not table.startswith("sqlite_")
        }


def rebuild_table(table: str, columns: str = "*", order: str = "rowid") -> tuple[str, ...]:
    """Return SQL that rewrites a table in this order with these columns, without constraints."""
    return (
        f'CREATE TABLE kept AS SELECT {columns} FROM "{table}" ORDER BY {order}',
        f'DROP TABLE "{table}"',
        f'ALTER TABLE kept RENAME TO "{table}"',
    )
