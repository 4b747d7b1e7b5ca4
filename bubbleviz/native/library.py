"""Library: the functions of ``sqlite_pages.c``, with numpy columns in place of pointers.

Every function gives None where the file is not plain, or memory is short; see the C source.
"""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.native import structures

#: The file that the build puts beside this one.
FILE = "libbubbleviz.dylib" if sys.platform == "darwin" else "libbubbleviz.so"
#: Set to 0, it leaves the compiled part out.
SWITCH = "BUBBLEVIZ_NATIVE"

_Ints: TypeAlias = npt.NDArray[np.int64]
_SIZE = ctypes.c_size_t


class Null(IntEnum):
    """What NULL in a column reads as."""

    UNUSUAL = 0
    MISSING = 1
    #: As missing, and no value of the file may be equal to that.
    DISTINCT = 2


class FileShape(ctypes.Structure):
    """An open SQLite file: its descriptor, bytes of a page, of these in use, and its pages."""

    _fields_ = (
        ("descriptor", ctypes.c_int32),
        ("page_bytes", ctypes.c_uint32),
        ("usable", ctypes.c_uint32),
        ("pages", ctypes.c_uint32),
    )


class IntegerColumn(ctypes.Structure):
    """A column of integers: its place in the table, and how its values are read."""

    _fields_ = (
        ("index", ctypes.c_int32),
        ("null", ctypes.c_int32),
        ("missing", ctypes.c_int64),
        ("alias", ctypes.c_int32),
    )


class _Leaves(ctypes.Structure):
    _fields_ = (
        ("page", ctypes.c_void_p),
        ("last_row", ctypes.c_void_p),
        ("from", _SIZE),
        ("to", _SIZE),
        ("first", ctypes.c_int64),
        ("last", ctypes.c_int64),
    )


