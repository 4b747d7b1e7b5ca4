"""Trace events: reads the JSON of PyTorch's profiler, JAX and TensorBoard in blocks.

The format is Chrome's Trace Event Format (Google, 2016): one document whose ``traceEvents`` are
millions of small objects, or only that list, often gzipped. It is read in blocks of some MiB, so
that memory does not grow with the file::

    {"schemaVersion": 1, ... "traceEvents": [   the header
      {...}, {...}, {...},                      a block, decoded at once
      {...}, {...}, {...}, {...                 the next block; an incomplete event waits for more
    ], "baseTimeNanoseconds": 17...}            the tail; header and tail contain the metadata

A block ends at a ``}, {`` if the text before it is a valid list of events; because JSON is parsed
from left to right, the brace then ends an event. In the last block, this is the end of the last
event but one. The file of a killed job may have no end. The events after the last block, and those
of blocks that are not valid JSON, are decoded one by one.
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

#: Type of the struct that decodes the arguments of events in one trace format.
ArgsT = TypeVar("ArgsT")


#: The JSON text of a missing time.
_NULL = msgspec.Raw(b"null")


class TraceEvent(msgspec.Struct, Generic[ArgsT], gc=False):
    """The fields of an event. Times are JSON texts, in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = _NULL
    dur: msgspec.Raw = _NULL
    args: ArgsT | None = None


class ExactEvent(TraceEvent[ArgsT], gc=False):
    """An event that was decoded one by one. Times are decimals, in microseconds."""

    ts: Decimal | None = None  # type: ignore[assignment]  # read apart from times of other events
    dur: Decimal | None = None  # type: ignore[assignment]  # likewise


#: A thread as events identify it: process and thread.
ThreadName: TypeAlias = tuple[int | str | None, int | str | None]

#: Microseconds from which a double cannot represent every nanosecond.
_INEXACT_US = float(1 << 43)
#: First numbers that replace process and thread ids that are texts or too large.
_FIRST_SUBSTITUTE_PID, _FIRST_SUBSTITUTE_TID = 0xF00000, 1 << 48
_N_PIDS = 1 << 24
#: Microseconds from which a value is not a valid time.
_MAX_TIME_US = 1 << 53
#: Value of a missing number or time.
MISSING = -(1 << 63)
#: Value for a time that is missing or malformed. It is outside the range of valid times, so
#: :func:`bubbleviz.model.profile.mask_possible` rejects it.
_NO_TIME_NS = -(1 << 61)


