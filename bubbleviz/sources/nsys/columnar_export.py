"""Columnar exports: the directories of ``nsys export --type parquetdir`` and ``arrowdir``.

Each file of such a directory is a table of the SQLite export, with the same columns. ``sql/`` stays
the reference: queries of large tables are read as columns, and all others run as they are, on small
tables that are loaded into an SQLite database in memory when a query first reads them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from threading import Lock
from typing import TypeVar

import numpy as np

from bubbleviz.conventions.globs import fitting, loose_regex
from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.native.library import NamedRows
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.nsys.arrow_tables import (
    Block,
    Cursor,
    TableFile,
    Tables,
    every,
    kept,
    may_match,
    plain_memory,
    present,
    texts_of,
)
from bubbleviz.sources.nsys.export import (
    KINDS,
    NVTX,
    RUNTIME,
    Export,
    Selection,
    check_schema,
    null_among_ranges,
)
from bubbleviz.sources.nsys.files import files_of
from bubbleviz.sources.nsys.profile_file import NsysFile, scanned
from bubbleviz.sources.nsys.queries import (
    ABSENT,
    PlainColumn,
    columns_read,
    plain_columns,
    tables_read,
    views_of,
)
from bubbleviz.sources.nsys.queries import tables as known_tables
from bubbleviz.sources.sqlite.database import NO_NUMBER, damage
from bubbleviz.sources.sqlite.queries import Binds, Query
from bubbleviz.sources.tables.files import check_pyarrow

_ResultT = TypeVar("_ResultT")
Rows = list[tuple[object, ...]]

#: Queries that give columns of one table, some rows at a time, or whole.
STRETCHES = ("gpu_work/kernels", "gpu_work/kernel_streams", "calls/all")
WHOLE = (
    "gpu_work/copies",
    "gpu_work/copy_streams",
    "gpu_work/memsets",
    "gpu_work/memset_streams",
    "gpu_work/graphs",
    "gpu_work/graph_streams",
    "memory/usage",
    "synchronisation/waits",
    "synchronisation/event_records",
)
#: What files of these endings are, in words.
_FORMATS = {".parquet": "Parquet", ".arrow": "Arrow", ".arrows": "Arrow"}


class ColumnarOrigin:
    """An :class:`~bubbleviz.sources.nsys.export.Origin` of tables that pyarrow reads.

    Args:
        tables: the open tables.
        views: the variant of each view that queries read.
        small: an empty database in memory.
    """

    def __init__(
        self, tables: Tables, views: Mapping[str, Query], small: sqlite3.Connection
    ) -> None:
        self.path = tables.path
        self.most_rows = 1 + max(map(tables.rows, tables.schema), default=0)
        self._tables, self._views, self._small = tables, views, small
        self._cursors: dict[str, Cursor] = {}
        self._loaded: set[str] = set()
        self._lock = Lock()
        for name, view in views.items():
            small.execute(f"CREATE TEMP VIEW {name} AS\n{view.text}")

    def account(self) -> str:
        """Return what reads the export."""
        kinds = dict.fromkeys(_FORMATS[suffix] for suffix in sorted(self._tables.suffixes()))
        return f"pyarrow ({' and '.join(kinds)}, a file for each table)"

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return self._tables.rows(table)

    def rows(self, query: Query, binds: Binds) -> Rows:
        """Return the rows of a query."""
        if query.name.endswith("bounds"):
            rows = self._tables.rows(next(iter(tables_read(query.name))))
            # Of the last row only its number is used.
            return [(1, rows, None)] if rows else []
        answers: Mapping[str, Callable[[Binds], Rows]] = {
            "strings/by_id": self._by_id,
            "calls/any": lambda _: self._first(RUNTIME, "correlationId"),
            "ranges/any": lambda given: self._first(
                NVTX, "eventType", [int(given[kind] or 0) for kind in KINDS]
            ),
            "ranges/payloads": self._payloads,
        }
        if query.name in answers:
            return self._reported(query, lambda: answers[query.name](binds))
        return self._small_rows(query, binds)

    def columns(self, query: Query, binds: Binds, rows: int) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Raises:
            ProfileError: a file is damaged, or holds something else than integers.
        """
        del rows
        if query.name in STRETCHES:
            bounds = int(binds["first"] or 0), int(binds["last"] or 0)
            return self._reported(query, lambda: self._joined(query, self._between(query, *bounds)))
        if query.name in WHOLE:
            table, columns = plain_columns(query.name, self._views)
            blocks = self._tables.blocks(table, _names(columns))
            return self._reported(query, lambda: self._joined(query, blocks))
        if query.name in ("calls/at", "calls/named"):
            return self._reported(query, lambda: self._calls(query, binds))
        found = self._small_rows(query, binds)
        if {type(value) for row in found for value in row} - {int}:
            raise damage(self.path, query, NO_NUMBER)
        return np.array(found, np.int64).reshape(len(found), len(query.columns)).T

    def _reported(self, query: Query, read: Callable[[], _ResultT]) -> _ResultT:
        """Return what a function reads for a query; what is wrong becomes an error of that query.

        Raises:
            ProfileError: there is something else than whole numbers.
        """
        try:
            return read()
        except ValueError as error:
            raise damage(self.path, query, str(error)) from error

    def _between(self, query: Query, first: int, last: int) -> Iterator[Block]:
        """Return some rows of the table that a query reads."""
        with self._lock:
            if query.name not in self._cursors:
                table, columns = plain_columns(query.name, self._views)
                self._cursors[query.name] = Cursor(self._tables, table, _names(columns))
        return self._cursors[query.name].between(first, last)

    def _joined(self, query: Query, blocks: Iterable[Block]) -> Ints:
        """Return the columns of a query that gives those of one table."""
        columns = plain_columns(query.name, self._views)[1]
        parts = [_values(block, columns) for block in blocks]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty((len(columns), 0), np.int64), *parts], axis=1)

    def named(self, query: Query, selection: Selection, first: int, last: int) -> NamedRows:
        """Return the selected rows among those of some numbers: integers, and a text each."""
        if query.name == "strings/matching":
            return self._reported(query, lambda: self._matching_strings(selection.globs))
        *columns, text = plain_columns(query.name, self._views)[1]
        names = [column.name for column in columns]

        def read() -> NamedRows:
            regex = loose_regex(selection.globs)
            wanted = np.array(selection.text_ids, np.int64)
            values, texts = [np.empty((len(columns), 0), np.int64)], list[str | None]()
            for block in self._between(query, first, last):
                fits = np.ones(len(block), bool)
                if query.name != "calls/system":
                    fits = np.isin(block.numbers("eventType"), selection.kinds)
                if query.name == "ranges/named":
                    fits &= _may_be_named(block, text.name, names[5], wanted, regex)
                elif query.name != "ranges/sample":
                    fits &= _lasting(block, selection)
                part = block.take(fits)
                known = part.texts(text.name)
                if query.name == "ranges/named":
                    named = fitting(selection.globs, ("" if t is None else str(t) for t in known))
                    keep = [t is None or fit for t, fit in zip(known, named, strict=True)]
                    part = part if all(keep) else part.take(np.array(keep, bool))
                    known = [t for t, fit in zip(known, keep, strict=True) if fit]
                    if (part.numbers("start") == ABSENT).any():
                        raise null_among_ranges(self.path)
                if len(part):
                    values.append(_values(part, columns))
                    texts.extend(known)
            return NamedRows(np.concatenate(values, axis=1), tuple(texts))

        return self._reported(query, read)

    def _matching_strings(self, globs: Sequence[str]) -> NamedRows:
        regex = loose_regex(globs)
        strings: dict[int, str] = {}
        for ids, column in self._tables.strings():
            likely = may_match(column, regex)
            rows = present(column) if likely is None else likely
            texts = [str(text) for text in texts_of(kept(column, rows))]
            named = zip(ids[rows].tolist(), texts, fitting(globs, texts), strict=True)
            strings.update((number, text) for number, text, fits in named if fits)
        numbers = sorted(strings)
        return NamedRows(np.array([numbers], np.int64), tuple(strings[n] for n in numbers))

    def _by_id(self, binds: Binds) -> Rows:
        wanted = np.array(json.loads(str(binds["ids"])), np.int64)
        texts: dict[int, object] = {}
        for ids, column in self._tables.strings() if len(wanted) else ():
            chosen = np.isin(ids, wanted)
            found = zip(ids[chosen].tolist(), texts_of(kept(column, chosen)), strict=True)
            texts.update((number, str(text)) for number, text in found if text is not None)
        return sorted(texts.items())

    def _first(self, table: str, column: str, wanted: Sequence[int] | None = None) -> Rows:
        """Return the first value of a column, of some values or of all."""
        for block in self._tables.blocks(table, (column,)):
            values = block.numbers(column)
            values = values[values != ABSENT if wanted is None else np.isin(values, wanted)]
            if len(values):
                return [(int(values[0]),)]
        return []

    def _calls(self, query: Query, binds: Binds) -> Ints:
        """Return the columns of calls/at.sql or calls/named.sql."""
        table, columns = plain_columns(query.name, self._views)
        # Numbers of rows are no column of the table.
        columns = tuple(c for c in columns if c.name != "_rowid_")
        parts = [np.empty((len(query.columns), 0), np.int64)]
        if query.name == "calls/at":
            wanted = np.unique(np.array(json.loads(str(binds["rows"])), np.int64))
            for block in self._tables.blocks(table, _names(columns), int(wanted[0])):
                begin, end = np.searchsorted(wanted, [block.first, block.first + len(block)])
                mask = np.zeros(len(block), bool)
                mask[wanted[begin:end] - block.first] = True
                parts.append(_values(block.take(mask), columns))
                if end == len(wanted):
                    break
        else:
            ids = np.array(json.loads(str(binds["name_ids"])), np.int64)
            # The name is selected by, and not given.
            for block in self._tables.blocks(table, (*_names(columns), "nameId")):
                chosen = np.isin(block.numbers("nameId"), ids)
                rows = block.first + np.flatnonzero(chosen)
                parts.append(np.vstack((rows, _values(block.take(chosen), columns))))
                if len(rows) and binds["most"] == 1:
                    break
        return np.concatenate(parts, axis=1)

    def _payloads(self, binds: Binds) -> Rows:
        first, last = int(binds["first"] or 0), int(binds["last"] or 0)
        rows: Rows = []
        for block in self._tables.blocks(NVTX, ("start", "globalTid", "binaryData"), first):
            if block.first > last:
                break
            part = block.rows(first, last)
            part = part.take(present(part.column("binaryData")))
            column = part.column("binaryData")
            raw = column.dictionary_decode() if hasattr(column, "dictionary") else column
            starts = [None if s == ABSENT else s for s in part.numbers("start").tolist()]
            threads = part.numbers("globalTid")
            texts = (v.hex().upper() if isinstance(v, bytes) else str(v) for v in raw.to_pylist())
            rows.extend(
                zip(starts, np.where(threads == ABSENT, NONE, threads).tolist(), texts, strict=True)
            )
        return rows

    def _small_rows(self, query: Query, binds: Binds) -> Rows:
        """Return the rows of a query that SQLite runs; threads take turns."""
        with self._lock:
            for relation in query.requires:
                view = self._views.get(relation)
                for table in view.requires if view else (relation,):
                    self._load(table)
            values = {name: binds[name] for name in query.parameters}
            try:
                return self._small.execute(query.text, values).fetchall()
            except sqlite3.Error as error:
                raise damage(self.path, query, str(error)) from error

    def _load(self, table: str) -> None:
        """Load the columns of a table that queries read, unless they are there."""
        if table in self._loaded or table not in self._tables.schema:
            return
        columns = sorted(self._tables.schema[table] & columns_read().get(table, frozenset()))
        types = {column: self._tables.affinity(table, column) for column in columns}
        declared = ", ".join(f'"{column}" {types[column]}' for column in columns)
        if columns:
            self._small.execute(f'CREATE TABLE "{table}" ({declared})')
            marks = ", ".join("?" * len(columns))
            for block in self._tables.blocks(table, columns):
                cells = (
                    [None if v == ABSENT else v for v in block.numbers(column).tolist()]
                    if types[column] == "INT"
                    else block.texts(column)
                    for column in columns
                )
                rows = zip(*cells, strict=True)
                self._small.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
        self._loaded.add(table)


