"""A file of trace events, read as a stream of blocks.

It is one document whose ``traceEvents`` are millions of small objects, or that list alone, often
gzipped. It is read some MiB at a time, so that memory does not grow with it::

    {"schemaVersion": 1, ... "traceEvents": [   the head
      {...}, {...}, {...},                      a block, decoded at once
      {...}, {...}, {...}, {...                 the next one; an event that is cut waits for more
    ], "baseTimeNanoseconds": 17...}            the tail; head and tail hold the metadata

A block ends at any ``}, {`` in front of which everything is a list of whole events; since JSON is
read from left to right, that is then the end of an event. So does the last block, or the only one,
at its last event but one. The file of a killed job may lack its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeVar, get_args

import msgspec

from bubbleviz.errors import ProfileError
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import BOM, UnpackedFile, unpacked
from bubbleviz.sources.trace_events.events import EventT, ExactT, may_be_rounded

# Events decoded one by one: of the last block of a trace, and of blocks that are not valid JSON.
#
# Real files hold an empty last event, numbers as text, NaN, bytes that are not UTF-8, line breaks
# in
# names, and events that are not JSON. Values that do not fit their field are left out, and objects
# that cannot be read are counted.


#: JSON that cannot be read so near the end of a text may be cut: a number, a word, an escape.
_ENDING = 16
_SPACE = re.compile(r"[\s,]*")
#: Real files hold no object that is nested as deeply as Python's stack is; garbage holds many, each
#: of which takes as long as a thousand others.
_MOST_TOO_DEEP = 100
#: Where an object cannot be read, those inside it are tried; a text is read so many times at most.
_MOST_PASSES = 8
#: So many characters are read at a time, or twice as many while an object does not end there.
_PIECE = 1 << 16
#: Where an event begins, in files whose events are not all JSON.
_BEGINS = re.compile(r'(?<=[},\]\s])\{\s*(?:\}|"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:)')

StructT = TypeVar("StructT", bound=msgspec.Struct)
#: Name, name in JSON, type, and the struct in that type, if any.
_Field = tuple[str, str, Any, type[msgspec.Struct] | None]


@frozen
class EventsOneByOne(Generic[StructT]):
    """Events decoded one by one.

    Attributes:
        events: in the order of the file.
        malformed: how many objects are not events.
        rest: the bytes from the end of the list on, or from an event that seems cut.
        list_ended: whether the list of events ends there.
        given_up: whether it is garbage rather than a damaged list, so that ``rest`` was not read.
    """

    events: Sequence[StructT]
    malformed: int
    rest: bytes
    list_ended: bool
    given_up: bool = False


def decode_one_by_one(content: bytes, kind: type[StructT]) -> EventsOneByOne[StructT]:
    """Return the events of a piece of a list, which begins at an event.

    Args:
        content: the piece.
        kind: struct that an event is decoded to.
    """
    text = content.decode("utf-8", errors="surrogateescape")
    walk = _Walk(kind, _MOST_PASSES * len(text))
    at, length = 0, _PIECE
    while True:
        piece = text[at : at + length]
        walked = walk.over(piece)
        ended = piece[walked : walked + 1] == "]"
        at += walked
        if ended or walk.given_up or at + len(piece) - walked >= len(text):
            break
        length = _PIECE if walked else 2 * length
    return EventsOneByOne(
        events=walk.events,
        malformed=walk.malformed,
        rest=text[at:].encode("utf-8", errors="surrogateescape"),
        list_ended=ended,
        given_up=walk.given_up,
    )


class _Walk(Generic[StructT]):
    """The objects of a text, read piece by piece: an error takes as long as its piece.

    Attributes:
        events: that were read.
        malformed: how many objects are not events.
        given_up: whether the text is garbage.
    """

    def __init__(self, kind: type[StructT], patience: int) -> None:
        """Take the struct of events, and how many characters may be read in vain."""
        self.events: list[StructT] = []
        self.malformed = 0
        self.given_up = False
        self._kind, self._patience, self._too_deep = kind, patience, 0
        self._decoder = json.JSONDecoder(strict=False, parse_float=str, parse_constant=_no_number)

    def over(self, text: str) -> int:
        """Read the events of a piece; return where the list ends, or an object that seems cut."""
        at = _behind_space(text, 0)
        while at < len(text) and text[at] != "]" and not self.given_up:
            try:
                value, at = self._decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if _may_be_cut(text, error):
                    break
                self._blame(error, at)
                begins = _BEGINS.search(text, at + 1)
                at = begins.start() if begins else max(at + 1, len(text) - _ENDING)
                if len(text) > _PIECE:
                    break
            else:
                event = _as_struct(value, self._kind)
                if event is None:
                    self.malformed += 1
                else:
                    self.events.append(event)
            at = _behind_space(text, at)
        return at

    def _blame(self, error: Exception, at: int) -> None:
        """Count an object that cannot be read."""
        self.malformed += 1
        self._too_deep += isinstance(error, RecursionError)
        self._patience -= error.pos - at if isinstance(error, json.JSONDecodeError) else 0
        self.given_up = self._too_deep > _MOST_TOO_DEEP or self._patience < 0


def _behind_space(text: str, at: int) -> int:
    """Return the place behind white space and commas."""
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _may_be_cut(text: str, error: Exception) -> bool:
    """Tell whether unreadable JSON could be read if the text went on."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text) - _ENDING


