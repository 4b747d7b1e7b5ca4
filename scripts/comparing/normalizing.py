"""Converts outputs to lines that can be compared.

The conversion removes differences between two runs of the same version: paths, versions and times
of day. It also removes invisible differences: the order of JSON keys, the compression of a picture,
and all digits after the tenth of a number in JSON or Parquet.
"""

from __future__ import annotations

import base64
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from scripts.comparing.running import digest

#: (pattern, replacement) pairs that are applied to every text.
_REPLACED = (
    # Patterns that match the folder of a case, whose name is random, and the folders next to it.
    (re.compile(r"(?:/[^\s/\"'<>,:]+)+/inputs-[0-9a-f]+/(?:tmp\w+|in|recordings-\w+)"), "PATH"),
    (re.compile(r"(?<=bubbleviz )\d+\.\d+\.\d+\w*"), "VERSION"),
    (
        re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"),
        "TIME",
    ),
)
_STREAM = re.compile(rb"stream\r?\n(.*?)\r?\nendstream", re.DOTALL)
_SCRIPT = re.compile(r"<script([^>]*)>(.*?)</script>|<style.*?</style>", re.DOTALL)
_ELEMENT_ID = re.compile(r"id=\"(\w+)\"")


def lines_of(name: str, content: bytes) -> list[str]:
    """Return the normalized lines of an output.

    Args:
        name: Name of the file. Its suffix determines the format.
        content: Content of the file.
    """
    suffix = PurePosixPath(name).suffix
    normalize = _BY_SUFFIX.get(suffix, _split_text)
    try:
        return normalize(content)
    except (ValueError, KeyError, zlib.error) as error:
        # If only one version writes an output that cannot be parsed, the outputs will differ.
        return [f"cannot be parsed as {suffix}: {error}", *_split_text(content)]


def _replace(text: str) -> str:
    for pattern, word in _REPLACED:
        text = pattern.sub(word, text)
    return text


def _split_text(content: bytes) -> list[str]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return [f"{len(content)} bytes, digest {digest(content)}"]
    return _remove_frames(_replace(text).splitlines())


def _remove_frames(lines: list[str]) -> list[str]:
    """Return the lines without stack frames of tracebacks, which contain source locations."""
    remaining_lines, is_in_frame = [], False
    for line in lines:
        is_in_frame = line.startswith("Traceback (") or (is_in_frame and line.startswith(" "))
        if not is_in_frame:
            remaining_lines.append(line)
    return remaining_lines


def _split_markup(content: bytes) -> list[str]:
    return _replace(content.decode().replace("><", ">\n<")).splitlines()


def _split_json(content: bytes) -> list[str]:
    return _list_values(json.loads(content))


def _list_values(value: Any, path: str = "") -> list[str]:
    """Return one line per scalar value, as ``KEY.KEY: VALUE``.

    Dictionaries are sorted by key. A list adds ``[]`` to the path, without the index of the entry,
    so that a new entry does not change any other line. Floats are rounded to ten significant
    digits.
    """
    if isinstance(value, dict) and value:
        pairs = sorted((f"{path}.{key}" if path else str(key), key) for key in value)
        lines = [line for inner, key in pairs for line in _list_values(value[key], inner)]
        return ["version: VERSION" if line.startswith("version: ") else line for line in lines]
    if isinstance(value, list) and value:
        return [line for entry in value for line in _list_values(entry, f"{path}[]")]
    if isinstance(value, float):
        value = float(f"{value:.10g}")
    return [f"{path}: {_replace(json.dumps(value, ensure_ascii=False, default=str))}"]


def _split_html(content: bytes) -> list[str]:
    """Return the markup and the data of a page, without its scripts and styles."""
    text, data = content.decode(), []
    for script in _SCRIPT.finditer(text):
        element = _ELEMENT_ID.search(script[1] or "")
        if element and "octet-stream" in script[1]:
            unpacked = zlib.decompress(base64.b64decode(script[2]))
            data += [f"data: {element[1]}", *_split_data(unpacked)]
    return [*_split_markup(_SCRIPT.sub("", text).encode()), *data]


def _split_data(content: bytes) -> list[str]:
    try:
        return _split_json(content)
    except ValueError:
        return [f"{len(content)} bytes, digest {digest(content)}"]


def _split_parquet(content: bytes) -> list[str]:
    """Return the schema, the metadata and the rows of a Parquet file, one line each."""
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(content))
    schema = [f"{field.name}: {field.type}" for field in table.schema]
    metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    metadata.pop("ARROW:schema", None)
    rows = ("; ".join(_list_values(row)) for row in table.to_pylist())
    return [*schema, *_list_values(metadata), *rows]


def _describe_png(content: bytes) -> list[str]:
    """Return the size of a picture and a digest of its pixels."""
    position, pixels, size = 8, b"", ""
    while position < len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        kind = content[position + 4 : position + 8]
        chunk = content[position + 8 : position + 8 + length]
        if kind == b"IHDR":
            size = "x".join(
                str(int.from_bytes(chunk[offset : offset + 4], "big")) for offset in (0, 4)
            )
        if kind == b"IDAT":
            pixels += chunk
        position += length + 12
    return [f"size {size}", f"pixels {digest(zlib.decompress(pixels))}"]


def _split_pdf(content: bytes) -> list[str]:
    """Return the content streams of a PDF, without dates and identifiers."""
    lines = []
    for stream in _STREAM.finditer(content):
        try:
            unpacked = zlib.decompress(stream[1])
        except zlib.error:
            unpacked = stream[1]
        if b"xmpmeta" not in unpacked and b"\0" not in unpacked:
            lines += unpacked.decode("latin-1").splitlines()
        elif b"xmpmeta" not in unpacked:
            lines.append(f"binary stream, digest {digest(unpacked)}")
    return lines


def _split_zip(content: bytes) -> list[str]:
    lines = []
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in sorted(archive.namelist()):
            lines += [f"member: {name}", *lines_of(name, archive.read(name))]
    return lines


def _list_scalars(content: bytes) -> list[str]:
    """Return the scalars in a TensorBoard file, without the times at which they were written."""
    from tensorboard.compat.proto.event_pb2 import Event

    lines, position = [], 0
    while position < len(content):
        # Each record is a length, its checksum, the event, and its checksum.
        length = int.from_bytes(content[position : position + 8], "little")
        event = Event.FromString(content[position + 12 : position + 12 + length])
        event.ClearField("wall_time")
        lines += str(event).splitlines()
        position += length + 16
    return lines


_BY_SUFFIX: dict[str, Callable[[bytes], list[str]]] = {
    ".html": _split_html,
    ".json": _split_json,
    ".parquet": _split_parquet,
    ".pdf": _split_pdf,
    ".png": _describe_png,
    ".svg": _split_markup,
    ".tfevents": _list_scalars,
    ".zip": _split_zip,
}
