"""Direct reader: bulk columns decoded from the pages of an export, without SQLite.

It takes a file only if everything about it is plain, and gives None at the first page that is not:
then SQLite reads the rest, which is slower, and the reference. What both give is the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

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
    TimeSelection,
    absence,
    library,
)
from bubbleviz.sources.sqlite.pages import HEADER_BYTES, files_beside, page_counts
from bubbleviz.sources.sqlite.queries import Query

_RowsT = TypeVar("_RowsT", Ints, NamedRows)

_MAGIC = b"SQLite format 3\0"
#: Fractions of a page that overflow; the format fixes them.
_FRACTIONS = bytes((64, 32, 32))
_LEAST_USABLE = 480
_MOST_FORMAT = 4
_UTF8 = 1
#: A key in descending order is not the row number though it looks like it.
_DESCENDING = re.compile(r"\bDESC\b", re.IGNORECASE)
_TEXT_TYPES = ("CHAR", "CLOB", "TEXT")
#: Pages of strings that are looked through at once, in some 20 ms, so that Ctrl-C is soon heard.
_STRING_PAGES = 4096
#: Stands for NULL where NULL means something.
ABSENT = -(1 << 63)


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
        key: column that must be the row number, as the query sorts by it; "" where it does not.
    """

    table: str
    columns: tuple[SourceColumn, ...]
    view: str = ""
    text: str = ""
    kind: str = ""
    text_id: str = ""
    key: str = ""


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
            SourceColumn("end", Null.DISTINCT, ABSENT),
            SourceColumn("eventType"),
            _THREAD,
            SourceColumn("endGlobalTid", Null.MISSING),
            SourceColumn("textId", Null.DISTINCT, ABSENT),
        ),
        view="views/ranges/current",
        text="text",
        kind="eventType",
        text_id="textId",
    ),
    "strings/matching": Source(
        "StringIds", (SourceColumn("id"),), view="views/strings/current", text="value", key="id"
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
    """Return tables by name, of the rows of schema.sql."""
    tables: dict[str, list[tuple[object, ...]]] = {}
    for row in rows:
        tables.setdefault(str(row[0]), []).append(row)
    return {name: _stored_table(columns) for name, columns in tables.items()}


def _stored_table(rows: Sequence[tuple[object, ...]]) -> StoredTable:
    root, definition = rows[0][1], str(rows[0][2])
    keys = [row for row in rows if row[6]]
    alone = len(keys) == 1 and _declared(keys[0][5]) == "INTEGER"
    plain = not any(row[7] for row in rows) and not (alone and _DESCENDING.search(definition))
    return StoredTable(
        root if isinstance(root, int) else 0,
        {
            str(name): StoredColumn(int(str(place)), _declared(kind), bool(key) and alone)
            for _, _, _, place, name, kind, key, _ in rows
        },
        plain,
    )


def _declared(kind: object) -> str:
    """Return a type in the capitals of ASCII, which are all that SQLite knows."""
    text = str(kind)
    return text.upper() if text.isascii() else text


class DirectReader:
    """Reads an open file until something about it is not plain; then gives None for ever.

    Threads may use it at the same time.
    """

    def __init__(
        self,
        functions: Library,
        file: FileShape,
        tables: Mapping[str, _OpenTable],
        left: Sequence[str],
    ):
        """Take the tables that are read directly, by query, and of others why they are not."""
        self._functions = functions
        self._file = file
        self._tables = tables
        self._left = left
        self._odd = ""

    def reads(self, query: str) -> bool:
        """Tell whether a query's table is read directly, as far as is known."""
        return not self._odd and query in self._tables

    def account(self) -> str:
        """Return what reads the file, as far as is known, and why where that is SQLite."""
        left = "; ".join(self._left)
        if self._odd:
            reason = f"a page of {self._odd} is not plain, or memory was short"
            return f"compiled reader, then SQLite ({reason})"
        if not self._tables:
            return f"SQLite ({left or 'the file has none of the large tables'})"
        return f"compiled reader, and SQLite ({left})" if left else "compiled reader"

    def _read(self, query: str, rows: _RowsT | None) -> _RowsT | None:
        """Return what was read of a query's table, once it is noted if that was nothing."""
        if rows is None:
            self._odd = self._odd or SOURCES[query].table
        return rows

    def columns(self, query: str, first: int, last: int) -> Ints | None:
        """Return the int64 columns of a query in some rows, shape (columns, rows)."""
        if not self.reads(query):
            return None
        table = self._tables[query]
        columns = self._functions.integers(self._file, table.leaves, table.columns, first, last)
        return self._read(query, columns)

    def named(
        self,
        query: str,
        globs: tuple[str, ...],
        kinds: tuple[int, ...] = (0, 0, 0, 0),
        text_ids: tuple[int, ...] = (),
        bounds: tuple[int, int] = (-(1 << 63), (1 << 63) - 1),
    ) -> NamedRows | None:
        """Return rows of a query whose names fit one of the patterns; see ``BulkReader``."""
        if not self.reads(query):
            return None
        table = self._tables[query]
        selection = Selection(globs, table.text, table.kind, kinds, table.text_id, text_ids)
        return self._selected(query, selection, bounds)

    def _selected(
        self, query: str, selection: Selection, bounds: tuple[int, int]
    ) -> NamedRows | None:
        table = self._tables[query]
        rows = self._functions.named(self._file, table.leaves, table.columns, selection, *bounds)
        return self._read(query, rows)

    def strings(self, globs: tuple[str, ...]) -> Mapping[int, str] | None:
        """Return the registered strings that fit one of the patterns, by id."""
        query = "strings/matching"
        if not self.reads(query):
            return None
        found: dict[int, str] = {}
        for piece in self._tables[query].leaves.pieces(_STRING_PAGES):
            rows = self.named(query, globs, bounds=piece)
            if rows is None:
                return None
            found.update(zip(rows.values[0].tolist(), map(str, rows.texts), strict=True))
        return found

    def lasting(
        self,
        kinds: tuple[int, ...],
        threads: tuple[int, ...],
        shortest_ns: int,
        times_ns: tuple[int, int],
        bounds: tuple[int, int],
    ) -> NamedRows | None:
        """Return ranges that last long, whatever their names; see ``BulkReader``."""
        query = "ranges/named"
        # One range has one name only where the numbers of strings are a key.
        if not (self.reads(query) and self.reads("strings/matching")):
            return None
        table = self._tables[query]
        start, end, _, thread, *_ = table.columns
        times = TimeSelection(start.index, end.index, thread.index, threads, shortest_ns, *times_ns)
        selection = Selection(("*",), table.text, table.kind, kinds, table.text_id, times=times)
        return self._selected(query, selection, bounds)


@contextmanager
def opened_directly(
    path: str, stored: Mapping[str, StoredTable], views: Mapping[str, Query]
) -> Iterator[tuple[DirectReader | None, str]]:
    """Open a file beside SQLite; None and the reason where it, or the machine, does not allow it.

    Args:
        path: of the file, which nothing is writing.
        stored: its tables.
        views: the variant of each view that queries read.
    """
    functions = library()
    if functions is None:
        yield None, absence()
        return
    with _opened_file(path) as file:
        if isinstance(file, str):
            yield None, file
        else:
            yield _reader(functions, file, stored, views), ""


@contextmanager
def _opened_file(path: str) -> Iterator[FileShape | str]:
    """Open a file that is plain as a whole; yield what is not plain about it where it is not."""
    if files_beside(path):
        yield "a journal or log lies beside the file"
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        yield "the file cannot be opened a second time"
        return
    try:
        yield _shape_of(descriptor)
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _shape_of(descriptor: int) -> FileShape | str:
    """Return the shape of a file; the first thing in its header that is not plain, if any."""
    try:
        head, file_bytes = os.pread(descriptor, HEADER_BYTES, 0), os.fstat(descriptor).st_size
    except OSError:
        return "its header cannot be read"
    if len(head) < HEADER_BYTES or not head.startswith(_MAGIC):
        return "it does not begin with SQLite's header"

    def number(at: int) -> int:
        return int.from_bytes(head[at : at + 4], "big")

    page_bytes, pages = page_counts(head)
    usable = page_bytes - head[20]
    # A journal and no log, as nsys writes it; the size is that of the last change; no pages move.
    plain = {
        "the size of its pages is none": page_bytes.bit_count() == 1 and usable >= _LEAST_USABLE,
        "it keeps a write-ahead log": head[18] == head[19] == 1,
        "its pages overflow at unusual sizes": head[21:24] == _FRACTIONS,
        "its size is not what its header says": (
            number(24) == number(92) and pages * page_bytes == file_bytes
        ),
        "its schema is of a newer format": 1 <= number(44) <= _MOST_FORMAT,
        "it vacuums itself": number(52) == 0,
        "its encoding is not UTF-8": number(56) == _UTF8,
    }
    odd = next((words for words, holds in plain.items() if not holds), None)
    return odd or FileShape(descriptor, page_bytes, usable, pages)


def _reader(
    functions: Library,
    file: FileShape,
    stored: Mapping[str, StoredTable],
    views: Mapping[str, Query],
) -> DirectReader:
    tables, left = {}, []
    variants = {view.name for view in views.values()}
    for query, source in SOURCES.items():
        table = stored.get(source.table)
        if table is None:
            continue
        if source.view and source.view not in variants:
            left.append(f"{source.table} lacks columns of today's exports")
            continue
        open_table = _open_table(functions, file, source, table)
        if isinstance(open_table, str):
            left.append(f"{source.table} {open_table}")
        else:
            tables[query] = open_table
    return DirectReader(functions, file, tables, left)


def _open_table(
    functions: Library, file: FileShape, source: Source, table: StoredTable
) -> _OpenTable | str:
    """Return a table with its pages known, or what is not plain about it."""
    columns = [_integer_column(column, table) for column in source.columns]
    text = table.columns.get(source.text)
    texts = not source.text or (
        text is not None and any(kind in text.declared_type for kind in _TEXT_TYPES)
    )
    if not texts or None in columns:
        return "has columns of unusual types, or lacks one"
    # A key is stored as NULL, and rows of some kinds are selected by what is stored.
    keys = {name for name, column in table.columns.items() if column.is_key}
    selected = {column.name for column in source.columns} if source.kind else set()
    if keys & selected or not {source.key} <= keys | {""} or not table.plain:
        return "has computed columns or an unusual key"
    leaves = functions.leaves(file, table.root)
    if leaves is None:
        return "has an unusual tree of pages, or memory was short"

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
