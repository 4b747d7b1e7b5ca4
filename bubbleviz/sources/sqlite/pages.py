"""Pages: columns of whole numbers decoded from the pages of a file, without SQLite.

A file or a table is taken only if everything about it is plain; SQLite, which is slower, reads the
others, and is the reference. What both give is the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.native import functions as native
from bubbleviz.native.library import Argument, absence, ended
from bubbleviz.sources.sqlite.database import (
    HEADER_BYTES,
    StoredColumns,
    find_sidecar_files,
    parse_page_counts,
)
from bubbleviz.sources.sqlite.queries import ABSENT, EVERY_ROW, SQLITE, PlainColumn

#: Fractions of a page that overflow; the format fixes them.
_FRACTIONS = bytes((64, 32, 32))
_MIN_USABLE_BYTES = 480
_MAX_SCHEMA_FORMAT = 4
_UTF8 = 1
#: A key in descending order is not the row number though it looks like it.
_DESCENDING = re.compile(r"\bDESC\b", re.IGNORECASE)
_TEXT_TYPES = ("CHAR", "CLOB", "TEXT")
#: Pages that are decoded at once: room is made for as many rows as they may hold.
_PAGES_PER_PIECE = 512
#: The members of ``struct leaves`` on times: extents are neither written nor used.
_UNTIMED = (None, NONE, NONE, NONE, 0)


#: What NULL in a column reads as: an unusual value, the missing one, or that if no value of the
#: file is equal to it.
UNUSUAL, MISSING, DISTINCT = range(3)
#: Integers of some rows, shape (columns, rows), the number of the text of each, -1 for NULL, and
#: texts by number, of which few are the same: U+FFFD for what is not UTF-8.
NamedRows: TypeAlias = tuple[Ints, Ints, Sequence[str]]
#: Such integers, with the lengths of texts, -1 for NULL, as a last column; and texts one behind
#: another.
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
    """An open SQLite file: its descriptor, bytes of a page, of these in use, and its pages."""

    descriptor: int
    page_bytes: int
    usable: int
    pages: int


@dataclass(frozen=True)
class PageTable:
    """A table whose pages are known; what is read is None where one of these is not plain.

    Attributes:
        pages: the open file.
        leaf: numbers of the leaf pages, in order, shape (leaves,).
        last_row: the last row number that each may hold.
        extents: Length of the longest row and earliest start of each leaf, shape (leaves, 2). The
            length is -1 if the leaf was not read with its times yet.
        integers: how the columns of whole numbers are read that its query gives, shape
            (columns, 4): the place of each in the table, what NULL reads as, the missing value, and
            whether it stands for the row number.
        places: of all columns, by name.
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
        """Return the table whose tree begins on a page."""
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
        """Return which leaves, from and to, may hold rows of some numbers."""
        begin, end = np.searchsorted(self.last_row, (first, last)).tolist()
        return begin, min(end + 1, len(self.leaf))

    def iter_pieces(self, most: int = _PAGES_PER_PIECE) -> Iterator[tuple[int, int]]:
        """Yield the first and the last row number of so many leaves after the other."""
        first = -(1 << 63)
        for at in range(most - 1, len(self.leaf) + most - 1, most):
            last = int(self.last_row[min(at, len(self.leaf) - 1)])
            yield first, last
            first = last + 1

    def read_columns(self) -> Ints | None:
        """Return the columns of all rows, shape (columns, rows)."""
        blocks = [np.empty((len(self.integers), 0), np.int64)]
        for piece in self.iter_pieces():
            block = self.read_rows(*piece)
            if block is None:
                return None
            blocks.append(block)
        return np.concatenate(blocks, axis=1)

    def read_rows(self, first: int, last: int) -> Ints | None:
        """Return the columns of the rows of some numbers."""
        begin, end = self._find_leaves(first, last)
        # Of its page a row takes two bytes that tell where it is, one or more that tell how long it
        # is, its number and the length of its header, and there one for each column.
        least = 6 + int(self.integers[:, 0].max(initial=0))
        room = min(last - first + 1, (end - begin) * self.pages.file.page_bytes // least)
        return self._decode((self.leaf, self.last_row, begin, end, first, last), None, room)

    def read_selected(self, rows: Ints) -> Ints | None:
        """Return the columns of some rows by their numbers (distinct, ascending)."""
        at = find_distinct(np.searchsorted(self.last_row, rows))
        at = at[at < len(self.leaf)]
        leaves = self.leaf[at], self.last_row[at], 0, len(at), *EVERY_ROW
        return self._decode(leaves, rows, len(rows))

    def _decode(self, leaves: tuple[Argument, ...], wanted: Ints | None, room: int) -> Ints | None:
        chosen = (*leaves, wanted, 0 if wanted is None else len(wanted), *_UNTIMED)
        return native.decode_integers(
            file=self.pages.file, leaves=chosen, columns=self.integers, max_rows=room
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
        """Return the rows of some kinds whose text fits a pattern, or has some number.

        Args:
            text: place of the column of texts in the table.
            globs: SQLite's GLOB patterns, of which the text must fit one.
            pieces: of the table, each the numbers of its first and its last row; None for all.
            before: how texts begin, such as ``{"message":``: then each row is given, and its text
                is what stands between the quotes of that one member, if it is plain: printable
                ASCII without escapes. Others count as NULL.
            kinds: four codes, where the place of their column is given.
            ids: wanted numbers of texts, ascending, for rows whose text is NULL; None for any.
            threads: those wanted, ascending, where rows are selected by time.
            times: starts and ends, of which such a row touches one of its thread, these disjoint
                and ascending; and from which to below which are those of each thread.
            fields: places of columns: ``kind``; ``id`` of the text; ``start`` and ``end``, by which
                the extents of leaves are noted; and to select by time, whatever the number of the
                text, ``thread``, with how long a row lasts at least (``shortest``).
        """
        if any("\0" in glob for glob in globs):
            return None
        absent = dict.fromkeys(("kind", "id", "start", "end", "thread"), -1)
        given = absent | {"shortest": 0} | fields
        kind, of_text, start, end, thread, shortest = given.values()
        wanted, of_threads, since, until, parts = (
            np.array(some, np.int64) if some else None for some in (ids, threads, *times)
        )
        selection: tuple[Argument, ...] = (ended(*globs), len(globs), text)
        selection += (ended(before) if before else None, kind, *kinds)
        selection += (of_text, -1 if ids is None else len(ids), wanted)
        selection += (start, end, thread, len(threads), of_threads)
        selection += (shortest, since, until, parts)
        _, until_ns, _ = times
        extents = (
            self.extents if start != NONE else None,
            *(start, end, shortest if thread != NONE else NONE),
            max(until_ns, default=0),
        )
        blocks, texts = [np.empty((len(self.integers) + 1, 0), np.int64)], []
        for bounds in self.iter_pieces() if pieces is None else pieces:
            stretch = self.leaf, self.last_row, *self._find_leaves(*bounds), *bounds
            decoded = native.decode_named(
                file=self.pages.file,
                leaves=(*stretch, None, 0, *extents),
                columns=self.integers,
                selection=selection,
            )
            if decoded is None:
                return None
            blocks.append(decoded[0])
            texts.append(decoded[1])
        return np.concatenate(blocks, axis=1), b"".join(texts)


def unpack_rows(rows: PackedRows) -> NamedRows:
    """Return rows with their texts as strings, each once."""
    columns, packed = rows
    numbered = native.number_texts(packed, columns[-1])
    if numbered is None:
        raise RuntimeError("packed rows come from the compiled part alone")
    number, bounds = numbered
    bounds_of_texts = bounds.tolist()
    texts = [packed[at : at + size].decode("utf-8", "replace") for at, size in bounds_of_texts]
    return columns[:-1], number, texts


@dataclass(frozen=True)
class Pages:
    """An open file that is plain. Threads may use it at the same time."""

    file: FileShape

    def open_table(self, stored: StoredColumns, query: PageQuery) -> PageTable | None:
        """Return the table that a query reads, or None if its pages cannot be decoded.

        Args:
            stored: The table's columns, rows of schema.sql.
            query: The columns that the query reads.
        """
        root, definition = stored[0][1], str(stored[0][2])
        places = {str(row[4]): int(str(row[3])) for row in stored}
        # In the capitals of ASCII, which are all that SQLite knows.
        kinds = {str(row[4]): str(row[5]) for row in stored}
        types = {name: kind.upper() if kind.isascii() else kind for name, kind in kinds.items()}
        keys = {str(row[4]) for row in stored if row[6]}
        # Such a key is the number of the row.
        alone = len(keys) == 1 and all(types[key] == "INTEGER" for key in keys)
        plain = not any(row[7] for row in stored) and not (alone and _DESCENDING.search(definition))
        # Other types may keep an integer and give a float, or text.
        plain &= all("INT" in types.get(column.name, "") for column in query.columns)
        text_type = types.get(query.text, "")
        plain &= not query.text or any(kind in text_type for kind in _TEXT_TYPES)
        ordered = not query.key or (alone and query.key in keys)
        if (alone and keys & {*query.selected}) or not ordered or not plain:
            return None
        null = {None: UNUSUAL, ABSENT: DISTINCT}
        integers = [
            (
                places[column.name],
                null.get(column.missing, MISSING),
                NONE if column.missing is None else column.missing,
                alone and column.name in keys,
            )
            for column in query.columns
        ]
        root = root if isinstance(root, int) else 0
        return PageTable.from_root(self, root, np.array(integers, np.int64), places)


@contextmanager
def open_pages(path: str) -> Iterator[Pages | str]:
    """Open a file to read its pages directly; the file is closed on exit.

    Args:
        path: Path of a file that no other program is writing.

    Yields:
        The open file, or the reason why its pages cannot be read directly.
    """
    if not native.is_available():
        yield absence()
        return
    if find_sidecar_files(path):
        yield "a journal or log lies beside the file"
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
    """Return the shape of a file; None where something in its header is not plain."""
    try:
        head, file_bytes = os.pread(descriptor, HEADER_BYTES, 0), os.fstat(descriptor).st_size
    except OSError:
        return None
    if len(head) < HEADER_BYTES:
        return None

    def number(at: int) -> int:
        return int.from_bytes(head[at : at + 4], "big")

    page_bytes, pages = parse_page_counts(head)
    usable = page_bytes - head[20]
    plain = (
        head.startswith(SQLITE)
        and page_bytes.bit_count() == 1
        and usable >= _MIN_USABLE_BYTES
        # A journal and no log, as nsys writes it.
        and head[18] == head[19] == 1
        and head[21:24] == _FRACTIONS
        # The size is that of the last change.
        and number(24) == number(92)
        and pages * page_bytes == file_bytes
        and 1 <= number(44) <= _MAX_SCHEMA_FORMAT
        # It does not vacuum itself: no pages move.
        and number(52) == 0
        and number(56) == _UTF8
    )
    return FileShape(descriptor, page_bytes, usable, pages) if plain else None
