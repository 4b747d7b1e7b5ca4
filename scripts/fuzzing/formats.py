"""Damages files of each format: reads a file as a document, damages it, and writes it back."""

from __future__ import annotations

import csv
import io
import json
import pickle
import zlib
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from bubbleviz.recording_layout import CRC_KEY
from scripts.fuzzing.byte_damage import edit_content
from scripts.fuzzing.documents import damage_document, rearrange_lines
from scripts.fuzzing.values import Random, draw_text

#: Encodings that editors and spreadsheets write, and encodings that they never write.
_ENCODINGS = ("utf-16", "utf-16-le", "utf-8-sig", "latin-1", "utf-32", "cp037")
_LINE_ENDS = (b"\r", b"\r\n", b"\n\n", b"\0", b"\x85")
#: Values that replace values in a TOML file.
_TOML_VALUES = (
    *('""', "0", "-1", "1e400", "nan", "true", "[]", "{}", "[[1]]", "1979-05-27", '"\\u0000"'),
    *("'('", "'[['", "'*'", "'(?P<phase>'", "'(?P<phase>.)(?P<phase>.)'", "'\\'", "'a{99999}'"),
    *("'(?P<microbatch>x*)'", "'(?i)F'", "'(?P<phase>F)'", "'['", "'\\1'", "9" * 5_000),
    "'\x1b[2J'",
)
#: First bytes of Parquet files and of Arrow files with a footer.
_PARQUET, _ARROW_FILE = b"PAR1", b"ARROW1"
#: Types to which a column of an Arrow table may be changed.
_ARROW_TYPES = (
    *(pa.string(), pa.binary(), pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.bool_()),
    *(pa.timestamp("us"), pa.duration("ns"), pa.null(), pa.list_(pa.int64())),
)


