"""Exports: tables of nsys of which it is known what is there, wherever their columns come from.

Tables and columns are probed before a query runs, and views make the schemas of all years one.
What answers the queries is an :class:`Origin`, and every origin gives the same::

    pages of an SQLite file, decoded by the compiled part  ─┐
    SQLite, where it was not built or a page is not plain  ─┼─ Export ─ Scan ─ kernels, calls, ...
    a directory of Parquet or Arrow tables                 ─┘
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

import numpy as np

from bubbleviz.errors import EXPORT_AGAIN, ProfileError, SchemaError
from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen
from bubbleviz.native.library import NamedRows
from bubbleviz.progress import Watch
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


# Scan: large tables read in stretches of rows, by threads beside the one that uses them.
#
# While a stretch is read no Python runs for it, so that threads read at the same time, and another
# one works on earlier results. These are the same, in the same order, however many threads read.
#
# ::
#
#     stretches        | 0 | 1 | 2 | 3 | 4 | 5 |     yielded in this order
#     a thread reads     0       2   3
#     another one          1           4   5
#     this one waits   ──┤ 0 | 1 | 2 | 3 | ...       and works on them


Result = TypeVar("Result")

#: Rows of a stretch: some 10 ms of reading, and columns that stay in the cache.
ROWS = 1 << 15
#: Rows that are read sooner than a thread is woken, and has opened the file for itself.
_SHORT = 1 << 13
#: How many stretches more than threads may be read before the first of them is used.
_AHEAD = 4


@frozen
class Scan:
    """Reads the large tables of an open export; a stretch is a range of row numbers.

    Attributes:
        export: the open export.
        jobs: how many threads read.
        count: takes how many rows more have been read.
    """

    export: Export
    jobs: int
    count: Callable[[int], None]
    _pool: ThreadPoolExecutor
    _begun: dict[tuple[str, range], Future[Ints]]

    def stretches(self, bounds: str, most: int = 0) -> list[range]:
        """Return the stretches of ``most`` rows between the bounds that a query gives.

        A table with so few rows for its numbers that most stretches would be empty is one stretch.
        """
        first, last = self.export.bounds(bounds)
        sparse = last - first >= self.export.origin.most_rows
        length = last - first + 1 if sparse else most or ROWS
        return [
            range(at, min(at + length, last + 1)) for at in range(first, last + 1, max(length, 1))
        ]

    def begin(self, name: str, stretches: Sequence[range]) -> None:
        """Begin with the first of some stretches, whose columns are read later."""
        for stretch in stretches[: self.jobs + _AHEAD]:
            if (name, stretch) not in self._begun:
                self._begun[name, stretch] = self._handed(self._columns, name, stretch)

    def columns(self, name: str, stretches: Sequence[range]) -> Iterator[Ints]:
        """Yield the int64 columns of a query in each stretch, in order.

        Raises:
            ProfileError: the file is damaged.
        """

        def handed(stretch: range) -> Future[Ints]:
            begun = self._begun.pop((name, stretch), None)
            return begun or self._handed(self._columns, name, stretch)

        return self._each(stretches, handed, self.jobs + _AHEAD)

    def named(
        self, name: str, stretches: Sequence[range], selection: Selection
    ) -> Iterator[NamedRows]:
        """Yield the selected rows of each stretch, in order; see :meth:`columns`."""

        def read(name: str, stretch: range) -> NamedRows:
            return self.export.origin.named(query(name), selection, stretch[0], stretch[-1])

        # Texts take more room than columns, and a stretch of them is longer.
        return self._each(stretches, lambda s: self._handed(read, name, s), self.jobs + 1)

    def _columns(self, name: str, stretch: range) -> Ints:
        binds = {"first": stretch[0], "last": stretch[-1]}
        return self.export.origin.columns(query(name), binds, min(len(stretch), ROWS))

    def _each(
        self, stretches: Sequence[range], handed: Callable[[range], Future[Result]], window: int
    ) -> Iterator[Result]:
        ahead: deque[Future[Result]] = deque()
        try:
            for at, stretch in enumerate(stretches):
                ahead.extend(map(handed, stretches[at + len(ahead) : at + window]))
                result = ahead.popleft().result()
                self.count(len(stretch))
                yield result
        finally:
            for future in ahead:
                future.cancel()

    def _handed(
        self, read: Callable[[str, range], Result], name: str, stretch: range
    ) -> Future[Result]:
        """Hand a stretch to a thread; where it is short, or none can be started, read it here."""
        if len(stretch) > _SHORT:
            with suppress(RuntimeError):
                return self._pool.submit(read, name, stretch)
        done: Future[Result] = Future()
        try:
            done.set_result(read(name, stretch))
        except Exception as error:  # whoever takes the result gets it
            done.set_exception(error)
        return done


@contextmanager
def scan_of(export: Export, jobs: int, rows: int, watch: Watch) -> Iterator[Scan]:
    """Have an open export read by so many threads.

    Args:
        export: the open export.
        jobs: how many threads read.
        rows: how many rows there are to read.
        watch: takes what share of them has been read.
    """
    read = 0

    def count(more: int) -> None:
        nonlocal read
        read += more
        watch(min(read / rows, 1.0) if rows else 1.0)

    with ThreadPoolExecutor(jobs, "bubbleviz-read") as pool:
        try:
            yield Scan(export, jobs, count, pool, {})
        finally:
            pool.shutdown(cancel_futures=True)
