"""Base class for nsys exports, which answer the same queries in every file format.

The schema of a file is checked before a query runs, and views hide the schema differences between
nsys versions. All formats return the same rows::

    pages of an SQLite file, decoded by compiled code         ─┐
    SQLite, without compiled code or for pages it rejects     ─┼─ Export ─ kernels, calls, ...
    a directory of Parquet or Arrow tables                    ─┘
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

from bubbleviz.conventions.globs import build_query_parameters
from bubbleviz.errors import EXPORT_AGAIN, ProfileError, SchemaError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.numbering import Numbering
from bubbleviz.progress import Watch
from bubbleviz.sources.nsys.queries import QUERIES, query
from bubbleviz.sources.sqlite.queries import EVERY_ROW, Binds, Schema, find_missing

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
STRINGS = "StringIds"
#: The four kinds of NVTX ranges, as names of query parameters.
KINDS = ("push_pop", "start_end", "nvtxt_push_pop", "nvtxt_start_end")
#: Nouns for the non-integer values that SQLite may return, keyed by Python type.
_TYPES = {type(None): "no value", str: "text", float: "a fraction"}
#: Queries for a table's first and last row number, keyed by the query that streams the table.
BOUNDS = {
    "gpu_work/kernels": "gpu_work/kernel_bounds",
    "gpu_work/kernels_and_streams": "gpu_work/kernel_bounds",
    "ranges/named": "ranges/bounds",
    "ranges/lasting": "ranges/bounds",
    "calls/all": "calls/bounds",
}
#: Minimum number of rows for a table to be read by the thread pool. For smaller tables, opening the
#: file in each thread takes longer than it saves.
_MIN_POOL_ROWS = 1 << 13
#: Number of parts that may be read ahead, in addition to one part per thread.
_MAX_PARTS_AHEAD = 4

#: Rows with texts: integer columns, the index of each row's text, and the texts. The columns have
#: the shape (columns, rows). The index is -1 for NULL. Texts may be duplicates.
Named: TypeAlias = tuple[Ints, Ints, Sequence[str]]
_RowsT = TypeVar("_RowsT")
_MadeT = TypeVar("_MadeT")
#: A function that reads one part of a table.
#: The function returns the row numbers and the rows, or None at the end of the table.
Part: TypeAlias = Callable[[], tuple[range, _RowsT] | None]
#: A function that converts row numbers and columns in the thread that read them.
_Make: TypeAlias = Callable[[range, Ints], Any]
#: (``Future``, function that reads the part) pairs for the parts that are being read ahead.
_Ahead: TypeAlias = deque[tuple[Future[Any], Part[Any]]]


@dataclass(frozen=True)
class Selection:
    """Criteria that select named rows, either by name or by thread and time.

    A row selected by time is a range on one of ``threads`` that lasts at least ``shortest_ns`` and
    overlaps an interval. Each thread has its own intervals. A reader may also return ranges that do
    not overlap any interval on their thread, as long as they overlap the span of all intervals.

    Attributes:
        kinds: Codes for the four range kinds, in the order of ``KINDS``.
        globs: SQLite GLOBs. A row that has a text must match at least one GLOB.
        text_ids: Ids of the matching registered strings, in ascending order.
        threads: Threads whose ranges are selected, in ascending order.
        shortest_ns: Minimum duration of a range.
        since_ns: Interval start times, thread by thread. The intervals of a thread are disjoint and
            ascending.
        until_ns: Interval end times.
        bounds: For each thread, the index of its first interval and the index after its last
            interval, flattened into one tuple.
    """

    kinds: tuple[int, ...] = (0, 0, 0, 0)
    globs: tuple[str, ...] = ()
    text_ids: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    shortest_ns: int = 0
    since_ns: tuple[int, ...] = (0,)
    until_ns: tuple[int, ...] = (0,)
    bounds: tuple[int, ...] = ()


def make_binds(selection: Selection, first: int, last: int) -> Binds:
    """Convert selection criteria to SQL parameters.

    Only the earliest start and the latest end of the time intervals are passed to SQL, so rows
    between two intervals are selected as well.

    Args:
        selection: Criteria that select the rows.
        first: Row number at which to start reading.
        last: Last row number to read, inclusive.
    """
    return {
        **dict(zip(KINDS, selection.kinds, strict=True)),
        **(build_query_parameters(selection.globs) if selection.globs else {}),
        "text_ids": json.dumps(selection.text_ids),
        "some_strings": bool(selection.text_ids),
        "threads": json.dumps(selection.threads),
        "shortest": selection.shortest_ns,
        "since": min(selection.since_ns),
        "until": max(selection.until_ns),
        "first": first,
        "last": last,
    }


def concatenate_named(parts: Sequence[Named]) -> Named:
    """Concatenate one or more parts of a table, shifting the text indices of later parts.

    Equal texts in different parts are not merged.
    """
    if len(parts) == 1:
        return parts[0]
    all_texts = [text for _, _, texts in parts for text in texts]
    offsets = np.cumsum([0, *(len(texts) for _, _, texts in parts)])
    numbers = [
        np.where(number < 0, number, number + offset)
        for (_, number, _), offset in zip(parts, offsets, strict=False)
    ]
    return np.concatenate([part[0] for part in parts], axis=1), np.concatenate(numbers), all_texts


def combine_named(values: Ints, texts: Iterable[object]) -> Named:
    """Combine integer columns with the rows' texts.

    Args:
        values: Integer columns, shape (columns, rows).
        texts: One text per row, or None for NULL.
    """
    numbering = Numbering[str]()
    number = [NONE if text is None else numbering.number(str(text)) for text in texts]
    return values, np.array(number, np.int64), numbering.values


class Export(ABC):
    """An open nsys export. Several threads may query the export at the same time.

    A thread pool reads the parts of large tables in parallel, since compiled code and SQLite
    release the global interpreter lock. The order of the results does not depend on the number of
    threads::

        parts            | 0 | 1 | 2 | 3 | 4 | 5 |
        pool thread 1      0       2   3
        pool thread 2        1           4   5
        main thread      ──┤ 0 | 1 | 2 | 3 | ...       uses them in order, or helps to read

    Args:
        path: Path as given by the user.
        schema: Column names of the tables, keyed by table name.
        noun: Kind of file with an article, such as "an SQLite database", for messages.
        jobs: Number of reader threads.
        watch: Progress callback, called with the fraction of rows that have been read (large tables
            only).

    Raises:
        ProfileError: The file has no table that an nsys export has.
    """

    #: Whether a table's parts may be read in any order.
    any_order = False

    def __init__(self, path: str, schema: Schema, noun: str, jobs: int, watch: Watch) -> None:
        if not {STRINGS, KERNEL, RUNTIME, NVTX} & set(schema):
            raise ProfileError(
                f"{path}: is {noun} but not an nsys export, because it contains none of the tables "
                f"{STRINGS}, {KERNEL}, {RUNTIME}, {NVTX}; {EXPORT_AGAIN}"
            )
        self.path, self.schema, self.views = path, schema, QUERIES.select_views(schema)
        self.jobs, self._watch = jobs, watch
        self._bounds: dict[str, tuple[int, int]] = {}
        self._begun: dict[tuple[str, _Make | None], tuple[_Ahead, Iterator[Part[Any]]]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._all = self._read = 0

    @abstractmethod
    def describe_readers(self) -> str:
        """Name the software that read the large tables so far, with the reason if SQLite did."""

    @abstractmethod
    def count_rows(self, table: str) -> int:
        """Return the number of rows in a table."""

    @abstractmethod
    def query_rows(self, name: str, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Run a query that returns few rows or text columns, and return its rows.

        Args:
            name: Name of the query.
            binds: Values for the query's parameters.

        Raises:
            ProfileError: The file is damaged.
        """

    @abstractmethod
    def read_named(
        self, name: str, selection: Selection, stretches: Sequence[tuple[int, int]] = (EVERY_ROW,)
    ) -> Named:
        """Run a query, and return the selected rows with their texts.

        Args:
            name: Name of the query: ``ranges/named``, ``ranges/lasting``, ``ranges/sample``,
                ``calls/system`` or ``strings/matching``. The rows of ``ranges/sample`` may include
                rows that do not match any GLOB.
            selection: Criteria that select the rows.
            stretches: First and last row number of each part to read, both inclusive.

        Raises:
            ProfileError: A selected row of ``ranges/named`` has NULL or text in place of a number.
        """

    @abstractmethod
    def count_max_rows(self) -> int:
        """Return an upper bound on the number of rows in any table."""

    @abstractmethod
    def _query_columns(self, name: str, binds: Binds) -> Ints: ...

    @abstractmethod
    def _iter_parts(self, name: str, selection: Selection | None) -> Iterator[Part[Any]]:
        """Yield one function per part of a table, in table order. Each function reads one part."""

    def query_columns(self, name: str, binds: Binds | None = None) -> Ints:
        """Run a query, and return its int64 columns, shape (columns, rows).

        If the export lacks a table or column that the query needs, the result has no rows.

        Args:
            name: Name of the query.
            binds: Values for the query's parameters.

        Raises:
            ProfileError: The file is damaged, or a value is not an integer.
        """
        if not self.has(name):
            return np.empty((len(query(name).columns), 0), np.int64)
        return self._query_columns(name, binds or {})

    def read_rows(self, name: str, rows: Ints) -> Ints:
        """Return a query's int64 columns for the given row numbers.

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
            raise self._make_order_error()
        return columns

    def _read_rows(self, name: str, rows: Ints) -> Ints:
        return self.query_columns(name, {"rows": json.dumps(rows.tolist())})

    def _make_order_error(self) -> ProfileError:
        return ProfileError(
            f"{self.path}: rows are out of order, so the file is damaged; {EXPORT_AGAIN}"
        )

    def filter_called_names(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return the given name ids that may be used by a call.

        The search is coarse: all ids are returned if any call has one of the names, and ()
        otherwise. Subclasses that can decode pages check each name.

        Args:
            numbers: Ids of call names in ``StringIds``.
        """
        binds: Binds = {"name_ids": json.dumps([*numbers]), "most": 1}
        return numbers if self.query_columns("calls/named", binds).size else ()

    def has(self, name: str) -> bool:
        """Return whether the export has the tables and columns that a query needs."""
        return QUERIES.has(name, self.schema, self.views)

    def find_missing(self, name: str) -> tuple[str, ...]:
        """Return the missing tables and columns of a query.

        These are the tables and columns that the query reads in current exports but that this
        export lacks. If a view has another variant that fits this export, the query may still be
        able to run.
        """
        return find_missing(QUERIES.find_tables_read(name), self.schema)

    def require(self, name: str) -> None:
        """Check that a query can run.

        Raises:
            SchemaError: The query cannot run. The message lists the missing tables and columns.
        """
        if not self.has(name):
            raise SchemaError(
                f"{self.path}: the export lacks {', '.join(self.find_missing(name))}, which the "
                f"analysis needs; {EXPORT_AGAIN}"
            )

    def query_rows_if_possible(self, name: str) -> list[tuple[object, ...]]:
        """Return the rows of a small query, or no rows if the query cannot run."""
        return self.query_rows(name) if self.has(name) else []

    def query_value(self, name: str) -> object:
        """Return the first value that a small query returns, or None if there is none."""
        rows = self.query_rows_if_possible(name)
        return rows[0][0] if rows else None

    def query_texts(self, ids: Ints) -> dict[int, str]:
        """Return the texts of the registered strings with the given ids, keyed by id."""
        rows = (
            self.query_rows("strings/by_id", {"ids": json.dumps(ids.tolist())}) if len(ids) else ()
        )
        return {self.to_integer(row[0]): str(row[1]) for row in rows}

    def find_strings(self, globs: tuple[str, ...]) -> Mapping[int, str]:
        """Return the registered strings that match at least one of the GLOBs, keyed by id."""
        if not globs:
            return {}
        (ids,), number, texts = self.read_named("strings/matching", Selection(globs=globs))
        return {i: texts[index] for i, index in zip(ids.tolist(), number.tolist(), strict=True)}

    def find_bounds(self, name: str) -> tuple[int, int]:
        """Return a table's first and last row number.

        The result is (0, -1) if the table is missing or has no rows.

        Args:
            name: Name of the query that returns the two row numbers, a value of ``BOUNDS``.

        Raises:
            ProfileError: The last row number is smaller than the first.
        """
        if name not in self._bounds:
            rows = self.query_rows_if_possible(name)
            first, last = map(self.to_integer, rows[0][:2]) if rows else (0, -1)
            if rows and last < first:
                raise self._make_order_error()
            self._bounds[name] = first, last
        return self._bounds[name]

    def to_integer(self, value: object) -> int:
        """Check that a value is an integer, and return it. SQLite may store text in any column.

        Raises:
            ProfileError: The value is not an integer.
        """
        if not isinstance(value, int):
            raise self._make_value_error(
                f"it contains {_TYPES.get(type(value), 'a value')} where a whole number is expected"
            )
        return value

    def _make_value_error(self, problem: str) -> ProfileError:
        """Return the error to raise for a value that is not an integer."""
        return ProfileError(
            f"{self.path}: {problem}, so the file is damaged or was edited; {EXPORT_AGAIN}"
        )

    def _make_null_error(self) -> ProfileError:
        return self._make_value_error(f"{NVTX} contains NULL (no value) where a number is expected")

    def open_pool(self) -> ThreadPoolExecutor:
        """Open the thread pool, and start reading kernels, which requires no range names.

        The first and last row numbers of all large tables are read first, so that progress can be
        reported.
        """
        # Use a fixed order, so that the same table is always reported if several are damaged.
        bounds = map(self.find_bounds, dict.fromkeys(BOUNDS.values()))
        self._all = sum(last - first + 1 for first, last in bounds)
        pool = self._pool = ThreadPoolExecutor(self.jobs, "bubbleviz-read")
        self.begin("gpu_work/kernels_and_streams")
        return pool

    def begin(self, name: str, make: _Make | None = None) -> None:
        """Start to read the first parts of a query in the background.

        A later call to :meth:`stream` or :meth:`stream_converted` with the same arguments uses
        these parts.
        """
        if self.has(name) and (name, make) not in self._begun:
            parts = self._make_parts(name, make)
            ahead = islice(parts, self.jobs + _MAX_PARTS_AHEAD)
            of_parts = deque((self._submit(name, part), part) for part in ahead)
            self._begun[name, make] = of_parts, parts

    def stream(self, name: str) -> Iterator[tuple[range, Ints]]:
        """Yield (row numbers, int64 columns) for each part of a query.

        The row numbers are a range. A part may contain fewer rows than its range, because row
        numbers may have gaps and the query may leave rows out. If the query cannot run, nothing is
        yielded.

        Raises:
            ProfileError: The file is damaged.
        """
        return self._stream(name, None)

    def stream_converted(
        self, name: str, make: Callable[[range, Ints], _MadeT]
    ) -> Iterator[tuple[range, _MadeT]]:
        """Like :meth:`stream`, but yield the result of ``make`` for each part.

        Args:
            name: Name of the query.
            make: Function that converts the row numbers and columns of a part.
        """
        return self._stream(name, make)

    def _stream(self, name: str, make: _Make | None) -> Iterator[tuple[range, Any]]:
        if not self.has(name):
            return iter(())
        started = self._begun.pop((name, make), None) or (deque(), self._make_parts(name, make))
        return self._read_in_order(name, *started, self.jobs + _MAX_PARTS_AHEAD)

    def _make_parts(self, name: str, make: _Make | None) -> Iterator[Part[Any]]:
        parts = self._iter_parts(name, None)
        return parts if make is None else (partial(_read_and_make, p, make) for p in parts)

    def stream_named(self, name: str, selection: Selection) -> Iterator[Named]:
        """Yield the selected rows of a query with their texts, part by part, in table order."""
        # Parts with texts have more rows and take more memory, so fewer parts are read ahead.
        parts = self._read_in_order(name, deque(), self._iter_parts(name, selection), self.jobs + 2)
        return (rows for _, rows in parts)

    def _read_in_order(
        self, name: str, ahead: _Ahead, parts: Iterator[Part[Any]], window: int
    ) -> Iterator[tuple[range, Any]]:
        """Yield a table's parts in order, while later parts are being read.

        Progress is reported after each part. The iteration stops at the first part that is None.

        Args:
            name: Name of the query.
            ahead: Futures of the parts that are already being read.
            parts: Functions that read the parts that follow the parts in ``ahead``.
            window: Maximum number of parts to read ahead.
        """
        try:
            while True:
                next_parts = islice(parts, window - len(ahead))
                ahead.extend((self._submit(name, part), part) for part in next_parts)
                self._read_unstarted_parts(ahead)
                part = ahead.popleft()[0].result() if ahead else None
                if part is None:
                    return
                self._read += len(part[0])
                self._watch(min(self._read / self._all, 1.0) if self._all else 1.0)
                yield part
        finally:
            for future, _ in ahead:
                future.cancel()

    def _read_unstarted_parts(self, ahead: _Ahead) -> None:
        """Read parts in the current thread until the first part in ``ahead`` is available.

        Only parts in ``ahead`` that no pool thread has started are read. Their entries are replaced
        with completed futures. Reading also stops once all parts have been started. Nothing is read
        unless ``any_order`` is true.
        """
        while self.any_order and ahead and not ahead[0][0].done():
            unstarted = (index for index, (future, _) in enumerate(ahead) if future.cancel())
            index = next(unstarted, None)
            if index is None:
                return
            ahead[index] = _read_now(ahead[index][1]), ahead[index][1]

    def _submit(self, name: str, part: Callable[[], Any]) -> Future[Any]:
        """Submit a part to the thread pool, and return its ``Future``.

        If the table has at most ``_MIN_POOL_ROWS`` row numbers, or if there is no pool, the part is
        read immediately in the current thread. If no thread can be started, this part and all later
        parts are read in the current thread.
        """
        first, last = self.find_bounds(BOUNDS[name])
        if last - first >= _MIN_POOL_ROWS and self._pool:
            try:
                return self._pool.submit(part)
            except RuntimeError:
                # Stop using the pool, so that threads that start later do not read consecutive
                # parts.
                self._pool = None
        return _read_now(part)

    def start_filter_called_names(self, numbers: Sequence[int]) -> Future[Sequence[int]]:
        """Start :meth:`filter_called_names` in the background, and return its ``Future``."""
        return self._submit("calls/all", partial(self.filter_called_names, numbers))


def _read_and_make(part: Part[Ints], make: _Make) -> tuple[range, Any] | None:
    read = part()
    return None if read is None else (read[0], make(*read))


def _read_now(part: Callable[[], Any]) -> Future[Any]:
    """Read a part in the current thread, and return its result or error as a completed future."""
    done: Future[Any] = Future()
    try:
        done.set_result(part())
    except Exception as error:  # raised when the result is requested
        done.set_exception(error)
    return done
