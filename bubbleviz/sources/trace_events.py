"""Trace events: the JSON of Chrome's trace format, read as a stream of blocks of events.

PyTorch's profiler (Kineto), JAX and TensorBoard write it: one document whose ``traceEvents`` are
millions of small objects (Trace Event Format, Google, 2016), or that list alone, often gzipped.
Such a file is read some MiB at a time, so that memory does not grow with it::

    {"schemaVersion": 1, ... "traceEvents": [   the head
      {...}, {...}, {...},                      a block, decoded at once
      {...}, {...}, {...}, {...                 the next one; what is cut waits for more
    ], "baseTimeNanoseconds": 17...}            the tail; head and tail are the document's facts

A block ends at any ``}, {`` in front of which everything is a list of whole events; since JSON is
read from left to right, that is then the end of an event. What real files hold is put up with: an
empty last event, numbers as text, NaN, bytes that are no UTF-8, line breaks in names, an event
that is no JSON (it is counted), and the missing end of a killed job's file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Generic, TypeVar, get_args

import msgspec

from bubbleviz.errors import ProfileError
from bubbleviz.model.operations import Limitation
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import Unpacked, unpacked

#: So much is decoded at a time: some 20,000 events.
BLOCK = 1 << 23
#: What is longer is no event, and no head of a document.
_LONGEST = 1 << 27
#: A boundary is looked for so near the end of what was read.
_NEAR = 1 << 20
#: What JSON cannot be read so near the end of a text may be cut: a number, a word, an escape.
_ENDING = 16
#: From here on, in microseconds, a double does not hold every nanosecond.
_INEXACT_US = float(1 << 43)

#: What editors of other systems put in front of UTF-8.
BOM = b"\xef\xbb\xbf"
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_SPACE = re.compile(r"[\s,]*")
#: Where an event begins, in files whose events are not all JSON.
_BEGINS = re.compile(r'(?<=[},\]\s])\{\s*(?:\}|"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:)')


class Event(msgspec.Struct, gc=False):
    """What every event has; times in microseconds.

    A kind of trace adds ``args``, a struct of those it needs.
    """

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """The same, with its times as they are written."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Decimal | None = None
    dur: Decimal | None = None


EventT = TypeVar("EventT", bound=Event)
ExactT = TypeVar("ExactT", bound=ExactEvent)
StructT = TypeVar("StructT", bound=msgspec.Struct)
_Told = tuple[str, str, Any, type[msgspec.Struct] | None]


@dataclass(frozen=True)
class Rare(Generic[EventT]):
    """Events that say more than most: what marks a block with some, and what it is decoded to."""

    mark: bytes
    event: type[EventT]


