"""Events in the lines of NCCL's files, which need not be JSON as a whole.

NCCL prints its events one per line, with ``fprintf``, into an array that it may never close. A line
is ``{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, ..., "args": {"Count": 4}},``.

Older versions print pointers and datatypes without quotes (``"Stream": 0x5020``,
``"datatype": ncclFloat32``), a killed job leaves a cut line, and a file may have been indented, or
joined into one line, since. So the reader searches for objects, whatever stands between them, and
counts those that it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

#: Bytes that are read at a time, at most; an object may take twice as many.
BLOCK = 1 << 20
# An object holds others, four deep in all, each after a colon: behind a line that was cut, the next
# object's brace follows something else.
_INNER = rb"\{[^{}]*\}"
for _ in range(3):
    _INNER = rb"\{[^{}]*(?:(?:(?<=:)|(?<=: ))" + _INNER + rb"[^{}]*)*\}"
_OBJECT = re.compile(_INNER)
#: Strings, that stay as they are; values without quotes; commas before an end. A string without an
#: end is matched, too: else each quote in it would be tried as the beginning of one.
_REPAIR = re.compile(
    rb'(?P<text>"(?:[^"\\]|\\.)*"?)'
    rb"|(?P<colon>:\s*)(?:(?P<none>[-+]?(?:nan|inf)\w*(?:\(\w*\))?)"
    rb"|(?P<bare>0x[0-9A-Fa-f]+|\(nil\)|[A-Za-z_][\w.]*))(?=\s*[,}\]])"
    rb"|(?P<comma>,)(?=\s*[}\]])"
)
_WORDS = (b"true", b"false", b"null")
#: Bytes that no string of JSON may hold.
_CONTROL_BYTES = bytes.maketrans(bytes(range(32)), b" " * 32)
#: Quotes as word processors and web pages have them.
_QUOTES = re.compile("|".join("\u201c\u201d\u201e").encode())
#: The beginning of a document around a list of events.
_LIST = re.compile(rb'\{\s*"[^"]*"\s*:\s*\[')


class EventArgs(msgspec.Struct, gc=False):
    """Arguments of an event of any format; those that it lacks are None."""

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
    most_channels: int | None = msgspec.field(default=None, name="nMaxChannels")
    gpu_start: int | None = msgspec.field(default=None, name="StartGpuClk")
    gpu_end: int | None = msgspec.field(default=None, name="StopGpuClk")
    gpu_us: float | None = msgspec.field(default=None, name="duration_gpu_us")
    operation_count: int | None = msgspec.field(default=None, name="opCount")
    proxy_operation: int | None = msgspec.field(default=None, name="proxyOpIndex")


#: Arguments of an event that has none.
NO_ARGS = EventArgs()


class EventObject(
    msgspec.Struct, rename={"bytes": "totalbytes", "part_of": "collectiveName"}, gc=False
):
    """One object of a file: the begin (``ph`` "b") or end ("e") of an event.

    Attributes:
        name: of the event.
        cat: its category.
        ph: "b" or "e".
        id: pairs its begin with its end, in a way that depends on the format.
        pid: the process; a channel in files of the proxy profiler.
        ts: microseconds since the profiler began; 0 and None are unknown.
        args: its arguments.
        bytes: of a transfer, in a fork of NCCL.
        part_of: the collective that a transfer is part of, in the same fork.
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
    """The events of a file, in its order.

    Args:
        chunks: the bytes of the file, some at a time.

    Attributes:
        unreadable: objects, or pieces of one, that are not events.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.unreadable = 0

    def __iter__(self) -> Iterator[EventObject]:
        """Yield the events."""
        rest = b""
        for chunk in self._chunks:
            rest, at = rest + chunk, 0
            while (match := _OBJECT.search(rest, at)) is not None:
                begin, end = match.span()
                if (cut := rest.count(b"{", at, begin)) > 0:
                    self.unreadable += cut - len(_LIST.findall(rest, at, begin))
                event, at = _event(rest[begin:end]), end
                if event is not None and event.ph:
                    yield event
                else:
                    # The file's end is an empty object.
                    self.unreadable += rest[begin + 1 : end - 1].strip() != b""
            rest = rest[at:]
            if len(rest) > 2 * BLOCK:
                self.unreadable += 1
                rest = b""
        if b"{" in rest:
            self.unreadable += 1


def _event(text: bytes) -> EventObject | None:
    """Return an object as an event, repaired if need be; None if it is not an event."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        return None
    straight = _QUOTES.sub(b'"', text.decode("utf-8", "replace").encode().translate(_CONTROL_BYTES))
    try:
        return _decode(_REPAIR.sub(_repaired, straight))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _repaired(match: re.Match[bytes]) -> bytes:
    if match["text"] is not None:
        return match["text"]
    if match["comma"] is not None:
        return b""
    if match["none"] is not None:
        return match["colon"] + b"null"
    bare = match["bare"]
    return match["colon"] + (bare if bare in _WORDS else b'"' + bare + b'"')
