"""Answers: queries of ``sql/`` on a columnar export.

Those of large tables are read as columns. The rest run in SQLite, on small tables that are loaded
when a query first reads them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from bubbleviz.conventions.globs import fitting, loose_regex
from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.native.library import NamedRows
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.nsys.columnar.directory import files_of
from bubbleviz.sources.nsys.columnar.plain_queries import PLAIN, plain_columns
from bubbleviz.sources.nsys.columnar.row_queries import KINDS, ROW_QUERIES, Rows, texts_by_number
from bubbleviz.sources.nsys.columnar.table_files import opened_table, plain_memory
from bubbleviz.sources.nsys.columnar.tables import (
    NO_NUMBER,
    STRINGS,
    Block,
    Cursor,
    Tables,
    affinity_of,
    kept,
    may_match,
    present,
    texts_of,
)
from bubbleviz.sources.nsys.direct_reader import ABSENT
from bubbleviz.sources.nsys.export_file import NsysFile, scanned
from bubbleviz.sources.nsys.gpu_work import Export, check_schema
from bubbleviz.sources.nsys.queries import columns_read, query, views_of
from bubbleviz.sources.nsys.queries import tables as known_tables
from bubbleviz.sources.nsys.ranges import null_among_ranges
from bubbleviz.sources.sqlite.database import damage
from bubbleviz.sources.sqlite.queries import Binds, Query
from bubbleviz.sources.tables.files import check_pyarrow

# Reader: the largest tables of a columnar export, stretch by stretch.
#
# What it gives is what the queries of the same names give on the SQLite export.


_ResultT = TypeVar("_ResultT")

_RANGES = "NVTX_EVENTS"
_STRETCHES = ("gpu_work/kernels", "gpu_work/kernel_streams", "calls/all")
_NUMBERS = ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId")
#: What files of these endings are, in words.
_KINDS = {".parquet": "Parquet", ".arrow": "Arrow", ".arrows": "Arrow"}


def with_damage(path: str, name: str, read: Callable[[], _ResultT]) -> _ResultT:
    """Return what a function reads for a query; what is wrong becomes an error of that query.

    Raises:
        ProfileError: there is something else than whole numbers.
    """
    try:
        return read()
    except ValueError as error:
        raise damage(path, query(name), str(error)) from error


class ColumnarReader:
    """Reads stretches of kernels, calls and ranges; see :class:`BulkReader`."""

    def __init__(self, tables: Tables, views: Mapping[str, Query]) -> None:
        """Take the open tables, and the variant of each view that queries read."""
        self._tables, self._views = tables, views
        self._cursors: dict[str, Cursor] = {}
        self._lock = Lock()
        # What the variant of a view leaves out is none, even where the table has it.
        view = views["ranges"].requires[_RANGES] if "ranges" in views else ()
        self._text = "text" if "text" in view else ""
        self._numbers = [name if name in view else "" for name in _NUMBERS]

    def account(self) -> str:
        """Return what reads the export."""
        kinds = dict.fromkeys(_KINDS[suffix] for suffix in sorted(self._tables.suffixes()))
        return f"pyarrow ({' and '.join(kinds)}, a file for each table)"

    def reads(self, query: str) -> bool:
        """Tell whether it reads the table of a query."""
        return query in (*_STRETCHES, "ranges/named", "strings/matching")

    def _between(
        self, name: str, columns: Sequence[str], bounds: tuple[int, int]
    ) -> Iterable[Block]:
        """Return some rows of the table that a query reads."""
        with self._lock:
            if name not in self._cursors:
                table = PLAIN[name].table if name in PLAIN else _RANGES
                self._cursors[name] = Cursor(self._tables, table, columns)
            cursor = self._cursors[name]
        return cursor.between(*bounds)

    def columns(self, query: str, first: int, last: int) -> Ints | None:
        """Return the int64 columns of a query in some rows, shape (columns, rows)."""
        if query not in _STRETCHES:
            return None
        plain = PLAIN[query]
        blocks = self._between(query, plain.names(self._views), (first, last))
        return with_damage(self._tables.path, query, lambda: plain.joined(blocks))

    def named(
        self,
        query: str,
        globs: tuple[str, ...],
        kinds: tuple[int, ...] = (0, 0, 0, 0),
        text_ids: tuple[int, ...] = (),
        bounds: tuple[int, int] = (-(1 << 63), (1 << 63) - 1),
    ) -> NamedRows | None:
        """Return rows of ranges/named.sql; see :class:`BulkReader`."""
        if query != "ranges/named":
            return None
        wanted = np.array(text_ids, np.int64)
        regex = loose_regex(globs)

        def chosen(block: Block) -> Bools:
            number = self._number(block, "textId")
            registered: Bools = number.mask() & np.isin(number.values, wanted)
            texts = block.column(self._text)
            if texts is not None:
                named, likely = present(texts), may_match(texts, regex)
                registered = (named if likely is None else likely) | (registered & ~named)
            return registered

        def fit(texts: Sequence[str | None]) -> list[bool]:
            fits = fitting(globs, ("" if text is None else str(text) for text in texts))
            return [text is None or known for text, known in zip(texts, fits, strict=True)]

        blocks = self._between(query, self._read(), bounds)
        return self._rows(query, blocks, kinds, chosen, fit)

    def strings(self, globs: tuple[str, ...]) -> Mapping[int, str] | None:
        """Return the registered strings that fit one of the patterns, by id."""
        regex = loose_regex(globs)

        def found() -> Mapping[int, str]:
            strings: dict[int, str] = {}
            for ids, column in self._tables.strings():
                likely = may_match(column, regex)
                rows = present(column) if likely is None else likely
                texts = [str(text) for text in texts_of(kept(column, rows))]
                named = zip(ids[rows].tolist(), texts, fitting(globs, texts), strict=True)
                strings.update((number, text) for number, text, fits in named if fits)
            return dict(sorted(strings.items()))

        return with_damage(self._tables.path, "strings/matching", found)

    def lasting(
        self,
        kinds: tuple[int, ...],
        threads: tuple[int, ...],
        shortest_ns: int,
        times_ns: tuple[int, int],
        bounds: tuple[int, int],
    ) -> NamedRows | None:
        """Return rows of ranges/named.sql that last long; see :class:`BulkReader`."""
        opened_by = np.array(threads, np.int64)
        since, until = times_ns

        def chosen(block: Block) -> Bools:
            start, end = self._number(block, "start"), self._number(block, "end")
            thread = self._number(block, "globalTid")
            # Differences of times that are damaged may go beyond 64 bits, which SQLite's may not.
            long = end.values.astype(np.float64) - start.values >= shortest_ns
            near = (end.values > since) & (start.values < until)
            of_thread = thread.mask() & np.isin(thread.values, opened_by)
            fits: Bools = long & near & of_thread & start.mask() & end.mask()
            return fits

        blocks = self._between("ranges/lasting", self._read(), bounds)
        return self._rows("ranges/named", blocks, kinds, chosen)

    def samples(
        self, kinds: tuple[int, ...], pieces: Sequence[tuple[int, int]]
    ) -> list[list[tuple[str | None, int]]]:
        """Return the rows of ranges/sample.sql, in which numbers stand for registered names.

        Args:
            kinds: codes of the kinds of ranges.
            pieces: the first and the last row of each, one behind another.
        """
        columns = [name for name in ("eventType", "textId", self._text) if name]
        cursor = Cursor(self._tables, _RANGES, columns)
        return [
            [row for block in cursor.between(*piece) for row in self._names(block, kinds)]
            for piece in pieces
        ]

    def _names(self, block: Block, kinds: tuple[int, ...]) -> Iterator[tuple[str | None, int]]:
        """Return the texts of some kinds of ranges, and the numbers of registered ones."""
        kind = block.numbers("eventType")
        part = block.take(kind.mask() & np.isin(kind.values, kinds))
        ids = self._number(part, "textId").filled(ABSENT).tolist()
        return zip(part.texts(self._text), ids, strict=True)

    def _read(self) -> list[str]:
        """Return the columns of ranges that are read."""
        return [name for name in (*self._numbers, self._text) if name]

    def _number(self, block: Block, name: str) -> Any:
        """Return a column of ranges, without any number where the view has none."""
        return block.numbers(name if name in self._numbers else "")

    def _rows(
        self,
        name: str,
        blocks: Iterable[Block],
        kinds: tuple[int, ...],
        chosen: Callable[[Block], Bools],
        kept: Callable[[Sequence[str | None]], list[bool]] | None = None,
    ) -> NamedRows:
        """Return the rows of some kinds of ranges.

        Args:
            name: of the query.
            blocks: of ranges.
            kinds: codes of the kinds.
            chosen: tells which rows of a block may be among them.
            kept: tells of the texts of these which are.
        """

        def read() -> NamedRows:
            values, texts = [np.empty((len(_NUMBERS), 0), np.int64)], list[str | None]()
            for block in blocks:
                kind = block.numbers("eventType")
                part = block.take(kind.mask() & np.isin(kind.values, kinds) & chosen(block))
                named = part.texts(self._text)
                if kept is not None and not all(keep := kept(named)):
                    part = part.take(np.array(keep, bool))
                    named = [text for text, known in zip(named, keep, strict=True) if known]
                if len(part):
                    values.append(self._values(part))
                    texts.extend(named)
            return NamedRows(np.concatenate(values, axis=1), tuple(texts))

        return with_damage(self._tables.path, name, read)

    def _values(self, block: Block) -> Ints:
        """Return the numbers of ranges/named.sql, in which ABSENT stands for NULL."""
        start = self._number(block, "start")
        if not start.mask().all():
            raise null_among_ranges(self._tables.path)
        return np.stack(
            [
                start.values,
                self._number(block, "end").filled(ABSENT),
                self._number(block, "eventType").every(),
                self._number(block, "globalTid").filled(NONE),
                self._number(block, "endGlobalTid").filled(NONE),
                self._number(block, "textId").filled(ABSENT),
            ]
        )


# Small tables of a columnar export, in SQLite's memory: ``sql/`` runs on them as it is.


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


class ColumnarAnswers:
    """Answers the queries of an export; see :class:`SmallAnswers` and :class:`BulkAnswers`."""

    def __init__(
        self,
        tables: Tables,
        views: Mapping[str, Query],
        reader: ColumnarReader,
        small: SmallTables,
    ) -> None:
        """Take the open tables, and those of them that SQLite reads."""
        self.path = tables.path
        self._tables, self._views, self._reader, self._small = tables, views, reader, small

    @property
    def most_rows(self) -> int:
        """More rows than any table has."""
        return 1 + max(map(self._tables.rows, self._tables.schema), default=0)

    def reopened(self) -> AbstractContextManager[ColumnarAnswers]:
        """Return itself: threads may use it at the same time."""
        return nullcontext(self)

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return self._tables.rows(table)

    def rows(self, query: Query, binds: Binds | None = None) -> Rows:
        """Return the rows of a query.

        Raises:
            ProfileError: a file is damaged.
        """
        given = binds or {}
        if query.name == "ranges/sample":
            return next(self.rows_of_each(query, [given]))
        if query.name in PLAIN:
            return [*zip(*self.columns(query, binds).tolist(), strict=True)]
        answer = ROW_QUERIES.get(query.name)
        if answer is not None:
            return with_damage(
                self.path, query.name, lambda: answer(self._tables, self._views, given)
            )
        return self._small.rows(query, given)

    def rows_of_each(self, query: Query, binds: Sequence[Binds]) -> Iterator[Rows]:
        """Yield the rows of a query for each of some parameters; see :meth:`rows`."""
        if query.name != "ranges/sample":
            return (self.rows(query, given) for given in binds)
        return iter(with_damage(self.path, query.name, lambda: self._samples(binds)))

    def columns(self, query: Query, binds: Binds | None = None, rows: int = 0) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Raises:
            ProfileError: a file is damaged, or holds something else than integers.
        """
        del rows
        if query.name in PLAIN:
            return with_damage(
                self.path,
                query.name,
                lambda: plain_columns(self._tables, self._views, query.name),
            )
        found = self.rows(query, binds)
        if {type(value) for row in found for value in row} - {int}:
            raise damage(self.path, query, NO_NUMBER)
        return np.array(found, np.int64).reshape(len(found), len(query.columns)).T

    def _samples(self, binds: Sequence[Binds]) -> list[Rows]:
        """Return the rows of ranges/sample.sql for each of some parameters."""
        if not binds:
            return []
        # All are of the kinds of this export.
        kinds = tuple(int(binds[0][kind] or 0) for kind in KINDS)
        pieces = [(int(given["first"] or 0), int(given["last"] or 0)) for given in binds]
        samples = self._reader.samples(kinds, pieces)
        unnamed = {n for rows in samples for text, n in rows if text is None and n != ABSENT}
        # The table of strings is looked through once for all of them.
        names = texts_by_number(self._tables, np.array(sorted(unnamed), np.int64))
        return [[(names.get(n) if text is None else text,) for text, n in s] for s in samples]


