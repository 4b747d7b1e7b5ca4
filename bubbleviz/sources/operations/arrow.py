"""Reads operation tables from Parquet files, and from Arrow IPC (Feather) files and streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import ProfileError, describe_installation
from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.texts import to_one_line
from bubbleviz.progress import Watch
from bubbleviz.sources.operations import cells as model
from bubbleviz.sources.operations.csv import parse_numbers
from bubbleviz.sources.operations.schema import COLUMNS, select_columns

#: Maximum number of characters that an error message quotes from a pyarrow message.
_MAX_REASON_LENGTH = 120


def check_installed(
    path: str, file_kind: str, package: str = "pyarrow", otherwise: str = "write the table as CSV"
) -> None:
    """Raise an error if a package of the extra ``parquet`` is not installed.

    Args:
        path: Path to the file or directory to read, for the message.
        file_kind: File kind with an article, such as "a Parquet table", for the message.
        package: Name of the package that reads the file.
        otherwise: Alternative to installing the package, for the message.

    Raises:
        ProfileError: The package is not installed.
    """
    try:
        import_module(package)
    except ImportError as error:
        raise ProfileError(
            f"{path}: reading {file_kind} requires {package}, which is not installed; "
            f"{describe_installation('parquet')}, or {otherwise}"
        ) from error


def convert_to_numpy(column: Any, fill_value: int = 0) -> tuple[npt.NDArray[Any], Bools]:
    """Convert a pyarrow column of numbers or Booleans to a NumPy array without importing pandas.

    pyarrow's ``to_numpy`` and ``fill_null`` import pandas if it is installed. The import would use
    40 MB of memory and take longer than reading a small table.

    Args:
        column: A pyarrow array, which may be chunked.
        fill_value: Value to use for nulls.

    Returns:
        values: The values, one per row. Booleans become 1 and 0.
        filled: Mask of the rows that are not null.
    """
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not column.null_count:
        return np.from_dlpack(column), np.ones(len(column), bool)
    filled = convert_to_numpy(column.is_valid())[0].astype(bool)
    # Build the same array without its null bitmap.
    buffers = [None, column.buffers()[1]]
    with_any_values = pa.Array.from_buffers(column.type, len(column), buffers, offset=column.offset)
    return np.where(filled, np.from_dlpack(with_any_values), fill_value), filled


def _open_parquet(path: str) -> tuple[Sequence[str], Callable[[list[str]], Any]]:
    """Return the column names of a Parquet file, and a function that reads columns by name."""
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    return file.schema_arrow.names, lambda names: file.read(columns=names)


def _open_arrow(path: str) -> tuple[Sequence[str], Callable[[list[str]], Any]]:
    """Return the column names of an Arrow file or stream, and a function that reads columns."""
    import pyarrow as pa

    # Do not map the file into memory: if another program truncated a mapped file, our process would
    # be killed.
    reader = open_ipc(pa.OSFile(path, "rb"))
    return reader.schema.names, lambda names: reader.read_all().select(names)


def open_ipc(file: Any, options: Any = None) -> Any:
    """Open an Arrow IPC file or stream and return its pyarrow reader.

    Args:
        file: A seekable pyarrow file.
        options: ``pyarrow.ipc.IpcReadOptions``, or None for the defaults.

    Raises:
        pyarrow.ArrowInvalid: The file is in neither the file format nor the stream format.
    """
    import pyarrow as pa

    try:
        return pa.ipc.open_file(file, options=options)
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file, options=options)


#: Maps each file kind to its name in messages and to the function that opens it.
_OPENED = {"parquet": ("a Parquet table", _open_parquet), "arrow": ("an Arrow table", _open_arrow)}


def read_columns(path: str, watch: Watch, kind: str) -> model.Cells:
    """Read a Parquet or Arrow file, keeping only the columns that belong to the schema.

    Args:
        path: Path to the file.
        watch: Progress callback.
        kind: "parquet" or "arrow".

    Raises:
        ProfileError: pyarrow is not installed or cannot read the file, a required column is
            missing, or a numeric column contains something other than numbers.
    """
    watch(0.0)
    file_kind, opened = _OPENED[kind]
    check_installed(path, file_kind)
    import pyarrow as pa

    try:
        header, read = opened(path)
        names = select_columns(path, header)
        table = read(names)
        # By default, pyarrow does not check Arrow files, not even their string offsets.
        table.validate(full=True)
        numbers, texts = {}, {}
        for name in names:
            column = table.column(name)
            if str(column.type) == "string_view":
                # Older versions of pyarrow cannot compute with views.
                column = column.cast(pa.string())
            if COLUMNS[name].kind.is_number:
                numbers[name] = _read_numbers(path, name, column)
            else:
                texts[name] = _read_texts(path, name, column)
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        reason = to_one_line(str(error).split("\n", 1)[0], _MAX_REASON_LENGTH)
        raise ProfileError(
            f"{path}: cannot be read as {file_kind} ({reason}); write the file again"
        ) from error
    return model.Cells(path, table.num_rows, numbers, texts)


def _read_numbers(path: str, name: str, column: Any) -> model.NumberColumn:
    """Convert a pyarrow column to a column of numbers.

    Timestamps and durations become integers in ns, decimals become floats, and strings are parsed.

    Args:
        path: Path to the file, for messages.
        name: Name of the column, for messages.
        column: A chunked pyarrow array.

    Raises:
        ProfileError: The column has an unsupported type, a string is not a number, or a number is
            infinite.
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
        is_timestamp = pa.types.is_timestamp(kind)
        ns_type = pa.timestamp("ns", kind.tz) if is_timestamp else pa.duration("ns")
        column, in_ns = column.cast(ns_type).cast(pa.int64()), True
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_null(kind):
        column = column.cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ProfileError(f"{path}: column {name} contains {kind} values instead of numbers")
    is_whole = pa.types.is_integer(column.type)
    values, filled = convert_to_numpy(column.cast(pa.int64() if is_whole else pa.float64()))
    if not is_whole and (is_infinite := np.isinf(values)).any():
        row = int(is_infinite.argmax())
        raise model.make_row_error(
            path, row, f"{name} is {model.format_cell(values[row])}, which is not a number"
        )
    return model.NumberColumn(np.array(values), filled, in_ns)


def _read_texts(path: str, name: str, column: Any) -> CodedTexts:
    """Convert a pyarrow column to a column of texts without surrounding whitespace.

    Nulls and blank strings become missing texts. Numbers are converted to texts. If all floats in a
    column are whole numbers, they are written without decimals.

    Args:
        path: Path to the file, for messages.
        name: Name of the column, for messages.
        column: A chunked pyarrow array.

    Raises:
        ProfileError: The column contains nested, binary or temporal values.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_floating(kind):
        # Integer columns with nulls are often stored as floats.
        is_whole = pc.all(pc.equal(pc.floor(column), column), skip_nulls=True).as_py() is not False
        column = column.cast(pa.int64(), safe=False) if is_whole else column
    if pa.types.is_null(kind):
        column = column.cast(pa.string())
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_temporal(kind):
        raise ProfileError(f"{path}: column {name} contains {kind} values instead of text")
    if not pa.types.is_dictionary(kind):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    labels = ["" if text is None else str(text) for text in column.dictionary.to_pylist()]
    code, _ = convert_to_numpy(column.indices.cast(pa.int64()), NONE)
    return model.trim_texts(code, labels)
