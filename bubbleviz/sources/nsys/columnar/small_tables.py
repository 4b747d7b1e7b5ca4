"""Small tables of a columnar export, in SQLite's memory: ``sql/`` runs on them as it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from threading import Lock
from typing import Any

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.sources.nsys.columnar.cells import affinity_of
from bubbleviz.sources.nsys.columnar.row_queries import Rows
from bubbleviz.sources.nsys.columnar.tables import STRINGS, Block, Tables
from bubbleviz.sources.nsys.queries import columns_read
from bubbleviz.sources.sqlite.database import damage
from bubbleviz.sources.sqlite.queries import Binds, Query


class SmallTables:
    """Tables that are loaded when a query first reads them; threads take turns."""

    def __init__(
        self, tables: Tables, views: Mapping[str, Query], connection: sqlite3.Connection
    ) -> None:
        """Take the open tables, and an empty database, in which views are created."""
        self._tables, self._views = tables, views
        self._connection, self._lock = connection, Lock()
        self._loaded: set[str] = set()
        for name, view in views.items():
            connection.execute(f"CREATE TEMP VIEW {name} AS\n{view.text}")

    def rows(self, query: Query, binds: Binds) -> Rows:
        """Return the rows of a query.

        Raises:
            ProfileError: a file is damaged.
        """
        with self._lock:
            for relation in query.requires:
                view = self._views.get(relation)
                for table in view.requires if view else (relation,):
                    self._load(table)
            values = {name: binds[name] for name in query.parameters}
            try:
                return self._connection.execute(query.text, values).fetchall()
            except sqlite3.Error as error:
                raise damage(self._tables.path, query, str(error)) from error

    def _load(self, table: str) -> None:
        """Load the columns of a table that queries read, unless they are there."""
        if table in self._loaded or table not in self._tables.schema:
            return
        columns = sorted(self._tables.schema[table] & columns_read().get(table, frozenset()))
        affinities = {column: self._affinity(table, column) for column in columns}
        declared = ", ".join(f'"{column}" {affinities[column]}' for column in columns)
        if columns:
            self._connection.execute(f'CREATE TABLE "{table}" ({declared})')
            marks = ", ".join("?" * len(columns))
            for block in self._tables.blocks(table, columns):
                rows = zip(*(_cells(block, c, affinities[c]) for c in columns), strict=True)
                self._connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
        self._loaded.add(table)

    def _affinity(self, table: str, column: str) -> str:
        """Return the type that a column has in SQLite.

        Raises:
            ProfileError: it has none.
        """
        if table == STRINGS and self._tables.made_up:
            return "INT" if column == "id" else "TEXT"
        kind = self._tables.type_of(table, column)
        if not (affinity := affinity_of(kind)):
            raise ProfileError(
                f"{self._tables.path}: {table}.{column} holds values of the type {kind}, which no "
                f"export of nsys has there; {EXPORT_AGAIN}"
            )
        return affinity


def _cells(block: Block, column: str, affinity: str) -> Sequence[Any]:
    """Return the values of a column as SQLite takes them."""
    if affinity != "INT":
        return block.texts(column)
    numbers = block.numbers(column)
    return [
        value if known else None
        for value, known in zip(numbers.values.tolist(), numbers.mask().tolist(), strict=True)
    ]


@contextmanager
def opened_small_tables(tables: Tables, views: Mapping[str, Query]) -> Iterator[SmallTables]:
    """Open a database in memory; it is gone afterwards."""
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        yield SmallTables(tables, views, connection)
