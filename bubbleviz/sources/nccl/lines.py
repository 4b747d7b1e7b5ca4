"""Events in the lines of NCCL's files, which need not be JSON as a whole.

NCCL prints its events one per line, with ``fprintf``, into an array that it may never close::

    [
    {"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, ..., "args": {"Count": 262144}},
    {}]

Older versions print pointers and datatypes bare (``"Stream": 0x5020``,
``"datatype": ncclFloat32``), a job that is killed leaves a line cut, and a file may have been
indented, or joined into one line, since. So objects are looked for, whatever stands between them;
those that cannot be read are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

#: Bytes that are read at a time, at most; an object may take twice as many.
BLOCK = 1 << 20
#: At most so many objects are searched again, so many bytes around, for braces in strings.
_SEARCHES, _AROUND = 10_000, 4096

# An object holds others, four deep in all, each after a colon: behind a line that was cut, the next
# object's brace follows something else.
_INNER = rb"\{[^{}]*\}"
for _ in range(3):
    _INNER = rb"\{[^{}]*(?:(?:(?<=:)|(?<=: ))" + _INNER + rb"[^{}]*)*\}"
_OBJECT = re.compile(_INNER)
#: A brace, or a string; one without an end is one up to the end of its line.
_TOKEN = re.compile(rb'[{}]|"(?:[^"\\\n]|\\[^\n])*(?P<end>"?)')
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
_CONTROL = bytes.maketrans(bytes(range(32)), b" " * 32)
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
        tid: always 1, not a thread.
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
    tid: int = 0
    ts: float | None = None
    args: EventArgs | None = None
    bytes: int | None = None
    part_of: str | None = None


_decode = msgspec.json.Decoder(EventObject, strict=False).decode


class EventObjects:
    """The events of a file, in its order.

    Attributes:
        unreadable: objects, or pieces of one, that are not events.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        """Take the bytes of a file, some at a time."""
        self._chunks, self._searches = chunks, _SEARCHES
        self.unreadable = 0

    def blocks(self) -> Iterator[list[EventObject]]:
        """Yield the events in the order of the file, some at a time."""
        rest = b""
        for chunk in self._chunks:
            rest = rest + chunk
            events, end = self._events(rest)
            rest = rest[end:]
            if len(rest) > 2 * BLOCK:
                self.unreadable += 1
                rest = rest[-_AROUND:]
            yield events
        if b"{" in rest:
            self.unreadable += 1

    def _events(self, text: bytes) -> tuple[list[EventObject], int]:
        """Return the events in some bytes, and where the beginning of another may be."""
        events: list[EventObject] = []
        at = 0
        while (match := _OBJECT.search(text, at)) is not None:
            begin, end = match.span()
            if (cut := text.count(b"{", at, begin)) > 0:
                self.unreadable += cut - len(_LIST.findall(text, at, begin))
            event = _event(text[begin:end])
            if event is None and self._searches > 0:
                # Its strings may hold braces.
                self._searches -= 1
                low, high = max(at, begin - _AROUND), min(end + _AROUND, len(text))
                span = _object_with_strings(text, low, high)
                if span is not None and span[1] >= end:
                    event, end = _event(text[span[0] : span[1]]), span[1]
            at = end
            if event is None or not event.ph:
                # The file's end is an empty object.
                self.unreadable += text[begin + 1 : end - 1].strip() != b""
            else:
                events.append(event)
        return events, at


def _event(text: bytes) -> EventObject | None:
    """Return an object as an event, repaired if need be; None if it is not an event."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        return None
    straight = _QUOTES.sub(b'"', text.decode("utf-8", "replace").encode().translate(_CONTROL))
    try:
        return _decode(_REPAIR.sub(_repaired, straight))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _object_with_strings(text: bytes, low: int, high: int) -> tuple[int, int] | None:
    """Return where the first whole object begins and ends, braces in strings not counting.

    An object holds others after a colon only, and no string that goes on in the next line.
    """
    begun: list[int] = []
    first: tuple[int, int] | None = None
    at = text.find(b"{", low, high)
    while 0 <= at < high:
        token = _TOKEN.search(text, at, high)
        if token is None:
            break
        at = token.end()
        if token[0] == b"}":
            first = min((begun.pop(), at), first or (at, at))
        elif token[0] != b"{":
            # Without its end it ends every object around it.
            begun = begun if token["end"] else []
        elif begun and not text[max(at - 3, 0) : at - 1].rstrip(b" ").endswith(b":"):
            begun = [at - 1]
            if first is not None:
                break
        else:
            begun.append(at - 1)
        if not begun:
            if first is not None:
                break
            at = text.find(b"{", at, high)
    return first


def _repaired(match: re.Match[bytes]) -> bytes:
    if match["text"] is not None:
        return match["text"]
    if match["comma"] is not None:
        return b""
    if match["none"] is not None:
        return match["colon"] + b"null"
    bare = match["bare"]
    return match["colon"] + (bare if bare in _WORDS else b'"' + bare + b'"')
