"""Reads JSON traces from PyTorch's profiler, JAX and TensorBoard in blocks.

The format is Chrome's Trace Event Format (Google, 2016). A file is a JSON object whose key
``traceEvents`` is a list of millions of small objects, or only that list. Many files are gzipped.
Files are read in blocks of a few MiB, so memory use does not grow with file size::

    {"schemaVersion": 1, ... "traceEvents": [   the header
      {...}, {...}, {...},                      a block, decoded at once
      {...}, {...}, {...}, {...                 the next block; an incomplete event waits for more
    ], "baseTimeNanoseconds": 17...}            the tail; header and tail contain the metadata

A block ends at a ``}, {`` if the preceding text is a valid list of events. Because JSON is parsed
from left to right, the brace must then be the end of an event. The last block ends before the last
event of the file. A file from a killed job may be truncated. Events after the last block, and
events in blocks that are not valid JSON, are decoded one by one.
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

#: Type of the struct into which a trace format's event arguments are decoded.
ArgsT = TypeVar("ArgsT")


#: The JSON text of a missing time.
_NULL = msgspec.Raw(b"null")


class TraceEvent(msgspec.Struct, Generic[ArgsT], gc=False):
    """The fields of a trace event. Times are in microseconds, as undecoded JSON."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = _NULL
    dur: msgspec.Raw = _NULL
    args: ArgsT | None = None


class ExactEvent(TraceEvent[ArgsT], gc=False):
    """A trace event that was decoded individually, with times as exact decimals in microseconds."""

    ts: Decimal | None = None  # type: ignore[assignment]  # decoded directly, not in a batch
    dur: Decimal | None = None  # type: ignore[assignment]  # decoded directly, not in a batch


#: Process id and thread id of a thread, as written in events. An id may be a number or a text.
ThreadName: TypeAlias = tuple[int | str | None, int | str | None]

#: Doubles cannot represent times at or above this limit, in microseconds, to the nanosecond.
_INEXACT_US = float(1 << 43)
#: Start values for the numbers that replace process ids and thread ids that are texts or too large.
_FIRST_SUBSTITUTE_PID, _FIRST_SUBSTITUTE_TID = 0xF00000, 1 << 48
_N_PIDS = 1 << 24
#: Exclusive upper bound on the absolute value of times, in microseconds.
_MAX_TIME_US = 1 << 53
#: Value of a missing number or time.
MISSING = -(1 << 63)
#: Value of a time that is malformed or too large. This value is outside the range that
#: :func:`bubbleviz.model.profile.mask_possible` accepts.
_NO_TIME_NS = -(1 << 61)


