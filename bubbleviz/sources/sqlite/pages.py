"""Pages: columns of whole numbers decoded from the pages of a file, without SQLite.

A file or a table is taken only if everything about it is plain; SQLite, which is slower, reads the
others, and is the reference. What both give is the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.native import library as native
from bubbleviz.sources.sqlite.database import HEADER_BYTES, StoredColumns, files_beside, page_counts
from bubbleviz.sources.sqlite.queries import ABSENT, PlainColumn

_MAGIC = b"SQLite format 3\0"
#: Fractions of a page that overflow; the format fixes them.
_FRACTIONS = bytes((64, 32, 32))
_LEAST_USABLE = 480
_MOST_FORMAT = 4
_UTF8 = 1
#: A key in descending order is not the row number though it looks like it.
_DESCENDING = re.compile(r"\bDESC\b", re.IGNORECASE)
_TEXT_TYPES = ("CHAR", "CLOB", "TEXT")
#: Pages that are decoded at once: room is made for as many rows as they may hold.
_PAGES = 512


@dataclass(frozen=True)
class PageTable:
    """A table whose pages are known.

    Attributes:
        pages: the open file.
        leaves: where its rows are.
        integers: the columns of whole numbers that its query gives.
        places: of all columns, by name.
    """

    pages: Pages
    leaves: native.Leaves
    integers: native.IntegerColumns
    places: Mapping[str, int]

    def columns(self) -> Ints | None:
        """Return the columns of all rows, shape (columns, rows); None where a page is not plain."""
        blocks = [np.empty((len(self.integers), 0), np.int64)]
        for piece in self.leaves.pieces(_PAGES):
            block = self.rows(*piece)
            if block is None:
                return None
            blocks.append(block)
        return np.concatenate(blocks, axis=1)

    def rows(self, first: int, last: int) -> Ints | None:
        """Return the columns of the rows of some numbers."""
        functions, file = self.pages.functions, self.pages.file
        return functions.integers(file, self.leaves, self.integers, first, last)


@dataclass(frozen=True)
class Pages:
    """An open file that is plain, and the compiled part. Threads may use it at the same time."""

    functions: native.Library
    file: native.FileShape

    def table(
        self,
        stored: StoredColumns,
        columns: Sequence[PlainColumn],
        text: str = "",
        *,
        selected: Collection[str] = (),
        key: str = "",
    ) -> PageTable | None:
        """Return a table with its pages known; None where it is not plain.

        Args:
            stored: its columns, rows of schema.sql.
            columns: those of whole numbers that are read.
            text: one of texts, if any.
            selected: columns by whose stored value rows are selected: a key is stored as NULL.
            key: the column in whose order rows are wanted, if not just that of their numbers.
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
        plain &= all("INT" in types.get(column.name, "") for column in columns)
        plain &= not text or any(kind in types.get(text, "") for kind in _TEXT_TYPES)
        ordered = not key or (alone and key in keys)
        if (alone and keys & {*selected}) or not ordered or not plain:
            return None
        leaves = self.functions.leaves(self.file, root if isinstance(root, int) else 0)
        if leaves is None:
            return None
        null = {None: native.UNUSUAL, ABSENT: native.DISTINCT}
        integers = [
            (
                places[column.name],
                null.get(column.missing, native.MISSING),
                NONE if column.missing is None else column.missing,
                alone and column.name in keys,
            )
            for column in columns
        ]
        return PageTable(self, leaves, np.array(integers, np.int64), places)


@contextmanager
def opened_pages(path: str) -> Iterator[Pages | str]:
    """Open a file, which nothing is writing; the reason where it, or the machine, forbids it."""
    functions = native.library()
    if functions is None:
        yield native.absence()
        return
    if files_beside(path):
        yield "a journal or log lies beside the file"
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        yield "the file cannot be opened a second time"
        return
    try:
        file = _shape_of(descriptor)
        yield ("the file is not laid out as expected" if file is None else Pages(functions, file))
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _shape_of(descriptor: int) -> native.FileShape | None:
    """Return the shape of a file; None where something in its header is not plain."""
    try:
        head, file_bytes = os.pread(descriptor, HEADER_BYTES, 0), os.fstat(descriptor).st_size
    except OSError:
        return None
    if len(head) < HEADER_BYTES:
        return None

    def number(at: int) -> int:
        return int.from_bytes(head[at : at + 4], "big")

    page_bytes, pages = page_counts(head)
    usable = page_bytes - head[20]
    plain = (
        head.startswith(_MAGIC)
        and page_bytes.bit_count() == 1
        and usable >= _LEAST_USABLE
        # A journal and no log, as nsys writes it.
        and head[18] == head[19] == 1
        and head[21:24] == _FRACTIONS
        # The size is that of the last change.
        and number(24) == number(92)
        and pages * page_bytes == file_bytes
        and 1 <= number(44) <= _MOST_FORMAT
        # It does not vacuum itself: no pages move.
        and number(52) == 0
        and number(56) == _UTF8
    )
    return native.FileShape(descriptor, page_bytes, usable, pages) if plain else None
