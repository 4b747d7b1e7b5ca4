"""Library: the functions of the C files here, with numpy columns in place of pointers.

Every function of pages gives None where the file is not plain, or memory is short; see the C
source. What others give, their callers give without them, too: the search of orders
(:mod:`bubbleviz.schedules.search.orders`), links and spans (:mod:`bubbleviz.interpret`),
trace events (:mod:`bubbleviz.sources.trace_events`), intervals, numbers and sorting
(:mod:`bubbleviz.model`).
"""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

#: The file that the build puts beside this one.
FILE = "libbubbleviz.dylib" if sys.platform == "darwin" else "libbubbleviz.so"
#: Set to 0, it leaves the compiled part out.
SWITCH = "BUBBLEVIZ_NATIVE"

_Ints: TypeAlias = npt.NDArray[np.int64]
_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64


#: What NULL in a column reads as: an unusual value, the missing one, or that if no value of the
#: file is equal to it.
UNUSUAL, MISSING, DISTINCT = range(3)
#: How columns of integers are read, shape (columns, 4): the place of each in the table, one of
#: these, the missing value, and whether it stands for the row number.
IntegerColumns: TypeAlias = _Ints


class FileShape(NamedTuple):
    """An open SQLite file: its descriptor, bytes of a page, of these in use, and its pages."""

    descriptor: int
    page_bytes: int
    usable: int
    pages: int


