"""Direct reader: bulk columns decoded from the pages of an export, without SQLite.

It takes a file only if everything about it is plain, and gives None at the first page that is not:
then SQLite reads the rest, which is slower, and the reference. What both give is the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.values import frozen
from bubbleviz.native.library import (
    FileShape,
    IntegerColumn,
    Leaves,
    Library,
    NamedRows,
    Null,
    Selection,
    library,
)
from bubbleviz.sources.nsys.pages import HEADER_BYTES, page_counts
from bubbleviz.sources.nsys.queries import Query

_MAGIC = b"SQLite format 3\0"
#: Fractions of a page that overflow; the format fixes them.
_FRACTIONS = bytes((64, 32, 32))
_LEAST_USABLE = 480
_MOST_FORMAT = 4
_UTF8 = 1
#: A key in descending order is not the row number though it looks like it.
_DESCENDING = re.compile(r"\bDESC\b", re.IGNORECASE)
_TEXT_TYPES = ("CHAR", "CLOB", "TEXT")
#: Stands for NULL where NULL means something.
OPEN_END = -(1 << 63)


@frozen
class SourceColumn:
    """A column of integers, as a query gives it.

    Attributes:
        name: in the table of nsys; None where the variant of a view gives NULL for it.
        null: what NULL reads as.
        missing: stands for NULL.
    """

    name: str | None
    null: Null = Null.UNUSUAL
    missing: int = NONE


@frozen
class Source:
    """The table behind a query, and its columns of integers in the query's order.

    Attributes:
        table: of nsys.
        columns: of integers.
        view: variant of a view that the query must read for this to be the same; "" for none.
        text: column of texts; "" for none.
        kind: column of kinds, where rows of some kinds are selected.
        text_id: column of numbers of texts.
    """

    table: str
    columns: tuple[SourceColumn, ...]
    view: str = ""
    text: str = ""
    kind: str = ""
    text_id: str = ""


_START, _END = SourceColumn("start"), SourceColumn("end")
_THREAD = SourceColumn("globalTid", Null.MISSING)

#: What the queries of these names give; a test holds each against its query.
SOURCES: Mapping[str, Source] = {
    "gpu_work/kernels": Source(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        (
            _START,
            _END,
            SourceColumn("deviceId"),
            SourceColumn("globalPid", Null.MISSING),
            SourceColumn("correlationId", Null.MISSING),
            SourceColumn("demangledName", Null.MISSING),
        ),
        view="views/kernels/current",
    ),
    "calls/all": Source(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        (_START, _END, _THREAD, SourceColumn("correlationId", Null.MISSING, -(1 << 40))),
    ),
    "ranges/named": Source(
        "NVTX_EVENTS",
        (
            _START,
            SourceColumn("end", Null.DISTINCT, OPEN_END),
            SourceColumn("eventType"),
            _THREAD,
            SourceColumn("endGlobalTid", Null.MISSING),
            SourceColumn("textId", Null.MISSING),
        ),
        view="views/ranges/current",
        text="text",
        kind="eventType",
        text_id="textId",
    ),
    "strings/matching": Source(
        "StringIds", (SourceColumn("id"),), view="views/strings/current", text="value"
    ),
}


@frozen
class StoredColumn:
    """A column as the file stores it: its place, its declared type, and whether it is the key."""

    place: int
    declared_type: str
    is_key: bool


@frozen
class StoredTable:
    """A table as the file stores it.

    Attributes:
        root: page on which its tree begins.
        columns: by name.
        plain: whether every column is stored, and a key is what it looks like.
    """

    root: int
    columns: Mapping[str, StoredColumn]
    plain: bool


@frozen
class _OpenTable:
    """A table whose pages are known, with the columns of a source."""

    leaves: Leaves
    columns: tuple[IntegerColumn, ...]
    text: int
    kind: int
    text_id: int


def stored_tables(rows: Sequence[tuple[object, ...]]) -> Mapping[str, StoredTable]:
    """Return tables by name, of the rows of storage.sql."""
    tables: dict[str, list[tuple[object, ...]]] = {}
    for row in rows:
        tables.setdefault(str(row[0]), []).append(row)
    return {name: _stored_table(columns) for name, columns in tables.items()}


def _stored_table(rows: Sequence[tuple[object, ...]]) -> StoredTable:
    root, definition = rows[0][1], str(rows[0][2])
    keys = [row for row in rows if row[6]]
    alone = len(keys) == 1 and str(keys[0][5]).upper() == "INTEGER"
    plain = not any(row[7] for row in rows) and not (alone and _DESCENDING.search(definition))
    return StoredTable(
        root if isinstance(root, int) else 0,
        {
            str(name): StoredColumn(int(str(place)), str(kind).upper(), bool(key) and alone)
            for _, _, _, place, name, kind, key, _ in rows
        },
        plain,
    )


class DirectReader:
    """Reads an open file until something about it is not plain; then gives None for ever.

    Threads may use it at the same time.
    """

    def __init__(self, functions: Library, file: FileShape, tables: Mapping[str, _OpenTable]):
        self._functions = functions
        self._file = file
        self._tables = tables
        self._plain = True

    def reads(self, query: str) -> bool:
        """Tell whether a query's table is read directly, as far as is known."""
        return self._plain and query in self._tables

    def columns(self, query: str, first: int, last: int) -> Ints | None:
        """Return the int64 columns of a query in some rows, shape (columns, rows)."""
        if not self.reads(query):
            return None
        table = self._tables[query]
        columns = self._functions.integers(self._file, table.leaves, table.columns, first, last)
        self._plain = self._plain and columns is not None
        return columns

    def named(
        self,
        query: str,
        globs: tuple[str, ...],
        kinds: tuple[int, ...] = (0, 0, 0, 0),
        text_ids: tuple[int, ...] = (),
        bounds: tuple[int, int] = (-(1 << 63), (1 << 63) - 1),
    ) -> NamedRows | None:
        """Return rows of a query whose names fit one of the patterns.

        Args:
            query: whose parameters these are.
            globs: SQLite's GLOB patterns.
            kinds: codes of the kinds of ranges.
            text_ids: numbers of registered strings that fit, ascending.
            bounds: the first and the last row.
        """
        if not self.reads(query):
            return None
        table = self._tables[query]
        selection = Selection(globs, table.text, table.kind, kinds, table.text_id, text_ids)
        rows = self._functions.named(self._file, table.leaves, table.columns, selection, *bounds)
        self._plain = self._plain and rows is not None
        return rows


