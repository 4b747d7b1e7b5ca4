"""Exports: a database of nsys, that answers the queries of ``sql/nsys``.

Tables and columns are probed before a query runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from bubbleviz.errors import EXPORT_AGAIN, ProfileError, SchemaError
from bubbleviz.sources.nsys.database import Database, opened_database, uri_of
from bubbleviz.sources.nsys.queries import Query, query

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

Schema: TypeAlias = Mapping[str, frozenset[str]]


def connect(path: str) -> sqlite3.Connection:
    """Return a read-only connection to a file; text that is no UTF-8 is read as far as it is."""
    connection = sqlite3.connect(uri_of(path), uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    return connection


@dataclass(frozen=True)
class Export(Database):
    """An open export of nsys, of which it is known what it holds."""

    schema: Schema

    def lacks(self, *names: str) -> tuple[str, ...]:
        """Return what the export lacks for the first of the queries, if it can run none."""
        if any(self.has(name) for name in names):
            return ()
        return query(f"nsys/{names[0]}").lacks(self.schema)

    def choose(self, *names: str) -> Query:
        """Return the first of the queries for which the export has everything.

        Raises:
            SchemaError: it has it for none; the message says what the first one lacks.
        """
        for name in names:
            if self.has(name):
                return query(f"nsys/{name}")
        lacking = self.lacks(names[0])
        raise SchemaError(
            f"{self.path}: the export lacks {', '.join(lacking)}, which sql/nsys/{names[0]}.sql "
            f"needs; {EXPORT_AGAIN}"
        )

    def bounds(self, name: str) -> tuple[int, int]:
        """Return the first and the last row that a query tells of; (0, -1) of an empty table."""
        rows = self.rows(query(f"nsys/{name}"))
        return (number(self, rows[0][0]), number(self, rows[0][1])) if rows else (0, -1)

    def has(self, name: str) -> bool:
        """Tell whether the export has everything that a query needs."""
        return not query(f"nsys/{name}").lacks(self.schema)


@contextmanager
def opened(path: str) -> Iterator[Export]:
    """Open an export read-only.

    Raises:
        ProfileError: it is being written, damaged, or no SQLite file.
    """
    real = str(Path(path).resolve())
    for suffix, least in (("-journal", 0), ("-wal", 1)):
        beside = Path(real + suffix)
        if beside.exists() and beside.stat().st_size >= least:
            raise ProfileError(
                f"{path}: is still being written, or its writer died ({beside.name} lies beside "
                f"it); wait for nsys to finish, or {EXPORT_AGAIN}"
            )
    _check_length(path)
    with opened_database(path) as database:
        schema = _schema(database)
        yield Export(path, database.connection, database.size, schema)


def _check_length(path: str) -> None:
    """Raise ProfileError where the file is shorter than its own header says."""
    with Path(path).open("rb") as file:
        head = file.read(100)
    size = Path(path).stat().st_size
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    if len(head) < 100:
        raise ProfileError(f"{path}: was cut short, {size} bytes are no database; {EXPORT_AGAIN}")
    if page * pages > size:
        raise ProfileError(f"{path}: was cut short, {size} of {page * pages} bytes; {EXPORT_AGAIN}")


def _schema(database: Database) -> Schema:
    schema: dict[str, set[str]] = {}
    for table, column in database.rows(query("nsys/schema")):
        schema.setdefault(str(table), set()).add(str(column))
    if not {"StringIds", KERNEL, RUNTIME, NVTX} & set(schema):
        raise ProfileError(
            f"{database.path}: an SQLite database, but no nsys export: it has none of the tables "
            f"StringIds, {KERNEL}, {RUNTIME}, {NVTX}; {EXPORT_AGAIN}"
        )
    return {table: frozenset(columns) for table, columns in schema.items()}


def number(export: Export, value: object) -> int:
    """Return a value that must be a number; SQLite keeps text in any column."""
    if not isinstance(value, int):
        raise ProfileError(
            f"{export.path}: holds {type(value).__name__} where a number belongs, so it is "
            f"damaged or was edited; {EXPORT_AGAIN}"
        )
    return value
