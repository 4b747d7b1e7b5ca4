"""Reads operation tables from text files with commas, semicolons or tabs, optionally gzipped.

The file is read in blocks of rows. The reader keeps only the columns in the schema, as arrays of
numbers and text codes. Reading a million rows takes a few seconds.
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
from bubbleviz.model.numbering import Numbering
from bubbleviz.progress import Watch
from bubbleviz.sources.gzip_files import UnpackedFile
from bubbleviz.sources.operations import cells as model
from bubbleviz.sources.operations.schema import COLUMNS, select_columns

_DELIMITERS = (",", ";", "\t")
_LINE_END = re.compile(r"[\r\n]")
#: Number of rows to convert at a time.
_BLOCK_ROWS = 1 << 15
#: Number of bytes to decode at a time.
_PIECE_BYTES = 1 << 20
#: Maximum length of a cell. A longer cell is assumed to start with a quotation mark that is never
#: closed.
_MAX_CELL_LENGTH = 1 << 26


def _detect_delimiter(header: str) -> str:
    """Return the most frequent delimiter in a header, or a comma if there are no delimiters.

    On ties, the first delimiter in ``_DELIMITERS`` wins.
    """
    return max(_DELIMITERS, key=header.count)


def _parse_header(line: str) -> list[str]:
    """Return the column names in a file's first line, without surrounding whitespace."""
    cells = next(csv.reader([line], delimiter=_detect_delimiter(line)), [])
    return [cell.strip() for cell in cells]


def detect_encoding(head: bytes) -> str:
    """Return the name of the codec for a text, based on its first bytes.

    UTF-32 and UTF-16 are recognized by their byte order marks. UTF-16 without a byte order mark is
    recognized if exactly one of the first two bytes is zero. UTF-8 is assumed in all other cases.
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


def read_header(head: bytes) -> list[str]:
    """Return the column names in a file's first bytes, or [] if the file is not a table.

    A file is not a table if its first line looks like the start of JSON or XML, or is not printable
    text.
    """
    encoding = detect_encoding(head)
    # Invalid bytes after the first line are reported when the table is read.
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    line = _LINE_END.split(text, maxsplit=1)[0]
    # A binary file may look like UTF-16 without a byte order mark.
    is_guess = encoding in ("utf-16-le", "utf-16-be")
    if line[:1] in ("{", "[", "<") or "\ufffd" in line or (is_guess and not line.isascii()):
        return []
    try:
        return _parse_header(line) if line.replace("\t", "").isprintable() else []
    except csv.Error:
        return []


def read_delimited(path: str, watch: Watch) -> model.Cells:
    """Read a delimited text file, keeping only the columns that belong to the schema.

    The delimiter is whichever of comma, semicolon and tab occurs most often in the header. Empty
    lines are skipped.

    Args:
        path: Path to the file, which may be gzipped.
        watch: Progress callback.

    Raises:
        ProfileError: The file is not text in UTF-8, UTF-16 or UTF-32, or a required column is
            missing. Also raised if a row has too many or too few cells, or if a numeric column
            contains other text.
    """
    file = UnpackedFile(path, watch, _PIECE_BYTES)
    with _enable_long_cells():
        lines = _Lines(_read_lines(path, file))
        first = next(lines, "")
        header = _parse_header(first)
        collected = _CollectedColumns(path, header)
        try:
            reader = csv.reader(lines, delimiter=_detect_delimiter(first))
            while block := list(islice(reader, _BLOCK_ROWS)):
                # Empty lines are not rows.
                rows = [row for row in block if row]
                wrong = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
                if wrong is not None:
                    is_last = wrong == len(rows) - 1 and not any(reader)
                    is_torn = is_last and not lines.last.endswith(("\n", "\r"))
                    raise _describe_wrong_length(
                        collected, wrong, len(rows[wrong]), is_torn=is_torn
                    )
                collected.add(rows)
        except csv.Error as error:
            reason = f"the row cannot be parsed as CSV ({error})"
            raise model.make_row_error(path, collected.n_rows, reason) from error
        if file.damaged or file.cut:
            raise ProfileError(
                f"{path}: the gzip data is truncated or damaged; copy the file again"
            )
    return collected.finish()


class _CollectedColumns:
    """Collects the columns of a table that is read block by block.

    Args:
        path: Path to the table.
        header: All column names in the table.

    Attributes:
        path: Path to the table.
        header: All column names in the table.
        n_rows: Number of rows added so far.
    """

    def __init__(self, path: str, header: Sequence[str]) -> None:
        self.path, self.header = path, header
        self.n_rows = 0
        self._index = {name: header.index(name) for name in select_columns(path, header)}
        self._numbers: dict[str, list[tuple[model.Numbers, Bools]]] = {}
        self._codes: dict[str, list[Ints]] = {}
        self._texts: dict[str, Numbering[str]] = {}
        for name in self._index:
            if COLUMNS[name].kind.is_number:
                self._numbers[name] = []
            else:
                self._codes[name], self._texts[name] = [], Numbering()

    def add(self, rows: Sequence[Sequence[str]]) -> None:
        """Add a block of rows, each with the same number of cells as the header.

        Raises:
            ProfileError: A numeric column contains text that is not a number.
        """
        if not rows:
            return
        columns = list(zip(*rows, strict=True))
        for name, parts in self._numbers.items():
            parts.append(parse_numbers(self.path, self.n_rows, name, columns[self._index[name]]))
        for name, codes in self._codes.items():
            codes.append(self._texts[name].numbers(columns[self._index[name]]))
        self.n_rows += len(rows)

    def finish(self) -> model.Cells:
        """Return the columns collected from all blocks as one table.

        Texts are stripped of surrounding whitespace.
        """
        none = np.empty(0, np.int64)
        numbers = {
            name: model.NumberColumn(
                np.concatenate([values for values, _ in parts] or [none]),
                np.concatenate([filled for _, filled in parts] or [none.astype(bool)]),
            )
            for name, parts in self._numbers.items()
        }
        texts = {
            name: model.trim_texts(np.concatenate(codes or [none]), self._texts[name].values)
            for name, codes in self._codes.items()
        }
        return model.Cells(self.path, self.n_rows, numbers, texts)


def _describe_wrong_length(
    collected: _CollectedColumns, index: int, length: int, *, is_torn: bool
) -> ProfileError:
    """Return the error for a row that has more or fewer cells than the header.

    Args:
        collected: The columns collected from all earlier blocks.
        index: Index of the row within its block.
        length: Number of cells in the row.
        is_torn: Whether the row is the last row in the file and has no line end.
    """
    n_columns = len(collected.header)
    reason = (
        f"it has {length} cells, but the header has {n_columns}; quote cells that contain the "
        "delimiter"
    )
    if is_torn and length < n_columns:
        reason = (
            f"the file ends in this row, after {length} of {n_columns} cells; copy the file again"
        )
    return model.make_row_error(collected.path, collected.n_rows + index, reason)


@contextmanager
def _enable_long_cells() -> Iterator[None]:
    """Temporarily raise the cell length limit of the ``csv`` module, for the whole process."""
    previous = csv.field_size_limit(_MAX_CELL_LENGTH)
    try:
        yield
    finally:
        csv.field_size_limit(previous)


class _Lines:
    """An iterator of lines that remembers the last line it returned.

    Args:
        lines: Lines with their line ends.

    Attributes:
        last: The most recently returned line, or "" before the first line.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.last = ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.last = next(self._lines)
        return self.last