def damage_json(path: Path, chance: Random) -> None:
    """Change values of a JSON document, or the order of its keys and elements."""

    def edit(content: bytes) -> bytes:
        document = _parse_json(content)
        if document is None:
            return content
        text = json.dumps(damage_document(document, chance), ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass")

    edit_content(path, edit)


def damage_json_lines(path: Path, chance: Random) -> None:
    """Change values in some lines of JSON, or remove, repeat or reorder lines.

    The checksum of a changed line is usually recomputed, because readers skip lines with a wrong
    checksum.
    """

    def edit(content: bytes) -> bytes:
        lines = content.splitlines()
        if lines and chance.random() < 0.3:
            rearrange_lines(lines, chance)
        for _ in range(chance.choice([1, 1, 3]) if lines else 0):
            row = chance.randrange(len(lines))
            document = _parse_json(lines[row])
            if isinstance(document, dict):
                lines[row] = _damage_json_line(document, chance)
        return b"\n".join(lines) + b"\n"

    edit_content(path, edit)


def _parse_json(content: bytes) -> Any:
    """Return a JSON document, or None if an earlier step damaged it."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _damage_json_line(document: dict[str, Any], chance: Random) -> bytes:
    """Return a damaged JSON document as a line.

    If the document had a checksum, the line gets a valid checksum with a probability of 0.8.
    """
    stored_crc = document.pop("crc", None)
    damaged = damage_document(document, chance)
    body = json.dumps(damaged, separators=(",", ":"))
    if stored_crc is None or not isinstance(damaged, dict):
        return body.encode()
    body = body[:-1]
    crc = zlib.crc32(body.encode()) if chance.random() < 0.8 else stored_crc
    return f"{body}{CRC_KEY}{crc}}}".encode()


def damage_pickle(path: Path, chance: Random) -> None:
    """Change values of a pickled document, and perhaps the protocol of the pickle."""
    try:
        document = pickle.loads(path.read_bytes())  # written by this script
    except Exception:  # an earlier step damaged it
        return
    damaged = damage_document(document, chance)
    path.write_bytes(pickle.dumps(damaged, chance.choice([0, 1, 2, 4, 5])))


def damage_lines(path: Path, chance: Random) -> None:
    """Remove, repeat, reorder or cut lines of a text file."""
    edit_content(path, lambda content: _rearrange_text(content, chance))


def _rearrange_text(content: bytes, chance: Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if lines:
        rearrange_lines(lines, chance)
    return b"".join(lines)


def _reencode(content: bytes, chance: Random) -> bytes:
    """Return a text in a different encoding or with different line endings."""
    if chance.random() < 0.5:
        return content.replace(b"\n", chance.choice(_LINE_ENDS))
    text = content.decode("utf-8", "replace")
    return text.encode(chance.choice(_ENCODINGS), "replace")


def damage_toml(path: Path, chance: Random) -> None:
    """Replace values of a TOML file, rearrange its lines, or change its encoding."""

    def edit(content: bytes) -> bytes:
        choice = chance.random()
        if choice < 0.1:
            return _reencode(content, chance)
        if choice < 0.4:
            return _rearrange_text(content, chance)
        lines = content.decode("utf-8", "replace").splitlines()
        assigning = [number for number, line in enumerate(lines) if "=" in line]
        for _ in range(chance.choice([1, 1, 2, 4]) if assigning else 0):
            number = chance.choice(assigning)
            key = lines[number].partition("=")[0] if chance.random() < 0.8 else draw_text(chance)
            # The new value is often valid, but for a different key.
            valid_value = lines[chance.choice(assigning)].partition("=")[2]
            value = valid_value if chance.random() < 0.4 else chance.choice(_TOML_VALUES)
            lines[number] = f"{key}= {value}"
        return "\n".join(lines).encode()

    edit_content(path, edit)


def damage_csv(path: Path, chance: Random) -> None:
    """Change cells, columns or rows of a table, or its encoding, line endings and delimiter."""

    def edit(content: bytes) -> bytes:
        choice = chance.random()
        if choice < 0.08:
            return _reencode(content, chance)
        if choice < 0.25:
            return _rearrange_text(content, chance)
        text = content.decode("utf-8", "replace").replace("\0", "")
        try:
            rows = [row for row in csv.reader(io.StringIO(text)) if row]
        except csv.Error:  # a cell is too long
            return content
        buffer = io.StringIO()
        delimiter = chance.choice(";\t|") if chance.random() < 0.1 else ","
        writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
        writer.writerows(_damage_rows(rows, chance))
        return buffer.getvalue().encode("utf-8", "surrogatepass")

    edit_content(path, edit)


def _damage_rows(rows: list[list[str]], chance: Random) -> list[list[Any]]:
    """Damage a table as a list of rows, or as columns keyed by the first row."""
    if not rows or chance.random() < 0.5:
        damaged = damage_document(rows, chance)
        damaged = damaged if isinstance(damaged, list) else [damaged]
        return [row if isinstance(row, list) else [row] for row in damaged]
    header, *cells = rows
    columns = map(list, zip_longest(*cells, fillvalue=""))
    table = _damage_columns(dict(zip(header, columns, strict=False)), chance)
    return [[*table], *map(list, zip(*table.values(), strict=True))]


def _damage_columns(columns: dict[str, list[Any]], chance: Random) -> dict[str, list[Any]]:
    """Damage a table of columns. All columns of the result have the same length."""
    damaged = damage_document(columns, chance)
    if not isinstance(damaged, dict):
        damaged = {"": damaged}
    # A value in place of a column is repeated in all rows.
    length = max(
        (len(column) for column in damaged.values() if isinstance(column, list)), default=1
    )
    return {
        name: (column + [None] * length)[:length] if isinstance(column, list) else [column] * length
        for name, column in damaged.items()
    }


def damage_arrow(path: Path, chance: Random) -> None:
    """Change values, types and names of columns. The file stays valid in its format."""
    content = path.read_bytes()
    try:
        table = _read_arrow(content)
        columns = _damage_columns(table.to_pydict(), chance)
        types = {field.name: field.type for field in table.schema}
        if columns and chance.random() < 0.2:
            types[chance.choice(list(columns))] = chance.choice(_ARROW_TYPES)
        damaged = {name: _make_array(values, types.get(name)) for name, values in columns.items()}
        path.write_bytes(_write_arrow(pa.table(damaged), content))
    except (pa.ArrowException, OSError, OverflowError, TypeError, ValueError):
        # An earlier step damaged the file, or Parquet does not support a type.
        return


def _make_array(values: list[Any], kind: Any) -> Any:
    """Return values as an array of the given type if possible, otherwise of any type or of text."""
    for type_ in (kind, None):
        try:
            return pa.array(values, type_)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue
    return pa.array([None if value is None else str(value) for value in values])


def _read_arrow(content: bytes) -> Any:
    if content.startswith(_PARQUET):
        return parquet.read_table(pa.BufferReader(content))
    is_file = content.startswith(_ARROW_FILE)
    open_stream = pa.ipc.open_file if is_file else pa.ipc.open_stream
    return open_stream(pa.BufferReader(content)).read_all()


def _write_arrow(table: Any, previous: bytes) -> bytes:
    """Return a table in the format of the previous content of the file."""
    stream = pa.BufferOutputStream()
    if previous.startswith(_PARQUET):
        parquet.write_table(table, stream)
    else:
        new_stream: Callable[..., Any] = (
            pa.ipc.new_file if previous.startswith(_ARROW_FILE) else pa.ipc.new_stream
        )
        with new_stream(stream, table.schema) as writer:
            writer.write_table(table)
    return bytes(stream.getvalue().to_pybytes())
