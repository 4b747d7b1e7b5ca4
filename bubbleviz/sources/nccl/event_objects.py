"""Parses the events in NCCL's event files, which are not always valid JSON.

NCCL prints one event per line with ``fprintf``. The enclosing array may never be closed. A line is
``{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, ..., "args": {"Count": 4}},``.

Older versions print pointers and data types without quotes (``"Stream": 0x5020``, ``"datatype":
ncclFloat32``). A killed job leaves a truncated line. A tool may have re-indented the file or joined
its lines. The parser therefore searches for objects, skips all text between objects, and counts the
objects that it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

#: Maximum number of bytes to read at once. An object may be up to twice as long.
BLOCK = 1 << 20
# Matches an object, including nested objects, up to four levels in total. A nested object must
# follow a colon, so that the object after a truncated line is not mistaken for a nested object.
_NESTED_OBJECT = rb"\{[^{}]*\}"
for _ in range(3):
    _NESTED_OBJECT = rb"\{[^{}]*(?:(?:(?<=:)|(?<=: ))" + _NESTED_OBJECT + rb"[^{}]*)*\}"
_OBJECT = re.compile(_NESTED_OBJECT)
#: Matches strings (which are kept), unquoted values, and trailing commas.
#: Unterminated strings also match, so that quotes inside them do not start other strings.
_REPAIR = re.compile(
    rb'(?P<text>"(?:[^"\\]|\\.)*"?)'
    rb"|(?P<colon>:\s*)(?:(?P<none>[-+]?(?:nan|inf)\w*(?:\(\w*\))?)"
    rb"|(?P<bare>0x[0-9A-Fa-f]+|\(nil\)|[A-Za-z_][\w.]*))(?=\s*[,}\]])"
    rb"|(?P<comma>,)(?=\s*[}\]])"
)
_WORDS = (b"true", b"false", b"null")
#: Translation table that replaces control characters, which JSON forbids in strings, with spaces.
_CONTROL_BYTES = bytes.maketrans(bytes(range(32)), b" " * 32)
#: Matches typographic quotes, which word processors and web pages insert.
_QUOTES = re.compile("|".join("\u201c\u201d\u201e").encode())
#: Matches the start of a JSON object whose first key contains a list.
_LIST_START = re.compile(rb'\{\s*"[^"]*"\s*:\s*\[')


class EventArgs(msgspec.Struct, gc=False):
    """The arguments of an event, in any format. Missing arguments are None."""

    sequence: int | None = msgspec.field(default=None, name="SeqNum")
    communicator: int | None = msgspec.field(default=None, name="CommHash")
    rank: int | None = msgspec.field(default=None, name="Rank")
    peer: int | None = msgspec.field(default=None, name="Peer")
    count: int | None = msgspec.field(default=None, name="Count")
    datatype: str | None = msgspec.field(default=None, name="Datatype")
    call_count: int | None = msgspec.field(default=None, name="count")
    call_datatype: str | None = msgspec.field(default=None, name="datatype")
    root: int | None = None
    algorithm: str | None = msgspec.field(default=None, name="Algorithm")
    protocol: str | None = msgspec.field(default=None, name="Protocol")
    strategy: str | None = None
    channels: int | None = msgspec.field(default=None, name="nChannels")
    max_channels: int | None = msgspec.field(default=None, name="nMaxChannels")
    gpu_start: int | None = msgspec.field(default=None, name="StartGpuClk")
    gpu_end: int | None = msgspec.field(default=None, name="StopGpuClk")
    gpu_us: float | None = msgspec.field(default=None, name="duration_gpu_us")
    operation_count: int | None = msgspec.field(default=None, name="opCount")
    proxy_operation: int | None = msgspec.field(default=None, name="proxyOpIndex")


#: Arguments of an event without arguments.
NO_ARGS = EventArgs()


class EventObject(
    msgspec.Struct, rename={"bytes": "totalbytes", "part_of": "collectiveName"}, gc=False
):
    """An object in an event file that marks the start or the end of an event.

    Attributes:
        name: Name of the event.
        cat: Category of the event.
        ph: "b" for the start or "e" for the end of the event.
        id: Number shared by the start and the end of an event. The scope in which the number is
            unique depends on the format.
        pid: Process id, or the channel in files from the proxy profiler.
        ts: Time in microseconds since the profiler started. 0 or None means that the time is
            unknown.
        args: The event's arguments.
        bytes: Size of a transfer in bytes. Only a fork of NCCL writes this field.
        part_of: Collective that a transfer belongs to. Written only by a fork of NCCL.
    """

    name: str = ""
    cat: str = ""
    ph: str = ""
    id: int = 0
    pid: int = 0
    ts: float | None = None
    args: EventArgs | None = None
    bytes: int | None = None
    part_of: str | None = None


_decode = msgspec.json.Decoder(EventObject, strict=False).decode


class EventObjects:
    """Iterable over the events in a file, in file order.

    Args:
        chunks: The file's bytes, in chunks.

    Attributes:
        unreadable: Number of objects and object fragments that are not events.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.unreadable = 0

    def __iter__(self) -> Iterator[EventObject]:
        """Yield the events, and count the objects that cannot be read.

        An object is an event if it can be parsed and has a ``ph``. Empty objects are ignored. All
        other objects are counted in ``unreadable``, as are unmatched opening braces and a truncated
        last object.
        """
        buffer = b""
        for chunk in self._chunks:
            buffer, position = buffer + chunk, 0
            while (match := _OBJECT.search(buffer, position)) is not None:
                start, end = match.span()
                if (n_braces := buffer.count(b"{", position, start)) > 0:
                    self.unreadable += n_braces - len(_LIST_START.findall(buffer, position, start))
                event, position = _parse_event(buffer[start:end]), end
                if event is not None and event.ph:
                    yield event
                else:
                    # NCCL ends a file with an empty object, which is not counted.
                    self.unreadable += buffer[start + 1 : end - 1].strip() != b""
            buffer = buffer[position:]
            if len(buffer) > 2 * BLOCK:
                self.unreadable += 1
                buffer = b""
        if b"{" in buffer:
            self.unreadable += 1


def _parse_event(text: bytes) -> EventObject | None:
    """Parse one object, or return None if it cannot be parsed.

    An object that is not valid JSON is repaired and parsed again. The repair fixes typographic
    quotes, control characters, bytes that are not UTF-8, unquoted values and trailing commas.
    """
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        return None
    straightened = _QUOTES.sub(
        b'"', text.decode("utf-8", "replace").encode().translate(_CONTROL_BYTES)
    )
    try:
        return _decode(_REPAIR.sub(_repair_match, straightened))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _repair_match(match: re.Match[bytes]) -> bytes:
    """Return the replacement text for a match of ``_REPAIR``.

    Strings, ``true``, ``false`` and ``null`` are kept. Trailing commas are removed. NaN and
    infinity become ``null``, and all other unquoted values become strings.
    """
    if match["text"] is not None:
        return match["text"]
    if match["comma"] is not None:
        return b""
    if match["none"] is not None:
        return match["colon"] + b"null"
    bare = match["bare"]
    return match["colon"] + (bare if bare in _WORDS else b'"' + bare + b'"')
