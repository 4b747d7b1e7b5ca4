"""Decodes integer and text columns directly from the pages of an SQLite file.

A file, table or page is *plain* if it uses only common features of SQLite's file format. Only plain
pages are decoded. SQLite, which is slower, reads all other pages. Decoding returns exactly the rows
that SQLite would return.
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

#: Header bytes for three payload fractions, whose values are fixed by the file format.
_FRACTIONS = bytes((64, 32, 32))
#: Minimum number of usable bytes per page that the file format allows.
_MIN_USABLE_BYTES = 480
#: Header values for the latest schema format and for UTF-8.
_MAX_SCHEMA_FORMAT = 4
_UTF8 = 1
#: Matches a descending key. An INTEGER PRIMARY KEY DESC column is not an alias of the row number.
_DESCENDING = re.compile(r"\bDESC\b", re.IGNORECASE)
_TEXT_TYPES = ("CHAR", "CLOB", "TEXT")
#: Number of leaf pages decoded in one call, which limits the memory that is allocated for rows.
_PAGES_PER_PIECE = 512
#: Values for the last members of ``struct leaves`` if extents are neither recorded nor used.
_UNTIMED = (None, NONE, NONE, NONE, 0)


#: Ways of treating NULL in an integer column. ``UNUSUAL``: A page that contains NULL cannot be
#: decoded. ``MISSING``: NULL is replaced with the missing value. ``DISTINCT``: Like ``MISSING``,
#: but a page in which the missing value is stored cannot be decoded.
UNUSUAL, MISSING, DISTINCT = range(3)
#: Rows with texts: integer columns, the index of each row's text, and the texts. The columns have
#: the shape (columns, rows). The index is -1 for NULL. Few of the texts are duplicates. Bytes that
#: are not valid UTF-8 are replaced with U+FFFD.
NamedRows: TypeAlias = tuple[Ints, Ints, Sequence[str]]
#: Rows with texts: integer columns, and the concatenated texts.
#: The last integer column is the length of the text in bytes, or -1 for NULL.
PackedRows: TypeAlias = tuple[Ints, bytes]


@dataclass(frozen=True)
class PageQuery:
    """A simple query in ``sql/`` that only selects rows and columns from a single table.

    Attributes:
        columns: Integer columns, in the order in which the query returns them.
        text: Name of the text column, which is the query's last column, or "" if there is none.
        view: Name of the view variant for which these columns are correct, or "" if the query does
            not read a view. The table is decoded only if the file uses this variant.
        selected: Names of the columns that filter rows. An alias of the row number is not allowed
            here, because SQLite stores it as NULL.
        key: Name of the column that determines the row order, or "" if rows are sorted by row
            number.
    """

    columns: tuple[PlainColumn, ...]
    text: str = ""
    view: str = ""
    selected: tuple[str, ...] = ()
    key: str = ""


class FileShape(NamedTuple):
    """The layout of an open SQLite file.

    Attributes:
        descriptor: File descriptor of the open file.
        page_bytes: Page size in bytes.
        usable: Number of usable bytes per page, excluding the reserved bytes at its end.
        pages: Number of pages in the file.
    """

    descriptor: int
    page_bytes: int
    usable: int
    pages: int


@dataclass(frozen=True)
class PageTable:
    """A table in an SQLite file, along with the page numbers of its leaf pages.

    Methods that read rows return None if a page is not plain.

    Attributes:
        pages: The open file.
        leaf: Page numbers of the leaf pages, in row order, shape (leaves,).
        last_row: For each leaf page, the largest row number that it may contain, shape (leaves,).
        extents: For each leaf page, the maximum duration and the earliest start of its rows, shape
            (leaves, 2). The duration is -1 if the page's times have not been read yet.
        integers: Integer columns that the query returns, shape (columns, 4). The second axis
            contains the column's index in the table, how NULL is treated (such as MISSING), the
            missing value, and whether the column is an alias of the row number.
        places: Column indices in the table, keyed by column name.
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
        """Create a table by finding its leaf pages.

        Args:
            pages: The open file.
            root: Page number of the root of the table's B-tree.
            integers: Integer columns that the query returns, see the class.
            places: Column indices in the table, keyed by column name.

        Returns:
            The table, or None if a page is not plain or memory runs out.
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
        """Return the half-open range of leaf pages that may contain rows ``first`` to ``last``."""
        start, end = np.searchsorted(self.last_row, (first, last)).tolist()
        return start, min(end + 1, len(self.leaf))

    def iter_pieces(self, n_leaves: int = _PAGES_PER_PIECE) -> Iterator[tuple[int, int]]:
        """Divide the table into pieces, and yield the first and last row number of each piece.

        Each piece has ``n_leaves`` leaf pages, except for the last one, which may have fewer.
        """
        first = -(1 << 63)
        for last_leaf in range(n_leaves - 1, len(self.leaf) + n_leaves - 1, n_leaves):
            last = int(self.last_row[min(last_leaf, len(self.leaf) - 1)])
            yield first, last
            first = last + 1

    def read_columns(self) -> Ints | None:
        """Return the int64 columns of all rows in the table, shape (columns, rows).

        The result is None if a page is not plain.
        """
        blocks = [np.empty((len(self.integers), 0), np.int64)]
        for piece in self.iter_pieces():
            block = self.read_rows(*piece)
            if block is None:
                return None
            blocks.append(block)
        return np.concatenate(blocks, axis=1)

    def read_rows(self, first: int, last: int) -> Ints | None:
        """Return the int64 columns of rows ``first`` to ``last``, inclusive, shape (columns, rows).

        The result is None if a page is not plain.
        """
        start, end = self._find_leaves(first, last)
        # A row needs two bytes for its offset in the page, and at least one byte for each of the
        # following: the row length, the row number, the header length and each column type.
        min_row_bytes = 6 + int(self.integers[:, 0].max(initial=0))
        max_rows = (end - start) * self.pages.file.page_bytes // min_row_bytes
        leaves = self.leaf, self.last_row, start, end, first, last
        return self._decode(leaves, None, min(last - first + 1, max_rows))

    def read_selected(self, rows: Ints) -> Ints | None:
        """Return the int64 columns of the given rows, shape (columns, rows).

        The result is None if a page is not plain. Rows that do not exist are left out.

        Args:
            rows: Row numbers to read, distinct and ascending.
        """
        index = find_distinct(np.searchsorted(self.last_row, rows))
        index = index[index < len(self.leaf)]
        leaves = self.leaf[index], self.last_row[index], 0, len(index), *EVERY_ROW
        return self._decode(leaves, rows, len(rows))

    def _decode(
        self, leaves: tuple[Argument, ...], rows: Ints | None, max_rows: int
    ) -> Ints | None:
        """Return the int64 columns of rows on the given leaf pages, or None if a page is not plain.

        Args:
            leaves: The first members of ``struct leaves``, up to the range of row numbers.
            rows: Row numbers to read, or None to read all rows in the range.
            max_rows: Upper bound on the number of rows.
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

        A row must meet all of the following conditions to be selected:

        - The row's kind is one of ``kinds``, if the column ``kind`` is given.
        - The row's text matches one of ``globs``. A row whose text is NULL must have a text id in
          ``ids`` instead, unless ``thread`` is given.
        - If the column ``thread`` is given, the row lasts at least ``shortest`` ns and overlaps an
          interval of its thread.

        Args:
            text: Index of the text column.
            globs: SQLite GLOBs.
            pieces: Inclusive (first, last) row numbers of each piece of the table to read, or None
                to read the entire table.
            before: Start of a JSON object with one member, such as ``{"message":``, or "". If a
                start is given, all rows are selected, and their text is the member's value. If the
                value contains escapes or characters other than printable ASCII, the text is NULL.
            kinds: Codes of the four range kinds to select.
            ids: Text ids in ascending order, or None to accept any id.
            threads: Threads in ascending order.
            times: (start times, end times, bounds) of the threads' intervals, thread by thread. The
                intervals of a thread are disjoint and ascending. ``bounds`` contains the first
                index and the stop index of each thread's intervals, flattened.
            fields: Indices of the columns ``kind``, ``id`` (the text id), ``start``, ``end`` and
                ``thread``, and the minimum duration ``shortest``. If ``start`` and ``end`` are
                given without ``thread``, the extents of the leaf pages are recorded. If ``thread``
                is given too, the extents are used to skip leaf pages.

        Returns:
            The integer columns, followed by a column of text lengths, and the concatenated texts.
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
    """Convert packed rows to rows with texts as strings.

    Compiled code merges most equal texts, so few of the returned texts are duplicates.

    Raises:
        RuntimeError: The compiled library is not available.
    """
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
    """An open plain SQLite file. Several threads may use the file at the same time."""

    file: FileShape

    def open_table(self, stored: StoredColumns, query: PageQuery) -> PageTable | None:
        """Return the table read by a query, or None if its pages cannot be decoded.

        Pages can be decoded only if SQLite would return the stored values unchanged and in the same
        order. The columns that the query needs must be declared as integers and texts. No column
        may be generated, and rows must be stored in the order of the query's ``key``.

        Args:
            stored: The table's column definitions, as returned by ``schema.sql``.
            query: Columns that the query returns.
        """
        root, definition = stored[0][1], str(stored[0][2])
        places = {str(row[4]): int(str(row[3])) for row in stored}
        # SQLite ignores the case of type names, but only for ASCII letters.
        kinds = {str(row[4]): str(row[5]) for row in stored}
        types = {name: kind.upper() if kind.isascii() else kind for name, kind in kinds.items()}
        keys = {str(row[4]) for row in stored if row[6]}
        # A single INTEGER PRIMARY KEY is an alias of the row number.
        is_alias = len(keys) == 1 and all(types[key] == "INTEGER" for key in keys)
        is_descending = is_alias and _DESCENDING.search(definition)
        is_plain = not any(row[7] for row in stored) and not is_descending
        # For other column types, SQLite may store an integer but return a float or text.
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
    """Encode integer columns for compiled code, in the form of ``PageTable.integers``.

    Args:
        columns: Integer columns returned by a query.
        places: Column indices in the table, keyed by column name.
        aliases: Names of the columns that are aliases of the row number.
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
    """Open an SQLite file to decode its pages. The file is closed on exit.

    Args:
        path: Path to the file. No other program may be writing to the file.

    Yields:
        The open file, or the reason why its pages cannot be decoded.
    """
    if not native.is_available():
        yield explain_absence()
        return
    if find_sidecar_files(path):
        yield "there is a journal or log next to the file"
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        yield "the file cannot be opened a second time"
        return
    try:
        file = _read_page_layout(descriptor)
        yield ("the file has an unexpected layout" if file is None else Pages(file))
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _read_page_layout(descriptor: int) -> FileShape | None:
    """Read a file's layout from its header, or return None if the header is not plain.

    A plain file stores text in UTF-8 and uses neither a write-ahead log nor auto-vacuum. The file's
    size is exactly the size stated in its header.
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
        # The file uses a rollback journal, like the files of nsys, and not a write-ahead log.
        and head[18] == head[19] == 1
        and head[21:24] == _FRACTIONS
        # The page count in the header is up to date.
        and read_integer(24) == read_integer(92)
        and pages * page_bytes == file_bytes
        and 1 <= read_integer(44) <= _MAX_SCHEMA_FORMAT
        # Auto-vacuum is off, so no pages move.
        and read_integer(52) == 0
        and read_integer(56) == _UTF8
    )
    return FileShape(descriptor, page_bytes, usable, pages) if is_plain else None