def _read_lines(path: str, pieces: Iterable[bytes]) -> Iterator[str]:
    """Decode a file and yield its lines with their original line ends.

    Args:
        path: Path to the file, for messages.
        pieces: The file's contents, as consecutive byte strings.

    Raises:
        ProfileError: The file cannot be decoded with the detected encoding.
    """
    parts: list[str] = []
    remaining = iter(pieces)
    first = next(remaining, b"")
    encoding = detect_encoding(first)
    try:
        for piece in codecs.iterdecode(chain((first,), remaining), encoding):
            parts.append(piece)
            if "\n" in piece or "\r" in piece:
                # The last line may continue in the next piece.
                *lines, rest = io.StringIO("".join(parts), newline="")
                yield from lines
                parts = [rest]
    except UnicodeDecodeError as error:
        read_as = "UTF-16" if encoding.startswith("utf-16") else "UTF-8"
        raise ProfileError(f"{path}: is not valid {read_as}; save the table as UTF-8") from error
    yield from io.StringIO("".join(parts), newline="")


def parse_numbers(
    path: str, first: int, name: str, cells: Sequence[str]
) -> tuple[model.Numbers, Bools]:
    """Parse cells in a column as numbers.

    The numbers are integers if all cells are 64-bit integers, and floats otherwise.

    Args:
        path: Path to the table, for messages.
        first: Row index of the first cell in the table, for messages.
        name: Name of the column, for messages.
        cells: Consecutive cells, as texts. Blank cells count as empty, and "nan" is accepted.

    Returns:
        values: One number per cell, or 0 for empty cells.
        filled: Mask of the cells that are not empty.

    Raises:
        ProfileError: A cell contains other text or an infinite number.
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
    index = next(index for index, cell in enumerate(numbers) if not _is_number(cell))
    raise model.make_row_error(
        path, first + index, f"{name} is {model.format_cell(numbers[index])}, which is not a number"
    )


def _is_number(cell: str) -> bool:
    """Return whether a cell contains a finite number or NaN."""
    try:
        return not math.isinf(float(cell))
    except ValueError:
        return False
