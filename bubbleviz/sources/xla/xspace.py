"""XSpace: the protobuf file of XLA's profiler, read piece by piece.

The file is never held whole: large messages are walked, events are decoded as columns, some
megabytes at a time (:mod:`bubbleviz.sources.xla.wire`). Messages and numbers of fields are those of
``tsl/profiler/protobuf/xplane.proto`` (openxla/xla).

A plane's lines stand before the names of their events, so that planes are walked first. A file that
was cut short ends within its last plane: the events before the cut are whole, and their names may
be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.values import frozen
from bubbleviz.sources.xla.wire import NO_MESSAGES, Field, Messages, Walk

#: Numbers of fields, by message.
_SPACE_PLANES, _SPACE_HOSTNAMES = 1, 4
_PLANE_NAME, _PLANE_LINES, _PLANE_EVENT_METADATA = 2, 3, 4
_PLANE_STAT_METADATA, _PLANE_STATS = 5, 6
_LINE_ID, _LINE_NAME, _LINE_TIMESTAMP_NS, _LINE_EVENTS, _LINE_DISPLAY_NAME = 1, 2, 3, 4, 11
_EVENT_METADATA, _EVENT_OFFSET_PS, _EVENT_DURATION_PS, _EVENT_STATS = 1, 2, 3, 4
_STAT_NAME, _STAT_UINT64, _STAT_INT64, _STAT_TEXT, _STAT_REF = 1, 3, 4, 5, 7
_METADATA_NAME, _METADATA_DISPLAY_NAME, _METADATA_STATS = 2, 4, 5
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
#: A plane of whole programs, as statistics of its metadata.
_PROGRAMS = "/host:metadata"


@frozen
class Stat:
    """A statistic of a plane or of an event's metadata: its name, and its number or text."""

    name: str
    number: int
    text: str


@frozen
class EventMetadata:
    """The name and the statistics that many events have in common."""

    name: str
    display_name: str
    stats: tuple[Stat, ...]


@frozen
class Line:
    """A line of a plane, whose events are decoded by :func:`events_of`.

    Attributes:
        number: of the line; of the thread if it is one.
        name: of the line.
        timestamp_ns: zero of its events' offsets.
        stretches: where its events are.
    """

    number: int
    name: str
    timestamp_ns: int
    stretches: tuple[Field, ...]


@frozen
class Plane:
    """A plane of the file.

    Attributes:
        name: of the plane.
        stats: statistics of the whole plane.
        event_metadata: by number.
        stat_names: names of statistics (and texts that statistics refer to), by number.
        lines: its lines.
    """

    name: str
    stats: tuple[Stat, ...]
    event_metadata: Mapping[int, EventMetadata]
    stat_names: Mapping[int, str]
    lines: tuple[Line, ...]


@frozen
class RawEvents:
    """Events of a line, or a piece of it, as they are written.

    Attributes:
        metadata: number of each event's metadata.
        offset_ps: start, after the line's timestamp.
        duration_ps: length.
        row: event of each of some statistics.
        stat: number of the statistic's name.
        number: its number, where it has one.
        ref: number of the statistic whose name is its text; -1 none.
        texts: its own text, by its place, where it has one.
    """

    metadata: Ints
    offset_ps: Ints
    duration_ps: Ints
    row: Ints
    stat: Ints
    number: Ints
    ref: Ints
    texts: Mapping[int, str]


def planes_of(walk: Walk) -> tuple[tuple[Plane, ...], tuple[str, ...]]:
    """Return the planes of a file and the names of its hosts.

    Raises:
        MalformedError: the file is not an XSpace.
    """
    planes, hosts = [], []
    for field in walk.fields(0, len(walk.content)):
        if field.number == _SPACE_PLANES:
            planes.append(_plane(walk, field))
        elif field.number == _SPACE_HOSTNAMES and field.whole:
            hosts.append(walk.text(field))
    return tuple(planes), tuple(hosts)


def _plane(walk: Walk, message: Field) -> Plane:
    """Return a plane whose events are still to be decoded."""
    by_number: dict[int, list[Field]] = {}
    for field in walk.fields(message.begin, message.end):
        if field.whole or field.number == _PLANE_LINES:
            by_number.setdefault(field.number, []).append(field)
    name = "".join(walk.text(field) for field in by_number.get(_PLANE_NAME, ())[-1:])
    if name == _PROGRAMS:
        return Plane(name, (), {}, {}, ())
    stat_names = {
        key: _stat_name(walk, value)
        for key, value in _entries(walk, by_number.get(_PLANE_STAT_METADATA, ()))
    }
    event_metadata = {
        key: _event_metadata(walk, value, stat_names)
        for key, value in _entries(walk, by_number.get(_PLANE_EVENT_METADATA, ()))
    }
    return Plane(
        name=name,
        stats=tuple(_stat(walk, field, stat_names) for field in by_number.get(_PLANE_STATS, ())),
        event_metadata=event_metadata,
        stat_names=stat_names,
        lines=tuple(_line(walk, field) for field in by_number.get(_PLANE_LINES, ())),
    )


