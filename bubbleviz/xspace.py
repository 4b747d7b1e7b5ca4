"""XSpace: the protobuf file of XLA's profiler, read piece by piece.

The message is never held whole: its fields are walked over the file, and the events of a line are
decoded some megabytes at a time, by protobuf's own library, with messages that are described here
(fields, their numbers and kinds: ``tsl/profiler/protobuf/xplane.proto``, openxla/xla).

A plane's lines stand before the names of what is on them, so that planes are walked first. A file
that was cut short ends within its last plane: the events before the cut are whole, and what the
names would have been is not known.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, compress
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.columns import NONE, Ints

#: The messages, as far as they are read: name, number and kind of each field. Kinds: numbers,
#: bytes (texts too: what is no UTF-8 is no reason to give up), or another message, repeated.
_MESSAGES: Mapping[str, Sequence[tuple[str, int, str]]] = {
    "XStat": (
        ("metadata_id", 1, "int64"),
        ("uint64_value", 3, "uint64"),
        ("int64_value", 4, "int64"),
        ("str_value", 5, "bytes"),
        ("ref_value", 7, "uint64"),
    ),
    "XEvent": (
        ("metadata_id", 1, "int64"),
        ("offset_ps", 2, "int64"),
        ("duration_ps", 3, "int64"),
        ("stats", 4, "XStat"),
    ),
    "XLine": (
        ("id", 1, "int64"),
        ("name", 2, "bytes"),
        ("timestamp_ns", 3, "int64"),
        ("events", 4, "XEvent"),
        ("display_name", 11, "bytes"),
    ),
    "XEventMetadata": (
        ("id", 1, "int64"),
        ("name", 2, "bytes"),
        ("display_name", 4, "bytes"),
        ("stats", 5, "XStat"),
    ),
    "XStatMetadata": (("id", 1, "int64"), ("name", 2, "bytes")),
}
#: Numbers of fields that are walked.
_PLANES, _HOSTNAMES = 1, 4
_NAME, _LINES, _EVENTS_NAMES, _STATS_NAMES, _STATS = 2, 3, 4, 5, 6
_EVENTS = 4
_EVENT_TAG = _EVENTS << 3 | 2
_KEY, _VALUE = 1, 2
#: So many bytes of events are decoded at a time.
_PIECE = 4 << 20
#: A number of 64 bits takes so many bytes at most.
_LONGEST = 10
#: Bytes behind the tag, by the kinds of fields that have a fixed length.
_FIXED = {1: 8, 5: 4}

Content = mmap.mmap | bytes


class MalformedError(ValueError):
    """The bytes are no such message."""


class _ShortError(Exception):
    """The bytes end before a number does."""


@dataclass
class Walk:
    """A file that is walked.

    Attributes:
        content: its bytes.
        cut: whether it has been seen to end within a field.
    """

    content: Content
    cut: bool = False

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int, bool]]:
        """Yield number, begin, end and wholeness of each field in a stretch of the file.

        Raises:
            MalformedError: a field is none, or does not end within its message.
        """
        while at < end:
            try:
                begin, stop, number = self._field(at, end)
            except _ShortError:
                self._ended(end)
                return
            if stop > end:
                self._ended(end)
            yield number, begin, min(stop, end), stop <= end
            at = stop

    def _field(self, at: int, end: int) -> tuple[int, int, int]:
        """Return where the content of the field at a place begins and ends, and its number."""
        tag, begin = self._number(at, end)
        kind = tag & 7
        if kind == 0:
            stop = self._number(begin, end)[1]
        elif kind == 2:
            length, begin = self._number(begin, end)
            stop = begin + length
        elif kind in _FIXED:
            stop = begin + _FIXED[kind]
        else:
            raise MalformedError(f"byte {at} begins no field")
        if tag >> 3 == 0:
            raise MalformedError(f"the field at byte {at} has no number")
        return begin, stop, tag >> 3

    def _ended(self, end: int) -> None:
        """Note that the file was cut short; raise MalformedError where it goes on."""
        if end < len(self.content):
            raise MalformedError(f"a field reaches over byte {end}, where its message ends")
        self.cut = True

    def _number(self, at: int, end: int) -> tuple[int, int]:
        """Return the number at a place, and the place behind it."""
        number = 0
        for place in range(_LONGEST):
            if at + place >= end:
                raise _ShortError
            byte = self.content[at + place]
            number |= (byte & 0x7F) << 7 * place
            if byte < 1 << 7:
                return number, at + place + 1
        raise MalformedError(f"the number at byte {at} has no end")

    def pieces(self, at: int, end: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Return a line's fields apart from its events, and stretches of whole events."""
        head, stretches = bytearray(), []
        while at < end:
            begin = at
            at = self._over_events(begin, end)
            if at > begin:
                stretches.append((begin, at))
                self.release(begin, at)
                continue
            field = next(self.fields(at, end), None)
            if field is None or not field[3]:
                break
            if self.content[at] != _EVENT_TAG:
                head += self.content[at : field[2]]
            at = field[2]
        return bytes(head), stretches

    def _over_events(self, at: int, end: int) -> int:
        """Return the place behind some megabytes of whole events."""
        content, until = self.content, min(at + _PIECE, end)
        while at < until and content[at] == _EVENT_TAG:
            # Most events are short: their length is one byte.
            length = content[at + 1] if at + 1 < end else 0x80
            if length < 0x80:
                stop = at + 2 + length
            else:
                try:
                    stop = self._field(at, end)[1]
                except _ShortError:
                    return at
            if stop > end:
                return at
            at = stop
        return at

    def release(self, begin: int, end: int) -> None:
        """Let a stretch that has been read leave memory."""
        if isinstance(self.content, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            first = begin - begin % mmap.PAGESIZE
            self.content.madvise(mmap.MADV_DONTNEED, first, end - first)


@dataclass(frozen=True)
class Stat:
    """A statistic of a plane or of a kind of event: its name, and its number or text."""

    name: str
    number: int
    text: str


@dataclass(frozen=True)
class Kind:
    """A kind of event: what all of them have in common."""

    name: str
    display_name: str
    stats: tuple[Stat, ...]


@dataclass(frozen=True)
class Line:
    """A line of a plane; its events are decoded when they are asked for.

    Attributes:
        number: number of the line; of a thread where it is one.
        name: what it is called.
        timestamp_ns: what its events' offsets count from.
        stretches: where its events are.
    """

    number: int
    name: str
    timestamp_ns: int
    stretches: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Plane:
    """A plane of the file.

    Attributes:
        name: what it is called.
        stats: statistics of the whole plane.
        kinds: kinds of events, by number.
        stat_names: names of statistics (and texts that statistics refer to), by number.
        lines: its lines.
    """

    name: str
    stats: tuple[Stat, ...]
    kinds: Mapping[int, Kind]
    stat_names: Mapping[int, str]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class RawEvents:
    """Events of a line, or a piece of it, as they are written.

    Attributes:
        kind: number of each event's kind.
        offset_ps: start, after the line's timestamp.
        duration_ps: how long.
        row: the event that each of some statistics belongs to.
        stat: number of the statistic's name.
        number: its number, where it has one.
        ref: number of the statistic whose name is its text; -1 none.
        texts: its own text, "" where it has none.
    """

    kind: Ints
    offset_ps: Ints
    duration_ps: Ints
    row: Ints
    stat: Ints
    number: Ints
    ref: Ints
    texts: tuple[str, ...] = field(repr=False)


@cache
def _types() -> Mapping[str, Any]:
    """Return the messages, as protobuf's library knows them."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FieldDescriptorProto
    kinds = {
        "int64": proto.TYPE_INT64,
        "uint64": proto.TYPE_UINT64,
        "bytes": proto.TYPE_BYTES,
    }
    package = "bubbleviz_xplane"
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind in fields:
            own = described.field.add(name=name, number=number, label=proto.LABEL_OPTIONAL)
            own.type = kinds.get(kind, proto.TYPE_MESSAGE)
            if kind not in kinds:
                own.label, own.type_name = proto.LABEL_REPEATED, f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in _MESSAGES
    }


def _parsed(message: str, content: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _types()[message].FromString(content)
    except DecodeError as error:
        raise MalformedError(f"a message {message} cannot be decoded") from error


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")


def planes_of(walk: Walk) -> tuple[tuple[Plane, ...], tuple[str, ...]]:
    """Return the planes of a file and the names of its hosts.

    Raises:
        MalformedError: the file is no XSpace.
    """
    planes, hosts = [], []
    for number, begin, end, whole in walk.fields(0, len(walk.content)):
        if number == _PLANES:
            planes.append(_plane(walk, begin, end))
        elif number == _HOSTNAMES and whole:
            hosts.append(_text(walk.content[begin:end]))
    return tuple(planes), tuple(hosts)


def _plane(walk: Walk, begin: int, end: int) -> Plane:
    """Return a plane whose events are still to be decoded."""
    content = walk.content
    name, stats, lines = "", [], []
    named: dict[int, list[tuple[int, int]]] = {_EVENTS_NAMES: [], _STATS_NAMES: []}
    for number, at, stop, whole in walk.fields(begin, end):
        if number == _LINES:
            lines.append((at, stop))
        elif not whole:
            continue
        elif number == _NAME:
            name = _text(content[at:stop])
        elif number == _STATS:
            stats.append(_parsed("XStat", content[at:stop]))
        elif number in named:
            named[number].append((at, stop))
    stat_names = {
        number: _text(_parsed("XStatMetadata", value).name)
        for number, value in _entries(walk, named[_STATS_NAMES])
    }
    kinds = {} if name == "/host:metadata" else _kinds(walk, named[_EVENTS_NAMES], stat_names)
    return Plane(
        name=name,
        stats=tuple(_stat(stat, stat_names) for stat in stats),
        kinds=kinds,
        stat_names=stat_names,
        lines=tuple(_line(walk, at, stop) for at, stop in lines),
    )


def _entries(walk: Walk, places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the message of each entry of a map."""
    for begin, end in places:
        key, value = 0, b""
        for number, at, stop, _ in walk.fields(begin, end):
            if number == _KEY:
                key = _signed(walk.content[at:stop])
            elif number == _VALUE:
                value = walk.content[at:stop]
        yield key, value


def _signed(varint: bytes) -> int:
    number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _kinds(
    walk: Walk, places: Sequence[tuple[int, int]], stat_names: Mapping[int, str]
) -> Mapping[int, Kind]:
    found = {}
    for number, value in _entries(walk, places):
        own = _parsed("XEventMetadata", value)
        stats = tuple(_stat(stat, stat_names) for stat in own.stats)
        found[number] = Kind(_text(own.name), _text(own.display_name), stats)
    return found


def _stat(stat: Any, names: Mapping[int, str]) -> Stat:
    text = _text(stat.str_value) or names.get(stat.ref_value, "")
    number = stat.int64_value or _wrapped(stat.uint64_value)
    return Stat(names.get(stat.metadata_id, ""), number, text)


def _wrapped(number: int) -> int:
    """Return a number of 64 bits without a sign as one with a sign."""
    return number - (1 << 64) if number >> 63 else number


def _line(walk: Walk, begin: int, end: int) -> Line:
    head, stretches = walk.pieces(begin, end)
    own = _parsed("XLine", head)
    name = _text(own.name) or _text(own.display_name)
    return Line(own.id, name, own.timestamp_ns, tuple(stretches))


def events_of(walk: Walk, line: Line, wanted: Sequence[int]) -> Iterator[RawEvents]:
    """Yield the events of a line, piece by piece.

    Args:
        walk: the file.
        line: one of its lines.
        wanted: numbers of the statistics that are looked at.

    Raises:
        MalformedError: an event cannot be decoded.
    """
    asked = np.array(wanted, np.int64)
    for begin, end in line.stretches:
        yield _raw(_parsed("XLine", walk.content[begin:end]).events, asked)
        walk.release(begin, end)


def _raw(events: Sequence[Any], wanted: Ints) -> RawEvents:
    count = len(events)
    kind = _column(events, "metadata_id", count)
    offset_ps = _column(events, "offset_ps", count)
    duration_ps = _column(events, "duration_ps", count)
    none = np.empty(0, np.int64)
    if len(wanted) == 0:
        return RawEvents(kind, offset_ps, duration_ps, none, none, none, none, ())
    stats = list(map(attrgetter("stats"), events))
    each = np.fromiter(map(len, stats), np.int64, count)
    flat = list(chain.from_iterable(stats))
    stat = _column(flat, "metadata_id", len(flat))
    chosen = np.isin(stat, wanted)
    kept = list(compress(flat, chosen.tolist()))
    total = len(kept)
    number = _column(kept, "int64_value", total)
    plain = np.fromiter(map(attrgetter("uint64_value"), kept), np.uint64, total)
    number |= plain.view(np.int64)
    ref = np.fromiter(map(attrgetter("ref_value"), kept), np.uint64, total).view(np.int64)
    own = map(attrgetter("str_value"), kept)
    return RawEvents(
        kind=kind,
        offset_ps=offset_ps,
        duration_ps=duration_ps,
        row=np.repeat(np.arange(count), each)[chosen],
        stat=stat[chosen],
        number=number,
        ref=np.where(ref == 0, NONE, ref),
        texts=tuple(map(_text, own)),
    )


def _column(messages: Sequence[Any], name: str, count: int) -> npt.NDArray[np.int64]:
    return np.fromiter(map(attrgetter(name), messages), np.int64, count)
