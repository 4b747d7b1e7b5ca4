"""Pages: columns of whole numbers and texts, decoded from the pages of a file without SQLite.

Only *plain* files, tables and pages are decoded: those that use the ordinary features of the file
format. SQLite, which is slower, reads all others and is the reference. Both return the same rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.native import functions as native
from bubbleviz.native.library import Argument, explain_absence, terminate_texts
from bubbleviz.sources.sqlite.database import (
    HEADER_BYTES,
    StoredColumns,
    find_sidecar_files,
    parse_page_counts,
)
from bubbleviz.sources.sqlite.queries import ABSENT, EVERY_ROW, SQLITE, PlainColumn

#: Maximum and minimum embedded payload fraction and leaf payload fraction, which the format fixes.
_FRACTIONS = bytes((64, 32, 32))
_MIN_USABLE_BYTES = 480
_MAX_SCHEMA_FORMAT = 4
_UTF8 = 1
#: Matches a descending key. An INTEGER PRIMARY KEY DESC is not an alias of the row number.
_DESCENDING = re.compile(r"\bDESC\b", re.IGNORECASE)
_TEXT_TYPES = ("CHAR", "CLOB", "TEXT")
#: Number of leaf pages decoded in one call, which limits the memory that is allocated for rows.
_PAGES_PER_PIECE = 512
#: Last members of ``struct leaves`` if extents are neither written nor used.
_UNTIMED = (None, NONE, NONE, NONE, 0)


#: How NULL in a column is read: it makes the page unusual, it is read as the missing value, or it
#: is read as the missing value and a stored value equal to that makes the page unusual.
UNUSUAL, MISSING, DISTINCT = range(3)
#: Rows with a text: integer columns, shape (columns, rows); for each row the index of its text, or
#: -1 for NULL; and the texts, with few duplicates. Bytes that are not UTF-8 are U+FFFD.
NamedRows: TypeAlias = tuple[Ints, Ints, Sequence[str]]
#: Rows with a text: integer columns, with the length of the text, or -1 for NULL, as the last one;
#: and the concatenated texts.
PackedRows: TypeAlias = tuple[Ints, bytes]


@dataclass(frozen=True)
class PageQuery:
    """The columns that a query of ``sql/`` returns, if it only filters the rows of one table.

    Attributes:
        columns: Columns of whole numbers, in the order in which the query returns them.
        text: Name of the column of texts, which the query returns last, or "" if there is none.
        view: Variant of the view that the query must read in the file, or "" if it reads the table.
        selected: Columns by whose stored values rows are selected. None of them may be the row
            number, which SQLite stores as NULL.
        key: Column by which rows are sorted, or "" if they are sorted by row number.
    """

    columns: tuple[PlainColumn, ...]
    text: str = ""
    view: str = ""
    selected: tuple[str, ...] = ()
    key: str = ""


class FileShape(NamedTuple):
    """The layout of an open SQLite file.

    Attributes:
        descriptor: File descriptor.
        page_bytes: Page size in bytes.
        usable: Number of bytes of a page that are in use; the others are reserved.
        pages: Number of pages.
    """

    descriptor: int
    page_bytes: int
    usable: int
    pages: int


@dataclass(frozen=True)
class PageTable:
    """A table whose leaf pages are known.

    Methods that read rows return None if a page is not plain.

    Attributes:
        pages: The open file.
        leaf: Page numbers of the leaves, in the order of rows, shape (leaves,).
        last_row: Last row number that each leaf may contain.
        extents: Length of the longest row and earliest start of each leaf, shape (leaves, 2). The
            length is -1 if the leaf was not read with its times yet.
        integers: Columns of whole numbers that the query returns, shape (columns, 4): index in the
            table, how NULL is read, the missing value, and whether the column is an alias of the
            row number.
        places: Index of each column of the table, keyed by name.
    """

    pages: Pages
    leaf: npt.NDArray[np.uint32]
    last_row: Ints
    extents: Ints
    integers: Ints
    places: Mapping[str, int]

    @staticmethod
    def from_root(
        pages: Pages, root: int, integers: Ints, places: Mapping[str, int]
    ) -> PageTable | None:
        """Find the leaf pages of a table.

        Args:
            pages: The open file.
            root: Page number of the root of the table's B-tree.
            integers: Columns to read, as for the class.
            places: Index of each column, keyed by name.

        Returns:
            The table, or None if a page is not plain or memory is short.
        """
        file = pages.file
        if not 1 < root <= file.pages:
            return None
        leaves = native.find_leaves(file=file, root=root, max_leaves=file.pages)
        if leaves is None:
            return None
        leaf, last_row = leaves
        extents = np.full((len(leaf), 2), NONE, np.int64)
        return PageTable(pages, leaf, last_row, extents, integers, places)

    def _find_leaves(self, first: int, last: int) -> tuple[int, int]:
        """Return the half-open range of leaves that may contain rows ``first`` to ``last``."""
        start, end = np.searchsorted(self.last_row, (first, last)).tolist()
        return start, min(end + 1, len(self.leaf))

    def iter_pieces(self, n_leaves: int = _PAGES_PER_PIECE) -> Iterator[tuple[int, int]]:
        """Yield the first and last row number of each piece of the table, both included.

        A piece has ``n_leaves`` leaves, and the last piece may have fewer.
        """
        first = -(1 << 63)
        for last_leaf in range(n_leaves - 1, len(self.leaf) + n_leaves - 1, n_leaves):
            last = int(self.last_row[min(last_leaf, len(self.leaf) - 1)])
            yield first, last
            first = last + 1

    def read_columns(self) -> Ints | None:
        """Return the int64 columns of all rows, or None if a page is not plain.

        The shape is (columns, rows).
        """
        blocks = [np.empty((len(self.integers), 0), np.int64)]
        for piece in self.iter_pieces():
            block = self.read_rows(*piece)
            if block is None:
                return None
            blocks.append(block)
        return np.concatenate(blocks, axis=1)

    def read_rows(self, first: int, last: int) -> Ints | None:
        """Return the int64 columns of rows ``first`` to ``last``, or None if a page is not plain.

        Both rows are included. The shape is (columns, rows).
        """
        start, end = self._find_leaves(first, last)
        # A row takes at least two bytes for its offset in the page, one each for its length, its
        # number and the length of its header, and in the header one byte per column.
        min_row_bytes = 6 + int(self.integers[:, 0].max(initial=0))
        max_rows = (end - start) * self.pages.file.page_bytes // min_row_bytes
        leaves = self.leaf, self.last_row, start, end, first, last
        return self._decode(leaves, None, min(last - first + 1, max_rows))

    def read_selected(self, rows: Ints) -> Ints | None:
        """Return the int64 columns of selected rows, or None if a page is not plain.

        The shape is (columns, rows).

        Args:
            rows: Row numbers, distinct and ascending.
        """
        index = find_distinct(np.searchsorted(self.last_row, rows))
        index = index[index < len(self.leaf)]
        leaves = self.leaf[index], self.last_row[index], 0, len(index), *EVERY_ROW
        return self._decode(leaves, rows, len(rows))

    def _decode(
        self, leaves: tuple[Argument, ...], rows: Ints | None, max_rows: int
    ) -> Ints | None:
        """Return the columns of the rows on some leaves, or None if a page is not plain.

        Args:
            leaves: First members of ``struct leaves``, without the row numbers.
            rows: Numbers of the rows to read, or None for all rows on these leaves.
            max_rows: Maximum number of rows.
        """
        members = (*leaves, rows, 0 if rows is None else len(rows), *_UNTIMED)
        return native.decode_integers(
            file=self.pages.file, leaves=members, columns=self.integers, max_rows=max_rows
        )

    def read_named(
        self,
        text: int,
        globs: Sequence[str],
        pieces: Iterable[tuple[int, int]] | None = None,
        *,
        before: str = "",
        kinds: Sequence[int] = (0, 0, 0, 0),
        ids: Sequence[int] | None = (),
        threads: Sequence[int] = (),
        times: tuple[Sequence[int], Sequence[int], Sequence[int]] = ((), (), ()),
        **fields: int,
    ) -> PackedRows | None:
        """Return the selected rows with their texts, or None if a page is not plain.

        A row is selected if its kind is one of ``kinds`` and its text matches one of ``globs``. A
        row whose text is NULL is selected by the id of its text instead. If a column of threads is
        given, a row must also last at least ``shortest`` and overlap an interval of its thread;
        rows without a text are then selected whatever their id.

        Args:
            text: Index of the column of texts.
            globs: SQLite GLOB patterns.
            pieces: First and last row number of each piece of the table to read, or None for all.
            before: Start of texts that are JSON objects with one member, such as ``{"message":``.
                Then all rows are selected, and the text is the value of that member. It is NULL
                unless it consists of printable ASCII characters without escapes.
            kinds: Four codes. Used if ``kind`` is given.
            ids: Ids of texts, ascending, or None for any id. Used if ``id`` is given.
            threads: Threads, ascending. Used if ``thread`` is given.
            times: Starts and ends of intervals, disjoint and ascending for each thread; and the
                bounds of each thread's intervals among them. Used if ``thread`` is given.
            fields: Indices of columns: ``kind``, ``id`` (of the text), ``start``, ``end`` and
                ``thread``. With ``start`` and ``end``, the extents of leaves are determined, or
                used to skip leaves if ``thread`` is given. ``shortest`` is the minimum duration.

        Returns:
            The integer columns, with the length of the text as the last one, and the texts.
        """
        if any("\0" in glob for glob in globs):
            return None
        defaults = dict.fromkeys(("kind", "id", "start", "end", "thread"), -1) | {"shortest": 0}
        kind, text_id, start, end, thread, shortest = (defaults | fields).values()
        id_column, thread_column, since, until, bounds_of_thread = (
            np.array(values, np.int64) if values else None for values in (ids, threads, *times)
        )
        selection: tuple[Argument, ...] = (terminate_texts(*globs), len(globs), text)
        selection += (terminate_texts(before) if before else None, kind, *kinds)
        selection += (text_id, -1 if ids is None else len(ids), id_column)
        selection += (start, end, thread, len(threads), thread_column)
        selection += (shortest, since, until, bounds_of_thread)
        _, until_ns, _ = times
        extents = (
            self.extents if start != NONE else None,
            *(start, end, shortest if thread != NONE else NONE),
            max(until_ns, default=0),
        )
        blocks, texts = [np.empty((len(self.integers) + 1, 0), np.int64)], []
        for bounds in self.iter_pieces() if pieces is None else pieces:
            leaves = self.leaf, self.last_row, *self._find_leaves(*bounds), *bounds
            decoded = native.decode_named(
                file=self.pages.file,
                leaves=(*leaves, None, 0, *extents),
                columns=self.integers,
                selection=selection,
            )
            if decoded is None:
                return None
            blocks.append(decoded[0])
            texts.append(decoded[1])
        return np.concatenate(blocks, axis=1), b"".join(texts)


def unpack_rows(rows: PackedRows) -> NamedRows:
    """Return packed rows with their texts as strings, nearly all of which are distinct."""
    columns, packed = rows
    numbers_and_bounds = native.number_texts(packed, columns[-1])
    if numbers_and_bounds is None:
        raise RuntimeError("packed rows come only from compiled code")
    number, bounds = numbers_and_bounds
    bounds_of_texts = bounds.tolist()
    texts = [
        packed[start : start + size].decode("utf-8", "replace") for start, size in bounds_of_texts
    ]
    return columns[:-1], number, texts


@dataclass(frozen=True)
class Pages:
    """An open plain file. Several threads may use it at the same time."""

    file: FileShape

    def open_table(self, stored: StoredColumns, query: PageQuery) -> PageTable | None:
        """Return the table that a query reads, or None if its pages cannot be decoded.

        Pages can be decoded only if the stored values are the values that SQLite returns: the
        columns are declared with integer and text types, none is generated, and rows are stored in
        the order of ``key``.

        Args:
            stored: The table's columns, rows of schema.sql.
            query: The columns that the query reads.
        """
        root, definition = stored[0][1], str(stored[0][2])
        places = {str(row[4]): int(str(row[3])) for row in stored}
        # SQLite compares type names case-insensitively in ASCII only.
        kinds = {str(row[4]): str(row[5]) for row in stored}
        types = {name: kind.upper() if kind.isascii() else kind for name, kind in kinds.items()}
        keys = {str(row[4]) for row in stored if row[6]}
        # A single INTEGER PRIMARY KEY is an alias of the row number.
        is_alias = len(keys) == 1 and all(types[key] == "INTEGER" for key in keys)
        is_descending = is_alias and _DESCENDING.search(definition)
        is_plain = not any(row[7] for row in stored) and not is_descending
        # With other types, SQLite may store an integer but return a float or text.
        is_plain &= all("INT" in types.get(column.name, "") for column in query.columns)
        text_type = types.get(query.text, "")
        is_plain &= not query.text or any(kind in text_type for kind in _TEXT_TYPES)
        is_ordered = not query.key or (is_alias and query.key in keys)
        if (is_alias and keys & {*query.selected}) or not is_ordered or not is_plain:
            return None
        integers = _encode_columns(query.columns, places, keys if is_alias else set())
        return PageTable.from_root(self, root if isinstance(root, int) else 0, integers, places)


def _encode_columns(
    columns: Sequence[PlainColumn], places: Mapping[str, int], aliases: Collection[str]
) -> Ints:
    """Return columns of whole numbers as the rows of ``PageTable.integers``.

    Args:
        columns: The columns that a query returns.
        places: Index of each column of the table, keyed by name.
        aliases: Names of columns that are an alias of the row number.
    """
    null = {None: UNUSUAL, ABSENT: DISTINCT}
    rows = [
        (
            places[column.name],
            null.get(column.missing, MISSING),
            NONE if column.missing is None else column.missing,
            column.name in aliases,
        )
        for column in columns
    ]
    return np.array(rows, np.int64)


@contextmanager
def open_pages(path: str) -> Iterator[Pages | str]:
    """Open a file to read its pages directly; the file is closed on exit.

    Args:
        path: Path of a file that no other program is writing.

    Yields:
        The open file, or the reason why its pages cannot be read directly.
    """
    if not native.is_available():
        yield explain_absence()
        return
    if find_sidecar_files(path):
        yield "a journal or log exists next to the file"
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        yield "the file cannot be opened a second time"
        return
    try:
        file = _read_page_layout(descriptor)
        yield ("the file is not laid out as expected" if file is None else Pages(file))
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _read_page_layout(descriptor: int) -> FileShape | None:
    """Return the layout of a file from its header, or None if the header is not plain.

    A plain file is in UTF-8, uses no write-ahead log and no auto-vacuum, and is exactly as long as
    its header says.
    """
    try:
        head, file_bytes = os.pread(descriptor, HEADER_BYTES, 0), os.fstat(descriptor).st_size
    except OSError:
        return None
    if len(head) < HEADER_BYTES:
        return None

    def read_integer(offset: int) -> int:
        return int.from_bytes(head[offset : offset + 4], "big")

    page_bytes, pages = parse_page_counts(head)
    usable = page_bytes - head[20]
    is_plain = (
        head.startswith(SQLITE)
        and page_bytes.bit_count() == 1
        and usable >= _MIN_USABLE_BYTES
        # A rollback journal, not a write-ahead log, as nsys writes it.
        and head[18] == head[19] == 1
        and head[21:24] == _FRACTIONS
        # The page count in the header is valid for the last change of the file.
        and read_integer(24) == read_integer(92)
        and pages * page_bytes == file_bytes
        and 1 <= read_integer(44) <= _MAX_SCHEMA_FORMAT
        # Auto-vacuum is off, so no pages move.
        and read_integer(52) == 0
        and read_integer(56) == _UTF8
    )
    return FileShape(descriptor, page_bytes, usable, pages) if is_plain else None