@cache
def _make_decoder(element: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a list of elements of a type."""
    return msgspec.json.Decoder(list[element], strict=False)


#: Returns the rows of the events in a block whose arguments are needed as structs.
Described: TypeAlias = "Callable[[TraceEvents[ArgsT]], Ints]"


@dataclass(frozen=True)
class TraceEvents(Generic[ArgsT]):
    """Events of a block as columns, shape (events,).

    Attributes:
        ph: Index of the event type in the file's texts, or 0 for none.
        category: Index of the category in the file's categories, or -1 for none.
        name: Index of the name in the file's texts, or 0 for none.
        thread: Index of the thread in the file's threads.
        start_ns: Start time, or MISSING.
        duration_ns: Duration, or MISSING.
        arguments: Columns of the arguments that are numbers or texts, keyed by the field of the
            struct of arguments. A missing number is MISSING, a missing text is -1.
        args: Arguments of the described events, keyed by row. Events without arguments are left
            out.
    """

    ph: Ints
    category: Ints
    name: Ints
    thread: Ints
    start_ns: Ints
    duration_ns: Ints
    arguments: Mapping[str, Ints]
    args: Mapping[int, ArgsT]


def to_global_threads(threads: Numbering[ThreadName]) -> Ints:
    """Convert the threads of a trace to thread numbers as in nsys (``globalTid`` of host 0).

    Process and thread ids that are texts, negative or too large are replaced by consecutive
    numbers, from 0xF00000 for processes and from 2^48 for threads. Equal ids get the same number.

    Args:
        threads: Numbering of the threads.

    Returns:
        The thread number of each thread, by its index.
    """
    columns = []
    for field, n_valid, first in (
        (0, _N_PIDS, _FIRST_SUBSTITUTE_PID),
        (1, _FIRST_SUBSTITUTE_TID, _FIRST_SUBSTITUTE_TID),
    ):
        names, numbers = Numbering[str](), []
        for thread in threads.values:
            number = thread[field]
            if not (isinstance(number, int) and 0 <= number < n_valid):
                number = first + names.number(str(number)) % _N_PIDS
            numbers.append(number)
        columns.append(np.array(numbers, np.int64))
    return number_threads(*columns)


def convert_times_ns(times_us: Sequence[float | Decimal | None]) -> Ints:
    """Convert microseconds to nanoseconds, rounded; None becomes MISSING.

    Values that are not finite or too large become ``_NO_TIME_NS``, which is not a valid time. If
    any value is a Decimal, all are rounded exactly.
    """
    if Decimal in {*map(type, times_us)}:
        exact = (MISSING if us is None else _round_exactly_ns(Decimal(us)) for us in times_us)
        return np.fromiter(exact, np.int64, len(times_us))
    us = np.array(times_us, float)
    is_time = np.abs(us) < _MAX_TIME_US
    us[~is_time] = 0
    whole_us = np.floor(us)
    # Multiplying the whole time would round it; multiplying the fraction does not.
    rounded_ns: Ints = whole_us.astype(np.int64) * 1000
    rounded_ns += np.rint((us - whole_us) * 1000).astype(np.int64)
    if not is_time.all():
        rounded_ns[~is_time] = _NO_TIME_NS
        rounded_ns[np.array([time is None for time in times_us], bool)] = MISSING
    return rounded_ns


def _round_exactly_ns(us: Decimal) -> int:
    # NaN, which may be written as a text, cannot be compared; abs() would round, and so overflow.
    if not us.is_finite() or not -_MAX_TIME_US < us < _MAX_TIME_US:
        return _NO_TIME_NS
    return round(us * 1000)


#: Characters of plain times.
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
    doubles: Sequence[float | None] = _make_decoder(float | None).decode(array)
    if max(map(abs, filter(None, doubles)), default=0) < _INEXACT_US:
        return convert_times_ns(doubles)
    return convert_times_ns(_make_decoder(Decimal | None).decode(array))


def _parse_plain_times(texts: bytes) -> Ints | None:
    """Parse times that are written as digits with at most three decimals, or as null.

    Nearly all times are written this way. Integer arithmetic is exact for them. A double is not: it
    represents microseconds since 1970 with a resolution of a quarter of a microsecond.

    Args:
        texts: JSON texts of times in microseconds, separated by commas.

    Returns:
        Times in nanoseconds, MISSING for null; or None if any text has another form or more than
        ``_MAX_DIGITS`` characters. A time that is too large becomes ``_NO_TIME_NS``.
    """
    letters = np.frombuffer(texts + b",", np.uint8)
    end = np.flatnonzero(letters == _COMMA)
    point = np.flatnonzero(letters == _POINT)
    start = np.append(0, end[:-1] + 1)
    is_null = letters[start] == _N
    n_digits = np.count_nonzero((letters >= _ZERO) & (letters <= _NINE))
    if n_digits + len(end) + len(point) + len(b"null") * is_null.sum() != len(letters):
        return None

    n_decimals = _count_decimals(end, point)
    if n_decimals.max() >= len(_NS_OF_UNIT) or (end - start).max() > _MAX_DIGITS:
        return None

    digits = texts.replace(b"null", b"0").replace(b".", b"")
    numbers = np.fromstring(digits, np.uint64, sep=",")
    unit_ns = _NS_OF_UNIT[n_decimals]
    is_time = numbers < np.uint64(_MAX_TIME_US * 1000) // unit_ns
    parsed_ns: Ints = (numbers * unit_ns).astype(np.int64)
    parsed_ns[~is_time] = _NO_TIME_NS
    parsed_ns[is_null] = MISSING
    return parsed_ns


def _count_decimals(end: Ints, point: Ints) -> Ints:
    """Return the number of decimals of each number in a text, 0 without a decimal point.

    Args:
        end: Index of the comma after each number.
        point: Indices of all decimal points.
    """
    row = np.searchsorted(end, point)
    n_decimals = np.zeros(len(end), np.int64)
    n_decimals[row] = end[row] - point - 1
    return n_decimals


#: Maximum distance from the end of a text of an error that may be due to a token that was cut: a
#: number, a word, or an escape.
_MAX_CUT_TOKEN = 16
#: Number of characters at the end of a text that are searched again with the text that follows,
#: because the start of an event may be cut there.
_BEFORE_EVENT = 64
_SPACE = re.compile(r"[\s,]*")
#: Maximum number of objects that are nested too deeply for Python's stack. Real files contain none.
#: Garbage contains many, and each takes as long as a thousand others.
_MAX_TOO_DEEP = 100
#: Maximum number of times that a text with unreadable objects is read.
_MAX_PASSES = 8
#: Number of characters decoded at once, doubled while an object does not end within them.
_PIECE_CHARACTERS = 1 << 16
#: Matches the start of an event; used to resynchronize after a malformed event. Objects inside an
#: event are not matched, because they follow a colon, or a name if the colon is missing.
_EVENT_START = re.compile(
    r'(?:[},\]]|[^:"\s](?=\s))\s*(?P<event>\{\s*(?:\}|"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:))'
)


def decode_one_by_one(content: bytes, args: Any) -> tuple[list[Any], int, bytes, bool]:
    """Decode the events of a piece of a list one by one, and skip events that cannot be read.

    Real files contain an empty last event, numbers as text, NaN, bytes that are not UTF-8, line
    breaks in names, and events that are not JSON. Values that do not fit their field are left out.
    After an event that cannot be read, the text up to the next event is skipped, because objects
    inside the broken event are not events.

    Args:
        content: The piece, which begins at an event.
        args: Struct of the arguments of an event.

    Returns:
        events: The events.
        n_malformed: Number of events that cannot be read.
        rest: Bytes from the end of the list, or from an event that seems to be cut.
        list_ended: Whether the list ends in this piece.

    Raises:
        ValueError: The content is garbage and not a damaged list.
    """
    text = content.decode("utf-8", errors="surrogateescape")
    decoder = _OneByOneDecoder(len(text), args)
    start, length = 0, _PIECE_CHARACTERS
    while True:
        # Decoding in pieces limits the time that an error costs to the time of its piece.
        piece = text[start : start + length]
        offset, is_piece_done = decoder.decode(piece)
        list_ended = piece[offset : offset + 1] == "]" and not decoder.is_inside_broken
        start += offset
        is_last = start + len(piece) - offset >= len(text)
        if list_ended or (is_last and is_piece_done):
            rest = text[start:].encode("utf-8", errors="surrogateescape")
            return decoder.events, decoder.n_malformed, rest, list_ended
        length = _PIECE_CHARACTERS if offset else 2 * length


class _OneByOneDecoder:
    """Decodes consecutive pieces of a list of events.

    Args:
        n_characters: Number of characters of the whole list.
        args: Struct of the arguments of an event.

    Attributes:
        events: Events decoded so far.
        n_malformed: Number of events that could not be read.
        is_inside_broken: Whether the last piece ended inside an event that could not be read.
    """

    def __init__(self, n_characters: int, args: Any) -> None:
        self.events: list[Any] = []
        self.n_malformed = 0
        self.is_inside_broken = False
        self._n_too_deep = 0
        # Number of characters that may be decoded without a result.
        self._patience = _MAX_PASSES * n_characters
        self._kind = cast("Any", ExactEvent)[args]
        # NaN and Infinity are not JSON.
        self._json = json.JSONDecoder(strict=False, parse_float=str, parse_constant=lambda _: None)

    def decode(self, piece: str) -> tuple[int, bool]:
        """Decode the events of a piece, and append them to ``events``.

        Returns:
            offset: Offset at which decoding stopped: at the end of the list, at an event that seems
                to be cut, or after the last event.
            is_done: False if decoding stopped after a broken event in a long piece. The caller
                then passes the rest in small pieces.

        Raises:
            ValueError: The list is garbage.
        """
        offset = _skip_space(piece, 0)
        if self.is_inside_broken:
            offset, self.is_inside_broken = _find_event(piece, offset)
        while offset < len(piece) and piece[offset] != "]" and not self.is_inside_broken:
            try:
                value, offset = self._json.raw_decode(piece, offset)
            except (ValueError, RecursionError) as error:
                if _is_cut_at_end(piece, error):
                    return _skip_space(piece, offset), True
                self._count_malformed(piece, offset, error)
                offset, self.is_inside_broken = _find_event(piece, offset + 1)
                if len(piece) > _PIECE_CHARACTERS:
                    return offset, False
            else:
                event = _convert_to_struct(value, self._kind)
                self.n_malformed += event is None
                self.events += () if event is None else (event,)
            offset = _skip_space(piece, offset)
        return offset, True

    def _count_malformed(self, piece: str, offset: int, error: Exception) -> None:
        """Count an event that cannot be read, and give up if there are too many.

        Raises:
            ValueError: Too many characters were decoded without a result, or too many events are
                nested too deeply.
        """
        # A superfluous closing brace is not an event.
        self.n_malformed += piece[offset] != "}"
        self._n_too_deep += isinstance(error, RecursionError)
        if isinstance(error, json.JSONDecodeError):
            self._patience -= error.pos - offset
        if self._n_too_deep > _MAX_TOO_DEEP or self._patience < 0:
            raise ValueError("no list of events") from error


def _is_cut_at_end(piece: str, error: Exception) -> bool:
    """Return whether an error may only be due to the end of the piece.

    The error is then a JSON error within ``_MAX_CUT_TOKEN`` characters of the end, or an
    unterminated string.
    """
    if not isinstance(error, json.JSONDecodeError):
        return False
    is_near_end = error.pos >= len(piece) - _MAX_CUT_TOKEN
    return is_near_end or str(error).startswith("Unterminated string")


def _find_event(piece: str, offset: int) -> tuple[int, bool]:
    """Find the next event after a broken one.

    Returns:
        offset: Offset of the next event, or the offset from which to search in the next piece.
        is_missing: Whether no event begins in this piece.
    """
    event = _EVENT_START.search(piece, offset)
    if event is not None:
        return event.start("event"), False
    return max(offset, len(piece) - _BEFORE_EVENT), True


def _skip_space(text: str, offset: int) -> int:
    """Return the offset after white space and commas."""
    space = _SPACE.match(text, offset)
    return space.end() if space else offset


def _convert_to_struct(value: object, kind: Any) -> Any:
    """Convert a JSON object to a struct, without the values that do not fit their field.

    Returns None if the value is not an object.
    """
    if not isinstance(value, dict):
        return None
    values = {}
    for name, encoded_name, convert in _list_fields(kind):
        field = value.get(encoded_name)
        if field is None:
            continue
        try:
            values[name] = convert(field)
        # JSON allows half a surrogate pair, which cannot be encoded.
        except (msgspec.ValidationError, UnicodeEncodeError):
            continue
    return (get_origin(kind) or kind)(**values)


@cache
def _list_fields(kind: Any) -> tuple[tuple[str, str, Callable[[Any], Any]], ...]:
    """Return the name, the JSON name and the converter of each field of a struct.

    The result is cached: inspecting the types takes 1 ms, as long as reading hundreds of events.
    """

    def make_converter(of_field: Any) -> Callable[[Any], Any]:
        for inner in get_args(of_field):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                return lambda value: _convert_to_struct(value, inner)
        return lambda value: msgspec.convert(value, of_field, strict=False)

    fields = msgspec.structs.fields(kind)
    return tuple((field.name, field.encode_name, make_converter(field.type)) for field in fields)


#: Number of bytes in a block, some 8,000 events.
BLOCK = 1 << 21
#: Maximum number of bytes of an event, and of the header of a document.
_MAX_BYTES = 1 << 27
#: Minimum number of bytes of a block that are worth another attempt to decode them at once.
_MIN_BLOCK = 1 << 16
#: Maximum distance in bytes of a block boundary from the end of the searched text.
_MAX_BOUNDARY_DISTANCE = 1 << 20

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
#: Matches text of a second trace after the end of the first.
_TRACE_KEY = re.compile(r'"traceEvents"|"ph"')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")


class TraceFile(Generic[ArgsT]):
    """A file of trace events.

    Args:
        path: Path of a JSON file, which may be gzipped.
        args: Struct of the arguments of an event.
        watch: Called with the fraction of the file that has been read.

    Attributes:
        path: Path of the file.
        texts: Numbering of the texts of events. Number 0 is "".
        threads: Numbering of the threads.
        categories: Numbering of the categories of events.
        cut: Whether the end of the file is missing. Known after the last block.
    """

    def __init__(self, path: str, args: type[ArgsT], watch: Watch = unwatched) -> None:
        self.path, self.cut = path, False
        self.texts, self.threads = Numbering[str]([""]), Numbering[ThreadName]()
        self.categories = Numbering[str]()
        self._args: Any = args
        # JSON names of the arguments that are numbers, and of those that are texts, keyed by field.
        fields = msgspec.structs.fields(cast("Any", args))
        self._numbers, self._texts = (
            {field.name: field.encode_name for field in fields if kind in get_args(field.type)}
            for kind in (int, str)
        )
        self._select_described: Described[ArgsT] | None = None
        self._unpacked = UnpackedFile(path, watch, BLOCK)
        self._chunks = iter(self._unpacked)
        self._buffer, self._is_at_end = b"", False
        self._head = self._tail = b""
        self._n_events = self._n_malformed = 0
        self._is_too_deep = self._has_trailing_text = False

    def blocks(self, described: Described[ArgsT] | None = None) -> Iterator[TraceEvents[ArgsT]]:
        """Yield the events in blocks, in the order of the file. Call it once.

        Events that cannot be read are skipped and counted. A file without an end is accepted.

        Args:
            described: Function that returns the rows of the events in a block whose arguments are
                needed as structs, or None if there are none.

        Raises:
            ProfileError: The file cannot be read, or contains no list of trace events.
        """
        self._select_described, is_bare_list = described, self._find_list()
        holds_objects = holds_events = list_ended = False
        while not list_ended:
            events = self._decode_block()
            is_decoded_at_once = events is not None
            if events is None:
                events, list_ended = self._decode_damaged()
                list_ended |= self._is_at_end
            holds_events = holds_events or bool(events.ph.any())
            holds_objects = holds_objects or len(events.ph) > 0
            yield events
            # If no block could be decoded, an event may be longer than the text read so far.
            if not list_ended and (not is_decoded_at_once or len(self._buffer) < BLOCK):
                self._read_more()
        # A list with values but without events is not a trace; an empty list is one.
        is_not_trace = self._n_malformed or (is_bare_list and (holds_objects or self.cut))
        if is_not_trace and not (holds_events or self._unpacked.damaged):
            raise self._make_no_trace_error("trace events")
        # Read the bytes after the list. They are dropped if there are too many.
        chunks, length = [self._tail], len(self._tail)
        for chunk in self._chunks:
            length += len(chunk)
            if length <= _MAX_BYTES:
                chunks.append(chunk)
        content = b"".join(chunks)
        self._tail = content if length <= _MAX_BYTES else b""
        self._check_end(content)

    def metadata(self) -> Mapping[str, object]:
        """Return the values of the document other than its events. Known after the last block.

        If the text after the events is not valid JSON, only the values before them are returned.
        """
        for content in (self._head + b"[]" + self._tail, self._head + b"[]}"):
            try:
                document = msgspec.json.decode(content)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            except RecursionError:
                self._is_too_deep = True
                break
            return document if isinstance(document, dict) else {}
        return {}

    def limitations(self) -> Iterator[Limitation]:
        """Yield limitations for what could not be read. Known after the last block.

        These are damaged gzip data, or else a missing end; text after the document; events that
        cannot be read; and metadata that is nested too deeply, once :meth:`metadata` was called.
        """
        if self._is_too_deep:
            reason = f"{self.path}: they are nested too deeply, so the file was edited"
            yield Limitation("the values next to the events", reason)
        if self._unpacked.damaged:
            reason = f"{self.path}: gzip data is damaged; copy the file again"
            subject = "the trace from its damaged part on"
            yield Limitation(subject, reason, kind=LimitationKind.FILE_DAMAGED)
        elif self.cut:
            reason = f"{self.path}: the file's end is missing, as when a job was killed"
            yield Limitation("the end of the trace", reason, kind=LimitationKind.FILE_DAMAGED)
        if self._has_trailing_text:
            reason = f"{self.path}: it is not part of the trace, and is left out"
            yield Limitation("text after the end of the trace", reason)
        if self._n_malformed:
            reason = f"{self.path}: they are not JSON, or not events"
            n_events = self._n_events + self._n_malformed
            is_noticeable = self._n_malformed >= DAMAGED_SHARE * n_events
            kind = LimitationKind.FILE_DAMAGED if is_noticeable else LimitationKind.OTHER
            yield Limitation("events that cannot be read", reason, self._n_malformed, kind)

    def _check_end(self, content: bytes) -> None:
        """Check for text after the end of the document, and remove it from ``_tail``.

        Such text is reported as a limitation, or raises an error if it is another trace. Nothing is
        checked or removed if the document has no end or is not valid JSON.

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
        if rest[0] in "{[" and _TRACE_KEY.search(rest):
            raise ProfileError(
                f"{self.path}: several traces were concatenated; give the original files"
            )
        self._has_trailing_text = True
        trimmed = text[:end].encode("utf-8", errors="surrogateescape")
        self._tail = trimmed[len(self._head.lstrip()) + len(b"[]") :]

    def _read_more(self) -> bool:
        """Append at least one block of bytes to the buffer, and return whether there were any.

        Fewer bytes are appended at the end of the file.
        """
        chunks, length = [self._buffer], 0
        while length < BLOCK and not self._is_at_end:
            chunk = next(self._chunks, b"")
            self._is_at_end = not chunk
            length += len(chunk)
            chunks.append(chunk)
        self._buffer = b"".join(chunks)
        return length > 0

    def _find_list(self) -> bool:
        """Read the file up to the first event, and move the text before it to ``_head``.

        The bracket that opens the list of events is dropped. The buffer then starts after it.

        Returns:
            Whether the document is only a list, rather than an object that contains the list.

        Raises:
            ProfileError: There is no list of events.
        """
        while self._read_more() or self._buffer:
            self._buffer = self._buffer.removeprefix(BOM)
            match = _LIST.search(self._buffer)
            is_bare_list = self._buffer.lstrip()[:1] == b"["
            if match or is_bare_list:
                offset = (
                    self._buffer.index(b"[") if is_bare_list or match is None else match.end() - 1
                )
                self._head, self._buffer = self._buffer[:offset], self._buffer[offset + 1 :]
                return is_bare_list
            if self._is_at_end or len(self._buffer) > _MAX_BYTES:
                break
        if self._is_at_end and (self._unpacked.cut or _is_cut(self._buffer)):
            raise ProfileError(
                f"{self.path}: is cut short: JSON without traceEvents and without an end; copy the "
                "file again, or let the profiler finish writing it"
            )
        raise self._make_no_trace_error("traceEvents")

    def _make_no_trace_error(self, content: str) -> ProfileError:
        return ProfileError(
            f"{self.path}: is JSON without {content}, so it is not a trace of PyTorch or XLA; give "
            "the file that the profiler wrote"
        )

    def _decode_block(self) -> TraceEvents[ArgsT] | None:
        """Decode the first events of the buffer together, and remove them from the buffer.

        Usually these are all events before the last ``}, {`` in the buffer. If this text is damaged
        or the list ends in it, half as many bytes are tried, repeatedly, so that most of a block is
        still decoded at once.

        Returns:
            The events, or None if they must be decoded one by one.
        """
        end = len(self._buffer)
        while (boundary := self._find_boundary(end)) is not None:
            events = self._decode_at_once(boundary + 1)
            if events is not None:
                self._buffer = self._buffer[self._buffer.index(b",", boundary) + 1 :]
                return events
            end = boundary // 2
            if end < _MIN_BLOCK:
                break
        return None

    def _decode_at_once(self, length: int) -> TraceEvents[ArgsT] | None:
        """Decode the first bytes of the buffer at once, or return None if they are not events."""
        block = b"".join((b"[", memoryview(self._buffer)[:length], b"]"))
        kind: Any = TraceEvent
        try:
            events: Sequence[TraceEvent[ArgsT]] = _make_decoder(kind[self._args]).decode(block)
            start_ns = read_times_ns(map(attrgetter("ts"), events))
            duration_ns = read_times_ns(map(attrgetter("dur"), events))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return self._convert_to_columns(events, start_ns, duration_ns)

    def _convert_to_columns(
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
        args_of_event = [event.args or no_args for event in events]
        arguments = {
            **{
                field: _convert_integers(_get_values(field, args_of_event))
                for field in self._numbers
            },
            **{
                field: _number_texts(self.texts, _get_values(field, args_of_event))
                for field in self._texts
            },
        }
        # Few combinations occur, so each combination is looked up once.
        combinations = Numbering[tuple[Any, ...]]()
        combination = combinations.numbers(map(attrgetter("ph", "cat", "pid", "tid"), events))
        ph = self.texts.numbers(values[0] for values in combinations.values)
        category = _number_texts(self.categories, [values[1] for values in combinations.values])
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
        for row in self._select_described(columns).tolist() if self._select_described else ():
            if (of_event := events[row].args) is not None:
                args[row] = of_event
        return columns

    def _find_boundary(self, end: int) -> int | None:
        """Return the offset of the last ``}, {`` before ``end``.

        The result is None if there is none within ``_MAX_BOUNDARY_DISTANCE`` bytes before ``end``.
        """
        offset, first = end, max(end - _MAX_BOUNDARY_DISTANCE, 0)
        while (offset := self._buffer.rfind(b"}", first, offset)) >= 0:
            if _BOUNDARY.match(self._buffer, offset, end):
                return offset
        return None

    def _decode_damaged(self) -> tuple[TraceEvents[ArgsT], bool]:
        """Decode the events in the buffer one by one, and remove them from the buffer.

        Events that cannot be read are counted in ``_n_malformed``. If the list ends, the text after
        it becomes ``_tail``. If the file ends before the list does, ``cut`` is set.

        Returns:
            events: The events.
            list_ended: Whether the list ended in the buffer.

        Raises:
            ProfileError: An event does not end, or the list is garbage.
        """
        try:
            events, malformed, self._buffer, list_ended = decode_one_by_one(
                self._buffer, self._args
            )
        except ValueError as error:
            raise ProfileError(
                f"{self.path}: is JSON that is nested too deeply or broken throughout, so it is "
                "damaged or not a trace; record or copy it again"
            ) from error
        self._n_malformed += malformed
        if list_ended:
            self._tail, self._buffer = self._buffer[1:], b""
        elif len(self._buffer) > _MAX_BYTES:
            raise ProfileError(
                f"{self.path}: has {_MAX_BYTES >> 20} MiB without a complete event, so it is "
                "damaged or not a trace; record or copy it again"
            )
        elif self._is_at_end:
            self.cut, self._buffer = True, b""
        start_ns = convert_times_ns([event.ts for event in events])
        duration_ns = convert_times_ns([event.dur for event in events])
        return self._convert_to_columns(events, start_ns, duration_ns), list_ended


def _get_values(field: str, structs: Iterable[object]) -> list[Any]:
    """Return the value of a field in each struct."""
    return [*map(attrgetter(field), structs)]


def _convert_integers(numbers: Sequence[int | None]) -> Ints:
    """Convert numbers to a column. None and numbers that do not fit in 64 bits become MISSING."""
    values = [MISSING if n is None or abs(n) >> 63 else n for n in numbers]
    return np.array(values, np.int64)


def _number_texts(numbering: Numbering[str], texts: Sequence[str | None]) -> Ints:
    """Return the number of each text, or -1 for None. New texts are numbered."""
    present = [text for text in texts if text is not None]
    if len(present) == len(texts):
        return numbering.numbers(present)
    column = np.full(len(texts), NONE)
    if present:
        column[[text is not None for text in texts]] = numbering.numbers(present)
    return column


def _is_cut(text: bytes) -> bool:
    """Return whether a text is the start of a JSON document that does not end."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return "truncated" in str(error)
    return False