class _Selection(ctypes.Structure):
    _fields_ = (
        ("patterns", ctypes.c_void_p),
        ("text", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("kinds", ctypes.c_int64 * 4),
        ("id", ctypes.c_int32),
        ("id_count", ctypes.c_int32),
        ("ids", ctypes.c_void_p),
        ("start", ctypes.c_int32),
        ("end", ctypes.c_int32),
        ("thread", ctypes.c_int32),
        ("thread_count", ctypes.c_int32),
        ("threads", ctypes.c_void_p),
        ("shortest", ctypes.c_int64),
        ("since", ctypes.c_int64),
        ("until", ctypes.c_int64),
    )


class _Named(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("texts", ctypes.c_void_p),
        ("rows", _SIZE),
        ("bytes", _SIZE),
    )


#: By the function that gives them: bytes of the structures that functions take.
_LAYOUTS = {
    "bubbleviz_layout": tuple(
        map(ctypes.sizeof, (FileShape, IntegerColumn, _Leaves, _Selection, _Named))
    ),
    "bubbleviz_launches_layout": structures.LAUNCHES_LAYOUT,
    "bubbleviz_spans_layout": structures.SPANS_LAYOUT,
    "bubbleviz_orders_layout": structures.ORDERS_LAYOUT,
}
#: Functions whose results are no C int.
_RESULTS: Mapping[str, Any] = {
    "bubbleviz_patterns": ctypes.c_void_p,
    "bubbleviz_union": ctypes.c_int64,
    "bubbleviz_difference": ctypes.c_int64,
    "bubbleviz_deeper": None,
    "bubbleviz_group_union": ctypes.c_int64,
    "bubbleviz_places": ctypes.c_int64,
    "bubbleviz_spans": ctypes.c_int64,
    "bubbleviz_orders_improved": ctypes.c_int64,
}


@dataclass(frozen=True)
class Leaves:
    """The leaf pages of a table, in order.

    Attributes:
        page: number of each, shape (leaves,).
        last_row: the last row number that each may hold.
    """

    page: npt.NDArray[np.uint32]
    last_row: _Ints

    def around(self, first: int, last: int) -> tuple[int, int]:
        """Return which of these, from and to, may hold rows of some numbers."""
        begin = int(np.searchsorted(self.last_row, first))
        end = int(np.searchsorted(self.last_row, last)) + 1
        return begin, min(end, len(self.page))

    def pieces(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield the first and the last row number of so many leaves after the other."""
        first = -(1 << 63)
        for at in range(most - 1, len(self.page) + most - 1, most):
            last = int(self.last_row[min(at, len(self.page) - 1)])
            yield first, last
            first = last + 1


@dataclass(frozen=True)
class TimeSelection:
    """The rows to keep by their times: of some threads, so long, and touching a time.

    Attributes:
        start: place of the column of starts in the table.
        end: place of that of ends.
        thread: place of that of threads.
        threads: those wanted, ascending.
        shortest_ns: how long a row lasts at least.
        since_ns: it ends after this.
        until_ns: it starts before this.
    """

    start: int
    end: int
    thread: int
    threads: tuple[int, ...]
    shortest_ns: int
    since_ns: int
    until_ns: int


@dataclass(frozen=True)
class Selection:
    """The rows to keep: those of some kinds whose text fits a pattern, or has some number.

    Attributes:
        globs: SQLite's GLOB patterns, of which the text must fit one.
        text: place of the column of texts in the table.
        kind: place of the column of kinds; -1 to keep all kinds.
        kinds: four codes.
        text_id: place of the column of numbers of texts, used where the text is NULL; -1 none.
        text_ids: wanted numbers, ascending.
        times: wanted times, whatever the number of the text; None for all.
    """

    globs: tuple[str, ...]
    text: int
    kind: int = -1
    kinds: tuple[int, ...] = (0, 0, 0, 0)
    text_id: int = -1
    text_ids: tuple[int, ...] = ()
    times: TimeSelection | None = None


@dataclass(frozen=True)
class NamedRows:
    """Rows with names.

    Attributes:
        values: of the columns that were asked for, shape (columns, rows).
        texts: of each row, U+FFFD for what is not UTF-8; None for NULL.
    """

    values: _Ints
    texts: tuple[str | None, ...]


@dataclass(frozen=True)
class Library:
    """The loaded functions. Threads may call them at the same time; they hold no lock."""

    functions: ctypes.CDLL

    def leaves(self, file: FileShape, root: int) -> Leaves | None:
        """Return the leaf pages of the table whose tree begins on a page."""
        # ctypes would take the last 32 bits of any number.
        if not 1 < root <= file.pages:
            return None
        try:
            page, last_row = np.empty(file.pages, np.uint32), np.empty(file.pages, np.int64)
        except MemoryError:
            return None
        count = _SIZE()
        status = self.functions.bubbleviz_leaves(
            ctypes.byref(file),
            ctypes.c_uint32(root),
            pointer(page),
            pointer(last_row),
            _SIZE(len(page)),
            ctypes.byref(count),
        )
        rows = slice(0, count.value)
        return None if status else Leaves(page[rows].copy(), last_row[rows].copy())

    def integers(
        self,
        file: FileShape,
        leaves: Leaves,
        columns: Sequence[IntegerColumn],
        first: int,
        last: int,
    ) -> _Ints | None:
        """Return columns of the rows ``first`` to ``last``, shape (columns, rows)."""
        # No row takes less than three bytes.
        begin, end = leaves.around(first, last)
        room = min(last - first + 1, (end - begin) * file.page_bytes // 3)
        try:
            values = np.empty((len(columns), room), np.int64)
        except MemoryError:
            return None
        rows = _SIZE()
        status = self.functions.bubbleviz_integers(
            ctypes.byref(file),
            ctypes.byref(_leaves(leaves, begin, end, first, last)),
            _array(columns),
            len(columns),
            pointer(values),
            _SIZE(room),
            ctypes.byref(rows),
        )
        if status:
            return None
        return values if rows.value == room else values[:, : rows.value].copy()

    def named(
        self,
        file: FileShape,
        leaves: Leaves,
        columns: Sequence[IntegerColumn],
        selection: Selection,
        first: int,
        last: int,
    ) -> NamedRows | None:
        """Return the selected rows among ``first`` to ``last``."""
        if any("\0" in glob for glob in selection.globs):
            return None
        begin, end = leaves.around(first, last)
        texts = b"".join(glob.encode() + b"\0" for glob in selection.globs)
        patterns = ctypes.c_void_p(
            self.functions.bubbleviz_patterns(texts, _SIZE(len(selection.globs)))
        )
        # What a structure points at must outlive it.
        ids = np.array(selection.text_ids, np.int64)
        threads = np.array(selection.times.threads if selection.times else (), np.int64)
        result = _Named()
        try:
            status = patterns.value is None or self.functions.bubbleviz_named(
                ctypes.byref(file),
                ctypes.byref(_leaves(leaves, begin, end, first, last)),
                _array(columns),
                len(columns),
                ctypes.byref(_selection(selection, patterns, ids, threads)),
                ctypes.byref(result),
            )
            return None if status else _named_rows(result, len(columns))
        finally:
            self.functions.bubbleviz_named_free(ctypes.byref(result))
            self.functions.bubbleviz_patterns_free(patterns)


def _selection(
    selection: Selection, patterns: ctypes.c_void_p, ids: _Ints, threads: _Ints
) -> _Selection:
    times = selection.times or TimeSelection(-1, -1, -1, (), 0, 0, 0)
    return _Selection(
        patterns,
        selection.text,
        selection.kind,
        (ctypes.c_int64 * 4)(*selection.kinds),
        selection.text_id,
        len(ids),
        pointer(ids),
        times.start,
        times.end,
        times.thread,
        len(threads),
        pointer(threads),
        times.shortest_ns,
        times.since_ns,
        times.until_ns,
    )


def _named_rows(result: _Named, columns: int) -> NamedRows:
    flat = np.frombuffer(memory_at(result.values, result.rows * (columns + 1) * 8), np.int64)
    table = flat.reshape(result.rows, columns + 1)
    texts = bytes(memory_at(result.texts, result.bytes))
    length = table[:, columns].tolist()
    end = np.cumsum(np.maximum(table[:, columns], 0)).tolist()
    return NamedRows(
        # A copy, as the memory behind the table is freed.
        np.array(table[:, :columns].T, order="C"),
        tuple(
            None if bytes_ < 0 else texts[to - bytes_ : to].decode("utf-8", "replace")
            for to, bytes_ in zip(end, length, strict=True)
        ),
    )


def memory_at(address: int | None, size: int) -> memoryview:
    """Return so many bytes at an address; ``ctypes.string_at`` counts them in 32 bits."""
    return memoryview((ctypes.c_char * size).from_address(address) if address and size else b"")


def pointer(column: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    """Return the address of a contiguous column."""
    return column.ctypes.data_as(ctypes.c_void_p)


def _array(columns: Sequence[IntegerColumn]) -> ctypes.Array[IntegerColumn]:
    return (IntegerColumn * len(columns))(*columns)


def _leaves(leaves: Leaves, begin: int, end: int, first: int, last: int) -> _Leaves:
    return _Leaves(leaves.page.ctypes.data, leaves.last_row.ctypes.data, begin, end, first, last)


def library() -> Library | None:
    """Return the compiled part; None where it was not built, or is switched off."""
    return None if os.environ.get(SWITCH) == "0" else _loaded()


def absence() -> str:
    """Return why there is no compiled part; "" where there is one."""
    if library() is not None:
        return ""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 switches the compiled reader off"
    if not Path(__file__).with_name(FILE).exists():
        return "the compiled reader was not built"
    return (
        f"{FILE} cannot be loaded, or is of another version; install bubbleviz again, or in a "
        f"checkout run python scripts/build_native.py bubbleviz/native/{FILE}"
    )


@cache
def _loaded() -> Library | None:
    return load(Path(__file__).with_name(FILE))


def load(path: Path) -> Library | None:
    """Return the library in a file; None where it cannot be loaded, or is of another source.

    A function of another source may take other arguments, and would crash.
    """
    sources = sorted(Path(__file__).parent.glob("*.c"))
    try:
        functions = ctypes.CDLL(str(path))
        functions.bubbleviz_source.restype = ctypes.c_uint32
        # scripts/build_native.py passes the same on.
        checksum = zlib.crc32(b"".join(source.read_bytes() for source in sources))
        if sources and functions.bubbleviz_source() != checksum:
            return None
        for name, layout in _LAYOUTS.items():
            found = (ctypes.c_uint32 * len(layout))()
            getattr(functions, name)(found)
            if tuple(found) != layout:
                return None
        for name, result in _RESULTS.items():
            getattr(functions, name).restype = result
    except (OSError, AttributeError):
        return None
    return Library(functions)
