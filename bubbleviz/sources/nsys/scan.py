"""Scan: large tables read in stretches of rows, by threads beside the one that uses them.

While a stretch is read no Python runs for it, so that threads read at the same time, and another
one works on earlier results. These are the same, in the same order, however many threads read.

::

    stretches        | 0 | 1 | 2 | 3 | 4 | 5 |     yielded in this order
    a thread reads     0       2   3
    another one          1           4   5
    this one waits   ──┤ 0 | 1 | 2 | 3 | ...       and works on them
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from threading import local
from typing import Protocol, TypeVar

from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen
from bubbleviz.native.library import NamedRows
from bubbleviz.progress import Watch
from bubbleviz.sources.nsys.queries import query
from bubbleviz.sources.sqlite.queries import Binds, Query

# Answering: what an export asks of whatever holds its tables, an SQLite file or a directory.


class SmallAnswers(Protocol):
    """Answers queries with few rows, in one thread."""

    def rows(self, query: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query.

        Raises:
            ProfileError: the export is damaged.
        """

    def rows_of_each(
        self, query: Query, binds: Sequence[Binds]
    ) -> Iterator[list[tuple[object, ...]]]:
        """Yield the rows of a query for each of some parameters.

        Raises:
            ProfileError: the export is damaged.
        """

    def count(self, table: str) -> int:
        """Return the number of rows of a table.

        Raises:
            ProfileError: the export is damaged.
        """