def _names(columns: Iterable[PlainColumn]) -> list[str]:
    """Return the columns of the table that are read."""
    return list(dict.fromkeys(column.name for column in columns if column.name))


def _values(block: Block, columns: Iterable[PlainColumn]) -> Ints:
    """Return columns of a block as a query gives them, shape (columns, rows).

    Raises:
        ValueError: one holds something else than whole numbers, or NULL where one is needed.
    """
    values = []
    for column in columns:
        numbers = block.numbers(column.name)
        lacking = numbers == ABSENT
        if column.nothing:
            lacking |= np.isin(numbers, column.nothing)
        if column.missing is None:
            every(numbers)
        elif lacking.any():
            numbers = np.where(lacking, column.missing, numbers)
        values.append(numbers)
    return np.stack(values)


def _may_be_named(block: Block, text: str, text_id: str, wanted: Ints, regex: str) -> Bools:
    """Tell which ranges may have a text that a pattern fits, or a wanted registered name."""
    registered: Bools = np.isin(block.numbers(text_id), wanted)
    texts = block.column(text)
    if texts is None:
        return registered
    named, likely = present(texts), may_match(texts, regex)
    return (named if likely is None else likely) | (registered & ~named)


def _lasting(block: Block, selection: Selection) -> Bools:
    """Tell which ranges or calls of some threads last long and touch a time."""
    start, end, thread = (block.numbers(name) for name in ("start", "end", "globalTid"))
    # Differences of times that are damaged may go beyond 64 bits, which SQLite's may not.
    fits: Bools = end.astype(np.float64) - start >= selection.shortest_ns
    fits &= (end > selection.since_ns) & (start < selection.until_ns)
    fits &= np.isin(thread, selection.threads) & (start != ABSENT) & (end != ABSENT)
    return fits


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
    with plain_memory(), closing(sqlite3.connect(":memory:", check_same_thread=False)) as small:
        try:
            files = {t: file for t, file in files_of(path).items() if t in known_tables()}
        except OSError as error:
            raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error
        opened = {t: TableFile(path, file, threads=jobs > 1) for t, file in files.items()}
        tables = Tables(path, opened)
        check_schema(path, tables.schema, "a directory of tables")
        views = views_of(tables.schema)
        yield Export(tables.schema, views, ColumnarOrigin(tables, views, small))


@contextmanager
def open_directory(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[NsysFile]:
    """Open a columnar export.

    Raises:
        ProfileError: it is damaged, or no export.
    """
    # Stretches follow one another, so that one thread reads them; pyarrow has threads of its own.
    with opened_directory(path, jobs) as export, scanned(export, 1, watch) as file:
        yield file
