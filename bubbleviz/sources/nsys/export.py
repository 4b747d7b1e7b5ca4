"""Exports: tables of nsys of which it is known what is there, wherever their columns come from.

Tables and columns are probed before a query runs, and views make the schemas of all years one.
Every kind of export answers the queries, and gives the same::

    pages of an SQLite file, decoded by the compiled part  ─┐
    SQLite, where it was not built or a page is not plain  ─┼─ Export ─ kernels, calls, ...
    a directory of Parquet or Arrow tables                 ─┘
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import numpy as np

from bubbleviz.conventions.globs import binds_of
from bubbleviz.errors import EXPORT_AGAIN, ProfileError, SchemaError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.numbering import Numbering
from bubbleviz.progress import Watch
from bubbleviz.sources.nsys.queries import QUERIES, query
from bubbleviz.sources.sqlite.queries import EVERY_ROW, Binds, Schema, lacking

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
STRINGS = "StringIds"
#: The four kinds of ranges, as parameters of queries.
KINDS = ("push_pop", "start_end", "nvtxt_push_pop", "nvtxt_start_end")
#: What SQLite keeps in any column, as Python reads it.
_TYPES = {type(None): "no value", str: "text", float: "a fraction"}
#: The queries for the first and last row of the large tables, by the queries that are streamed.
BOUNDS = {
    "gpu_work/kernels": "gpu_work/kernel_bounds",
    "gpu_work/kernels_and_streams": "gpu_work/kernel_bounds",
    "ranges/named": "ranges/bounds",
    "ranges/lasting": "ranges/bounds",
    "calls/all": "calls/bounds",
}
#: A table of fewer rows is read sooner than a thread is woken, and has opened the file for itself.
_SHORT = 1 << 13
#: How many parts of columns more than threads may be read before the first of them is used.
_AHEAD = 2

#: Integers of some rows, shape (columns, rows), the number of the text of each, -1 for NULL, and
#: texts by number; some may be the same.
Named: TypeAlias = tuple[Ints, Ints, Sequence[str]]
_RowsT = TypeVar("_RowsT")
_MadeT = TypeVar("_MadeT")
#: Reads what follows of a table: numbers of rows, and these; None where there is nothing left.
Part: TypeAlias = Callable[[], tuple[range, _RowsT] | None]
#: Makes something of the numbers of rows and their columns.
_Make: TypeAlias = Callable[[range, Ints], Any]
#: What threads will have read, and what they read it with.
_Ahead: TypeAlias = deque[tuple[Future[Any], Part[Any]]]


@dataclass(frozen=True)
class Selection:
    """Which rows of a table with names are read: by name, or by thread and time.

    Attributes:
        kinds: codes of the four kinds of ranges, in the order of ``KINDS``.
        globs: SQLite's GLOB patterns, of which a text must fit one.
        text_ids: numbers of registered strings that fit, ascending.
        threads: that opened a range, ascending.
        shortest_ns: how long it lasts at least.
        since_ns: starts of times, of which it should touch one: those of a thread are disjoint and
            ascend. It must touch the span from the first to the last of all.
        until_ns: their ends.
        bounds: from which to below which of them are those of each thread.
    """

    kinds: tuple[int, ...] = (0, 0, 0, 0)
    globs: tuple[str, ...] = ()
    text_ids: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    shortest_ns: int = 0
    since_ns: tuple[int, ...] = (0,)
    until_ns: tuple[int, ...] = (0,)
    bounds: tuple[int, ...] = ()


def binds_of_selection(selection: Selection, first: int, last: int) -> Binds:
    """Return the parameters of queries that select rows.

    Args:
        selection: Which rows are selected.
        first: Number of the first row that is read.
        last: Number of the last one.
    """
    return {
        **dict(zip(KINDS, selection.kinds, strict=True)),
        **(binds_of(selection.globs) if selection.globs else {}),
        "text_ids": json.dumps(selection.text_ids),
        "some_strings": bool(selection.text_ids),
        "threads": json.dumps(selection.threads),
        "shortest": selection.shortest_ns,
        "since": min(selection.since_ns),
        "until": max(selection.until_ns),
        "first": first,
        "last": last,
    }


def joined(parts: Sequence[Named]) -> Named:
    """Return parts, of which there is one at least, as one."""
    if len(parts) == 1:
        return parts[0]
    every = [text for _, _, texts in parts for text in texts]
    before = np.cumsum([0, *(len(texts) for _, _, texts in parts)])
    number = [
        np.where(own < 0, own, own + at) for (_, own, _), at in zip(parts, before, strict=False)
    ]
    return np.concatenate([part[0] for part in parts], axis=1), np.concatenate(number), every


def named(values: Ints, texts: Iterable[object]) -> Named:
    """Return integers of some rows with the text of each; None for NULL."""
    numbering = Numbering[str]()
    number = [NONE if text is None else numbering.number(str(text)) for text in texts]
    return values, np.array(number, np.int64), numbering.values


class Export(ABC):
    """An open export of nsys; threads may ask it at the same time.

    Large tables are read in parts, by threads beside the one that uses them: while a part is read
    no Python runs for it. Parts come in the same order however many threads read::

        parts            | 0 | 1 | 2 | 3 | 4 | 5 |
        a thread reads     0       2   3
        another one          1           4   5
        this one waits   ──┤ 0 | 1 | 2 | 3 | ...       and works on them, or reads some itself

    Args:
        path: as given.
        schema: the columns of each table.
        what: kind of file that it is, in words.
        jobs: how many threads read.
        watch: takes the share of the rows of large tables that has been read.

    Raises:
        ProfileError: the tables are not those of nsys.
    """

    #: Whether parts of a table may be read in any order.
    any_order = False

    def __init__(self, path: str, schema: Schema, what: str, jobs: int, watch: Watch) -> None:
        if not {STRINGS, KERNEL, RUNTIME, NVTX} & set(schema):
            raise ProfileError(
                f"{path}: {what}, but no nsys export: it has none of the tables "
                f"{STRINGS}, {KERNEL}, {RUNTIME}, {NVTX}; {EXPORT_AGAIN}"
            )
        self.path, self.schema, self.views = path, schema, QUERIES.views_of(schema)
        self.jobs, self._watch = jobs, watch
        self._bounds: dict[str, tuple[int, int]] = {}
        self._begun: dict[tuple[str, _Make | None], tuple[_Ahead, Iterator[Part[Any]]]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._all = self._read = 0

    @abstractmethod
    def account(self) -> str:
        """Return what reads the large tables, as far as is known, and why where that is SQLite."""

    @abstractmethod
    def count(self, table: str) -> int:
        """Return the number of rows of a table."""

    @abstractmethod
    def rows(self, name: str, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query that gives few, or any text.

        Raises:
            ProfileError: the file is damaged.
        """

    @abstractmethod
    def named(
        self, name: str, selection: Selection, stretches: Sequence[tuple[int, int]] = (EVERY_ROW,)
    ) -> Named:
        """Return the selected rows of a query, in stretches from a row to a row or of all.

        The queries are ranges/named, ranges/lasting, ranges/sample, calls/system and
        strings/matching. Rows of ranges/sample whose text fits no pattern may be missing or not.

        Raises:
            ProfileError: a range to be named lacks a number, or has text in its place.
        """

    @abstractmethod
    def most_rows(self) -> int:
        """Return a number of rows that no table exceeds."""

    @abstractmethod
    def _columns(self, name: str, binds: Binds) -> Ints: ...

    @abstractmethod
    def _parts(self, name: str, selection: Selection | None) -> Iterator[Part[Any]]:
        """Yield what reads the parts of a table, from its beginning to its end."""

    def columns(self, name: str, binds: Binds | None = None) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows); none if it cannot run.

        Raises:
            ProfileError: the file is damaged, or holds something else than integers.
        """
        if not self.has(name):
            return np.empty((len(query(name).columns), 0), np.int64)
        return self._columns(name, binds or {})

    def read_rows(self, name: str, rows: Ints) -> Ints:
        """Return the columns of selected rows of a query.

        Args:
            name: Name of the query.
            rows: Row numbers to read, distinct and ascending.

        Returns:
            The int64 columns, shape (columns, rows).

        Raises:
            ProfileError: A row is missing or stored twice.
        """
        columns = self._read_rows(name, rows)
        if columns.shape[1] != len(rows):
            raise self._rows_out_of_order()
        return columns

    def _read_rows(self, name: str, rows: Ints) -> Ints:
        return self.columns(name, {"rows": json.dumps(rows.tolist())})

    def _rows_out_of_order(self) -> ProfileError:
        return ProfileError(
            f"{self.path}: rows are out of order, so the file is damaged; {EXPORT_AGAIN}"
        )

    def names_of_calls(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return those of some numbers of names that calls may have."""
        asked: Binds = {"name_ids": json.dumps([*numbers]), "most": 1}
        return numbers if self.columns("calls/named", asked).size else ()

    def has(self, name: str) -> bool:
        """Tell whether the export holds what a query needs."""
        return QUERIES.has(name, self.schema, self.views)

    def lacks(self, name: str) -> tuple[str, ...]:
        """Return which tables and columns of today's exports, that a query reads, are missing.

        The query may run all the same, through another variant of a view.
        """
        return lacking(QUERIES.tables_read(name), self.schema)

    def require(self, name: str) -> None:
        """Check that a query can run.

        Raises:
            SchemaError: it cannot; the message names what the export lacks.
        """
        if not self.has(name):
            raise SchemaError(
                f"{self.path}: the export lacks {', '.join(self.lacks(name))}, which an analysis "
                f"needs; {EXPORT_AGAIN}"
            )

    def rows_if_any(self, name: str) -> list[tuple[object, ...]]:
        """Return the rows of a small query; none where the export does not hold them."""
        return self.rows(name) if self.has(name) else []

    def value(self, name: str) -> object:
        """Return the single value of a small query; None where the export does not hold it."""
        rows = self.rows_if_any(name)
        return rows[0][0] if rows else None

    def texts(self, ids: Ints) -> dict[int, str]:
        """Return the texts of some registered strings, by id."""
        rows = self.rows("strings/by_id", {"ids": json.dumps(ids.tolist())}) if len(ids) else ()
        return {self.number(row[0]): str(row[1]) for row in rows}

    def matching_strings(self, globs: tuple[str, ...]) -> Mapping[int, str]:
        """Return the registered strings that fit a pattern, by id."""
        if not globs:
            return {}
        (ids,), number, texts = self.named("strings/matching", Selection(globs=globs))
        return {i: texts[own] for i, own in zip(ids.tolist(), number.tolist(), strict=True)}

    def bounds(self, name: str) -> tuple[int, int]:
        """Return the first and the last row number that a query gives, or (0, -1) without rows.

        Raises:
            ProfileError: the last row number is below the first.
        """
        if name not in self._bounds:
            rows = self.rows_if_any(name)
            first, last = map(self.number, rows[0][:2]) if rows else (0, -1)
            if rows and last < first:
                raise self._rows_out_of_order()
            self._bounds[name] = first, last
        return self._bounds[name]

    def number(self, value: object) -> int:
        """Return a value that must be a number; SQLite keeps text in any column.

        Raises:
            ProfileError: it is none.
        """
        if not isinstance(value, int):
            raise self._edited(f"holds {_TYPES.get(type(value), 'a value')} where a whole number")
        return value

    def _edited(self, what: str) -> ProfileError:
        """Return the error of an export that holds something in the place of a number."""
        return ProfileError(
            f"{self.path}: {what} belongs, so it is damaged or was edited; {EXPORT_AGAIN}"
        )

    def _null_among_ranges(self) -> ProfileError:
        return self._edited(f"{NVTX} holds NULL (no value) where a number")

    def open_pool(self) -> ThreadPoolExecutor:
        """Return the threads, which begin to read the kernels: that needs no names of ranges."""
        # In this order, so that of several damaged tables always the same is told of.
        bounds = map(self.bounds, dict.fromkeys(BOUNDS.values()))
        self._all = sum(last - first + 1 for first, last in bounds)
        pool = self._pool = ThreadPoolExecutor(self.jobs, "bubbleviz-read")
        self.begin("gpu_work/kernels_and_streams")
        return pool

    def begin(self, name: str, make: _Make | None = None) -> None:
        """Begin with the first parts of a query's columns, or what is made of them: for later."""
        if self.has(name) and (name, make) not in self._begun:
            parts = self._made(name, make)
            ahead = islice(parts, self.jobs + _AHEAD)
            of_parts = deque((self._handed(name, part), part) for part in ahead)
            self._begun[name, make] = of_parts, parts

    def stream(self, name: str) -> Iterator[tuple[range, Ints]]:
        """Yield the int64 columns of a query in parts, with the numbers of rows; none if it lacks.

        Where rows are left out, a part has fewer of them than numbers.

        Raises:
            ProfileError: the file is damaged.
        """
        return self._stream(name, None)

    def made_stream(
        self, name: str, make: Callable[[range, Ints], _MadeT]
    ) -> Iterator[tuple[range, _MadeT]]:
        """Yield what is made of the parts of a query, where they are read; see :meth:`stream`."""
        return self._stream(name, make)

    def _stream(self, name: str, make: _Make | None) -> Iterator[tuple[range, Any]]:
        if not self.has(name):
            return iter(())
        begun = self._begun.pop((name, make), None) or (deque(), self._made(name, make))
        return self._each(name, *begun, self.jobs + _AHEAD)

    def _made(self, name: str, make: _Make | None) -> Iterator[Part[Any]]:
        parts = self._parts(name, None)
        return parts if make is None else (partial(_read_and_made, p, make) for p in parts)

    def named_stream(self, name: str, selection: Selection) -> Iterator[Named]:
        """Yield the selected rows of all parts, in order; see :meth:`stream`."""
        # Texts take more room than columns, and a part of them is longer.
        parts = self._each(name, deque(), self._parts(name, selection), self.jobs + 2)
        return (rows for _, rows in parts)

    def _each(
        self, name: str, ahead: _Ahead, parts: Iterator[Part[Any]], window: int
    ) -> Iterator[tuple[range, Any]]:
        try:
            while True:
                more = islice(parts, window - len(ahead))
                ahead.extend((self._handed(name, part), part) for part in more)
                self._help(ahead)
                part = ahead.popleft()[0].result() if ahead else None
                if part is None:
                    return
                self._read += len(part[0])
                self._watch(min(self._read / self._all, 1.0) if self._all else 1.0)
                yield part
        finally:
            for future, _ in ahead:
                future.cancel()

    def _help(self, ahead: _Ahead) -> None:
        """Read parts that no thread has begun with, as long as the first one is not there."""
        while self.any_order and ahead and not ahead[0][0].done():
            waiting = (place for place, (future, _) in enumerate(ahead) if future.cancel())
            place = next(waiting, None)
            if place is None:
                return
            ahead[place] = _done(ahead[place][1]), ahead[place][1]

    def _handed(self, name: str, part: Callable[[], Any]) -> Future[Any]:
        """Hand a part to a thread; where the table is short, or no thread starts, read it here."""
        first, last = self.bounds(BOUNDS[name])
        if last - first >= _SHORT and self._pool:
            try:
                return self._pool.submit(part)
            except RuntimeError:
                # Parts that follow one another must not be read by a thread that starts later.
                self._pool = None
        return _done(part)

    def names_of_calls_begun(self, numbers: Sequence[int]) -> Future[Sequence[int]]:
        """Begin to find the names of calls: for later."""
        return self._handed("calls/all", partial(self.names_of_calls, numbers))


def _read_and_made(part: Part[Ints], make: _Make) -> tuple[range, Any] | None:
    read = part()
    return None if read is None else (read[0], make(*read))


def _done(part: Callable[[], Any]) -> Future[Any]:
    """Read a part here."""
    done: Future[Any] = Future()
    try:
        done.set_result(part())
    except Exception as error:  # whoever takes the result gets it
        done.set_exception(error)
    return done
