"""Trace events: the JSON that PyTorch's profiler, JAX and TensorBoard write, read as blocks.

It is Chrome's Trace Event Format (Google, 2016): one document whose ``traceEvents`` are millions of
small objects, or that list alone, often gzipped. It is read some MiB at a time, so that memory does
not grow with it::

    {"schemaVersion": 1, ... "traceEvents": [   the head
      {...}, {...}, {...},                      a block, decoded at once
      {...}, {...}, {...}, {...                 the next one; an event that is cut waits for more
    ], "baseTimeNanoseconds": 17...}            the tail; head and tail hold the metadata

A block ends at any ``}, {`` in front of which everything is a list of whole events; since JSON is
read from left to right, that is then the end of an event. So does the last block, or the only one,
at its last event but one. The file of a killed job may lack its end. The events of the last block,
and of blocks that are not valid JSON, are decoded one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar, cast, get_args, get_origin

import msgspec
import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.limitations import DAMAGED_SHARE, Limitation, LimitationKind
from bubbleviz.model.numbering import Numbering
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import BOM, UnpackedFile
from bubbleviz.sources.in_memory import number_threads

#: A struct of the arguments that a kind of trace needs.
ArgsT = TypeVar("ArgsT")


#: The JSON text of a missing time.
_NULL = msgspec.Raw(b"null")


class TraceEvent(msgspec.Struct, Generic[ArgsT], gc=False):
    """The fields of every event; times are JSON texts, in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = _NULL
    dur: msgspec.Raw = _NULL
    args: ArgsT | None = None


class ExactEvent(TraceEvent[ArgsT], gc=False):
    """An event that was decoded on its own; times are decimals, in microseconds."""

    ts: Decimal | None = None  # type: ignore[assignment]  # read apart from times of other events
    dur: Decimal | None = None  # type: ignore[assignment]  # likewise


#: A thread as an event names it: process and thread.
ThreadName: TypeAlias = tuple[int | str | None, int | str | None]

#: From here on, in microseconds, a double does not hold every nanosecond.
_INEXACT_US = float(1 << 43)
#: Processes and threads that a trace names by text, or by longer numbers, get numbers from here.
_NAMED_PID, _NAMED_TID = 0xF00000, 1 << 48
_PIDS = 1 << 24
#: Anything longer than this, in microseconds, is not a time.
_LONGEST_US = 1 << 53
#: Stands for a number or a time that an event lacks.
MISSING = -(1 << 63)
#: Value for a time that is missing or malformed. It is outside the range of valid times, so
#: :func:`bubbleviz.model.profile.mask_possible` rejects it.
_NO_TIME_NS = -(1 << 61)


