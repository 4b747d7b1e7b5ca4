"""Reads tables of operations from Parquet, and from Arrow IPC (Feather) files and streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.grouping import CodedTexts
from bubbleviz.model.texts import one_line
from bubbleviz.progress import Watch
from bubbleviz.sources.operations import cells as model
from bubbleviz.sources.operations.csv import parse_numbers
from bubbleviz.sources.operations.schema import COLUMNS, select_columns

#: Maximum length of pyarrow's own message in a refusal, in characters.
_MAX_REASON_LENGTH = 120


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
        names = select_columns(path, header)
        table = read(names)
        # Of a file of IPC nothing is checked before it is used, offsets into its texts included.
        table.validate(full=True)
        numbers, texts = {}, {}
        for name in names:
            column = table.column(name)
            if str(column.type) == "string_view":
                # Not every version of pyarrow computes with these.
                column = column.cast(pa.string())
            if COLUMNS[name].kind.is_number:
                numbers[name] = _numbers(path, name, column)
            else:
                texts[name] = _texts(path, name, column)
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        reason = one_line(str(error).split("\n", 1)[0], _MAX_REASON_LENGTH)
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
        return model.NumberColumn(*parse_numbers(path, 0, name, texts))
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