def _entries(walk: Walk, messages: Sequence[Field]) -> Iterator[tuple[int, Field]]:
    """Yield the number and the message of each entry of a map."""
    for message in messages:
        key, value = 0, None
        for field in walk.fields(message.begin, message.end):
            if field.number == _ENTRY_KEY:
                key = field.value
            elif field.number == _ENTRY_VALUE:
                value = field
        if value is not None:
            yield key, value


def _stat_name(walk: Walk, message: Field) -> str:
    name = ""
    for field in walk.fields(message.begin, message.end):
        if field.number == _METADATA_NAME:
            name = walk.text(field)
    return name


def _event_metadata(walk: Walk, message: Field, stat_names: Mapping[int, str]) -> EventMetadata:
    name, display_name, stats = "", "", []
    for field in walk.fields(message.begin, message.end):
        if field.number == _METADATA_NAME:
            name = walk.text(field)
        elif field.number == _METADATA_DISPLAY_NAME:
            display_name = walk.text(field)
        elif field.number == _METADATA_STATS:
            stats.append(_stat(walk, field, stat_names))
    return EventMetadata(name, display_name, tuple(stats))


def _stat(walk: Walk, message: Field, stat_names: Mapping[int, str]) -> Stat:
    name, number, text = 0, 0, ""
    for field in walk.fields(message.begin, message.end):
        if field.number == _STAT_NAME:
            name = field.value
        elif field.number in (_STAT_UINT64, _STAT_INT64):
            number = field.value
        elif field.number == _STAT_TEXT:
            text = walk.text(field)
        elif field.number == _STAT_REF:
            text = stat_names.get(field.value, "")
    return Stat(stat_names.get(name, ""), number, text)


def _line(walk: Walk, message: Field) -> Line:
    number, name, display_name, timestamp_ns, stretches = 0, "", "", 0, []
    for field in walk.stretches(message.begin, message.end, _LINE_EVENTS):
        if field.number == _LINE_EVENTS:
            stretches.append(field)
        elif field.number == _LINE_ID:
            number = field.value
        elif field.number == _LINE_NAME:
            name = walk.text(field)
        elif field.number == _LINE_TIMESTAMP_NS:
            timestamp_ns = field.value
        elif field.number == _LINE_DISPLAY_NAME:
            display_name = walk.text(field)
    return Line(number, name or display_name, timestamp_ns, tuple(stretches))


def events_of(walk: Walk, line: Line, stat_names: Sequence[int]) -> Iterator[RawEvents]:
    """Yield the events of a line, piece by piece.

    Args:
        walk: the file.
        line: of one of its planes.
        stat_names: numbers of the names of statistics to be decoded.

    Raises:
        MalformedError: an event cannot be decoded.
    """
    wanted = np.array(stat_names, np.int64)
    for stretch in line.stretches:
        events, inner = walk.messages(stretch).decoded(
            (_EVENT_METADATA, _EVENT_OFFSET_PS, _EVENT_DURATION_PS),
            (_EVENT_STATS,) if len(wanted) else (),
        )
        row, messages = inner.get(_EVENT_STATS, (np.empty(0, np.int64), NO_MESSAGES))
        stats, texts = messages.decoded(
            (_STAT_NAME, _STAT_UINT64, _STAT_INT64, _STAT_REF), (_STAT_TEXT,)
        )
        chosen = np.isin(stats[_STAT_NAME], wanted)
        ref = stats[_STAT_REF][chosen]
        yield RawEvents(
            metadata=events[_EVENT_METADATA],
            offset_ps=events[_EVENT_OFFSET_PS],
            duration_ps=events[_EVENT_DURATION_PS],
            row=row[chosen],
            stat=stats[_STAT_NAME][chosen],
            number=(stats[_STAT_INT64] | stats[_STAT_UINT64])[chosen],
            ref=np.where(ref == 0, NONE, ref),
            texts=_texts(*texts[_STAT_TEXT], chosen),
        )


def _texts(row: Ints, texts: Messages, chosen: Bools) -> Mapping[int, str]:
    """Return the texts of chosen statistics, by their place among these."""
    place = np.cumsum(chosen) - 1
    kept = np.flatnonzero(chosen[row])
    pairs = zip(place[row[kept]].tolist(), kept.tolist(), strict=True)
    return {at: texts.text(message) for at, message in pairs}
