"""Direct reader: bulk columns decoded from the pages of an export, without SQLite.

It takes a file only if everything about it is plain, and gives None at the first page that is not:
then SQLite reads the rest, which is slower, and the reference. What both give is the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.native import library as native
from bubbleviz.sources.nsys.export import Named, Selection, joined
from bubbleviz.sources.nsys.queries import ABSENT, plain_columns, table_of
from bubbleviz.sources.sqlite.database import HEADER_BYTES, files_beside, page_counts
from bubbleviz.sources.sqlite.queries import Query

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
#: The queries that are answered here, with the variant of a view that each must read.
_QUERIES = {
    "gpu_work/kernels": "views/kernels/current",
    "calls/all": "",
    "ranges/named": "views/ranges/current",
    "strings/matching": "views/strings/current",
}
#: The pages of a table, its integers in the order of its query, and places of all of its columns.
_Table: TypeAlias = tuple[native.Leaves, Sequence[native.IntegerColumn], Mapping[str, int]]


class DirectReader:
    """Reads an open file until something about it is not plain; then gives None for ever.

    Threads may use it at the same time.

    Args:
        functions: the compiled part.
        file: the open file.
        stored: its columns, rows of schema.sql.
        views: the variant of each view that queries read.
    """

    def __init__(
        self,
        functions: native.Library,
        file: native.FileShape,
        stored: Sequence[tuple[object, ...]],
        views: Mapping[str, Query],
    ) -> None:
        self._functions, self._file = functions, file
        self._tables: dict[str, _Table] = {}
        # Tables that are not read directly.
        self._left: list[str] = []
        self._odd = ""
        variants = {view.name for view in views.values()}
        for query, variant in _QUERIES.items():
            rows = [row for row in stored if row[0] == table_of(query)]
            if not rows:
                continue
            known = not variant or variant in variants
            table = self._open_table(rows, query, views) if known else None
            if table is None:
                self._left.append(table_of(query))
            else:
                self._tables[query] = table

    def _open_table(
        self, stored: Sequence[tuple[object, ...]], query: str, views: Mapping[str, Query]
    ) -> _Table | None:
        """Return a table with its pages known; None where it is not plain."""
        root, definition = stored[0][1], str(stored[0][2])
        places = {str(row[4]): int(str(row[3])) for row in stored}
        # In the capitals of ASCII, which are all that SQLite knows.
        kinds = {str(row[4]): str(row[5]) for row in stored}
        types = {name: kind.upper() if kind.isascii() else kind for name, kind in kinds.items()}
        keys = {str(row[4]) for row in stored if row[6]}
        # Such a key is the number of the row.
        alone = len(keys) == 1 and all(types[key] == "INTEGER" for key in keys)
        plain = not any(row[7] for row in stored) and not (alone and _DESCENDING.search(definition))
        columns = plain_columns(query, views)[1]
        text = ""
        if query in ("ranges/named", "strings/matching"):
            columns, text = columns[:-1], columns[-1].name
        # Other types may keep an integer and give a float, or text.
        plain &= all("INT" in types.get(column.name, "") for column in columns)
        plain &= not text or any(kind in types.get(text, "") for kind in _TEXT_TYPES)
        # A key is stored as NULL, and rows of some kinds are selected by what is stored.
        selected = {column.name for column in columns} if query == "ranges/named" else set()
        sorted_by_key = query != "strings/matching" or (alone and "id" in keys)
        if (alone and keys & selected) or not sorted_by_key or not plain:
            return None
        leaves = self._functions.leaves(self._file, root if isinstance(root, int) else 0)
        if leaves is None:
            return None
        null = {None: native.UNUSUAL, ABSENT: native.DISTINCT}
        integers = [
            native.IntegerColumn(
                places[column.name],
                null.get(column.missing, native.MISSING),
                NONE if column.missing is None else column.missing,
                alone and column.name in keys,
            )
            for column in columns
        ]
        return leaves, integers, places

    def account(self) -> str:
        """Return what reads the file, as far as is known, and why where that is SQLite."""
        if self._odd:
            reason = f"a page of {self._odd} is not plain, or memory was short"
            return f"compiled reader, then SQLite ({reason})"
        if not self._tables:
            return "SQLite (the file has none of the large tables that is plain)"
        left = f", and SQLite ({', '.join(self._left)})" if self._left else ""
        return f"compiled reader{left}"

    def _leave(self, query: str) -> None:
        """Leave the file to SQLite, as the table of a query is not plain."""
        self._odd = self._odd or table_of(query)

    def columns(self, query: str, first: int, last: int) -> Ints | None:
        """Return the int64 columns of a query in some rows, shape (columns, rows)."""
        if self._odd or query not in self._tables:
            return None
        leaves, integers, _ = self._tables[query]
        columns = self._functions.integers(self._file, leaves, integers, first, last)
        if columns is None:
            self._leave(query)
        return columns

    def named(self, query: str, selection: Selection, first: int, last: int) -> Named | None:
        """Return the selected rows among those of some numbers, as an ``Export`` does."""
        by_time, sampled = query == "ranges/lasting", query == "ranges/sample"
        query = "ranges/named" if by_time or sampled else query
        if self._odd or query not in self._tables:
            return None
        leaves, integers, place = self._tables[query]
        pieces: Iterable[tuple[int, int]] = [(first, last)]
        options: dict[str, Any] = {}
        if query == "strings/matching":
            pieces = leaves.pieces(_STRING_PAGES)
        else:
            options = {"kind": place["eventType"], "kinds": selection.kinds}
            options |= {"id": place["textId"], "ids": None if sampled else selection.text_ids}
        if by_time:
            options |= {"start": place["start"], "end": place["end"], "thread": place["globalTid"]}
            options |= {"threads": selection.threads, "shortest": selection.shortest_ns}
            options |= {"since": selection.since_ns, "until": selection.until_ns}
        if sampled:
            # Kind and number of the text; other columns may be damaged.
            integers = [integers[2], integers[5]]
        text = place["text" if "text" in place else "value"]
        globs = ("*",) if by_time or sampled else selection.globs
        parts: list[Named] = []
        for piece in pieces:
            rows = self._functions.named(
                self._file, leaves, integers, text, globs, piece, **options
            )
            if rows is None:
                self._leave(query)
                return None
            parts.append(rows)
        return joined(parts)


@contextmanager
def opened_directly(
    path: str, stored: Sequence[tuple[object, ...]], views: Mapping[str, Query]
) -> Iterator[DirectReader | str]:
    """Open a file beside SQLite; the reason where it, or the machine, does not allow it.

    Args:
        path: of the file, which nothing is writing.
        stored: its columns, rows of schema.sql.
        views: the variant of each view that queries read.
    """
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
        if file is None:
            yield "the file is not as plain as nsys writes it"
        else:
            yield DirectReader(functions, file, stored, views)
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
