"""Files of tables: delimited text, Parquet, and Arrow IPC (Feather) files or streams, as cells.

Delimited text has commas, semicolons or tabs, and may be gzipped; it is read in blocks of rows, of
which only the columns that mean something are kept, as numbers and codes of texts, which takes a
few seconds for a million rows. All others are read by pyarrow.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import CodedTexts
from bubbleviz.model.texts import one_line
from bubbleviz.progress import Watch
from bubbleviz.sources.gzip_files import UnpackedFile
from bubbleviz.sources.tables import cells as model

_DELIMITERS = (",", ";", "\t")
_LINE_END = re.compile(r"[\r\n]")
#: Rows that are converted together.
_BLOCK = 1 << 15
#: Bytes that are decoded at a time.
_PIECE = 1 << 20
#: A cell that is longer is no cell of such a table, but a quotation mark that nobody closed.
_LONGEST_CELL = 1 << 26
#: Characters of pyarrow's own words in a refusal.
_LONGEST_REASON = 120


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
        place = {name: header.index(name) for name in model.columns_read(path, header)}
        numbers: dict[str, list[tuple[model.Numbers, Bools]]] = {
            n: [] for n in place if model.IS_NUMBER[n]
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
                    numbers[name].append(_converted(path, count, name, columns[place[name]]))
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


def _converted(
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


def check_installed(
    path: str, what: str, package: str = "pyarrow", otherwise: str = "write the table as CSV"
) -> None:
    """Refuse to go on without a package of the extra ``parquet``.

    Args:
        path: Path of the file or directory to read.
        what: What it is, in words.
        package: Name of the package that reads it.
        otherwise: What can be done instead of installing the package.

    Raises:
        ProfileError: It is not installed.
    """
    try:
        import_module(package)
    except ImportError as error:
        raise ProfileError(
            f"{path}: {what} is read by {package}, which is not installed; install it with "
            f"pip install 'bubbleviz[parquet]', or {otherwise}"
        ) from error


def values_of(column: Any, none: int = 0) -> tuple[npt.NDArray[Any], Bools]:
    """Return numbers as an array, truth values as 1 and 0, and which rows have one.

    ``to_numpy`` and ``fill_null`` would import pandas wherever that is installed: 40 MB, and longer
    than a small table takes.

    Args:
        column: an array of pyarrow, chunked or not.
        none: stands where there is no value.
    """
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not column.null_count:
        return np.from_dlpack(column), np.ones(len(column), bool)
    filled = values_of(column.is_valid())[0].astype(bool)
    parts = [None, column.buffers()[1]]
    whole = pa.Array.from_buffers(column.type, len(column), parts, offset=column.offset)
    return np.where(filled, np.from_dlpack(whole), none), filled


def _parquet(path: str) -> tuple[Sequence[str], Callable[[list[str]], Any]]:
    """Return the names of the columns of a file, and what reads some of them."""
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    return file.schema_arrow.names, lambda names: file.read(columns=names)


def _arrow(path: str) -> tuple[Sequence[str], Callable[[list[str]], Any]]:
    """Return the same of a file or a stream of Arrow IPC."""
    import pyarrow as pa

    # If another program truncated a memory-mapped file, the process would be killed.
    reader = opened_ipc(pa.OSFile(path, "rb"))
    return reader.schema.names, lambda names: reader.read_all().select(names)


def opened_ipc(file: Any, options: Any = None) -> Any:
    """Return the reader of a file or a stream of Arrow IPC.

    Raises:
        pyarrow.ArrowInvalid: it is neither.
    """
    import pyarrow as pa

    try:
        return pa.ipc.open_file(file, options=options)
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file, options=options)


#: What a file of each kind is, and what opens it.
_OPENED = {"parquet": ("a Parquet table", _parquet), "arrow": ("an Arrow table", _arrow)}


def read_columns(path: str, watch: Watch, kind: str) -> model.Cells:
    """Return the columns of a file of Parquet or Arrow that mean something.

    Raises:
        ProfileError: pyarrow is not installed or cannot read it, its columns are not those of
            operations, or a cell is no number where one is needed.
    """
    watch(0.0)
    what, opened = _OPENED[kind]
    check_installed(path, what)
    import pyarrow as pa

    try:
        header, read = opened(path)
        names = model.columns_read(path, header)
        table = read(names)
        # Of a file of IPC nothing is checked before it is used, offsets into its texts included.
        table.validate(full=True)
        numbers, texts = {}, {}
        for name in names:
            column = table.column(name)
            if str(column.type) == "string_view":
                # Not every version of pyarrow computes with these.
                column = column.cast(pa.string())
            if model.IS_NUMBER[name]:
                numbers[name] = _numbers(path, name, column)
            else:
                texts[name] = _texts(path, name, column)
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        reason = one_line(str(error).split("\n", 1)[0], _LONGEST_REASON)
        raise ProfileError(
            f"{path}: {what} that cannot be read ({reason}); write it again"
        ) from error
    return model.Cells(path, table.num_rows, numbers, texts)


def _numbers(path: str, name: str, column: Any) -> model.NumberColumn:
    """Return a column of numbers; dates and durations become nanoseconds.

    Raises:
        ProfileError: it holds something else.
    """
    import pyarrow as pa

    kind, in_ns = column.type, False
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = ["" if text is None else text for text in column.to_pylist()]
        return model.NumberColumn(*_converted(path, 0, name, texts))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        whole = pa.timestamp("ns", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("ns")
        column, in_ns = column.cast(whole).cast(pa.int64()), True
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_null(kind):
        column = column.cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ProfileError(f"{path}: the column {name} holds no numbers, but {kind}")
    whole_numbers = pa.types.is_integer(column.type)
    values, filled = values_of(column.cast(pa.int64() if whole_numbers else pa.float64()))
    if not whole_numbers and (endless := np.isinf(values)).any():
        row = int(endless.argmax())
        raise model.refused(
            path, row, f"{name} is {model.shown(values[row])}, which is not a number"
        )
    return model.NumberColumn(np.array(values), filled, in_ns)


def _texts(path: str, name: str, column: Any) -> CodedTexts:
    """Return a column of texts, or of whole numbers as texts.

    Raises:
        ProfileError: it holds something else.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_floating(kind):
        # As a column of whole numbers with gaps often is.
        whole = pc.all(pc.equal(pc.floor(column), column), skip_nulls=True).as_py() is not False
        column = column.cast(pa.int64(), safe=False) if whole else column
    if pa.types.is_null(kind):
        column = column.cast(pa.string())
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_temporal(kind):
        raise ProfileError(f"{path}: the column {name} holds no texts, but {kind}")
    if not pa.types.is_dictionary(kind):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    labels = ["" if text is None else str(text) for text in column.dictionary.to_pylist()]
    code, _ = values_of(column.indices.cast(pa.int64()), NONE)
    return model.stripped(code, labels)
