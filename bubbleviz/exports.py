"""Exports: an SQLite file of nsys, opened read-only, that answers the queries of ``sql/nsys``.

Nothing is ever written to the file or beside it: it is opened immutable, so that SQLite makes no
journal. Tables and columns are probed before a query runs.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias, cast
from urllib.parse import quote

import numpy as np
import sqlalchemy
from sqlalchemy.pool import NullPool

from bubbleviz.columns import Ints
from bubbleviz.errors import EXPORT_AGAIN, ProfileError, SchemaError
from bubbleviz.queries import Query, query

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

Binds: TypeAlias = Mapping[str, int | str | None]
Schema: TypeAlias = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Export:
    """An open export: runs the queries of ``sql/nsys``."""

    path: str
    connection: sqlalchemy.Connection
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
            if not query(f"nsys/{name}").lacks(self.schema):
                return query(f"nsys/{name}")
        lacking = query(f"nsys/{names[0]}").lacks(self.schema)
        raise SchemaError(
            f"{self.path}: the export lacks {', '.join(lacking)}, which sql/nsys/{names[0]}.sql "
            f"needs; {EXPORT_AGAIN}"
        )

    def has(self, name: str) -> bool:
        """Tell whether the export has everything that a query needs."""
        return not query(f"nsys/{name}").lacks(self.schema)

    @contextmanager
    def _cursor(self, chosen: Query, binds: Binds) -> Iterator[sqlite3.Cursor]:
        raw = cast(sqlite3.Cursor, self.connection.connection.cursor())
        try:
            raw.execute(chosen.text, dict(binds))
            yield raw
        except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
            raise ProfileError(
                f"{self.path}: sql/{chosen.name}.sql failed ({error}); the file is damaged or "
                f"was cut short: {EXPORT_AGAIN}"
            ) from error
        finally:
            raw.close()

    def rows(self, chosen: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query with a small result."""
        with self._cursor(chosen, binds or {}) as cursor:
            return cursor.fetchall()

    def columns(self, chosen: Query) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        The cursor's rows are read by the driver's own iterator, not through SQLAlchemy's row
        objects, which cost three times as much as SQLite's decoding.
        """
        with self._cursor(chosen, {}) as cursor:
            width = len(cursor.description)
            flat = np.fromiter(chain.from_iterable(cursor), np.int64)
            return np.ascontiguousarray(flat.reshape(-1, width).T)


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
    uri = f"file:{quote(os.fsencode(real))}?mode=ro&immutable=1"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        return connection

    engine = sqlalchemy.create_engine("sqlite://", creator=connect, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield Export(path, connection, _schema(path, connection))
    except sqlalchemy.exc.DatabaseError as error:
        raise ProfileError(
            f"{path}: is damaged or was cut short ({error.orig}); {EXPORT_AGAIN}"
        ) from error
    finally:
        engine.dispose()


def _check_length(path: str) -> None:
    """Raise ProfileError where the file is shorter than its own header says."""
    with Path(path).open("rb") as file:
        head = file.read(100)
    size = Path(path).stat().st_size
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    if len(head) < 100 or page * pages > size:
        raise ProfileError(f"{path}: was cut short, {size} of {page * pages} bytes; {EXPORT_AGAIN}")


def _schema(path: str, connection: sqlalchemy.Connection) -> Schema:
    inspector = sqlalchemy.inspect(connection)
    schema = {
        table: frozenset(column["name"] for column in inspector.get_columns(table))
        for table in inspector.get_table_names()
        if not table.startswith("ENUM_") or table == "ENUM_NSYS_EVENT_TYPE"
    }
    if not {"StringIds", KERNEL, RUNTIME, NVTX} & set(schema):
        raise ProfileError(
            f"{path}: an SQLite database, but no nsys export: it has none of the tables "
            f"StringIds, {KERNEL}, {RUNTIME}, {NVTX}; {EXPORT_AGAIN}"
        )
    return schema


def number(export: Export, value: object) -> int:
    """Return a value that must be a number; SQLite keeps text in any column."""
    if not isinstance(value, int):
        raise ProfileError(
            f"{export.path}: holds {type(value).__name__} where a number belongs, so it is "
            f"damaged or was edited; {EXPORT_AGAIN}"
        )
    return value