def _as_struct(value: object, kind: type[StructT]) -> StructT | None:
    """Return an object as a struct, without the values that do not fit; None if it is no object."""
    if not isinstance(value, dict):
        return None
    values = {}
    for name, encoded_name, field_type, inner in _fields(kind):
        field = value.get(encoded_name)
        if field is None:
            continue
        try:
            values[name] = (
                _as_struct(field, inner)
                if inner
                else msgspec.convert(field, field_type, strict=False)
            )
        # Half a surrogate pair is text to JSON, and to nobody else.
        except (msgspec.ValidationError, UnicodeEncodeError):
            continue
    return kind(**values)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[_Field, ...]:
    """Return the fields of a struct.

    Looking into the types takes a millisecond, as long as reading hundreds of events.
    """
    return tuple(
        (
            field.name,
            field.encode_name,
            field.type,
            next(filter(_is_struct, get_args(field.type)), None),
        )
        for field in msgspec.structs.fields(kind)
    )


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _no_number(_: str) -> None:
    """Stand for NaN and Infinity, which JSON does not have."""


#: So much is decoded at a time: some 20,000 events.
BLOCK = 1 << 23
#: Anything longer is not an event, nor the head of a document.
_LONGEST = 1 << 27
#: So few bytes of a block are not worth another try at decoding them at once.
_SMALL = 1 << 16
#: A boundary is looked for so near the end of the bytes read.
_NEAR = 1 << 20

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")


@frozen
class RareEvent(Generic[EventT]):
    """An event with more fields than most.

    Attributes:
        mark: bytes that any block with such an event holds.
        event: struct that the events of such a block are decoded to.
    """

    mark: bytes
    event: type[EventT]


@frozen
class CategorisedEvent(Generic[EventT, ExactT]):
    """An event with more fields than any other, known by its category.

    A block that holds one is decoded twice: less work than to look for bytes in all blocks.

    Attributes:
        categories: of such events.
        event: struct that the events of such a block are decoded to.
        exact: struct that they are decoded to where a double would round their times.
    """

    categories: frozenset[str]
    event: type[EventT]
    exact: type[ExactT]