#: A column, a number, or a structure of such; None is no column.
Argument: TypeAlias = "npt.NDArray[Any] | int | tuple[Argument, ...] | None"


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
        begin, end = np.searchsorted(self.last_row, (first, last)).tolist()
        return begin, min(end + 1, len(self.page))

    def pieces(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield the first and the last row number of so many leaves after the other."""
        first = -(1 << 63)
        for at in range(most - 1, len(self.page) + most - 1, most):
            last = int(self.last_row[min(at, len(self.page) - 1)])
            yield first, last
            first = last + 1


#: Integers of some rows, shape (columns, rows), and a text of each: U+FFFD for what is not UTF-8,
#: None for NULL.
NamedRows: TypeAlias = tuple[_Ints, tuple[str | None, ...]]


@dataclass(frozen=True)
class Library:
    """The loaded functions. Threads may call them at the same time; they hold no lock."""

    functions: ctypes.CDLL

    def call(self, name: str, *arguments: Argument) -> int:
        """Return what a function gives that takes columns, 64-bit integers and structures of these.

        Columns that are not contiguous are copied, so that none of these may be written to.
        """
        function = getattr(self.functions, f"bubbleviz_{name}")
        function.restype = _I64
        # What an address is of must outlive the call.
        kept: list[Any] = []
        return int(function(*(_passed(argument, kept) for argument in arguments)))

    def leaves(self, file: FileShape, root: int) -> Leaves | None:
        """Return the leaf pages of the table whose tree begins on a page."""
        if not 1 < root <= file.pages:
            return None
        try:
            page, last_row = np.empty(file.pages, np.uint32), np.empty(file.pages, np.int64)
        except MemoryError:
            return None
        count = self.call("leaves", file, root, page, last_row, file.pages)
        return None if count < 0 else Leaves(page[:count].copy(), last_row[:count].copy())

    def integers(
        self,
        file: FileShape,
        leaves: Leaves,
        columns: IntegerColumns,
        first: int,
        last: int,
    ) -> _Ints | None:
        """Return columns of the rows ``first`` to ``last``, shape (columns, rows)."""
        begin, end = leaves.around(first, last)
        pages = leaves.page, leaves.last_row, begin, end, first, last
        # No row takes less than three bytes.
        room = min(last - first + 1, (end - begin) * file.page_bytes // 3)
        try:
            values = np.empty((len(columns), room), np.int64)
        except MemoryError:
            return None
        rows = self.call("integers", file, pages, columns, len(columns), values, room)
        if rows < 0:
            return None
        return values if rows == room else values[:, :rows].copy()

    def named(
        self,
        file: FileShape,
        leaves: Leaves,
        columns: IntegerColumns,
        text: int,
        globs: Sequence[str],
        pieces: Iterable[tuple[int, int]] = ((-(1 << 63), (1 << 63) - 1),),
        *,
        kinds: Sequence[int] = (0, 0, 0, 0),
        ids: Sequence[int] | None = (),
        threads: Sequence[int] = (),
        **fields: int,
    ) -> list[NamedRows] | None:
        """Return the rows of some kinds whose text fits a pattern, or has some number, by piece.

        Args:
            file: the open file.
            leaves: pages of the table.
            columns: of integers, that are given.
            text: place of the column of texts in the table.
            globs: SQLite's GLOB patterns, of which the text must fit one.
            pieces: of the table, each the numbers of its first and its last row.
            kinds: four codes, where the place of their column is given.
            ids: wanted numbers of texts, ascending, for rows whose text is NULL; None for any.
            threads: those wanted, ascending, where rows are selected by time.
            fields: places of columns: ``kind``; ``id`` of the text; and to select by time, whatever
                the number of the text, ``start``, ``end`` and ``thread``, with how long a row lasts
                at least (``shortest``), after what it ends (``since``) and before what it starts
                (``until``).
        """
        if any("\0" in glob for glob in globs):
            return None
        texts = np.frombuffer(b"".join(glob.encode() + b"\0" for glob in globs), np.uint8)
        absent = dict.fromkeys(("kind", "id", "start", "end", "thread"), -1)
        given = absent | dict.fromkeys(("shortest", "since", "until"), 0) | fields
        kind, of_text, start, end, thread, *times = given.values()
        wanted, of_threads = (np.array(some, np.int64) if some else None for some in (ids, threads))
        selection: tuple[Argument, ...] = (texts, len(globs), text, kind, *kinds)
        selection += (of_text, -1 if ids is None else len(ids), wanted)
        selection += (start, end, thread, len(threads), of_threads, *times)
        parts = []
        for bounds in pieces:
            pages = leaves.page, leaves.last_row, *leaves.around(*bounds), *bounds
            result = np.zeros(4, np.int64)
            try:
                if self.call("named", file, pages, columns, len(columns), selection, result):
                    return None
                parts.append(_named_rows(result, len(columns)))
            finally:
                self.call("named_free", result)
        return parts


def _named_rows(result: _Ints, columns: int) -> NamedRows:
    at, text_at, rows, bytes_of_texts = result.tolist()
    flat = np.frombuffer(memory_at(at, rows * (columns + 1) * 8), np.int64)
    table = flat.reshape(rows, columns + 1)
    texts = bytes(memory_at(text_at, bytes_of_texts))
    length = table[:, columns].tolist()
    end = np.cumsum(np.maximum(table[:, columns], 0)).tolist()
    # A copy, as the memory behind the table is freed.
    return np.array(table[:, :columns].T, order="C"), tuple(
        None if bytes_ < 0 else texts[to - bytes_ : to].decode("utf-8", "replace")
        for to, bytes_ in zip(end, length, strict=True)
    )


def memory_at(address: int, size: int) -> memoryview:
    """Return so many bytes at an address; ``ctypes.string_at`` counts them in 32 bits."""
    return memoryview((ctypes.c_char * size).from_address(address) if address and size else b"")


def pointer(column: npt.NDArray[Any]) -> ctypes.c_void_p:
    """Return the address of a contiguous column."""
    # The attribute "ctypes" takes ten times as long.
    return ctypes.c_void_p(column.__array_interface__["data"][0])


def cut(column: _Ints, count: int) -> _Ints:
    """Return the first values of a column that nothing else uses, so that the rest is freed.

    Many of them stay where they are; few would lie in the way of the next column as long as this.
    """
    if 2 * count < len(column):
        return column[:count].copy()
    column.resize(count, refcheck=False)
    return column


def _passed(argument: Argument, kept: list[Any]) -> Any:
    """Return an argument as C takes it; what must not be freed meanwhile is kept."""
    if isinstance(argument, int):
        return _I64(argument)
    if isinstance(argument, np.ndarray):
        kept.append(np.ascontiguousarray(argument))
        return pointer(kept[-1])
    if argument is None:
        return _POINTER()
    values = [part if isinstance(part, int) else _passed(part, kept) for part in argument]
    kept.append(_structure_of(tuple(map(type, values)))(*values))
    return ctypes.byref(kept[-1])


@cache
def _structure_of(kinds: tuple[type, ...]) -> Any:
    types = (_I64 if issubclass(kind, int) else kind for kind in kinds)
    fields = tuple((f"part_{place}", kind) for place, kind in enumerate(types))
    return type("Structure", (ctypes.Structure,), {"_fields_": fields})


#: From so many rows on, what lies free between columns is worth giving back.
_MANY_ROWS = 1 << 17
#: Parameter of glibc's ``mallopt``: what is larger is the system's again as soon as it is freed.
_MMAP_THRESHOLD = -3
_LARGE_BYTES = 4 << 20


def give_memory_back(rows: int) -> None:
    """Give the system the memory that was freed, where the C library keeps it for later (glibc).

    Columns of all sizes come and go while profiles are read and merged. What is then free lies in
    pieces between those that stay, too small for the columns of the next step.

    Args:
        rows: of the operations that stay; of few nothing is given back.
    """
    if rows < _MANY_ROWS or sys.platform != "linux":
        return
    system = ctypes.CDLL(None)
    if hasattr(system, "malloc_trim"):
        system.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        system.malloc_trim(0)


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
        f"{FILE} cannot be loaded or is of another version; install bubbleviz again, or in a "
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
    except (OSError, AttributeError):
        return None
    return Library(functions)
