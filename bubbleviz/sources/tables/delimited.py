"""Delimited text: CSV with commas, semicolons or tabs, also gzipped, by the standard library.

It is read in blocks of rows, of which only the columns that mean something are kept, as numbers and
codes of texts; that takes a few seconds for a million rows.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.progress import Watch
from bubbleviz.sources.gzip_files import unpacked
from bubbleviz.sources.tables.cells import (
    Cells,
    NumberColumn,
    Numbers,
    refused,
    shown,
    stripped,
)
from bubbleviz.sources.tables.schema import IS_NUMBER, columns_read, refuse_lacking

_DELIMITERS = (",", ";", "\t")
#: Rows that are converted together.
_BLOCK = 1 << 15
#: Bytes that are decoded at a time.
_PIECE = 1 << 20
#: A cell that is longer is no cell of such a table, but a quotation mark that nobody closed.
_LONGEST_CELL = 1 << 26


def delimiter_of(header: str) -> str:
    """Return the delimiter that a header holds most often; a comma where it holds none."""
    return max(_DELIMITERS, key=header.count)


def header_of(line: str) -> list[str]:
    """Return the names of columns in the first line of a file."""
    cells = next(csv.reader([line], delimiter=delimiter_of(line)), [])
    return [cell.strip() for cell in cells]


def header_in(head: bytes) -> list[str]:
    """Return the names of columns that a file begins with; none where that is no text."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].rstrip(b"\r")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return []
    if not text.isprintable() and not text.replace("\t", "").isprintable():
        return []
    try:
        return header_of(text)
    except csv.Error:
        return []


def read_delimited(path: str, watch: Watch) -> Cells:
    """Return the columns of a file.

    Raises:
        ProfileError: it is no text in UTF-8, its columns are not those of operations, or a cell is
            no number where one is needed.
    """
    with unpacked(path, watch, _PIECE) as file, _long_cells():
        lines = _lines(path, file)
        first = next(lines, "")
        names = header_of(first)
        refuse_lacking(path, names)
        reader = _Reader(path, names)
        try:
            reader.read(csv.reader(lines, delimiter=delimiter_of(first)))
        except csv.Error as error:
            raise refused(path, reader.rows, f"it cannot be read as CSV ({error})") from error
        if file.damaged or file.cut:
            raise ProfileError(f"{path}: its gzip data ends early or is damaged; copy it again")
        return reader.cells()


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let cells be long; Python's own limit is that of the whole process."""
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _lines(path: str, pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a file, whatever they end with.

    Raises:
        ProfileError: it is no UTF-8.
    """
    buffered = io.BufferedReader(_Bytes(pieces), _PIECE)
    decoded = io.TextIOWrapper(buffered, encoding="utf-8-sig", newline="")
    try:
        yield from decoded
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not in UTF-8; save the table in UTF-8") from error


class _Bytes(io.RawIOBase):
    """Pieces of bytes as a file that can be read once."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), memoryview(b"")

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: Buffer, of Python 3.12
        """Fill a buffer, as far as the next piece goes."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class _Reader:
    """Collects the columns of a file, block by block."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        self.rows = 0
        self._path, self._width = path, len(names)
        place = {name: names.index(name) for name in columns_read(path, names)}
        self._numbers = {name: at for name, at in place.items() if IS_NUMBER[name]}
        self._texts = {name: at for name, at in place.items() if not IS_NUMBER[name]}
        self._values: dict[str, list[tuple[Numbers, Bools | None]]] = {n: [] for n in self._numbers}
        self._codes: dict[str, list[Ints]] = {name: [] for name in self._texts}
        self._known: dict[str, dict[str, int]] = {name: {} for name in self._texts}

    def read(self, rows: Iterator[list[str]]) -> None:
        """Take all rows; empty lines count for nothing."""
        while block := list(islice(rows, _BLOCK)):
            whole = [row for row in block if row]
            self._refuse_ragged(whole)
            self._take(list(zip(*whole, strict=True)), len(whole))

    def _refuse_ragged(self, rows: Sequence[Sequence[str]]) -> None:
        for at, row in enumerate(rows):
            if len(row) != self._width:
                raise refused(
                    self._path,
                    self.rows + at,
                    f"it has {len(row)} cells, and the header {self._width}; quote cells that "
                    "hold the delimiter",
                )

    def _take(self, columns: Sequence[tuple[str, ...]], count: int) -> None:
        if count == 0:
            return
        for name, at in self._numbers.items():
            self._values[name].append(self._converted(name, columns[at]))
        for name, at in self._texts.items():
            known = self._known[name]
            codes = [known.setdefault(cell, len(known)) for cell in columns[at]]
            self._codes[name].append(np.array(codes, np.int64))
        self.rows += count

    def _converted(self, name: str, cells: Sequence[str]) -> tuple[Numbers, Bools | None]:
        """Return cells as numbers, and which of them hold one; None for all.

        Raises:
            ProfileError: one is no number.
        """
        try:
            return np.array(list(map(int, cells)), np.int64), None
        except (ValueError, OverflowError):
            pass
        known = np.array([cell.strip() != "" for cell in cells], bool)
        filled = [cell if cell.strip() else "0" for cell in cells]
        try:
            return np.array(list(map(int, filled)), np.int64), known
        except (ValueError, OverflowError):
            pass
        return np.array(list(self._floats(name, filled)), np.float64), known

    def _floats(self, name: str, cells: Sequence[str]) -> Iterator[float]:
        for at, cell in enumerate(cells):
            try:
                number = float(cell)
            except ValueError:
                number = math.inf
            if math.isinf(number):
                row = self.rows + at
                raise refused(self._path, row, f"{name} is {shown(cell)}, which is no number")
            yield number

    def cells(self) -> Cells:
        """Return all columns."""
        numbers = {name: _joined(parts) for name, parts in self._values.items()}
        texts = {}
        for name, parts in self._codes.items():
            code = np.concatenate(parts) if parts else np.empty(0, np.int64)
            texts[name] = stripped(code, list(self._known[name]))
        return Cells(self._path, self.rows, numbers, texts)


def _joined(parts: Sequence[tuple[Numbers, Bools | None]]) -> NumberColumn:
    """Return the blocks of a column as one; whole numbers only where all are whole."""
    if not parts:
        return NumberColumn(np.empty(0, np.int64))
    values: Numbers = np.concatenate([block for block, _ in parts])
    if all(known is None for _, known in parts):
        return NumberColumn(values)
    masks = [np.ones(len(b), bool) if known is None else known for b, known in parts]
    return NumberColumn(values, np.concatenate(masks))