@cache
def _decoder(element: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a list."""
    return msgspec.json.Decoder(list[element], strict=False)


#: Gives the rows of those events whose arguments are needed whole.
Described: TypeAlias = "Callable[[TraceEvents[ArgsT]], Ints]"


@dataclass(frozen=True)
class TraceEvents(Generic[ArgsT]):
    """Events of a block as columns, shape (events,).

    Attributes:
        ph: number of the text that tells what an event is; 0 none.
        category: its number; -1 none.
        name: number of the text; 0 none.
        thread: number of the thread.
        start_ns: MISSING where the event has none, as of the duration.
        duration_ns: how long it lasts.
        arguments: by the name of a field of the arguments' struct that is a number or a text:
            MISSING, or -1 for a text, where the event has none.
        args: by row: the arguments of the events that were asked for, where they have any.
    """

    ph: Ints
    category: Ints
    name: Ints
    thread: Ints
    start_ns: Ints
    duration_ns: Ints
    arguments: Mapping[str, Ints]
    args: Mapping[int, ArgsT]


def global_threads(threads: Numbering[ThreadName]) -> Ints:
    """Return the threads, by number, as nsys numbers them (``globalTid`` of host 0).

    A process that the trace names by text, or by more than 24 bits, gets a number of its own.
    """
    columns = []
    for place, below, first in ((0, _PIDS, _NAMED_PID), (1, _NAMED_TID, _NAMED_TID)):
        names, numbers = Numbering[str](), []
        for thread in threads.values:
            number = thread[place]
            if not (isinstance(number, int) and 0 <= number < below):
                number = first + names.number(str(number)) % _PIDS
            numbers.append(number)
        columns.append(np.array(numbers, np.int64))
    return number_threads(*columns)


def times_ns(times_us: Sequence[float | Decimal | None]) -> Ints:
    """Return times, given in microseconds, rounded to nanoseconds; None is MISSING."""
    if Decimal in {*map(type, times_us)}:
        exact = (MISSING if us is None else _exact_ns(Decimal(us)) for us in times_us)
        return np.fromiter(exact, np.int64, len(times_us))
    us = np.array(times_us, float)
    known = np.abs(us) < _LONGEST_US
    us[~known] = 0
    whole_us = np.floor(us)
    # Only the fraction is exact when it is multiplied.
    rounded_ns: Ints = whole_us.astype(np.int64) * 1000
    rounded_ns += np.rint((us - whole_us) * 1000).astype(np.int64)
    if not known.all():
        rounded_ns[~known] = _NO_TIME_NS
        rounded_ns[np.array([time is None for time in times_us], bool)] = MISSING
    return rounded_ns


def _exact_ns(us: Decimal) -> int:
    # NaN, which may be written as a text, cannot be compared; abs() would round, and so overflow.
    if not us.is_finite() or not -_LONGEST_US < us < _LONGEST_US:
        return _NO_TIME_NS
    return round(us * 1000)


#: Letters of plain times.
_COMMA, _POINT, _ZERO, _NINE, _N = b",.09n"
#: Nanoseconds of one unit of a number without its decimal point, by number of decimals.
_NS_OF_UNIT = np.array([1000, 100, 10, 1], np.uint64)
#: Maximum number of digits of which all numbers fit an unsigned 64-bit integer.
_MAX_DIGITS = 19


def read_times_ns(times_us: Iterable[msgspec.Raw]) -> Ints:
    """Parse times in microseconds and round them to nanoseconds.

    Args:
        times_us: JSON texts, each a number, a number as a string, or null.

    Returns:
        Times in nanoseconds, MISSING for null.

    Raises:
        msgspec.ValidationError: A text is something else.
    """
    texts = b",".join(times_us)
    plain_ns = _parse_plain_times(texts)
    if plain_ns is not None:
        return plain_ns
    array = b"[%b]" % texts
    doubles: Sequence[float | None] = _decoder(float | None).decode(array)
    if max(map(abs, filter(None, doubles)), default=0) < _INEXACT_US:
        return times_ns(doubles)
    return times_ns(_decoder(Decimal | None).decode(array))


def _parse_plain_times(texts: bytes) -> Ints | None:
    """Parse times that are written as digits with at most three decimals, or as null.

    Nearly all times are written this way. Integer arithmetic is exact for them, and a double is
    not: it holds microseconds since 1970 to a quarter of a microsecond.

    Args:
        texts: JSON texts of times in microseconds, separated by commas.

    Returns:
        Times in nanoseconds, MISSING for null; or None if any text has another form.
    """
    letters = np.frombuffer(texts + b",", np.uint8)
    end = np.flatnonzero(letters == _COMMA)
    point = np.flatnonzero(letters == _POINT)
    begin = np.append(0, end[:-1] + 1)
    is_null = letters[begin] == _N
    n_digits = np.count_nonzero((letters >= _ZERO) & (letters <= _NINE))
    if n_digits + len(end) + len(point) + len(b"null") * is_null.sum() != len(letters):
        return None

    row_of_point = np.searchsorted(end, point)
    n_decimals = np.zeros(len(end), np.int64)
    n_decimals[row_of_point] = end[row_of_point] - point - 1
    if n_decimals.max() >= len(_NS_OF_UNIT) or (end - begin).max() > _MAX_DIGITS:
        return None

    digits = texts.replace(b"null", b"0").replace(b".", b"")
    numbers = np.fromstring(digits, np.uint64, sep=",")
    unit_ns = _NS_OF_UNIT[n_decimals]
    is_time = numbers < np.uint64(_LONGEST_US * 1000) // unit_ns
    parsed_ns: Ints = (numbers * unit_ns).astype(np.int64)
    parsed_ns[~is_time] = _NO_TIME_NS
    parsed_ns[is_null] = MISSING
    return parsed_ns


# Events decoded one by one: of the last block of a trace, and of blocks that are not valid JSON.
#
# Real files hold an empty last event, numbers as text, NaN, bytes that are not UTF-8, line breaks
# in names, and events that are not JSON. Values that do not fit their field are left out, and
# objects that cannot be read are counted.

#: JSON that cannot be read so near the end of a text may be cut: a number, a word, an escape.
_ENDING = 16
#: Number of characters at the end of a text that are searched again with the text that follows,
#: because the start of an event may be cut there.
_BEFORE_EVENT = 64
_SPACE = re.compile(r"[\s,]*")
#: Real files hold no object that is nested as deeply as Python's stack is; garbage holds many, each
#: of which takes as long as a thousand others.
_MOST_TOO_DEEP = 100
#: Maximum number of times that a text with unreadable objects is read.
_MOST_PASSES = 8
#: So many characters are read at a time, or twice as many while an object does not end there.
_PIECE = 1 << 16
#: Matches the start of an event; used to resynchronize after a malformed event. Objects inside an
#: event are not matched, because they follow a colon, or a name if the colon is missing.
_BEGINS = re.compile(
    r'(?:[},\]]|[^:"\s](?=\s))\s*(?P<event>\{\s*(?:\}|"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:))'
)


def one_by_one(content: bytes, args: Any) -> tuple[list[Any], int, bytes, bool]:
    """Return the events of a piece of a list, which begins at an event.

    The list is read in pieces, so that an error costs only the time of its piece. After an event
    that cannot be read, the text up to the next event is skipped, because objects inside the broken
    event are not events.

    Args:
        content: the piece.
        args: struct of the arguments of an event.

    Returns:
        The events; the number of events that cannot be read; the bytes from the end of the list on,
        or from an event that seems cut; and whether the list ends there.

    Raises:
        ValueError: it is garbage rather than a damaged list.
    """
    text, exact = content.decode("utf-8", errors="surrogateescape"), cast("Any", ExactEvent)
    # NaN and Infinity are no JSON.
    decoder = json.JSONDecoder(strict=False, parse_float=str, parse_constant=lambda _: None)
    events: list[Any] = []
    begin, length, malformed, too_deep = 0, _PIECE, 0, 0
    is_inside_broken = False
    #: How many characters may be read in vain.
    patience = _MOST_PASSES * len(text)
    while True:
        piece = text[begin : begin + length]
        at, goes_on = _behind_space(piece, 0), False
        if is_inside_broken:
            at, is_inside_broken = _find_event(piece, at)
        while at < len(piece) and piece[at] != "]" and not is_inside_broken:
            try:
                value, at = decoder.raw_decode(piece, at)
            except (ValueError, RecursionError) as error:
                damage = error.pos if isinstance(error, json.JSONDecodeError) else None
                if damage is not None and (
                    damage >= len(piece) - _ENDING or str(error).startswith("Unterminated string")
                ):
                    # It could be read if the text went on.
                    break
                # An extra closing brace is not an event.
                malformed += piece[at] != "}"
                too_deep += isinstance(error, RecursionError)
                patience -= 0 if damage is None else damage - at
                if too_deep > _MOST_TOO_DEEP or patience < 0:
                    raise ValueError("no list of events") from error
                at, is_inside_broken = _find_event(piece, at + 1)
                if len(piece) > _PIECE:
                    # Read the rest in small pieces again.
                    goes_on = True
                    break
            else:
                event = _as_struct(value, exact[args])
                malformed += event is None
                events += () if event is None else (event,)
            at = _behind_space(piece, at)
        ended = piece[at : at + 1] == "]" and not is_inside_broken
        begin += at
        is_last = begin + len(piece) - at >= len(text)
        if ended or (is_last and not goes_on):
            return events, malformed, text[begin:].encode("utf-8", errors="surrogateescape"), ended
        length = _PIECE if at else 2 * length


def _find_event(piece: str, at: int) -> tuple[int, bool]:
    """Find the next event after a broken one.

    Returns:
        at: Offset of the next event, or the offset from which to search in the next piece.
        is_missing: Whether no event begins in this piece.
    """
    begins = _BEGINS.search(piece, at)
    if begins is not None:
        return begins.start("event"), False
    return max(at, len(piece) - _BEFORE_EVENT), True


def _behind_space(text: str, at: int) -> int:
    """Return the place behind white space and commas."""
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _as_struct(value: object, kind: Any) -> Any:
    """Return an object as a struct, without the values that do not fit; None if it is no object."""
    if not isinstance(value, dict):
        return None
    values = {}
    for name, encoded_name, convert in _fields(kind):
        field = value.get(encoded_name)
        if field is None:
            continue
        try:
            values[name] = convert(field)
        # Half a surrogate pair is text to JSON, and to nobody else.
        except (msgspec.ValidationError, UnicodeEncodeError):
            continue
    return (get_origin(kind) or kind)(**values)


@cache
def _fields(kind: Any) -> tuple[tuple[str, str, Callable[[Any], Any]], ...]:
    """Return of each field of a struct its name, that in JSON, and what converts a value to it.

    Looking into the types takes a millisecond, as long as reading hundreds of events.
    """

    def converter(of_field: Any) -> Callable[[Any], Any]:
        for inner in get_args(of_field):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                return lambda value: _as_struct(value, inner)
        return lambda value: msgspec.convert(value, of_field, strict=False)

    fields = msgspec.structs.fields(kind)
    return tuple((field.name, field.encode_name, converter(field.type)) for field in fields)


#: So much is decoded at a time: some 8,000 events.
BLOCK = 1 << 21
#: Anything longer is not an event, nor the head of a document.
_LONGEST = 1 << 27
#: So few bytes of a block are not worth another try at decoding them at once.
_SMALL = 1 << 16
#: A boundary is looked for so near the end of the bytes read.
_NEAR = 1 << 20

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
#: Matches text of a second trace after the end of the first.
_OF_TRACE = re.compile(r'"traceEvents"|"ph"')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")


class TraceFile(Generic[ArgsT]):
    """The events of a file.

    Args:
        path: JSON, gzipped or not.
        args: struct of the arguments of an event.
        watch: takes the share of the file that has been read.

    Attributes:
        path: the file.
        texts: numbers its texts; 0 is "".
        threads: numbers its threads.
        categories: numbers the categories of events.
        cut: whether the file's end is missing, known after the last block.
    """

    def __init__(self, path: str, args: type[ArgsT], watch: Watch = unwatched) -> None:
        self.path, self.cut = path, False
        self.texts, self.threads = Numbering[str]([""]), Numbering[ThreadName]()
        self.categories = Numbering[str]()
        self._args: Any = args
        # The arguments that are numbers, and those that are texts, by field.
        fields = msgspec.structs.fields(cast("Any", args))
        self._numbers, self._texts = (
            {field.name: field.encode_name for field in fields if kind in get_args(field.type)}
            for kind in (int, str)
        )
        self._described: Described[ArgsT] | None = None
        self._unpacked = UnpackedFile(path, watch, BLOCK)
        self._chunks = iter(self._unpacked)
        self._rest, self._ended = b"", False
        self._head = self._tail = b""
        self._n_events = self._malformed = 0
        self._too_deep = self._has_rest = False

    def blocks(self, described: Described[ArgsT] | None = None) -> Iterator[TraceEvents[ArgsT]]:
        """Yield the events, in the order of the file.

        Args:
            described: tells which arguments are needed whole; none by default.

        Raises:
            ProfileError: it cannot be read, or holds no list of trace events.
        """
        self._described, bare = described, self._find_list()
        holds_objects = holds_events = list_ended = False
        while not list_ended:
            events = self._decode_block()
            at_once = events is not None
            if events is None:
                events, list_ended = self._decode_damaged()
                list_ended |= self._ended
            holds_events = holds_events or bool(events.ph.any())
            holds_objects = holds_objects or len(events.ph) > 0
            yield events
            # Where no block could be decoded, an event may be longer than what was read.
            if not list_ended and (not at_once or len(self._rest) < BLOCK):
                self._read_more()
        # A list that holds values, none of which is an event, is another; an empty one is a trace.
        others = self._malformed or (bare and (holds_objects or self.cut))
        if others and not (holds_events or self._unpacked.damaged):
            raise self._no_trace("trace events")
        # Bytes behind the list; where these do not end, they are dropped.
        chunks, length = [self._tail], len(self._tail)
        for chunk in self._chunks:
            length += len(chunk)
            if length <= _LONGEST:
                chunks.append(chunk)
        content = b"".join(chunks)
        self._tail = content if length <= _LONGEST else b""
        self._check_end(content)

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

    def limitations(self) -> Iterator[Limitation]:
        """Yield the parts of the file that could not be read, known after the last block."""
        if self._too_deep:
            reason = f"{self.path}: they are nested too deeply, so the file was edited"
            yield Limitation("the values beside the events", reason)
        if self._unpacked.damaged:
            reason = f"{self.path}: gzip data is damaged; copy the file again"
            what = "the trace from its damaged part on"
            yield Limitation(what, reason, kind=LimitationKind.FILE_DAMAGED)
        elif self.cut:
            reason = f"{self.path}: the file's end is missing, as when a job was killed"
            yield Limitation("the end of the trace", reason, kind=LimitationKind.FILE_DAMAGED)
        if self._has_rest:
            reason = f"{self.path}: it is not part of the trace, and is left out"
            yield Limitation("text after the end of the trace", reason)
        if self._malformed:
            reason = f"{self.path}: they are not JSON, or not events"
            n_events = self._n_events + self._malformed
            is_noticeable = self._malformed >= DAMAGED_SHARE * n_events
            kind = LimitationKind.FILE_DAMAGED if is_noticeable else LimitationKind.OTHER
            yield Limitation("events that cannot be read", reason, self._malformed, kind)

    def _check_end(self, content: bytes) -> None:
        """Check for text after the end of the document.

        Args:
            content: Text after the list of events.

        Raises:
            ProfileError: Another trace follows the document.
        """
        document = self._head + b"[]" + content
        text = document.decode("utf-8", errors="surrogateescape").strip()
        try:
            _, end = json.JSONDecoder(strict=False).raw_decode(text)
        except (ValueError, RecursionError):
            return
        rest = text[end:].strip(" \t\r\n\0")
        if not rest:
            return
        if rest[0] in "{[" and _OF_TRACE.search(rest):
            raise ProfileError(
                f"{self.path}: several traces were joined one after the other; give the original "
                "files"
            )
        self._has_rest = True
        trimmed = text[:end].encode("utf-8", errors="surrogateescape")
        self._tail = trimmed[len(self._head.lstrip()) + len(b"[]") :]

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

    def _find_list(self) -> bool:
        """Read up to the list of events; tell whether the document is that list alone.

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
                return bare
            if self._ended or len(self._rest) > _LONGEST:
                break
        if self._ended and (self._unpacked.cut or _is_cut(self._rest)):
            raise ProfileError(
                f"{self.path}: cut short: JSON without traceEvents, and without an end; copy the "
                "file again, or let the profiler write it to its end"
            )
        raise self._no_trace("traceEvents")

    def _no_trace(self, what: str) -> ProfileError:
        return ProfileError(
            f"{self.path}: JSON without {what}, so not a trace of PyTorch or XLA; give the "
            "file that the profiler wrote"
        )

    def _decode_block(self) -> TraceEvents[ArgsT] | None:
        """Return the events up to a boundary; None where they cannot be decoded at once.

        Mostly it is the last one. Where the list ends before it, or holds damage, those up to half
        as far are tried, again and again: most of a block is decoded at once all the same.
        """
        end = len(self._rest)
        while (at := self._boundary(end)) is not None:
            events = self._decoded(at + 1)
            if events is not None:
                self._rest = self._rest[self._rest.index(b",", at) + 1 :]
                return events
            end = at // 2
            if end < _SMALL:
                break
        return None

    def _decoded(self, length: int) -> TraceEvents[ArgsT] | None:
        """Return the events of a block; None where they do not fit their struct."""
        block = b"".join((b"[", memoryview(self._rest)[:length], b"]"))
        kind: Any = TraceEvent
        try:
            events: Sequence[TraceEvent[ArgsT]] = _decoder(kind[self._args]).decode(block)
            start_ns = read_times_ns(map(attrgetter("ts"), events))
            duration_ns = read_times_ns(map(attrgetter("dur"), events))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return self._as_columns(events, start_ns, duration_ns)

    def _as_columns(
        self, events: Sequence[TraceEvent[ArgsT]], start_ns: Ints, duration_ns: Ints
    ) -> TraceEvents[ArgsT]:
        """Return decoded events as columns.

        Args:
            events: Events of a block.
            start_ns: Start of each event, MISSING if it has none.
            duration_ns: Duration of each event, MISSING if it has none.
        """
        self._n_events += len(events)
        no_args = self._args()
        all_args = [event.args or no_args for event in events]
        arguments = {
            **{field: _integers(_list(field, all_args)) for field in self._numbers},
            **{field: _numbered(self.texts, _list(field, all_args)) for field in self._texts},
        }
        # Few combinations occur, so each is looked up once.
        combinations = Numbering[tuple[Any, ...]]()
        combination = combinations.numbers(map(attrgetter("ph", "cat", "pid", "tid"), events))
        ph = self.texts.numbers(values[0] for values in combinations.values)
        category = _numbered(self.categories, [values[1] for values in combinations.values])
        thread = self.threads.numbers((pid, tid) for _, _, pid, tid in combinations.values)
        args: dict[int, ArgsT] = {}
        columns = TraceEvents(
            ph[combination],
            category[combination],
            self.texts.numbers(map(attrgetter("name"), events)),
            thread[combination],
            start_ns,
            duration_ns,
            arguments,
            args,
        )
        for row in self._described(columns).tolist() if self._described else ():
            if (of_event := events[row].args) is not None:
                args[row] = of_event
        return columns

    def _boundary(self, end: int) -> int | None:
        """Return where the last ``}, {`` before ``end`` begins; None where there is none near."""
        at, least = end, max(end - _NEAR, 0)
        while (at := self._rest.rfind(b"}", least, at)) >= 0:
            if _BOUNDARY.match(self._rest, at, end):
                return at
        return None

    def _decode_damaged(self) -> tuple[TraceEvents[ArgsT], bool]:
        """Return events decoded one by one, and whether the list ended.

        Raises:
            ProfileError: an event does not end, or the list is garbage.
        """
        try:
            events, malformed, self._rest, ended = one_by_one(self._rest, self._args)
        except ValueError as error:
            raise ProfileError(
                f"{self.path}: JSON nested too deeply, or broken throughout, so damaged or not a "
                "trace; record or copy it again"
            ) from error
        self._malformed += malformed
        if ended:
            self._tail, self._rest = self._rest[1:], b""
        elif len(self._rest) > _LONGEST:
            raise ProfileError(
                f"{self.path}: {_LONGEST >> 20} MiB without a complete event, so damaged or not a "
                "trace; record or copy it again"
            )
        elif self._ended:
            self.cut, self._rest = True, b""
        start_ns = times_ns([event.ts for event in events])
        duration_ns = times_ns([event.dur for event in events])
        return self._as_columns(events, start_ns, duration_ns), ended


def _list(field: str, structs: Iterable[object]) -> list[Any]:
    """Return the value of a field in each struct."""
    return [*map(attrgetter(field), structs)]


def _integers(numbers: Sequence[int | None]) -> Ints:
    """Return numbers as a column, in which those of more than 64 bits are MISSING."""
    known = [MISSING if n is None or abs(n) >> 63 else n for n in numbers]
    return np.array(known, np.int64)


def _numbered(numbering: Numbering[str], texts: Sequence[str | None]) -> Ints:
    """Return the numbers of texts, -1 for none."""
    known = [text for text in texts if text is not None]
    if len(known) == len(texts):
        return numbering.numbers(known)
    column = np.full(len(texts), NONE)
    if known:
        column[[text is not None for text in texts]] = numbering.numbers(known)
    return column


def _is_cut(text: bytes) -> bool:
    """Tell whether a text is JSON that does not end."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return "truncated" in str(error)
    return False
