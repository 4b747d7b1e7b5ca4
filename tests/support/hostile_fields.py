"""Writes a hostile text to each field of a valid input in turn, for every input format."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from pyarrow import parquet

from bubbleviz.recording_layout import CRC_KEY
from tests.support.edited_databases import edit_database, read_columns, rebuild_table
from tests.support.xla_files import build_space_type

#: First word of the line that hostile text would add to an output that does not escape it.
INJECTED = "INJECTED"
#: Terminal control characters:
#: CSI, OSC, C1, text direction, and all kinds of line breaks.
HOSTILE_TEXT = (
    "\x1b[31m\x1b]0;title\x07\x08\x9b2J\x9d0;t\x9c\u202e\u2066\u200f\r\n"
    f"{INJECTED} line\x0b\x0c\x85{INJECTED} next\u2028{INJECTED} separator\u2029end\t"
)

#: A function that overwrites a valid file with hostile variants, one after another.
#: It yields the name of the hostile field after each change.
Variants = Callable[[Path], Iterator[str]]


def sqlite_variants(path: Path) -> Iterator[str]:
    """Append the hostile text to all rows of each text column in an SQLite file, one at a time.

    Yield ``TABLE.COLUMN`` after each change, for columns that contain text. Then add a column with
    a hostile name to one table at a time, together with a table that has a hostile name.
    """
    good = path.read_bytes()
    for table, columns in read_columns(path).items():
        for column in columns:
            path.write_bytes(good)
            with closing(sqlite3.connect(path)) as database, database:
                text = f"typeof(\"{column}\") = 'text'"
                update = f'UPDATE "{table}" SET "{column}" = "{column}" || ? WHERE {text}'
                changed = database.execute(update, (HOSTILE_TEXT,)).rowcount
            if changed:
                yield f"{table}.{column}"
    for table in read_columns(path):
        path.write_bytes(good)
        statements = rebuild_table(table, f'*, 1 AS "{HOSTILE_TEXT}"')
        edit_database(path, *statements, f'CREATE TABLE "{HOSTILE_TEXT}" (a INT)')
        yield f"a column of {table}"


def json_variants(path: Path) -> Iterator[str]:
    """Make all strings of each JSON key hostile, one key at a time, and yield the key.

    Keys are sorted. If the document is an object, a hostile key is added last, and ``a key`` is
    yielded. The file is compressed if the original file is compressed.
    """
    good = path.read_bytes()
    is_packed = good.startswith(b"\x1f\x8b")
    text = gzip.decompress(good) if is_packed else good

    def write(document: Any) -> None:
        content = json.dumps(document).encode()
        path.write_bytes(gzip.compress(content, mtime=0) if is_packed else content)

    for key in sorted(set(_list_text_keys(json.loads(text)))):
        write(_make_key_hostile(json.loads(text), key))
        yield key
    document = json.loads(text)
    if isinstance(document, dict):
        write({**document, HOSTILE_TEXT: HOSTILE_TEXT})
        yield "a key"


def json_line_variants(path: Path) -> Iterator[str]:
    """Make all strings of each key hostile in the lines of a file, one key at a time.

    Keys are sorted, and each key is yielded after its change. Lines of recordings get a new
    checksum. The file is compressed if the original file is compressed.
    """
    good = path.read_bytes()
    is_packed = good.startswith(b"\x1f\x8b")
    text = gzip.decompress(good) if is_packed else good
    lines = [json.loads(line) for line in text.splitlines()]
    for key in sorted({key for line in lines for key in _list_text_keys(line)}):
        hostile_lines = [_make_key_hostile(json.loads(json.dumps(line)), key) for line in lines]
        content = "".join(map(_format_line, hostile_lines)).encode()
        path.write_bytes(gzip.compress(content, mtime=0) if is_packed else content)
        yield key


def pickle_variants(path: Path) -> Iterator[str]:
    """Make all strings of each key hostile in a pickled document, one key at a time.

    Keys are sorted, and each key is yielded after its change.
    """
    good = path.read_bytes()
    for key in sorted(set(_list_text_keys(pickle.loads(good)))):
        path.write_bytes(pickle.dumps(_make_key_hostile(pickle.loads(good), key), 2))
        yield key


def csv_variants(path: Path) -> Iterator[str]:
    """Append the hostile text to one cell of a CSV file at a time.

    For each column, the cell of the header is changed first, then the cell of the last row. All
    other cells keep their original text. Yield ``row R, column C`` after each change.
    """
    good = path.read_bytes()
    text = gzip.decompress(good) if good.startswith(b"\x1f\x8b") else good
    rows = list(csv.reader(io.StringIO(text.decode())))
    for column in range(len(rows[0])):
        for row in (0, len(rows) - 1):
            changed = [list(cells) for cells in rows]
            changed[row][column] += HOSTILE_TEXT
            output = io.StringIO()
            csv.writer(output, lineterminator="\n").writerows(changed)
            content = output.getvalue().encode()
            path.write_bytes(gzip.compress(content) if good.startswith(b"\x1f\x8b") else content)
            yield f"row {row}, column {column}"


def arrow_variants(path: Path) -> Iterator[str]:
    """Make each text column hostile in turn, in all rows.

    Then make the first column name hostile.
    """
    good = path.read_bytes()
    if good.startswith(b"PAR1"):
        table = parquet.read_table(pa.BufferReader(good))
    elif good.startswith(b"ARROW1"):
        table = pa.ipc.open_file(pa.BufferReader(good)).read_all()
    else:
        table = pa.ipc.open_stream(pa.BufferReader(good)).read_all()

    def write(changed: Any) -> None:
        """Write a table in the format of the original file."""
        if good.startswith(b"PAR1"):
            parquet.write_table(changed, path)
            return
        new = pa.ipc.new_file if good.startswith(b"ARROW1") else pa.ipc.new_stream
        with new(str(path), changed.schema) as writer:
            writer.write_table(changed)

    for index, name in enumerate(table.column_names):
        values = table.column(index).to_pylist()
        if any(isinstance(value, str) for value in values):
            hostile = [None if value is None else f"{value}{HOSTILE_TEXT}" for value in values]
            write(table.set_column(index, name, pa.array(hostile)))
            yield name
    first, *other_columns = table.column_names
    write(table.rename_columns([f"{first}{HOSTILE_TEXT}", *other_columns]))
    yield f"the header of {first}"
    path.write_bytes(good)


def space_variants(path: Path) -> Iterator[str]:
    """Make each string field of XLA's messages hostile in turn, in all messages."""
    good = path.read_bytes()
    space = build_space_type()()
    space.ParseFromString(good)
    for field in sorted(set(_list_text_fields(space))):
        space.ParseFromString(good)
        _make_fields_hostile(space, field)
        path.write_bytes(space.SerializeToString())
        yield field