class TraceFile(Generic[EventT, ExactT]):
    """The events of an open file.

    Attributes:
        path: the file.
        malformed: how many events could not be read, once all blocks were.
        cut: whether the file's end is missing, once all blocks were read.
    """

    def __init__(
        self,
        path: str,
        chunks: Unpacked,
        event: type[EventT],
        exact: type[ExactT],
        rare: Rare[EventT] | None,
    ) -> None:
        self.path, self.malformed, self.cut = path, 0, False
        self._unpacked, self._chunks = chunks, iter(chunks)
        self._rest, self._ended = b"", False
        self._head, self._tail = b"", b""
        self._exact = exact
        # What to decode to is known when this runs, and no type checker can follow.
        self._fast_decoder = msgspec.json.Decoder(list[event], strict=False)  # type: ignore[valid-type]
        self._rare = rare
        self._rare_decoder = self._fast_decoder
        if rare is not None:
            self._rare_decoder = msgspec.json.Decoder(list[rare.event], strict=False)  # type: ignore[name-defined]
        self._exact_decoder = msgspec.json.Decoder(list[exact], strict=False)  # type: ignore[valid-type]

    def blocks(self) -> Iterator[Sequence[EventT | ExactT]]:
        """Yield the events, in the order of the file.

        Raises:
            ProfileError: the file holds no list of events, or what is none of a trace.
        """
        self._find_list()
        while True:
            whole = None if self._ended else self._whole_events()
            if whole is not None:
                yield whole
            else:
                events, done = self._one_by_one()
                yield events
                if done or self._ended:
                    break
            self._more()
        self._read_tail()

    def facts(self) -> Mapping[str, object]:
        """Return what the document says beside its events, once all blocks were read."""
        for document in (self._head + b"[]" + self._tail, self._head + b"[]}"):
            try:
                found = msgspec.json.decode(document)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            return found if isinstance(found, dict) else {}
        return {}

    def _read_tail(self) -> None:
        """Read what stands behind the list; where that is endless, it is not kept."""
        found, length = [self._tail], len(self._tail)
        for chunk in self._chunks:
            length += len(chunk)
            if length <= _LONGEST:
                found.append(chunk)
        self._tail = b"".join(found) if length <= _LONGEST else b""

    def limitations(self) -> tuple[Limitation, ...]:
        """Return what of the file could not be read, once all blocks were."""
        found = []
        if self._unpacked.damaged:
            reason = f"{self.path}: it cannot be unpacked to its end; copy it again"
            found.append(Limitation("what of the trace is damaged", reason))
        elif self.cut:
            reason = f"{self.path}: the file's end is missing, as when a job was killed"
            found.append(Limitation("what came last in the trace", reason))
        if self.malformed:
            reason = f"{self.path}: they are no JSON, or no events"
            found.append(Limitation("events that cannot be read", reason, self.malformed))
        return tuple(found)

    def _more(self) -> bool:
        """Add a block to what is to be decoded; tell whether there was one."""
        found, length = [self._rest], 0
        while length < BLOCK and not self._ended:
            chunk = next(self._chunks, b"")
            self._ended = not chunk
            length += len(chunk)
            found.append(chunk)
        self._rest = b"".join(found)
        return length > 0

    def _find_list(self) -> None:
        """Read up to the list of events.

        Raises:
            ProfileError: there is none.
        """
        while self._more() or self._rest:
            self._rest = self._rest.removeprefix(BOM)
            found = _LIST.search(self._rest)
            bare = self._rest.lstrip()[:1] == b"["
            if found or bare:
                at = self._rest.index(b"[") if bare or found is None else found.end() - 1
                self._head, self._rest = self._rest[:at], self._rest[at + 1 :]
                return
            if self._ended or len(self._rest) > _LONGEST:
                break
        raise ProfileError(
            f"{self.path}: JSON without a list of traceEvents, so no trace of PyTorch or XLA; "
            "give the file that the profiler wrote"
        )

    def _whole_events(self) -> Sequence[EventT | ExactT] | None:
        """Return the events up to the last boundary; None where that is not so simple."""
        at = self._boundary()
        if at is None:
            return None
        block = b"".join((b"[", self._rest[: at + 1], b"]"))
        try:
            rare = self._rare is not None and self._rare.mark in block
            decoder = self._rare_decoder if rare else self._fast_decoder
            events: Sequence[EventT | ExactT] = decoder.decode(block)
            if _inexact(events):
                events = self._exact_decoder.decode(block)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        self._rest = self._rest[self._rest.index(b",", at) + 1 :]
        return events

    def _boundary(self) -> int | None:
        """Return where the last ``}, {`` begins; None where there is none near the end."""
        at = self._rest.rfind(b"},")
        if at >= 0 and _BOUNDARY.match(self._rest, at):
            return at
        last = None
        for found in _BOUNDARY.finditer(self._rest, max(len(self._rest) - _NEAR, 0)):
            last = found.start()
        return last

    def _one_by_one(self) -> tuple[Sequence[ExactT], bool]:
        """Return events decoded one at a time, and whether the list ended."""
        text = self._rest.decode("utf-8", errors="surrogateescape")
        decoder = json.JSONDecoder(strict=False, parse_float=str, parse_constant=_no_number)
        events: list[ExactT] = []
        at = _space(text, 0)
        while at < len(text) and text[at] != "]":
            try:
                found, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if _is_cut(text, error):
                    self._refuse_endless(len(text) - at)
                    break
                self.malformed += 1
                begins = _BEGINS.search(text, at + 1)
                at = begins.start() if begins else max(at + 1, len(text) - _ENDING)
            else:
                event = _lenient(found, self._exact)
                self.malformed += event is None
                events += [] if event is None else [event]
            at = _space(text, at)
        ended = at < len(text) and text[at] == "]"
        rest = text[at:].encode("utf-8", errors="surrogateescape")
        if ended:
            self._tail, self._rest = rest[1:], b""
        elif self._ended:
            self.cut, self._rest = True, b""
        else:
            self._rest = rest
        return events, ended

    def _refuse_endless(self, length: int) -> None:
        """Raise ProfileError where an event does not end."""
        if length > _LONGEST:
            raise ProfileError(
                f"{self.path}: {_LONGEST >> 20} MiB without an event that is JSON; the file is "
                "damaged, or no trace: record or copy it again"
            )


def _is_cut(text: str, error: Exception) -> bool:
    """Tell whether what cannot be read might be, if the text went on."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text) - _ENDING


def is_json(head: bytes) -> bool:
    """Tell whether a file begins as JSON does."""
    return head.removeprefix(BOM).lstrip()[:1] in (b"{", b"[")


def _space(text: str, at: int) -> int:
    """Return the place behind white space and commas."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _inexact(events: Sequence[Event | ExactEvent]) -> bool:
    """Tell whether doubles may have rounded the times of events."""
    times = [event.ts for event in events if event.ts is not None]
    return max(times, default=0.0) >= _INEXACT_US and any(
        not float(ts).is_integer() for ts in times
    )


def _lenient(found: object, kind: type[StructT]) -> StructT | None:
    """Return an object as a struct, without those of its values that do not fit; None for none."""
    if not isinstance(found, dict):
        return None
    values = {}
    for name, encoded, of_type, inner in _fields(kind):
        value = found.get(encoded)
        try:
            values[name] = (
                _lenient(value, inner) if inner else msgspec.convert(value, of_type, strict=False)
            )
        # Half a surrogate pair is text to JSON, and to nobody else.
        except (msgspec.ValidationError, UnicodeEncodeError):
            continue
    return kind(**values)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[_Told, ...]:
    """Return name, name in JSON, type, and struct if it is one, of each field of a struct.

    To look into the types takes a millisecond, as long as to read hundreds of events.
    """
    return tuple(
        (
            told.name,
            told.encode_name,
            told.type,
            next(filter(_is_struct, get_args(told.type)), None),
        )
        for told in msgspec.structs.fields(kind)
    )


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _no_number(_: str) -> None:
    """Stand for NaN and Infinity, which JSON does not have."""


@contextmanager
def opened_trace(
    path: str,
    event: type[EventT],
    exact: type[ExactT],
    watch: Watch = unwatched,
    rare: Rare[EventT] | None = None,
) -> Iterator[TraceFile[EventT, ExactT]]:
    """Open a file of trace events.

    Args:
        path: JSON, gzipped or not.
        event: what an event is decoded to.
        exact: what it is decoded to where a double would round its times.
        watch: takes what share of the file has been read.
        rare: events that say more than most.

    Raises:
        ProfileError: it cannot be opened.
    """
    with unpacked(path, watch, BLOCK) as chunks:
        yield TraceFile(path, chunks, event, exact, rare)
