"""Reads tables of operations from delimited text: commas, semicolons or tabs, gzipped or not.

The file is read in blocks of rows. Only the columns of the schema are kept, as numbers and codes of
texts, which takes a few seconds for a million rows.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.progress import Watch
from bubbleviz.sources.gzip_files import UnpackedFile
from bubbleviz.sources.operations import cells as model
from bubbleviz.sources.operations.schema import COLUMNS, select_columns

_DELIMITERS = (",", ";", "\t")
_LINE_END = re.compile(r"[\r\n]")
#: Rows that are converted together.
_BLOCK = 1 << 15
#: Bytes that are decoded at a time.
_PIECE = 1 << 20
#: A cell that is longer is no cell of such a table, but a quotation mark that nobody closed.
_LONGEST_CELL = 1 << 26


def _delimiter_of(header: str) -> str:
    """Return the delimiter that a header holds most often; a comma where it holds none."""
    return max(_DELIMITERS, key=header.count)


def _header_of(line: str) -> list[str]:
    """Return the names of columns in the first line of a file."""
    cells = next(csv.reader([line], delimiter=_delimiter_of(line)), [])
    return [cell.strip() for cell in cells]


def detect_encoding(head: bytes) -> str:
    """Return the encoding of a text, given its first bytes.

    UTF-16 without a byte order mark is recognised by a zero byte in its first character. UTF-8 is
    assumed if nothing else is recognised.
    """
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head[:1] != b"\0" and head[1:2] == b"\0":
        return "utf-16-le"
    if head[:1] == b"\0" and head[1:2] != b"\0":
        return "utf-16-be"
    return "utf-8-sig"


def header_in(head: bytes) -> list[str]:
    """Return the names of columns that a file begins with; none where that is no text."""
    encoding = detect_encoding(head)
    # Invalid bytes after the first line are reported when the table is read.
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    line = _LINE_END.split(text, maxsplit=1)[0]
    # Text that looks like UTF-16 without a byte order mark may be any binary file.
    is_guess = encoding in ("utf-16-le", "utf-16-be")
    if line[:1] in ("{", "[", "<") or "\ufffd" in line or (is_guess and not line.isascii()):
        return []
    try:
        return _header_of(line) if line.replace("\t", "").isprintable() else []
    except csv.Error:
        return []


def read_delimited(path: str, watch: Watch) -> model.Cells:
    """Return the columns of delimited text.

    Raises:
        ProfileError: The file is not text in UTF-8 or UTF-16, its columns do not describe
            operations, or a cell that must be a number is not a number.
    """
    file = UnpackedFile(path, watch, _PIECE)
    with _long_cells():
        lines = _Lines(_lines(path, file))
        first = next(lines, "")
        header = _header_of(first)
        place = {name: header.index(name) for name in select_columns(path, header)}
        numbers: dict[str, list[tuple[model.Numbers, Bools]]] = {
            n: [] for n in place if COLUMNS[n].kind.is_number
        }
        codes: dict[str, list[Ints]] = {name: [] for name in place if name not in numbers}
        known: dict[str, dict[str, int]] = {name: {} for name in codes}
        count = 0
        try:
            reader = csv.reader(lines, delimiter=_delimiter_of(first))
            while block := list(islice(reader, _BLOCK)):
                # Empty lines count for nothing.
                rows = [row for row in block if row]
                if not {*map(len, rows)} <= {len(header)}:
                    at = next(at for at, row in enumerate(rows) if len(row) != len(header))
                    is_last = at == len(rows) - 1 and not any(reader)
                    has_line_end = lines.last.endswith(("\n", "\r"))
                    if is_last and not has_line_end and len(rows[at]) < len(header):
                        reason = (
                            f"the file was cut short in it, after {len(rows[at])} of {len(header)} "
                            "cells; copy the file again"
                        )
                        raise model.refused(path, count + at, reason)
                    reason = (
                        f"it has {len(rows[at])} cells, and the header {len(header)}; quote cells "
                        "that hold the delimiter"
                    )
                    raise model.refused(path, count + at, reason)
                columns = list(zip(*rows, strict=True))
                for name in numbers if rows else ():
                    numbers[name].append(parse_numbers(path, count, name, columns[place[name]]))
                for name, code_of in known.items() if rows else ():
                    of_cells = [code_of.setdefault(c, len(code_of)) for c in columns[place[name]]]
                    codes[name].append(np.array(of_cells, np.int64))
                count += len(rows)
        except csv.Error as error:
            raise model.refused(path, count, f"it cannot be read as CSV ({error})") from error
        if file.damaged or file.cut:
            raise ProfileError(f"{path}: its gzip data ends early or is damaged; copy it again")
    none = np.empty(0, np.int64)
    return model.Cells(
        path,
        count,
        {
            name: model.NumberColumn(
                np.concatenate([values for values, _ in parts] or [none]),
                np.concatenate([filled for _, filled in parts] or [none.astype(bool)]),
            )
            for name, parts in numbers.items()
        },
        {
            name: model.stripped(np.concatenate(parts or [none]), list(known[name]))
            for name, parts in codes.items()
        },
    )


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let cells be long; Python's own limit is that of the whole process."""
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


class _Lines:
    """Iterator of lines that remembers the last line it returned.

    Args:
        lines: Lines with their line ends.

    Attributes:
        last: The last line that was returned, or "" at first.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.last = ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.last = next(self._lines)
        return self.last


def _lines(path: str, pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a file, whatever they end with.

    Raises:
        ProfileError: The text is neither UTF-8 nor UTF-16.
    """
    parts: list[str] = []
    remaining = iter(pieces)
    first = next(remaining, b"")
    encoding = detect_encoding(first)
    try:
        for piece in codecs.iterdecode(chain((first,), remaining), encoding):
            parts.append(piece)
            if "\n" in piece or "\r" in piece:
                # The last line may go on.
                *lines, rest = io.StringIO("".join(parts), newline="")
                yield from lines
                parts = [rest]
    except UnicodeDecodeError as error:
        read_as = "UTF-16" if encoding.startswith("utf-16") else "UTF-8"
        raise ProfileError(f"{path}: not in {read_as}; save the table in UTF-8") from error
    yield from io.StringIO("".join(parts), newline="")


def parse_numbers(
    path: str, first: int, name: str, cells: Sequence[str]
) -> tuple[model.Numbers, Bools]:
    """Return cells as numbers, and which of them hold one.

    Args:
        path: of the table.
        first: row of the first cell.
        name: of their column.
        cells: one a row.

    Raises:
        ProfileError: one is no number.
    """
    with suppress(ValueError, OverflowError):
        return np.array(list(map(int, cells)), np.int64), np.ones(len(cells), bool)
    filled = np.array([cell.strip() != "" for cell in cells], bool)
    numbers = [cell if cell.strip() else "0" for cell in cells]
    with suppress(ValueError, OverflowError):
        return np.array(list(map(int, numbers)), np.int64), filled
    with suppress(ValueError):
        floats = np.array(list(map(float, numbers)), np.float64)
        if not np.isinf(floats).any():
            return floats, filled
    at = next(at for at, cell in enumerate(numbers) if not _is_finite(cell))
    raise model.refused(
        path, first + at, f"{name} is {model.shown(numbers[at])}, which is not a number"
    )


def _is_finite(cell: str) -> bool:
    """Tell whether a cell holds a number, or NaN, and nothing endless."""
    try:
        return not math.isinf(float(cell))
    except ValueError:
        return False