def line_variants(path: Path) -> Iterator[str]:
    """Make the first quoted string of each line hostile in turn."""
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines):
        changed = [*lines]
        quote = b"'" if b"'" in line else b'"'
        changed[number] = line.replace(quote, quote + HOSTILE_TEXT.encode(), 1)
        path.write_bytes(b"\n".join(changed))
        yield f"line {number}"


def _list_text_keys(document: Any) -> Iterator[str]:
    """Yield the keys whose values are strings, or lists that contain strings."""
    if isinstance(document, dict):
        for key, value in document.items():
            if isinstance(value, str) or (
                isinstance(value, list | tuple) and any(isinstance(each, str) for each in value)
            ):
                yield key
            yield from _list_text_keys(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _list_text_keys(value)


def _make_key_hostile(document: Any, key: str) -> Any:
    """Return a copy of a document in which all strings of one key are hostile."""
    if isinstance(document, dict):
        return {
            name: _make_hostile(value) if name == key else _make_key_hostile(value, key)
            for name, value in document.items()
        }
    if isinstance(document, list):
        return [_make_key_hostile(value, key) for value in document]
    return document


def _make_hostile(value: Any) -> Any:
    if isinstance(value, str):
        return value + HOSTILE_TEXT
    if isinstance(value, list | tuple):
        return type(value)(_make_hostile(each) for each in value)
    return value


def _format_line(document: dict[str, Any]) -> str:
    """Return a document as one line, with a new checksum if the document has a checksum."""
    if "crc" not in document:
        return f"{json.dumps(document)}\n"
    del document["crc"]
    body = json.dumps(document, separators=(",", ":"))[:-1]
    return f"{body}{CRC_KEY}{zlib.crc32(body.encode())}}}\n"


def _list_text_fields(message: Any) -> Iterator[str]:
    """Yield ``MESSAGE.field`` for each bytes field that is set, including in nested messages."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_BYTES:
            yield f"{message.DESCRIPTOR.name}.{field.name}"
        elif field.message_type is not None:
            for child in value if not hasattr(value, "ListFields") else [value]:
                yield from _list_text_fields(child)


def _make_fields_hostile(message: Any, name: str) -> None:
    """Append the hostile text to a bytes field (``MESSAGE.field``), also in nested messages."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_BYTES:
            if f"{message.DESCRIPTOR.name}.{field.name}" != name:
                continue
            if isinstance(value, bytes):
                setattr(message, field.name, value + HOSTILE_TEXT.encode())
            else:
                value[:] = [each + HOSTILE_TEXT.encode() for each in value]
        elif field.message_type is not None:
            for child in value if not hasattr(value, "ListFields") else [value]:
                _make_fields_hostile(child, name)
