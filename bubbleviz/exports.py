"""Exports: an SQLite file of nsys, opened read-only, that answers the queries of ``sql/nsys``.

Nothing is ever written to the file or beside it: it is opened immutable, so that SQLite makes no
journal. Tables and columns are probed before a query runs. Rows come through apsw, which brings a
SQLite of its own: it takes half to two thirds of the time that Python's driver takes.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import apsw
import numpy as np

from bubbleviz.columns import Ints
from bubbleviz.errors import EXPORT_AGAIN, ProfileError, SchemaError
from bubbleviz.queries import Query, query

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

Binds: TypeAlias = Mapping[str, int | str | None]
Schema: TypeAlias = Mapping[str, frozenset[str]]


#: A row of any of the large tables takes more.
_ROW_BYTES = 8
#: What reading raises where a file is damaged, or holds text where a number belongs.
_UNREADABLE = (sqlite3.Error, apsw.Error, ValueError, TypeError, OverflowError)


@contextmanager
def _blamed(path: str, chosen: Query) -> Iterator[None]:
    """Turn what a query raises into an error that says which file is damaged."""
    try:
        yield
    except apsw.NoMemError as error:
        raise MemoryError from error
    except _UNREADABLE as error:
        raise ProfileError(
            f"{path}: sql/{chosen.name}.sql failed ({error}); the file is damaged or "
            f"was cut short: {EXPORT_AGAIN}"
        ) from error


@dataclass(frozen=True)
class Tables:
    """The tables of an open file: runs queries, and knows nothing of what they mean.

    Attributes:
        path: as given.
        connection: through which queries run.
        size: of the file, bytes.
    """

    path: str
    connection: apsw.Connection
    size: int

    @property
    def most_rows(self) -> int:
        """More rows than fit into the file; a row of any table that is read takes more bytes."""
        return self.size // _ROW_BYTES + 1

    def rows(self, chosen: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query with a small result.

        Raises:
            ProfileError: the file is damaged.
        """
        given = dict(binds or {})
        with _blamed(self.path, chosen):
            try:
                return self.connection.execute(chosen.text, given).fetchall()
            except UnicodeDecodeError:
                # Python's own driver can be told to read such text as far as it goes.
                with closing(connect(self.path)) as connection:
                    return connection.execute(chosen.text, given).fetchall()

    def columns(self, chosen: Query, binds: Binds | None = None, rows: int = -1) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Args:
            chosen: the query.
            binds: its parameters.
            rows: how many there are if none is missing; -1 unknown. Memory need not grow then.

        Raises:
            ProfileError: the file is damaged, or holds something else than integers.
        """
        width = len(chosen.columns)
        with _blamed(self.path, chosen):
            try:
                flat = self._flat(chosen, binds, rows * width if rows >= 0 else -1)
            except ValueError:
                # Rows are missing; else it is raised again.
                flat = self._flat(chosen, binds, -1)
            return np.ascontiguousarray(flat.reshape(-1, width).T)

    def _flat(self, chosen: Query, binds: Binds | None, count: int) -> Ints:
        cursor = self.connection.execute(chosen.text, dict(binds or {}))
        return np.fromiter(chain.from_iterable(cursor), np.int64, count)


@contextmanager
def tables_of(path: str) -> Iterator[Tables]:
    """Open the tables of a file read-only."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with closing(apsw.Connection(_uri(path), flags)) as connection:
        yield Tables(path, connection, Path(path).stat().st_size)


def connect(path: str) -> sqlite3.Connection:
    """Return a read-only connection to a file; text that is no UTF-8 is read as far as it is."""
    connection = sqlite3.connect(_uri(path), uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    return connection


def _uri(path: str) -> str:
    return f"file:{quote(os.fsencode(str(Path(path).resolve())))}?mode=ro&immutable=1"


@dataclass(frozen=True)
class Export(Tables):
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
    try:
        with tables_of(path) as tables:
            schema = _schema(tables)
            yield Export(path, tables.connection, tables.size, schema)
    except apsw.NoMemError as error:
        raise MemoryError from error
    except (sqlite3.DatabaseError, apsw.Error) as error:
        raise ProfileError(
            f"{path}: is damaged or was cut short ({error}); {EXPORT_AGAIN}"
        ) from error


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


def _schema(tables: Tables) -> Schema:
    schema: dict[str, set[str]] = {}
    for table, column in tables.rows(query("nsys/schema")):
        schema.setdefault(str(table), set()).add(str(column))
    if not {"StringIds", KERNEL, RUNTIME, NVTX} & set(schema):
        raise ProfileError(
            f"{tables.path}: an SQLite database, but no nsys export: it has none of the tables "
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