class BulkAnswers(Protocol):
    """Answers queries with many rows; one thread at a time may use it."""

    @property
    def path(self) -> str:
        """Path of the export, as given."""

    @property
    def most_rows(self) -> int:
        """More rows than any table has."""

    def rows(self, query: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query, which hold texts.

        Raises:
            ProfileError: the export is damaged.
        """

    def columns(self, query: Query, binds: Binds | None = None, rows: int = ...) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Raises:
            ProfileError: the export is damaged, or holds something else than integers.
        """

    def reopened(self) -> AbstractContextManager[BulkAnswers]:
        """Open the same export for another thread."""


class BulkReader(Protocol):
    """Reads the largest tables row by row, faster than queries do; threads may use it at once.

    Each method gives None where it cannot, and the query is run instead.
    """

    def account(self) -> str:
        """Return what reads the export, as far as is known, and why where that is SQLite."""

    def reads(self, query: str) -> bool:
        """Tell whether it reads a query's table, as far as is known."""

    def columns(self, query: str, first: int, last: int) -> Ints | None:
        """Return the int64 columns of a query in some rows, shape (columns, rows)."""

    def named(
        self,
        query: str,
        globs: tuple[str, ...],
        kinds: tuple[int, ...] = ...,
        text_ids: tuple[int, ...] = ...,
        bounds: tuple[int, int] = ...,
    ) -> NamedRows | None:
        """Return rows of a query whose names fit one of the patterns.

        Args:
            query: whose parameters these are.
            globs: SQLite's GLOB patterns.
            kinds: codes of the kinds of ranges.
            text_ids: numbers of registered strings that fit, ascending.
            bounds: the first and the last row.
        """

    def strings(self, globs: tuple[str, ...]) -> Mapping[int, str] | None:
        """Return the registered strings that fit one of the patterns, by id."""

    def lasting(
        self,
        kinds: tuple[int, ...],
        threads: tuple[int, ...],
        shortest_ns: int,
        times_ns: tuple[int, int],
        bounds: tuple[int, int],
    ) -> NamedRows | None:
        """Return rows of ranges/named.sql, whatever their names, that last long.

        Args:
            kinds: codes of the kinds of ranges.
            threads: that opened them, ascending.
            shortest_ns: how long they last at least.
            times_ns: they end after the first and start before the second.
            bounds: the first and the last row.
        """


Result = TypeVar("Result")

#: Rows of a stretch: some 10 ms of reading, and columns that stay in the cache.
ROWS = 1 << 15
#: Rows that are read sooner than a thread is woken, and has opened the file for itself.
_SHORT = 1 << 13
#: How many stretches more than threads may be read before the first of them is used.
_AHEAD = 4


@frozen
class Readers:
    """What a thread reads with.

    Attributes:
        direct: decodes pages; None where it cannot.
        database: gives SQLite's connection, made on first use.
    """

    direct: BulkReader | None
    database: Callable[[], BulkAnswers]


@frozen
class Stretch:
    """Rows ``first`` to ``last`` of the table that a query of ``sql/`` reads.

    ``binds`` are the values of the query's other parameters.
    """

    query: str
    first: int
    last: int
    binds: tuple[tuple[str, int | str | None], ...] = ()

    def columns(self, readers: Readers) -> Ints:
        """Return the query's int64 columns, shape (columns, rows)."""
        direct = readers.direct
        columns = direct.columns(self.query, self.first, self.last) if direct else None
        return self.from_database(readers.database()) if columns is None else columns

    def from_database(self, database: BulkAnswers) -> Ints:
        """Return the query's columns as SQLite reads them."""
        return database.columns(query(self.query), self._binds(), min(self.length, ROWS))

    def rows(self, readers: Readers) -> list[tuple[object, ...]]:
        """Return the query's rows, where they are few."""
        return readers.database().rows(query(self.query), self._binds())

    @property
    def length(self) -> int:
        """How many rows there are, if none is missing."""
        return self.last - self.first + 1

    def _binds(self) -> Binds:
        return {**dict(self.binds), "first": self.first, "last": self.last}


def _columns(stretch: Stretch, readers: Readers) -> Ints:
    return stretch.columns(readers)


def _rows(stretch: Stretch, readers: Readers) -> list[tuple[object, ...]]:
    return stretch.rows(readers)


@frozen
class Scan:
    """Reads stretches of a file.

    Attributes:
        database: the file.
        direct: reads it faster; None where it cannot.
        jobs: how many threads read.
        count: takes how many rows more have been read.
    """

    database: BulkAnswers
    direct: BulkReader | None
    jobs: int
    count: Callable[[int], None]
    _pool: ThreadPoolExecutor
    _opened: ExitStack
    _of_thread: local
    _begun: dict[Stretch, Future[Ints]]

    def stretches(
        self, name: str, first: int, last: int, most: int = 0, binds: Binds | None = None
    ) -> tuple[Stretch, ...]:
        """Return the stretches of ``most`` rows that make up rows ``first`` to ``last``.

        A table with so few rows for its numbers that most stretches would be empty is one stretch.
        """
        values = tuple((binds or {}).items())
        length = most or ROWS
        if last - first >= self.database.most_rows:
            length = last - first + 1
        return tuple(
            Stretch(name, at, min(at + length - 1, last), values)
            for at in range(first, last + 1, length)
        )

    def begin(self, stretches: Sequence[Stretch]) -> None:
        """Begin with the first of these stretches, whose columns are read later."""
        for stretch in stretches[: self._window]:
            if stretch not in self._begun:
                self._begun[stretch] = self._handed(_columns, stretch)

    @property
    def _window(self) -> int:
        return self.jobs + _AHEAD

    def columns(self, stretches: Sequence[Stretch]) -> Iterator[Ints]:
        """Yield the columns of each stretch, in order.

        Raises:
            ProfileError: the file is damaged.
        """

        def handed(stretch: Stretch) -> Future[Ints]:
            begun = self._begun.pop(stretch, None)
            return begun or self._handed(_columns, stretch)

        return self._each(stretches, handed, self._window)

    def rows(self, stretches: Sequence[Stretch]) -> Iterator[list[tuple[object, ...]]]:
        """Yield the rows of each stretch, in order; see :meth:`columns`."""
        # Rows take more room than columns, and a stretch of them is longer.
        return self._each(stretches, partial(self._handed, _rows), self.jobs + 1)

    def _each(
        self, stretches: Sequence[Stretch], handed: Callable[[Stretch], Future[Result]], window: int
    ) -> Iterator[Result]:
        ahead: deque[Future[Result]] = deque()
        try:
            for at, stretch in enumerate(stretches):
                ahead.extend(map(handed, stretches[at + len(ahead) : at + window]))
                result = ahead.popleft().result()
                self.count(stretch.length)
                yield result
        finally:
            for future in ahead:
                future.cancel()

    def _handed(
        self, read: Callable[[Stretch, Readers], Result], stretch: Stretch
    ) -> Future[Result]:
        """Hand a stretch to a thread; where it is short, or none can be started, read it here."""
        if stretch.length > _SHORT:
            with suppress(RuntimeError):
                return self._pool.submit(self._read, read, stretch)
        done: Future[Result] = Future()
        try:
            done.set_result(read(stretch, Readers(self.direct, lambda: self.database)))
        except Exception as error:  # whoever takes the result gets it
            done.set_exception(error)
        return done

    def _read(self, read: Callable[[Stretch, Readers], Result], stretch: Stretch) -> Result:
        """Read a stretch in a thread."""
        return read(stretch, Readers(self.direct, self._database_of_thread))

    def _database_of_thread(self) -> BulkAnswers:
        """Return the file as this thread has opened it for itself."""
        if not hasattr(self._of_thread, "database"):
            self._of_thread.database = self._opened.enter_context(self.database.reopened())
        database: BulkAnswers = self._of_thread.database
        return database


@contextmanager
def scan_of(
    database: BulkAnswers, direct: BulkReader | None, jobs: int, rows: int, watch: Watch
) -> Iterator[Scan]:
    """Have an open file read by so many threads.

    Args:
        database: the open file.
        direct: reads it faster; None where it cannot.
        jobs: how many threads read.
        rows: how many rows there are to read.
        watch: takes what share of them has been read.
    """
    read = 0

    def count(more: int) -> None:
        nonlocal read
        read += more
        watch(min(read / rows, 1.0) if rows else 1.0)

    with ExitStack() as opened, ThreadPoolExecutor(jobs, "bubbleviz-read") as pool:
        try:
            yield Scan(database, direct, jobs, count, pool, opened, local(), {})
        finally:
            pool.shutdown(cancel_futures=True)
