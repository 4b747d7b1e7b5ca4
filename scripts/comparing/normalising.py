"""Brings outputs into a form in which lines can be compared.

Differences between two runs of the same version disappear: paths, versions and times of day. So do
differences that nobody can see: the order of JSON keys, the compression of a picture, and digits of
a number in JSON or Parquet beyond the tenth.
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

#: What is replaced in every text.
_REPLACED = (
    # The folder of a case, which has a random name, and the folders next to it.
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
    """Return the normalised lines of an output.

    Args:
        name: Name of the file, whose suffix says what it contains.
        content: Content of the file.
    """
    suffix = PurePosixPath(name).suffix
    normalise = _BY_SUFFIX.get(suffix, _lines_of_text)
    try:
        return normalise(content)
    except (ValueError, KeyError, zlib.error) as error:
        # An output that cannot be parsed is a difference of its own, if only one version has it.
        return [f"cannot be parsed as {suffix}: {error}", *_lines_of_text(content)]


def _replace(text: str) -> str:
    for pattern, word in _REPLACED:
        text = pattern.sub(word, text)
    return text


def _lines_of_text(content: bytes) -> list[str]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return [f"{len(content)} bytes, digest {digest(content)}"]
    return _without_frames(_replace(text).splitlines())


def _without_frames(lines: list[str]) -> list[str]:
    """Return the lines without the stack frames of tracebacks, which show places in the source."""
    remaining_lines, is_in_frame = [], False
    for line in lines:
        is_in_frame = line.startswith("Traceback (") or (is_in_frame and line.startswith(" "))
        if not is_in_frame:
            remaining_lines.append(line)
    return remaining_lines


def _lines_of_markup(content: bytes) -> list[str]:
    return _replace(content.decode().replace("><", ">\n<")).splitlines()


def _lines_of_json(content: bytes) -> list[str]:
    return _lines_of_value(json.loads(content))


def _lines_of_value(value: Any, path: str = "") -> list[str]:
    """Return one line per value that contains no other: its keys and the value.

    Entries of lists have no number in the line, so that a new entry changes no other line.
    """
    if isinstance(value, dict) and value:
        pairs = sorted((f"{path}.{key}" if path else str(key), key) for key in value)
        lines = [line for inner, key in pairs for line in _lines_of_value(value[key], inner)]
        return ["version: VERSION" if line.startswith("version: ") else line for line in lines]
    if isinstance(value, list) and value:
        return [line for entry in value for line in _lines_of_value(entry, f"{path}[]")]
    if isinstance(value, float):
        value = float(f"{value:.10g}")
    return [f"{path}: {_replace(json.dumps(value, ensure_ascii=False, default=str))}"]


def _lines_of_html(content: bytes) -> list[str]:
    """Return the markup and the data of a page, but neither its scripts nor its styles."""
    text, data = content.decode(), []
    for script in _SCRIPT.finditer(text):
        element = _ELEMENT_ID.search(script[1] or "")
        if element and "octet-stream" in script[1]:
            unpacked = zlib.decompress(base64.b64decode(script[2]))
            data += [f"data: {element[1]}", *_lines_of_data(unpacked)]
    return [*_lines_of_markup(_SCRIPT.sub("", text).encode()), *data]


def _lines_of_data(content: bytes) -> list[str]:
    try:
        return _lines_of_json(content)
    except ValueError:
        return [f"{len(content)} bytes, digest {digest(content)}"]


def _lines_of_parquet(content: bytes) -> list[str]:
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(content))
    schema = [f"{field.name}: {field.type}" for field in table.schema]
    metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    metadata.pop("ARROW:schema", None)
    rows = ("; ".join(_lines_of_value(row)) for row in table.to_pylist())
    return [*schema, *_lines_of_value(metadata), *rows]


def _lines_of_png(content: bytes) -> list[str]:
    """Return the size of a picture and a digest of its pixels."""
    position, pixels, size = 8, b"", ""
    while position < len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        kind = content[position + 4 : position + 8]
        chunk = content[position + 8 : position + 8 + length]
        if kind == b"IHDR":
            size = "x".join(str(int.from_bytes(chunk[at : at + 4], "big")) for at in (0, 4))
        if kind == b"IDAT":
            pixels += chunk
        position += length + 12
    return [f"size {size}", f"pixels {digest(zlib.decompress(pixels))}"]


def _lines_of_pdf(content: bytes) -> list[str]:
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


def _lines_of_zip(content: bytes) -> list[str]:
    lines = []
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in sorted(archive.namelist()):
            lines += [f"member: {name}", *lines_of(name, archive.read(name))]
    return lines


def _lines_of_events(content: bytes) -> list[str]:
    """Return the scalars of a file of TensorBoard, without the times at which they were written."""
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
    ".html": _lines_of_html,
    ".json": _lines_of_json,
    ".parquet": _lines_of_parquet,
    ".pdf": _lines_of_pdf,
    ".png": _lines_of_png,
    ".svg": _lines_of_markup,
    ".tfevents": _lines_of_events,
    ".zip": _lines_of_zip,
}
