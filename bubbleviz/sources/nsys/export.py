"""Exports: tables of nsys of which it is known what is there, wherever their columns come from.

Tables and columns are probed before a query runs, and views make the schemas of all years one.
What answers the queries is an :class:`Origin`, and every origin gives the same::

    pages of an SQLite file, decoded by the compiled part  ─┐
    SQLite, where it was not built or a page is not plain  ─┼─ Export ─ Scan ─ kernels, calls, ...
    a directory of Parquet or Arrow tables                 ─┘
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from bubbleviz.errors import EXPORT_AGAIN, ProfileError, SchemaError
from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen
from bubbleviz.native.library import NamedRows
from bubbleviz.sources.nsys.queries import QUERIES, query, tables_read
from bubbleviz.sources.sqlite.queries import Binds, Query, Schema, lacking

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
#: The four kinds of ranges, as parameters of queries.
KINDS = ("push_pop", "start_end", "nvtxt_push_pop", "nvtxt_start_end")
#: What SQLite keeps in any column, as Python reads it.
_TYPES = {type(None): "no value", str: "text", float: "a fraction"}


@frozen
class Selection:
    """Which rows of a table with names are read: by name, or by thread and time.

    Attributes:
        kinds: codes of the four kinds of ranges, in the order of ``KINDS``.
        globs: SQLite's GLOB patterns, of which a text must fit one.
        text_ids: numbers of registered strings that fit, ascending.
        threads: that opened a range, ascending.
        shortest_ns: how long it lasts at least.
        since_ns: it ends after this.
        until_ns: it starts before this.
    """

    kinds: tuple[int, ...] = (0, 0, 0, 0)
    globs: tuple[str, ...] = ()
    text_ids: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    shortest_ns: int = 0
    since_ns: int = 0
    until_ns: int = 0


class Origin(Protocol):
    """Where the columns of an export come from. Threads may ask at the same time.

    What is asked for raises ProfileError where the export is damaged.
    """

    @property
    def path(self) -> str:
        """Path of the export, as given."""

    @property
    def most_rows(self) -> int:
        """More rows than any table has."""

    def account(self) -> str:
        """Return what reads the large tables, as far as is known, and why where that is SQLite."""

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""

    def rows(self, query: Query, binds: Binds) -> list[tuple[object, ...]]:
        """Return the rows of a query that gives few, or any text."""

    def columns(self, query: Query, binds: Binds, rows: int) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Args:
            query: that gives them.
            binds: its parameters.
            rows: how many there are, if that is known; else 0.

        Raises:
            ProfileError: the export holds something else than integers.
        """

    def named(self, query: Query, selection: Selection, first: int, last: int) -> NamedRows:
        """Return the selected rows among those of some numbers: integers, and a text each.

        The queries are ranges/named, ranges/lasting, ranges/sample, calls/system and
        strings/matching.
        """


@frozen
class Export:
    """An open export of nsys.

    Attributes:
        schema: the columns of each table.
        views: the variant of each view that queries read here.
        origin: where the columns come from.
    """

    schema: Schema
    views: Mapping[str, Query]
    origin: Origin

    @property
    def path(self) -> str:
        """Path as given."""
        return self.origin.path

    def has(self, name: str) -> bool:
        """Tell whether the export holds what a query needs."""
        return QUERIES.has(name, self.schema, self.views)

    def lacks(self, name: str) -> tuple[str, ...]:
        """Return which tables and columns of today's exports, that a query reads, are missing.

        The query may run all the same, through another variant of a view.
        """
        return lacking(tables_read(name), self.schema)

    def require(self, name: str) -> None:
        """Check that a query can run.

        Raises:
            SchemaError: it cannot; the message names what the export lacks.
        """
        if not self.has(name):
            raise SchemaError(
                f"{self.path}: the export lacks {', '.join(self.lacks(name))}, which "
                f"sql/nsys/{name}.sql needs; {EXPORT_AGAIN}"
            )

    def rows(self, name: str, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a small query.

        Raises:
            ProfileError: the file is damaged.
        """
        return self.origin.rows(query(name), binds or {})

    def value(self, name: str) -> object:
        """Return the single value of a small query; None where the export does not hold it."""
        rows = self.rows(name) if self.has(name) else []
        return rows[0][0] if rows else None

    def columns(self, name: str, binds: Binds | None = None) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows); none if it cannot run.

        Raises:
            ProfileError: the file is damaged, or holds something else than integers.
        """
        if not self.has(name):
            return np.empty((len(query(name).columns), 0), np.int64)
        return self.origin.columns(query(name), binds or {}, 0)

    def texts(self, ids: Ints) -> dict[int, str]:
        """Return the texts of some registered strings, by id.

        Raises:
            ProfileError: the file is damaged.
        """
        rows = self.rows("strings/by_id", {"ids": json.dumps(ids.tolist())}) if len(ids) else ()
        return {self.number(row[0]): str(row[1]) for row in rows}

    def bounds(self, name: str) -> tuple[int, int]:
        """Return the first and the last row number that a query gives; (0, -1) of no rows."""
        rows = self.rows(name)
        return (self.number(rows[0][0]), self.number(rows[0][1])) if rows else (0, -1)

    def number(self, value: object) -> int:
        """Return a value that must be a number; SQLite keeps text in any column.

        Raises:
            ProfileError: it is none.
        """
        if not isinstance(value, int):
            raise ProfileError(
                f"{self.path}: holds {_TYPES.get(type(value), 'a value')} where a whole number "
                f"belongs, so it is damaged or was edited; {EXPORT_AGAIN}"
            )
        return value


def check_schema(path: str, schema: Schema, what: str) -> None:
    """Raise ProfileError where the tables are not those of nsys.

    Args:
        path: of the export.
        schema: the columns of each table.
        what: kind of file that it is, in words.
    """
    if not {"StringIds", KERNEL, RUNTIME, NVTX} & set(schema):
        raise ProfileError(
            f"{path}: {what}, but no nsys export: it has none of the tables "
            f"StringIds, {KERNEL}, {RUNTIME}, {NVTX}; {EXPORT_AGAIN}"
        )


def null_among_ranges(path: str) -> ProfileError:
    """Return the error of an export whose ranges lack a number that each must have."""
    return ProfileError(
        f"{path}: {NVTX} holds NULL (no value) where a number belongs, so it is "
        f"damaged or was edited; {EXPORT_AGAIN}"
    )