@cache
def _make_decoder(element: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder for a JSON list whose elements have the given type."""
    return msgspec.json.Decoder(list[element], strict=False)


#: Function that returns the rows of a block whose decoded arguments (``args``) are needed.
Described: TypeAlias = "Callable[[TraceEvents[ArgsT]], Ints]"


@dataclass(frozen=True)
class TraceEvents(Generic[ArgsT]):
    """The events in a block as columns, each of shape (events,).

    Indices refer to the numberings in the :class:`TraceFile`, which all blocks share.

    Attributes:
        ph: Event type (the key ``ph``), as an index into ``texts``, or 0 if the event has none.
        category: Category, as an index into ``categories``, or -1 if the event has none.
        name: Name, as an index into ``texts``, or 0 if the event has none.
        thread: Thread, as an index into ``threads``.
        start_ns: Start time, or MISSING if the event has none.
        duration_ns: Duration, or MISSING if the event has none.
        arguments: One column per argument that is a number or a text, keyed by the field name in
            the struct that decodes arguments. Texts are indices into ``texts``. A missing number is
            MISSING, and a missing text is -1.
        args: Decoded arguments of selected events, keyed by row (see :meth:`TraceFile.blocks`).
            Events without arguments are left out.
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

    A process id or thread id that is a text, negative or too large is first replaced with a number.
    Replacement process ids count up from 0xF00000, and replacement thread ids count up from 2^48.
    Equal ids get the same number. :func:`~bubbleviz.sources.in_memory.number_threads` then replaces
    thread ids with more than 24 bits.

    Args:
        threads: Numbers the threads.

    Returns:
        Thread number of each thread, indexed by its number in ``threads``.
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
    """Convert microseconds to integer nanoseconds, rounded half to even. None becomes MISSING.

    Values that are not finite, or whose absolute value is at least ``_MAX_TIME_US``, become
    ``_NO_TIME_NS``, which is not a valid time. If any value is a Decimal, all values are converted
    to Decimal and rounded exactly.
    """
    if Decimal in {*map(type, times_us)}:
        exact = (MISSING if us is None else _round_exactly_ns(Decimal(us)) for us in times_us)
        return np.fromiter(exact, np.int64, len(times_us))
    us = np.array(times_us, float)
    is_time = np.abs(us) < _MAX_TIME_US
    us[~is_time] = 0
    whole_us = np.floor(us)
    # The integer part is multiplied as an integer, because a double would round the product.
    rounded_ns: Ints = whole_us.astype(np.int64) * 1000
    rounded_ns += np.rint((us - whole_us) * 1000).astype(np.int64)
    if not is_time.all():
        rounded_ns[~is_time] = _NO_TIME_NS
        rounded_ns[np.array([time is None for time in times_us], bool)] = MISSING
    return rounded_ns


def _round_exactly_ns(us: Decimal) -> int:
    # NaN cannot be compared, so test for NaN first. abs() would round the value and may overflow.
    if not us.is_finite() or not -_MAX_TIME_US < us < _MAX_TIME_US:
        return _NO_TIME_NS
    return round(us * 1000)


#: ASCII codes of the characters that occur in lists of times.
_COMMA, _POINT, _ZERO, _NINE, _N = b",.09n"
#: Nanoseconds per unit in the last decimal place of a number of microseconds with 0 to 3 decimals.
_NS_OF_UNIT = np.array([1000, 100, 10, 1], np.uint64)
#: Maximum number of digits such that every number fits in an unsigned 64-bit integer.
_MAX_DIGITS = 19


def read_times_ns(times_us: Iterable[msgspec.Raw]) -> Ints:
    """Parse times in microseconds and round them to nanoseconds.

    If all times are plain decimal numbers, integer arithmetic is used. Otherwise, all times are
    parsed as doubles, unless the absolute value of any time is at least ``_INEXACT_US``. In that
    case, all times are parsed as decimals.

    Args:
        times_us: JSON texts. Each text is a number, a string that contains a number, or null.

    Returns:
        Times in nanoseconds. Null becomes MISSING. A time that is too large becomes
        ``_NO_TIME_NS``.

    Raises:
        msgspec.ValidationError: A text is neither a number nor null.
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
    """Parse times that are written as plain numbers with at most three decimals, or as null.

    Nearly all times have this form. Integer arithmetic is exact for these times. Doubles are not
    used because their resolution for microseconds since 1970 is only a quarter of a microsecond.

    Args:
        texts: JSON texts of times in microseconds, separated by commas.

    Returns:
        Times in nanoseconds, or None if any text has another form or more than ``_MAX_DIGITS``
        characters. Null becomes MISSING. A time that is too large becomes ``_NO_TIME_NS``.
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
    """Return the number of decimals of each number in a text, or 0 for a number without a point.

    Args:
        end: Index of the comma that follows each number.
        point: Indices of all decimal points.
    """
    row = np.searchsorted(end, point)
    n_decimals = np.zeros(len(end), np.int64)
    n_decimals[row] = end[row] - point - 1
    return n_decimals


#: A decoding error this close to the end of a text, in characters, may be due to a truncated token.
#: A token is a number, a word or an escape sequence.
_MAX_CUT_TOKEN = 16
#: Number of characters at the end of a text that are searched again together with the next text.
#: An event's start may be split between the two texts.
_BEFORE_EVENT = 64
_SPACE = re.compile(r"[\s,]*")
#: Maximum number of objects that are nested too deeply for Python's stack. Real files do not
#: contain such objects, but garbage contains many. Each such object takes as long to read as a
#: thousand normal objects.
_MAX_TOO_DEEP = 100
#: Maximum number of times that a text that contains unreadable objects is read.
_MAX_PASSES = 8
#: Number of characters decoded at once. If the characters do not contain a complete object, the
#: number is doubled.
_PIECE_CHARACTERS = 1 << 16
#: Matches the start of an event, to resynchronize after a malformed event.
#: Objects inside an event do not match, because they follow a colon, or a name without a colon.
_EVENT_START = re.compile(
    r'(?:[},\]]|[^:"\s](?=\s))\s*(?P<event>\{\s*(?:\}|"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:))'
)


def decode_one_by_one(content: bytes, args: Any) -> tuple[list[Any], int, bytes, bool]:
    """Decode events one by one, and skip events that cannot be read.

    Files found in practice contain an empty last event, numbers as text, NaN, bytes that are not
    UTF-8, line breaks in names, and events that are not JSON. A value that does not fit its field
    is left out. After a broken event, all text up to the start of the next event is skipped.
    Objects inside the broken event are therefore not mistaken for events.

    Args:
        content: Part of the JSON list of events, starting at an event.
        args: Struct that decodes the arguments of an event.

    Returns:
        events: The decoded events.
        n_malformed: Number of events that cannot be read.
        rest: Remaining bytes, starting at the end of the list or at the last event if it seems to
            be truncated.
        list_ended: Whether the end of the list is in ``content``.

    Raises:
        ValueError: The content is garbage instead of a damaged list.
    """
    text = content.decode("utf-8", errors="surrogateescape")
    decoder = _OneByOneDecoder(len(text), args)
    start, length = 0, _PIECE_CHARACTERS
    while True:
        # Decoding in pieces limits the time lost to an error.
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
    """Decodes a list of events in consecutive pieces.

    Args:
        n_characters: Total number of characters in all pieces.
        args: Struct that decodes the arguments of an event.

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
        # Number of characters that may still be decoded before the text is regarded as garbage.
        self._patience = _MAX_PASSES * n_characters
        self._kind = cast("Any", ExactEvent)[args]
        # NaN and Infinity are not JSON.
        self._json = json.JSONDecoder(strict=False, parse_float=str, parse_constant=lambda _: None)

    def decode(self, piece: str) -> tuple[int, bool]:
        """Decode the events in a piece, and append them to ``events``.

        Returns:
            offset: Offset in the piece at which decoding stopped. Decoding stops at the end of the
                list, at an event that seems to be truncated, after the last event, or after a
                broken event.
            is_done: False if decoding stopped after a broken event in a piece of more than
                ``_PIECE_CHARACTERS`` characters. The caller then passes the rest in small pieces.

        Raises:
            ValueError: The text is garbage instead of a list of events.
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
        """Count an event that cannot be read, and raise an error if the text seems to be garbage.

        Args:
            piece: Text that is being decoded.
            offset: Offset of the event in the text.
            error: Error that decoding the event raised.

        Raises:
            ValueError: Too many characters were decoded without a result, or more than
                ``_MAX_TOO_DEEP`` events are nested too deeply.
        """
        # An extra closing brace is not an event.
        self.n_malformed += piece[offset] != "}"
        self._n_too_deep += isinstance(error, RecursionError)
        if isinstance(error, json.JSONDecodeError):
            self._patience -= error.pos - offset
        if self._n_too_deep > _MAX_TOO_DEEP or self._patience < 0:
            raise ValueError("no list of events") from error


def _is_cut_at_end(piece: str, error: Exception) -> bool:
    """Return whether a decoding error may be due to the piece ending inside an event.

    The result is true for an unterminated string, and for a JSON error within ``_MAX_CUT_TOKEN``
    characters of the end.
    """
    if not isinstance(error, json.JSONDecodeError):
        return False
    is_near_end = error.pos >= len(piece) - _MAX_CUT_TOKEN
    return is_near_end or str(error).startswith("Unterminated string")


def _find_event(piece: str, offset: int) -> tuple[int, bool]:
    """Find the next event after a broken event.

    Args:
        piece: Text to search.
        offset: Offset at which the search starts.

    Returns:
        offset: Offset of the next event. If there is none, the offset at which to continue the
            search when more text is available.
        is_missing: Whether the piece contains no further event.
    """
    event = _EVENT_START.search(piece, offset)
    if event is not None:
        return event.start("event"), False
    return max(offset, len(piece) - _BEFORE_EVENT), True


def _skip_space(text: str, offset: int) -> int:
    """Return the offset of the next character that is neither white space nor a comma."""
    space = _SPACE.match(text, offset)
    return space.end() if space else offset


def _convert_to_struct(value: object, kind: Any) -> Any:
    """Convert a JSON object to a struct. Values that do not fit their field are left out.

    The result is None if the value is not a JSON object.

    Args:
        value: Decoded JSON value.
        kind: Struct type to convert the object to.
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
        # JSON allows lone surrogates, which UTF-8 cannot encode.
        except (msgspec.ValidationError, UnicodeEncodeError):
            continue
    return (get_origin(kind) or kind)(**values)


@cache
def _list_fields(kind: Any) -> tuple[tuple[str, str, Callable[[Any], Any]], ...]:
    """Return the name, the JSON name and the converter of each field of a struct.

    The converter is :func:`_convert_to_struct` for fields that are structs, and a lenient
    ``msgspec.convert`` for all others. The results are cached, because inspecting the types takes
    as long as reading hundreds of events.
    """

    def make_converter(of_field: Any) -> Callable[[Any], Any]:
        for inner in get_args(of_field):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                return lambda value: _convert_to_struct(value, inner)
        return lambda value: msgspec.convert(value, of_field, strict=False)

    fields = msgspec.structs.fields(kind)
    return tuple((field.name, field.encode_name, make_converter(field.type)) for field in fields)


#: Approximate number of bytes in a block, which is about 8,000 events.
BLOCK = 1 << 21
#: Maximum number of bytes in an event, in the text before the events, and in the text after them.
_MAX_BYTES = 1 << 27
#: Minimum number of bytes that are worth decoding as one block.
_MIN_BLOCK = 1 << 16
#: Maximum number of bytes between a block boundary and the end of the searched text.
_MAX_BOUNDARY_DISTANCE = 1 << 20

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
#: Matches the keys of a trace. If they occur after the end of a trace, a second trace follows.
_TRACE_KEY = re.compile(r'"traceEvents"|"ph"')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")


class TraceFile(Generic[ArgsT]):
    """A file of trace events.

    Args:
        path: Path to a JSON file, which may be gzipped.
        args: Struct that decodes the arguments of an event.
        watch: Function that is called with the fraction of the file that has been read.

    Attributes:
        path: Path to the file.
        texts: Numbers the texts in events. Number 0 is "".
        threads: Numbers the threads.
        categories: Numbers the event categories.
        cut: Whether the end of the file is missing. Valid only after the last block.
    """

    def __init__(self, path: str, args: type[ArgsT], watch: Watch = unwatched) -> None:
        self.path, self.cut = path, False
        self.texts, self.threads = Numbering[str]([""]), Numbering[ThreadName]()
        self.categories = Numbering[str]()
        self._args: Any = args
        # JSON names of the numeric arguments and of the text arguments, keyed by field.
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
        """Yield the events in blocks, in file order. This method can be called only once.

        Events that cannot be read are skipped and counted. A truncated file is accepted.

        Args:
            described: Function that takes a block and returns the rows for which ``args`` must be
                filled. None means that ``args`` is never needed.

        Raises:
            ProfileError: The file cannot be read, does not contain a list of trace events, or
                contains several concatenated traces.
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
            # If no block could be decoded, an event may be longer than the buffer.
            if not list_ended and (not is_decoded_at_once or len(self._buffer) < BLOCK):
                self._read_more()
        # A list that contains other values but no events is not a trace. An empty list is a trace.
        is_not_trace = self._n_malformed or (is_bare_list and (holds_objects or self.cut))
        if is_not_trace and not (holds_events or self._unpacked.damaged):
            raise self._make_no_trace_error("trace events")
        # Read the text after the list. Text of more than ``_MAX_BYTES`` bytes is dropped.
        chunks, length = [self._tail], len(self._tail)
        for chunk in self._chunks:
            length += len(chunk)
            if length <= _MAX_BYTES:
                chunks.append(chunk)
        content = b"".join(chunks)
        self._tail = content if length <= _MAX_BYTES else b""
        self._check_end(content)

    def metadata(self) -> Mapping[str, object]:
        """Return the JSON document without its events: ``traceEvents`` is an empty list.

        The result is complete only after the last block. If the text after the events is not valid
        JSON, only the keys before the events are returned. The result is empty if the document is
        only a list, or is not valid JSON.
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
        """Yield a limitation for each kind of data that could not be read.

        Call this method after the last block, and after :meth:`metadata`. The limitations report:

        - metadata that is nested too deeply;
        - damaged gzip data or, if there is none, a file that ends too early;
        - text after the end of the document;
        - events that cannot be read. The kind of this limitation is FILE_DAMAGED if at least
          ``DAMAGED_SHARE`` of all events cannot be read, and OTHER otherwise.
        """
        if self._is_too_deep:
            reason = (
                f"{self.path}: the metadata is nested too deeply, so the file was probably edited"
            )
            yield Limitation("metadata of the trace", reason)
        if self._unpacked.damaged:
            reason = f"{self.path}: the gzip data is damaged; copy the file again"
            subject = "the trace after its first damaged byte"
            yield Limitation(subject, reason, kind=LimitationKind.FILE_DAMAGED)
        elif self.cut:
            reason = (
                f"{self.path}: the end of the file is missing, perhaps because the job was killed"
            )
            yield Limitation("the end of the trace", reason, kind=LimitationKind.FILE_DAMAGED)
        if self._has_trailing_text:
            reason = f"{self.path}: this text is not part of the trace, so it is left out"
            yield Limitation("text after the end of the trace", reason)
        if self._n_malformed:
            reason = (
                f"{self.path}: they are not valid JSON or not trace events, so they are skipped"
            )
            n_events = self._n_events + self._n_malformed
            is_noticeable = self._n_malformed >= DAMAGED_SHARE * n_events
            kind = LimitationKind.FILE_DAMAGED if is_noticeable else LimitationKind.OTHER
            yield Limitation("events that cannot be read", reason, self._n_malformed, kind)

    def _check_end(self, content: bytes) -> None:
        """Look for text after the end of the document, and remove this text from ``_tail``.

        The text is later reported as a limitation. If the document is truncated or is not valid
        JSON, nothing is checked or removed.

        Args:
            content: Text after the list of events, including the end of the document.

        Raises:
            ProfileError: The text after the end of the document is another trace.
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
                f"{self.path}: contains several concatenated traces; pass the original files"
            )
        self._has_trailing_text = True
        trimmed = text[:end].encode("utf-8", errors="surrogateescape")
        self._tail = trimmed[len(self._head.lstrip()) + len(b"[]") :]

    def _read_more(self) -> bool:
        """Append at least ``BLOCK`` bytes of the file to the buffer, or fewer at the file's end.

        Returns:
            Whether any bytes were appended.
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
        """Read the file up to the list of events, and move the text before it to ``_head``.

        The opening bracket of the list is dropped, so that the buffer starts at the first event.

        Returns:
            True if the document consists only of the list, False if it is an object that contains
            the list.

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
                f"{self.path}: the JSON is cut short before traceEvents; copy the file again, or "
                "let the profiler finish writing it"
            )
        raise self._make_no_trace_error("traceEvents")

    def _make_no_trace_error(self, content: str) -> ProfileError:
        return ProfileError(
            f"{self.path}: is JSON without {content}, so it is not a trace from PyTorch or XLA; "
            "pass a trace that torch.profiler or jax.profiler wrote (bubbleviz guide traces)"
        )

    def _decode_block(self) -> TraceEvents[ArgsT] | None:
        """Decode the first events in the buffer at once, and remove them from the buffer.

        The first attempt is to decode all events before the last ``}, {`` in the buffer. This
        attempt fails if the text is damaged or contains the end of the list. In that case, the
        number of bytes is halved repeatedly, down to ``_MIN_BLOCK`` bytes.

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
        """Decode the first ``length`` bytes in the buffer as events, or return None on failure."""
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
        """Convert decoded events to columns, and count the events.

        Texts, categories and threads are replaced with their numbers in ``texts``, ``categories``
        and ``threads``. New values get the next numbers.

        Args:
            events: The events in a block.
            start_ns: Start time of each event, or MISSING.
            duration_ns: Duration of each event, or MISSING.
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
        # There are only a few combinations of event type, category and thread, so each is looked up
        # once.
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
        """Return the offset of the last ``}, {`` in the buffer before the offset ``end``.

        The result is None if the last ``_MAX_BOUNDARY_DISTANCE`` bytes before ``end`` contain none.
        """
        offset, first = end, max(end - _MAX_BOUNDARY_DISTANCE, 0)
        while (offset := self._buffer.rfind(b"}", first, offset)) >= 0:
            if _BOUNDARY.match(self._buffer, offset, end):
                return offset
        return None

    def _decode_damaged(self) -> tuple[TraceEvents[ArgsT], bool]:
        """Decode the events in the buffer one by one, and remove them from the buffer.

        Events that cannot be read are counted in ``_n_malformed``. If the list ends in the buffer,
        the text after the list becomes ``_tail``. If the file ends before the list, ``cut`` is set.

        Returns:
            events: The decoded events.
            list_ended: Whether the list ended in the buffer.

        Raises:
            ProfileError: An event is longer than ``_MAX_BYTES``, or the text is garbage.
        """
        try:
            events, malformed, self._buffer, list_ended = decode_one_by_one(
                self._buffer, self._args
            )
        except ValueError as error:
            raise ProfileError(
                f"{self.path}: the JSON is nested too deeply or invalid throughout, so the file is "
                "damaged or not a trace; copy the file again, or record the run again"
            ) from error
        self._n_malformed += malformed
        if list_ended:
            self._tail, self._buffer = self._buffer[1:], b""
        elif len(self._buffer) > _MAX_BYTES:
            raise ProfileError(
                f"{self.path}: contains {_MAX_BYTES >> 20} MiB without a complete event, so the "
                "file is damaged or not a trace; copy the file again, or record the run again"
            )
        elif self._is_at_end:
            self.cut, self._buffer = True, b""
        start_ns = convert_times_ns([event.ts for event in events])
        duration_ns = convert_times_ns([event.dur for event in events])
        return self._convert_to_columns(events, start_ns, duration_ns), list_ended


def _get_values(field: str, structs: Iterable[object]) -> list[Any]:
    """Return the value of the given field for each struct."""
    return [*map(attrgetter(field), structs)]


def _convert_integers(numbers: Sequence[int | None]) -> Ints:
    """Convert numbers to an int64 column. None and numbers that do not fit become MISSING."""
    values = [MISSING if n is None or abs(n) >> 63 else n for n in numbers]
    return np.array(values, np.int64)


def _number_texts(numbering: Numbering[str], texts: Sequence[str | None]) -> Ints:
    """Return each text's number, or -1 for None. A new text gets the next number."""
    present = [text for text in texts if text is not None]
    if len(present) == len(texts):
        return numbering.numbers(present)
    column = np.full(len(texts), NONE)
    if present:
        column[[text is not None for text in texts]] = numbering.numbers(present)
    return column


def _is_cut(text: bytes) -> bool:
    """Return whether a text is the start of a JSON document whose end is missing."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return "truncated" in str(error)
    return False