@contextmanager
def opened_directly(
    path: str, stored: Mapping[str, StoredTable], views: Mapping[str, Query]
) -> Iterator[DirectReader | None]:
    """Open a file beside SQLite; None where it, or the machine, does not allow it.

    Args:
        path: of the file, which nothing is writing.
        stored: its tables.
        views: the variant of each view that queries read.
    """
    functions = library()
    if functions is None:
        yield None
        return
    with _descriptor_of(path) as descriptor:
        file = None if descriptor is None else _shape_of(descriptor)
        yield None if file is None else _reader(functions, file, stored, views)


@contextmanager
def _descriptor_of(path: str) -> Iterator[int | None]:
    """Open a file beside which no journal or log lies; None where that cannot be."""
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY) if _alone(path) else None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


def _alone(path: str) -> bool:
    """Tell whether no journal or log lies beside a file, not even an empty one."""
    real = str(Path(path).resolve())
    return not any(Path(real + suffix).exists() for suffix in ("-wal", "-journal", "-shm"))


def _shape_of(descriptor: int) -> FileShape | None:
    """Return the shape of a file whose header is plain in every respect."""
    try:
        head, file_bytes = os.pread(descriptor, HEADER_BYTES, 0), os.fstat(descriptor).st_size
    except OSError:
        return None
    if len(head) < HEADER_BYTES or not head.startswith(_MAGIC):
        return None

    def number(at: int) -> int:
        return int.from_bytes(head[at : at + 4], "big")

    page_bytes, pages = page_counts(head)
    plain = (
        page_bytes.bit_count() == 1
        and page_bytes - head[20] >= _LEAST_USABLE
        and head[18] == head[19] == 1  # a journal, no log, as nsys writes it
        and head[21:24] == _FRACTIONS
        and number(24) == number(92)  # the size below is that of the last change
        and pages * page_bytes == file_bytes
        and 1 <= number(44) <= _MOST_FORMAT
        and number(52) == 0  # no pages move
        and number(56) == _UTF8
    )
    return FileShape(descriptor, page_bytes, page_bytes - head[20], pages) if plain else None


def _reader(
    functions: Library,
    file: FileShape,
    stored: Mapping[str, StoredTable],
    views: Mapping[str, Query],
) -> DirectReader | None:
    tables = {}
    variants = {view.name for view in views.values()}
    for query, source in SOURCES.items():
        table = stored.get(source.table)
        if table is None or (source.view and source.view not in variants):
            continue
        open_table = _open_table(functions, file, source, table)
        if open_table is not None:
            tables[query] = open_table
    return DirectReader(functions, file, tables)


def _open_table(
    functions: Library, file: FileShape, source: Source, table: StoredTable
) -> _OpenTable | None:
    columns = [_integer_column(column, table) for column in source.columns]
    text = table.columns.get(source.text)
    texts = not source.text or (
        text is not None and any(kind in text.declared_type for kind in _TEXT_TYPES)
    )
    # A key is stored as NULL, and rows are selected by what is stored.
    keys = [c for c in (source.kind, source.text_id) if c and table.columns[c].is_key]
    if keys or not table.plain or not texts or None in columns:
        return None
    leaves = functions.leaves(file, table.root)
    if leaves is None:
        return None

    def place(name: str) -> int:
        return table.columns[name].place if name else NONE

    return _OpenTable(
        leaves,
        tuple(column for column in columns if column is not None),
        place(source.text),
        place(source.kind),
        place(source.text_id),
    )


def _integer_column(column: SourceColumn, table: StoredTable) -> IntegerColumn | None:
    stored = table.columns.get(column.name or "")
    # Other types may keep an integer and give a float, or text.
    if stored is None or "INT" not in stored.declared_type:
        return None
    return IntegerColumn(stored.place, column.null, column.missing, stored.is_key)
