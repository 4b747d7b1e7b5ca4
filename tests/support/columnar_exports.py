"""Writes columnar exports in the style of ``nsys export --type parquetdir`` and ``arrowdir``.

Each columnar export is converted from an SQLite export. It has one file per table, with the same
columns and rows.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

#: Number of rows per block.
_ROWS = 1 << 16
_KINDS = (("INT", pa.int64()), ("CHAR", pa.string()), ("TEXT", pa.string()), ("REAL", pa.float64()))
#: Integer columns that real exports store in 32 bits.
_NARROW = {
    "deviceId": pa.int32(), "contextId": pa.int32(), "streamId": pa.uint32(),
    "correlationId": pa.uint32(), "eventType": pa.int16(), "nameId": pa.int32(),
    "demangledName": pa.int32(), "shortName": pa.int32(), "copyKind": pa.uint8(),
    "globalTid": pa.uint64(), "globalPid": pa.uint64(),
}  # fmt: skip
#: Columns that contain ids from StringIds, keyed by table.
_NAMED = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName",),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",),
    "NVTX_EVENTS": ("textId",),
    "OSRT_API": ("nameId",),
    "ThreadNames": ("nameId",),
}


@dataclass(frozen=True)
class Form:
    """Options of a columnar export.

    Attributes:
        suffix: Suffix of the files, such as ``.parquet``.
        stream: Whether Arrow data is written in the stream format instead of the file format.
        dictionaries: Whether strings are dictionary-encoded.
        resolved: Whether columns contain names instead of ids from StringIds.
        without_strings: Whether StringIds is left out when names are resolved.
        narrow: Whether columns have the narrowest type that fits their values.
        group_rows: Number of rows per row group (Parquet) or record batch (Arrow).
    """

    suffix: str = ".parquet"
    stream: bool = False
    dictionaries: bool = False
    resolved: bool = False
    without_strings: bool = False
    narrow: bool = False
    group_rows: int = 1 << 20

    @property
    def ending(self) -> str:
        return "_pqtdir" if self.suffix == ".parquet" else "_arwdir"


PARQUET = Form()
ARROW = Form(".arrow")
FORMS = {
    "parquet": PARQUET,
    "parquet, narrow columns, small row groups": Form(narrow=True, group_rows=700),
    "parquet, texts in dictionaries": Form(dictionaries=True),
    "parquet, names in place of numbers": Form(resolved=True),
    "parquet, names and no StringIds": Form(resolved=True, without_strings=True, dictionaries=True),
    "arrow": ARROW,
    "arrow, a stream of small batches": Form(".arrow", stream=True, group_rows=900),
    "arrow, names in dictionaries": Form(".arrow", resolved=True, dictionaries=True),
}


def write_columnar(export: Path, folder: Path, form: Form = PARQUET) -> Path:
    """Convert an SQLite export to a directory that is named like the output of nsys.

    Args:
        export: SQLite file.
        folder: Parent of the new directory.
        form: Options of the export.

    Returns:
        Path of the new directory.
    """
    target = folder / f"{export.stem}{form.ending}"
    target.mkdir(parents=True)
    with closing(sqlite3.connect(f"file:{export}?mode=ro", uri=True)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        names = dict(database.execute("SELECT id, value FROM StringIds")) if form.resolved else {}
        for table in _list_tables(database):
            if not (table == "StringIds" and form.without_strings):
                _write(database, table, target / f"{table}{form.suffix}", form, names)
    return target


def _list_tables(database: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"
    return [name for (name,) in database.execute(query)]


def _write(
    database: sqlite3.Connection, table: str, path: Path, form: Form, names: Mapping[int, str]
) -> None:
    """Write one table of an SQLite export as a Parquet or Arrow file.

    Args:
        database: The open export.
        table: Name of the table.
        path: File to write.
        form: Options of the columnar export.
        names: Strings that replace ids, keyed by id, or {} to keep ids.
    """
    described = list(database.execute("SELECT name, type FROM PRAGMA_TABLE_INFO(?)", (table,)))
    fields = [(str(name), _find_type(str(kind))) for name, kind in described]
    if form.narrow:
        fields = [(n, _narrow_type(database, table, n, kind)) for n, kind in fields]
    resolved = _NAMED.get(table, ()) if names else ()
    fields = [(n, pa.string() if n in resolved else kind) for n, kind in fields]
    columns = pa.schema([(n, _encode_type(kind, form)) for n, kind in fields])
    blocks = [columns.empty_table()]
    cursor = database.execute(f'SELECT * FROM "{table}" ORDER BY rowid')
    while rows := cursor.fetchmany(_ROWS):
        arrays = [
            _make_array(_resolve_names(column, names) if n in resolved else column, kind)
            for column, (n, kind) in zip(zip(*rows, strict=True), fields, strict=True)
        ]
        blocks.append(pa.table(arrays, names=[n for n, _ in fields]).cast(columns))
    content = pa.concat_tables(blocks)
    if form.suffix == ".parquet":
        parquet.write_table(content, path, row_group_size=form.group_rows)
        return
    options = pa.ipc.IpcWriteOptions(unify_dictionaries=True)
    with (
        pa.ipc.new_stream(str(path), columns)
        if form.stream
        else pa.ipc.new_file(str(path), columns, options=options)
    ) as writer:
        writer.write_table(content, max_chunksize=form.group_rows)


def _resolve_names(column: Sequence[Any], names: Mapping[int, str]) -> list[str | None]:
    return [None if value is None else names.get(value) for value in column]


def _find_type(declared: str) -> Any:
    return next((kind for word, kind in _KINDS if word in declared.upper()), pa.binary())


def _narrow_type(database: sqlite3.Connection, table: str, name: str, kind: Any) -> Any:
    """Return the column's type in real exports if its values fit, and ``kind`` otherwise."""
    narrow = _NARROW.get(name, kind)
    bounds = next(database.execute(f'SELECT MIN("{name}"), MAX("{name}") FROM "{table}"'))
    try:
        pa.array(bounds, narrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return kind
    return narrow


def _encode_type(kind: Any, form: Form) -> Any:
    texts = form.dictionaries and kind == pa.string()
    return pa.dictionary(pa.int32(), kind) if texts else kind


def _make_array(column: Sequence[Any], kind: Any) -> Any:
    """Return a column of the given type. Values of other types are first converted to text."""
    try:
        return pa.array(column, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        if kind == pa.binary():
            raw = [v if v is None or isinstance(v, bytes) else str(v).encode() for v in column]
            return pa.array(raw, kind)
        texts = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in column]
        return pa.array([v if v is None else str(v) for v in texts], pa.string()).cast(kind)


if __name__ == "__main__":
    # Real exports have long row groups.
    write_columnar(Path(sys.argv[1]), Path(sys.argv[2]), Form(narrow=True))
