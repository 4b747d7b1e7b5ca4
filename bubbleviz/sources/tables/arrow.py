"""Arrow: the columns of Parquet files and Arrow IPC files (Feather) or streams."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.columns import NONE
from bubbleviz.progress import Watch
from bubbleviz.sources.tables.cells import Cells, NumberColumn, refused, shown, stripped
from bubbleviz.sources.tables.column_files import ColumnFile, opened_arrow, opened_parquet
from bubbleviz.sources.tables.schema import IS_NUMBER, columns_read, refuse_lacking


def read_parquet(path: str, watch: Watch) -> Cells:
    """Return the columns of a Parquet file; see :func:`_columns`."""
    watch(0.0)
    return _columns(path, opened_parquet)


def read_arrow(path: str, watch: Watch) -> Cells:
    """Return the columns of a file of Arrow IPC; see :func:`_columns`."""
    watch(0.0)
    return _columns(path, opened_arrow)


def _columns(path: str, opened: Callable[[str], AbstractContextManager[ColumnFile]]) -> Cells:
    """Return the columns of a file that mean something.

    Raises:
        ProfileError: it cannot be read, its columns are not those of operations, or a cell is no
            number where one is needed.
    """
    with opened(path) as file:
        refuse_lacking(path, file.names)
        names = columns_read(path, list(file.names))
        table = file.columns(names)
        # Of a file of IPC nothing is checked before it is used, offsets into its texts included.
        table.validate(full=True)
        numbers, texts = {}, {}
        for name in names:
            column = _plain(table.column(name))
            if IS_NUMBER[name]:
                numbers[name] = _numbers(path, name, column)
            else:
                texts[name] = _texts(path, name, column)
        return Cells(path, table.num_rows, numbers, texts)


def _plain(column: Any) -> Any:
    """Return a column whose texts are of the type that every version of pyarrow computes with."""
    import pyarrow as pa

    return column.cast(pa.string()) if str(column.type) == "string_view" else column


def _numbers(path: str, name: str, column: Any) -> NumberColumn:
    """Return a column of numbers; dates and durations become nanoseconds.

    Raises:
        ProfileError: it holds something else.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, in_ns = column.type, False
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = _parsed(path, name, column)
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        whole = pa.timestamp("ns", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("ns")
        column, in_ns = column.cast(whole).cast(pa.int64()), True
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_null(kind):
        column = column.cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ProfileError(f"{path}: the column {name} holds no numbers, but {kind}")
    known = None
    if column.null_count:
        known = np.asarray(pc.is_valid(column).to_numpy(), bool)
        column = column.fill_null(0)
    whole_numbers = pa.types.is_integer(column.type)
    values = column.cast(pa.int64() if whole_numbers else pa.float64()).to_numpy()
    if not whole_numbers and (endless := np.isinf(values)).any():
        row = int(endless.argmax())
        raise refused(path, row, f"{name} is {shown(values[row])}, which is no number")
    return NumberColumn(np.array(values), known, in_ns)


def _parsed(path: str, name: str, column: Any) -> Any:
    """Return a column of texts as numbers, blank ones as null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bare = pc.utf8_trim_whitespace(column)
    bare = pc.if_else(pc.equal(bare, ""), pa.scalar(None, bare.type), bare)
    for kind in (pa.int64(), pa.float64()):
        try:
            return bare.cast(kind)
        except pa.ArrowInvalid:
            continue
    for row, text in enumerate(bare.to_pylist()):
        try:
            float(text or 0)
        except ValueError:
            raise refused(path, row, f"{name} is {shown(text)}, which is no number") from None
    raise ProfileError(f"{path}: the column {name} holds texts; write numbers")


def _texts(path: str, name: str, column: Any) -> CodedTexts:
    """Return a column of texts, or of whole numbers as texts.

    Raises:
        ProfileError: it holds something else.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_floating(kind):
        column = column.cast(pa.int64(), safe=False) if _whole(column) else column
    if pa.types.is_null(kind):
        column = column.cast(pa.string())
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_temporal(kind):
        raise ProfileError(f"{path}: the column {name} holds no texts, but {kind}")
    if not pa.types.is_dictionary(kind):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    labels = ["" if text is None else str(text) for text in column.dictionary.to_pylist()]
    code = column.indices.cast(pa.int64()).fill_null(NONE).to_numpy()
    return stripped(code, labels)


def _whole(column: Any) -> bool:
    """Tell whether all floats of a column are whole numbers, as a column with gaps often has."""
    import pyarrow.compute as pc

    return bool(pc.all(pc.equal(pc.floor(column), column), skip_nulls=True).as_py() is not False)