@contextmanager
def opened_answers(
    tables: Tables, views: Mapping[str, Query], reader: ColumnarReader
) -> Iterator[ColumnarAnswers]:
    """Open what answers queries; it is gone afterwards."""
    with opened_small_tables(tables, views) as small:
        yield ColumnarAnswers(tables, views, reader, small)


# Open columnar exports of Nsight Systems.


@contextmanager
def opened_directory(path: str, jobs: int = 1) -> Iterator[Export]:
    """Open a directory that holds a file for each table.

    Args:
        path: of the directory.
        jobs: pyarrow's threads, of which there are several unless this is 1.

    Raises:
        ProfileError: it is damaged, no export, or pyarrow is not installed.
    """
    check_pyarrow(path, "an export of Parquet or Arrow tables", "export it as SQLite")
    with plain_memory():
        tables = _opened_tables(path, threads=jobs > 1)
        schema = tables.schema
        check_schema(path, schema, "a directory of tables")
        views = views_of(schema)
        reader = ColumnarReader(tables, views)
        with opened_answers(tables, views, reader) as answers:
            yield Export(schema, views, answers, answers, reader)


def _opened_tables(path: str, *, threads: bool) -> Tables:
    try:
        files = files_of(path)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error
    wanted = {table: file for table, file in files.items() if table in known_tables()}
    for file in wanted.values():
        refuse_pointer(str(file))
        if not file.stat().st_size:
            raise ProfileError(f"{path}: {file.name} is empty; {EXPORT_AGAIN}")
    opened = {t: (f, opened_table(path, f, threads=threads)) for t, f in wanted.items()}
    return Tables(path, opened)


@contextmanager
def open_directory(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[NsysFile]:
    """Open a columnar export.

    Raises:
        ProfileError: it is damaged, or no export.
    """
    # Stretches follow one another, so that one thread reads them; pyarrow has threads of its own.
    with opened_directory(path, jobs) as export, scanned(export, 1, watch) as file:
        yield file