class TraceFile(Generic[EventT, ExactT]):
    """The events of an open file.

    Attributes:
        path: the file.
        malformed: how many events could not be read, known after the last block.
        cut: whether the file's end is missing, known after the last block.
    """

    def __init__(
        self,
        path: str,
        chunks: UnpackedFile,
        event: type[EventT],
        exact: type[ExactT],
        rare: RareEvent[EventT] | None,
        categorised: CategorisedEvent[EventT, ExactT] | None,
    ) -> None:
        self.path, self.malformed, self.cut = path, 0, False
        self._unpacked, self._chunks = chunks, iter(chunks)
        self._rest, self._ended = b"", False
        self._head, self._tail = b"", b""
        self._too_deep = False
        self._bare = self._holds_objects = self._holds_events = False
        self._exact = categorised.exact if categorised else exact
        # The struct is only known at run time, which type checkers cannot follow.
        self._fast_decoder = msgspec.json.Decoder(list[event], strict=False)  # type: ignore[valid-type]
        self._rare = rare
        self._rare_decoder = self._fast_decoder
        if rare is not None:
            self._rare_decoder = msgspec.json.Decoder(list[rare.event], strict=False)  # type: ignore[name-defined]
        self._exact_decoder = msgspec.json.Decoder(list[exact], strict=False)  # type: ignore[valid-type]
        self._categories = categorised.categories if categorised else frozenset()
        if categorised is not None:
            self._full_decoder = msgspec.json.Decoder(list[categorised.event], strict=False)  # type: ignore[name-defined]
            self._full_exact_decoder = msgspec.json.Decoder(list[categorised.exact], strict=False)  # type: ignore[name-defined]

    def blocks(self) -> Iterator[Sequence[EventT | ExactT]]:
        """Yield the events, in the order of the file.

        Raises:
            ProfileError: the file holds no list of trace events.
        """
        self._find_list()
        while True:
            events = self._decode_block()
            if events is not None:
                self._look_for_events(events)
                yield events
            else:
                exact_events, list_ended = self._decode_damaged()
                self._look_for_events(exact_events)
                yield exact_events
                if list_ended or self._ended:
                    break
            # Where no block could be decoded, an event may be longer than what was read.
            if events is None or len(self._rest) < BLOCK:
                self._read_more()
        self._refuse_other_lists()
        self._read_tail()

    def metadata(self) -> Mapping[str, object]:
        """Return the values of the document beside its events, known after the last block."""
        for content in (self._head + b"[]" + self._tail, self._head + b"[]}"):
            try:
                document = msgspec.json.decode(content)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            except RecursionError:
                self._too_deep = True
                break
            return document if isinstance(document, dict) else {}
        return {}

    def limitations(self) -> tuple[Limitation, ...]:
        """Return the parts of the file that could not be read, known after the last block."""
        limitations = []
        if self._too_deep:
            reason = f"{self.path}: they are nested too deeply, so the file was edited"
            limitations.append(Limitation("the values beside the events", reason))
        if self._unpacked.damaged:
            reason = f"{self.path}: gzip data is damaged; copy the file again"
            limitations.append(Limitation("the trace from its damaged part on", reason))
        elif self.cut:
            reason = f"{self.path}: the file's end is missing, as when a job was killed"
            limitations.append(Limitation("the end of the trace", reason))
        if self.malformed:
            reason = f"{self.path}: they are not JSON, or not events"
            limitations.append(Limitation("events that cannot be read", reason, self.malformed))
        return tuple(limitations)

    def _read_more(self) -> bool:
        """Read a block; tell whether there was one."""
        chunks, length = [self._rest], 0
        while length < BLOCK and not self._ended:
            chunk = next(self._chunks, b"")
            self._ended = not chunk
            length += len(chunk)
            chunks.append(chunk)
        self._rest = b"".join(chunks)
        return length > 0

    def _read_tail(self) -> None:
        """Read the bytes behind the list; where these do not end, they are dropped."""
        chunks, length = [self._tail], len(self._tail)
        for chunk in self._chunks:
            length += len(chunk)
            if length <= _LONGEST:
                chunks.append(chunk)
        self._tail = b"".join(chunks) if length <= _LONGEST else b""

    def _find_list(self) -> None:
        """Read up to the list of events.

        Raises:
            ProfileError: there is none.
        """
        while self._read_more() or self._rest:
            self._rest = self._rest.removeprefix(BOM)
            match = _LIST.search(self._rest)
            bare = self._rest.lstrip()[:1] == b"["
            if match or bare:
                at = self._rest.index(b"[") if bare or match is None else match.end() - 1
                self._head, self._rest = self._rest[:at], self._rest[at + 1 :]
                self._bare = bare
                return
            if self._ended or len(self._rest) > _LONGEST:
                break
        if self._ended and (self._unpacked.cut or _is_cut(self._rest)):
            raise ProfileError(
                f"{self.path}: cut short: JSON without traceEvents, and without an end; copy the "
                "file again, or let the profiler write it to its end"
            )
        raise self._no_trace("traceEvents")

    def _look_for_events(self, objects: Sequence[EventT | ExactT]) -> None:
        """Take note whether the list holds an event: an object with a phase, ``ph``."""
        self._holds_events = self._holds_events or any(event.ph for event in objects)
        self._holds_objects = self._holds_objects or bool(objects)

    def _refuse_other_lists(self) -> None:
        """Refuse a list that holds values, none of which is an event.

        Raises:
            ProfileError: it does; an empty list is a trace of nothing.
        """
        others = self.malformed or (self._bare and (self._holds_objects or self.cut))
        if others and not (self._holds_events or self._unpacked.damaged):
            raise self._no_trace("trace events")

    def _no_trace(self, what: str) -> ProfileError:
        return ProfileError(
            f"{self.path}: JSON without {what}, so not a trace of PyTorch or XLA; give the "
            "file that the profiler wrote"
        )

    def _decode_block(self) -> Sequence[EventT | ExactT] | None:
        """Return the events up to a boundary; None where they cannot be decoded at once.

        Mostly it is the last one. Where the list ends before it, or holds damage, those up to half
        as far are tried, again and again: most of a block is decoded at once all the same.
        """
        end = len(self._rest)
        while (at := self._boundary(end)) is not None:
            events = self._decoded(b"".join((b"[", self._rest[: at + 1], b"]")))
            if events is not None:
                self._rest = self._rest[self._rest.index(b",", at) + 1 :]
                return events
            end = at // 2
            if end < _SMALL:
                break
        return None

    def _decoded(self, block: bytes) -> Sequence[EventT | ExactT] | None:
        """Return the events of a list; None where it is none, or they do not fit their struct."""
        try:
            rare = self._rare is not None and self._rare.mark in block
            decoder = self._rare_decoder if rare else self._fast_decoder
            events: Sequence[EventT | ExactT] = decoder.decode(block)
            full = bool(self._categories) and self._holds_categorised(events)
            if may_be_rounded(events):
                return (self._full_exact_decoder if full else self._exact_decoder).decode(block)
            if full:
                return self._full_decoder.decode(block)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return events

    def _holds_categorised(self, events: Sequence[EventT | ExactT]) -> bool:
        return not self._categories.isdisjoint({event.cat for event in events})

    def _boundary(self, end: int) -> int | None:
        """Return where the last ``}, {`` before ``end`` begins; None where there is none near."""
        at = self._rest.rfind(b"},", 0, end)
        if at >= 0 and _BOUNDARY.match(self._rest, at, end):
            return at
        last = None
        for match in _BOUNDARY.finditer(self._rest, max(end - _NEAR, 0), end):
            last = match.start()
        return last

    def _decode_damaged(self) -> tuple[Sequence[ExactT], bool]:
        """Return events decoded one by one, and whether the list ended.

        Raises:
            ProfileError: an event does not end, or the list is garbage.
        """
        block = decode_one_by_one(self._rest, self._exact)
        if block.given_up:
            raise ProfileError(
                f"{self.path}: JSON nested too deeply, or broken throughout, so damaged or not a "
                "trace; record or copy it again"
            )
        self.malformed += block.malformed
        self._rest = block.rest
        if block.list_ended:
            self._tail, self._rest = self._rest[1:], b""
        elif len(self._rest) > _LONGEST:
            raise ProfileError(
                f"{self.path}: {_LONGEST >> 20} MiB without a complete event, so damaged or not a "
                "trace; record or copy it again"
            )
        elif self._ended:
            self.cut, self._rest = True, b""
        return block.events, block.list_ended


def _is_cut(text: bytes) -> bool:
    """Tell whether a text is JSON that does not end."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return "truncated" in str(error)
    return False


@contextmanager
def opened_trace(
    path: str,
    event: type[EventT],
    exact: type[ExactT],
    watch: Watch = unwatched,
    rare: RareEvent[EventT] | None = None,
    categorised: CategorisedEvent[EventT, ExactT] | None = None,
) -> Iterator[TraceFile[EventT, ExactT]]:
    """Open a file of trace events.

    Args:
        path: JSON, gzipped or not.
        event: struct that an event is decoded to.
        exact: struct that it is decoded to where a double would round its times.
        watch: takes the share of the file that has been read.
        rare: events with more fields than most.
        categorised: events with more fields than these.

    Raises:
        ProfileError: it cannot be opened.
    """
    with unpacked(path, watch, BLOCK) as chunks:
        yield TraceFile(path, chunks, event, exact, rare, categorised)
